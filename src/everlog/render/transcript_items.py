"""What a page shows of a session, in order: said things, calls with their results, summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from everlog.log.fold import fold
from everlog.log.tool_pairs import pair
from everlog.model import AnyBlock, Compaction, Entry, Message, ToolCall

Cover = Callable[[str], str]  # what is done to every text that is shown


class Call(msgspec.Struct, frozen=True):
    """A tool call and what came of it."""

    call: ToolCall
    result: Message | None

    @property
    def failed(self) -> bool:
        """Whether it went wrong, or never ended."""
        return self.result is None or bool(self.result.is_error)


class Said(msgspec.Struct, frozen=True):
    """A message; the results of its calls stand with the calls."""

    message: Message
    blocks: tuple[AnyBlock | Call, ...]


Part = Said | Compaction


def script(entries: Iterable[Entry]) -> list[Part]:
    """The live conversation, also what was summarised, with the summaries in their place."""
    everything = list(entries)
    view = fold(everything)
    messages = view.messages
    pairs = pair(messages)
    results: dict[tuple[int, str], list[Message]] = {}
    for place, caller in pairs.caller.items():
        result = messages[place]
        results.setdefault((caller, result.tool_call_id or ""), []).append(result)
    parts: list[tuple[int, Part]] = [
        (one.seq, one) for one in everything if isinstance(one, Compaction)
    ]
    for place, message in enumerate(messages):
        if place in pairs.caller:
            continue  # shown with its call
        blocks = tuple(
            Call(block, _next(results, place, block)) if isinstance(block, ToolCall) else block
            for block in message.content
        )
        parts.append((message.seq, Said(message, blocks)))
    return [part for _, part in sorted(parts, key=lambda one: one[0])]


def _next(
    results: dict[tuple[int, str], list[Message]], place: int, call: ToolCall
) -> Message | None:
    found = results.get((place, call.id))
    return found.pop(0) if found else None
