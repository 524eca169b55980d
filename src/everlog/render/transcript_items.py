"""The items of a transcript, in order: the one model that terminal, page, exports and chat render.

    message    with its blocks; a tool call and its result are one block, an exchange
    summary    before the first message that its compaction kept
    note       an event between messages, such as a failed turn
    removed    consecutive messages that were deleted or rewound
    damage     a line that cannot be read

A subagent is an exchange too: the task is its call, the answer its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, Literal

import msgspec

from everlog.ids import epoch_ms
from everlog.log.markers import Fate, Markers
from everlog.log.tool_pairs import pair_results
from everlog.model import (
    SCHEMA_VERSION,
    TURN_END,
    TURN_INTERRUPTED,
    AnyBlock,
    Compaction,
    Damaged,
    Entry,
    Event,
    File,
    Image,
    Message,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
    Unknown,
)
from everlog.render.humanize import first_line, one_line

Redact = Callable[[str], str]  # applied to every text that is shown
ROLE_LABELS = {"user": "You", "assistant": "Agent", "toolResult": "Tool"}
INSERTED_LABEL = "Inserted"  # of a message that a program wrote in the user's name
BRIEF_CHARACTERS = 60  # of a call's arguments in one line
# The argument that describes a call best, for most tools.
_KEY_ARGUMENTS = ("command", "file_path", "path", "pattern", "query", "url", "prompt", "description", "task")


def speaker_label(message: Message) -> str:
    """Return who said a message, as pages show it."""
    return INSERTED_LABEL if message.role == "user" and not message.is_typed else ROLE_LABELS[message.role]


class ToolExchange(msgspec.Struct, frozen=True):
    """A tool call and its result, if there is one."""

    call: ToolCall
    result: Message | None = None
    elapsed_ms: int | None = None  # between call and result, if it is known

    @property
    def state(self) -> Literal["done", "failed", "open"]:
        """How the call ended; open: it has no result."""
        if self.result is None:
            return "open"
        return "failed" if self.result.is_error else "done"

    @classmethod
    def of(cls, call: ToolCall, caller: Message, result: Message | None) -> ToolExchange:
        """Return the exchange of a stored call; its time is that between the two messages."""
        start = epoch_ms(caller.timestamp)
        end = None if result is None else epoch_ms(result.timestamp)
        return cls(call, result, None if start is None or end is None or end < start else end - start)


class MessageItem(msgspec.Struct, frozen=True):
    """A message whose tool calls are paired with their results."""

    message: Message
    blocks: tuple[AnyBlock | ToolExchange, ...]
    fate: Fate = "live"


class SummaryItem(msgspec.Struct, frozen=True):
    """A summary, positioned before the first message that its compaction kept."""

    record: Compaction
    is_expanded: bool  # the messages it covers are shown too
    is_current: bool  # it is the newest that stands


class NoteItem(msgspec.Struct, frozen=True):
    """An event between messages, such as a failed turn."""

    seq: int  # 0 if it is not recorded
    kind: str  # cancelled, failed, interrupted, compacted, newer
    text: str
    timestamp: str = ""
    first_kept_seq: int = 0  # of a compaction: the position of its summary


class RemovedItem(msgspec.Struct, frozen=True):
    """Consecutive messages that were deleted or rewound."""

    first_seq: int
    last_seq: int
    rewound: int  # number of messages
    hidden: int  # number of messages


TranscriptItem = MessageItem | SummaryItem | NoteItem | RemovedItem | Damaged


class ToolResults:
    """The results among messages, each to be shown with its call."""

    def __init__(self, messages: Sequence[Message]) -> None:
        pairs = pair_results(messages)
        self._results: dict[tuple[int, str], list[Message]] = {}  # by the seq and id of their call
        for index in sorted(pairs.caller):
            result, caller = messages[index], messages[pairs.caller[index]]
            self._results.setdefault((caller.seq, result.tool_call_id or ""), []).append(result)
        self._paired_seqs = {messages[index].seq for index in pairs.caller}

    def items(self, message: Message, fate: Fate = "live") -> Iterator[MessageItem]:
        """Yield the item of a message; none for a result that is shown with its call."""
        if message.seq in self._paired_seqs:
            return
        results = {call.id: iter(self._results.get((message.seq, call.id), ())) for call in message.tool_calls}
        blocks = (
            ToolExchange.of(block, message, next(results[block.id], None)) if isinstance(block, ToolCall) else block
            for block in message.content
        )
        yield MessageItem(message, tuple(blocks), fate)


def build_items(entries: Iterable[Entry], *, everything: bool = False) -> list[TranscriptItem]:
    """Return the items of the last entries of a log, or of all.

    `everything`: also removed messages, one by one, and summaries that no longer stand.
    """
    all_entries = list(entries)
    markers = Markers.of(all_entries)
    recorded = [entry for entry in all_entries if isinstance(entry, Message)]
    results = ToolResults(recorded if everything else markers.live(recorded))
    low = next((entry.seq for entry in all_entries if entry.seq is not None), 0)
    return list(arrange_items(all_entries, markers, results, (low, inf), everything=everything))


def arrange_items(
    entries: Iterable[Entry],
    markers: Markers,
    results: ToolResults,
    span: tuple[int, float],
    *,
    everything: bool = False,
) -> Iterator[TranscriptItem]:
    """Yield the items of consecutive entries, and the summaries whose place is in a span of seqs."""
    items = _entry_items(entries, markers, results, _place_summaries(markers, span, everything), everything=everything)
    for is_removed, group in groupby(items, lambda item: isinstance(item, RemovedItem)):
        if not is_removed:
            yield from group
            continue
        run = [item for item in group if isinstance(item, RemovedItem)]
        rewound, hidden = sum(item.rewound for item in run), sum(item.hidden for item in run)
        yield RemovedItem(run[0].first_seq, run[-1].last_seq, rewound, hidden)


def _place_summaries(markers: Markers, span: tuple[int, float], everything: bool) -> list[SummaryItem]:
    low, end = span
    current = markers.summary()
    return [
        SummaryItem(record, record.first_kept_seq > low, record == current)
        for record in markers.compactions(everything=everything)
        if low <= record.first_kept_seq < end
    ]


def _entry_items(
    entries: Iterable[Entry], markers: Markers, results: ToolResults, summaries: list[SummaryItem], *, everything: bool
) -> Iterator[TranscriptItem]:
    for entry in entries:
        while summaries and entry.seq is not None and summaries[0].record.first_kept_seq <= entry.seq:
            yield summaries.pop(0)
        if isinstance(entry, Message):
            fate = markers.fate(entry.seq)
            if fate == "live" or everything:
                yield from results.items(entry, fate)
            else:
                yield RemovedItem(entry.seq, entry.seq, int(fate == "rewound"), int(fate == "hidden"))
        else:
            yield from _note_items(entry, markers)
    yield from summaries  # they kept no message, and none was added since


def _note_items(entry: Entry, markers: Markers) -> Iterator[NoteItem | Damaged]:
    if isinstance(entry, Damaged):
        yield entry
    elif isinstance(entry, Unknown):
        if entry.schema_version > SCHEMA_VERSION:
            yield NoteItem(entry.seq, "newer", describe_newer(entry), entry.timestamp)
    elif markers.fate(entry.seq) == "rewound":
        return
    elif isinstance(entry, Compaction):
        if markers.is_standing(entry):
            text = f"Messages before {entry.first_kept_seq} were summarised for the model"
            yield NoteItem(entry.seq, "compacted", text, entry.timestamp, entry.first_kept_seq)
    elif isinstance(entry, Event):
        kind, text = _describe_event(entry)
        if kind:
            yield NoteItem(entry.seq, kind, text, entry.timestamp)


def _describe_event(event: Event) -> tuple[str, str]:
    """Return what is shown of an event: its kind and text; empty for most events."""
    if event.kind == TURN_INTERRUPTED:
        return "interrupted", "The turn was interrupted"
    if event.kind != TURN_END:
        return "", ""
    if event.data.get("stop") == "cancelled":
        return "cancelled", "The turn was stopped"
    if event.data.get("error"):
        return "failed", f"The turn failed: {str(event.data['error'])[:500]}"
    if event.data.get("stop") == "max_steps":
        return "cancelled", "The turn reached its step limit"
    return "", ""


# --- descriptions in one line -----------------------------------------------------------------


def describe_damage(damage: Damaged) -> str:
    """Say which bytes cannot be read, and why."""
    seq = "" if damage.seq is None else f" (seq {damage.seq})"
    return f"damaged: {damage.file} bytes {damage.start} to {damage.end}{seq}: {damage.problem}"


def describe_newer(record: Unknown) -> str:
    """Say that a record is of a newer schema version."""
    return (
        f"record {record.seq} has schema version {record.schema_version}, "
        "which this everlog cannot read: the session is read-only"
    )


def describe_arguments(arguments: Mapping[str, Any], redact: Redact = str) -> str:
    """Return what a call is about: its key argument, its only one, or the beginning of them all."""
    task, agent = arguments.get("task"), arguments.get("agent")
    if isinstance(task, str) and isinstance(agent, str):  # a subagent
        return first_line(redact(f"{agent}: {task}"), BRIEF_CHARACTERS)
    values = [arguments.get(key) for key in _KEY_ARGUMENTS]
    if len(arguments) == 1:
        values += arguments.values()
    for value in values:
        if isinstance(value, str) and value.strip():
            return first_line(redact(value[: 20 * BRIEF_CHARACTERS]), BRIEF_CHARACTERS)
    return first_line(redact(encode_arguments(arguments)), BRIEF_CHARACTERS) if arguments else ""


def describe_block(block: AnyBlock) -> str:
    """Return the name of a block that has no text of its own."""
    if isinstance(block, Image):
        return f"Image: {one_line(block.url)}" if block.url else "Image"
    if isinstance(block, File):
        return f"File: {one_line(block.name or 'unnamed')[:200]}"
    kind = block.type if isinstance(block, OtherBlock) else type(block).__name__
    return f"Block of kind {one_line(kind)[:100]}"


def block_text(block: AnyBlock) -> str:
    """Return all text of a block; empty if it has none."""
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Thinking):
        return block.thinking
    return f"{block.name} {format_arguments(block.arguments)}" if isinstance(block, ToolCall) else ""


def encode_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as JSON in one line."""
    return msgspec.json.encode(arguments).decode()


def format_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(arguments), indent=2).decode()
