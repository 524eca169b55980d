"""The items of a transcript, in order: messages, tool calls with their results, summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from everlog.log.fold import fold
from everlog.log.tool_pairs import pair_results
from everlog.model import AnyBlock, Compaction, Entry, Message, ToolCall

Redact = Callable[[str], str]  # applied to every text that is shown


class CallWithResult(msgspec.Struct, frozen=True):
    """A tool call and its result, if there is one."""

    call: ToolCall
    result: Message | None

    @property
    def has_failed(self) -> bool:
        """Whether the call failed or has no result."""
        return self.result is None or bool(self.result.is_error)


class MessageItem(msgspec.Struct, frozen=True):
    """A message whose tool calls are paired with their results."""

    message: Message
    blocks: tuple[AnyBlock | CallWithResult, ...]


TranscriptItem = MessageItem | Compaction


def build_items(entries: Iterable[Entry]) -> list[TranscriptItem]:
    """Return all live messages, summarised ones too, with the summaries at their positions."""
    all_entries = list(entries)
    view = fold(all_entries)
    messages = view.messages
    pairs = pair_results(messages)
    results: dict[tuple[int, str], list[Message]] = {}
    for index, caller in pairs.caller.items():
        result = messages[index]
        results.setdefault((caller, result.tool_call_id or ""), []).append(result)
    items: list[tuple[int, TranscriptItem]] = [
        (entry.seq, entry) for entry in all_entries if isinstance(entry, Compaction)
    ]
    for index, message in enumerate(messages):
        if index in pairs.caller:
            continue  # shown with its call
        blocks = tuple(
            CallWithResult(b, _take_result(results, index, b)) if isinstance(b, ToolCall) else b
            for b in message.content
        )
        items.append((message.seq, MessageItem(message, blocks)))
    return [item for _, item in sorted(items, key=lambda pair: pair[0])]


def _take_result(results: dict[tuple[int, str], list[Message]], index: int, call: ToolCall) -> Message | None:
    pending = results.get((index, call.id))
    return pending.pop(0) if pending else None
