"""Windows of a session's transcript, for pages that are read from the end backwards.

A window shows the records from `low` up to, not including, `high`. It is read in small steps from
its end, so its cost depends on what it shows. A window that is read backwards ends at a summary:
the messages that the summary covers are another window, read on request.

A tool result is shown with its call. If the two are in different windows, each window looks a
little further for the other: the window of the call shows the result, the other one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from everlog.log.markers import Fate
from everlog.log.tool_pairs import ToolPairs, pair_results
from everlog.model import (
    SCHEMA_VERSION,
    TURN_END,
    TURN_INTERRUPTED,
    Compaction,
    Damaged,
    Entry,
    Event,
    Message,
    ToolCall,
    Unknown,
)
from everlog.render.marker_index import MarkerIndex
from everlog.render.transcript_items import CallWithResult, MessageItem

WINDOW_SIZE = 60  # messages in a window, not counting tool results
MAX_RECORDS = 400  # records in a window, and how far it looks beyond its ends
MAX_BYTES = 8_000_000  # of the lines in a window
MAX_ANSWERS = 150_000  # characters of answers, the slowest part to render, above all code
_MAX_ANSWER = 15_000  # characters counted of one answer; a longer one is shown cut
_FIRST_STEP, _MAX_STEP = 8, 64  # records read in one step

# Returns the entries with a seq in [low, high), in log order, damaged ones included.
ReadSpan = Callable[[int, int], Sequence[Entry]]
Results = dict[tuple[int, str], list[Message]]


class RemovedItem(msgspec.Struct, frozen=True):
    """Consecutive messages that were deleted or rewound."""

    first_seq: int
    last_seq: int
    rewound: int  # number of messages
    hidden: int  # number of messages


class NoteItem(msgspec.Struct, frozen=True):
    """An event between messages, such as a failed turn."""

    seq: int
    kind: str  # cancelled, failed, interrupted, compacted, newer
    text: str
    timestamp: str
    first_kept_seq: int = 0  # of a compaction: the position of its summary


class SummaryItem(msgspec.Struct, frozen=True):
    """A summary, positioned before the first message that its compaction kept."""

    record: Compaction
    is_expanded: bool  # the messages it covers are in this window too


PageItem = MessageItem | RemovedItem | NoteItem | SummaryItem | Damaged


class PageWindow(msgspec.Struct, frozen=True):
    """The items shown of the records in [low, high)."""

    low: int
    high: int
    items: tuple[PageItem, ...]
    starts_with_summary: bool = False  # whose messages are in the window before

    @property
    def is_first(self) -> bool:
        """Whether there are no earlier records."""
        return self.low <= 1


def window_before(read: ReadSpan, markers: MarkerIndex, before: int, size: int = WINDOW_SIZE) -> PageWindow:
    """Return the window that ends before a seq."""
    before = min(before, markers.high + 1)
    extend_index(read, markers, before)
    entries: list[Entry] = []
    low, step, count, total_bytes, weight = before, _FIRST_STEP, 0, 0, 0
    begin = 0  # the first seq of the window, once known
    while low > 1 and not begin:
        start = max(1, low - step)
        chunk = _read_indexed(read, markers, start, low)
        boundary = markers.summary_end_before(before)
        for entry in reversed(chunk):
            seq = entry.seq
            if seq is not None and seq < (begin or boundary):
                break  # a damaged line may have the seq of the next record, and stays with it
            entries.append(entry)
            total_bytes += 0 if isinstance(entry, Damaged) else len(entry.line)
            if isinstance(entry, Message) and entry.role != "toolResult":
                count += markers.fate(entry.seq) == "live"
                weight += _weight(entry)
            is_full = count >= size or total_bytes >= MAX_BYTES or weight >= MAX_ANSWERS
            if seq is not None and (is_full or before - seq >= MAX_RECORDS):
                begin = seq
        low = max(begin, start, boundary)
        if low <= boundary:
            break
        step = min(step * 2, _MAX_STEP)
    entries.reverse()
    return _build_window(read, markers, max(low, 1), before, entries)


def window_after(read: ReadSpan, markers: MarkerIndex, after: int, size: int = WINDOW_SIZE) -> PageWindow:
    """Return the window that begins after a seq."""
    low = after + 1
    extend_index(read, markers, low)
    entries: list[Entry] = []
    high, count, total_bytes, weight = low, 0, 0, 0
    while high <= markers.high and count < size and high - low < MAX_RECORDS:
        if total_bytes >= MAX_BYTES or weight >= MAX_ANSWERS:
            break
        chunk = read(high, min(high + _FIRST_STEP, markers.high + 1))
        entries += chunk
        high = min(high + _FIRST_STEP, markers.high + 1)
        count += sum(isinstance(entry, Message) and entry.role != "toolResult" for entry in chunk)
        total_bytes += sum(0 if isinstance(entry, Damaged) else len(entry.line) for entry in chunk)
        weight += sum(_weight(entry) for entry in chunk if isinstance(entry, Message))
    return _build_window(read, markers, low, high, entries)


def _weight(message: Message) -> int:
    return min(len(message.line), _MAX_ANSWER) if message.role == "assistant" else 0


def window_between(read: ReadSpan, markers: MarkerIndex, low: int, high: int) -> PageWindow:
    """Return the window of the records in [low, high), at most MAX_RECORDS of them."""
    high = min(high, markers.high + 1, low + MAX_RECORDS)
    extend_index(read, markers, low)
    return _build_window(read, markers, low, high, read(low, high))


def window_of_message(read: ReadSpan, markers: MarkerIndex, seq: int) -> PageWindow:
    """Return a window with the one item that shows a message; for a result, that of its call."""
    window = window_between(read, markers, seq, seq + 1)
    if window.items:
        return window
    messages = (entry for entry in read(seq, seq + 1) if isinstance(entry, Message))
    call_ids = {message.tool_call_id for message in messages} - {None}
    position = seq
    while call_ids and position > max(1, seq - MAX_RECORDS):
        start = max(1, position - _MAX_STEP)
        earlier = _read_indexed(read, markers, start, position)
        for message in reversed(_live_messages(earlier, markers)):
            if any(call.id in call_ids for call in message.tool_calls):
                return window_between(read, markers, message.seq, message.seq + 1)
        position = start
    return window


def removed_messages(read: ReadSpan, markers: MarkerIndex, first: int, last: int) -> list[tuple[MessageItem, Fate]]:
    """Return the deleted or rewound messages from `first` to `last`, each with its fate."""
    extend_index(read, markers, first)
    last = min(last, first + MAX_RECORDS)
    entries = (entry for entry in read(first, last + 1) if isinstance(entry, Message))
    messages = [message for message in entries if markers.fate(message.seq) != "live"]
    results, answers = _results(messages)
    shown = [message for message in messages if message.seq not in answers]
    return [(_message_item(message, results), markers.fate(message.seq)) for message in shown]


def extend_index(read: ReadSpan, markers: MarkerIndex, low: int, step: int = 500) -> None:
    """Extend a marker index back to a seq."""
    while markers.low > max(low, 1):
        _read_indexed(read, markers, max(low, 1, markers.low - step), markers.low)


def _read_indexed(read: ReadSpan, markers: MarkerIndex, low: int, high: int) -> Sequence[Entry]:
    entries = read(low, high)
    if low < markers.low:
        new = [entry for entry in entries if entry.seq is None or entry.seq < markers.low]
        markers.extend_back(low, new)
    return entries


# --- items of a window -------------------------------------------------------------------------


def _build_window(read: ReadSpan, markers: MarkerIndex, low: int, high: int, entries: Sequence[Entry]) -> PageWindow:
    live = _live_messages(entries, markers)
    before, after = _surrounding_messages(read, markers, low, high, live)
    results, answers = _results([*before, *live, *after])
    items = tuple(_build_items(entries, markers, low, results, answers))
    first = items[0] if items else None
    return PageWindow(low, high, items, isinstance(first, SummaryItem) and not first.is_expanded)


def _results(messages: Sequence[Message]) -> tuple[Results, set[int]]:
    """Return the results by the seq and id of their call, and the seqs of all results."""
    pairs = pair_results(messages)
    results: Results = {}
    for index in sorted(pairs.caller):
        result, caller = messages[index], messages[pairs.caller[index]]
        results.setdefault((caller.seq, result.tool_call_id or ""), []).append(result)
    return results, {messages[index].seq for index in pairs.caller}


def _live_messages(entries: Sequence[Entry], markers: MarkerIndex) -> list[Message]:
    messages = (message for message in entries if isinstance(message, Message))
    return [message for message in messages if markers.fate(message.seq) == "live"]


def _surrounding_messages(
    read: ReadSpan, markers: MarkerIndex, low: int, high: int, live: Sequence[Message]
) -> tuple[list[Message], list[Message]]:
    """Return live messages before and after, as far as open calls and results need them."""
    before: list[Message] = []
    after: list[Message] = []
    first, end = low, high
    while True:
        pairs = pair_results([*before, *live, *after])
        inside = range(len(before), len(before) + len(live))
        calls, results = _unmatched(pairs, inside)
        if (calls or results) and first > max(1, low - MAX_RECORDS):
            start = max(1, first - _MAX_STEP)
            before[:0] = _live_messages(_read_indexed(read, markers, start, first), markers)
            first = start
        elif (calls or results) and end <= min(markers.high, high + MAX_RECORDS):
            stop = min(end + _MAX_STEP, markers.high + 1)
            after += _live_messages(read(end, stop), markers)
            end = stop
        else:
            return before, after


def _unmatched(pairs: ToolPairs, inside: range) -> tuple[bool, bool]:
    """Return whether calls in a window lack a result, and results an earlier call or any call."""
    early = any(index in inside and caller > index for index, caller in pairs.caller.items())
    calls = any(index in inside for index, _ in pairs.open_calls)
    return calls, early or any(index in inside for index in pairs.strays)


def _build_items(
    entries: Sequence[Entry], markers: MarkerIndex, low: int, results: Results, answers: set[int]
) -> Iterator[PageItem]:
    active = markers.active_compactions()
    summaries = [record for record in active if record.first_kept_seq >= low]
    removed: list[Message] = []
    for entry in entries:
        items: list[PageItem] = []
        while summaries and entry.seq is not None and summaries[0].first_kept_seq <= entry.seq:
            record = summaries.pop(0)
            items.append(SummaryItem(record, record.first_kept_seq > low))
        if isinstance(entry, Message):
            if markers.fate(entry.seq) != "live":
                if items and removed:
                    yield _removed_item(removed, markers)
                    removed = []
                yield from items
                removed.append(entry)
                continue
            if entry.seq not in answers:
                items.append(_message_item(entry, results))
        else:
            items += _note_items(entry, markers)
        if items and removed:
            yield _removed_item(removed, markers)
            removed = []
        yield from items
    if removed:
        yield _removed_item(removed, markers)


def _message_item(message: Message, results: Results) -> MessageItem:
    def take_result(call: ToolCall) -> Message | None:
        pending = results.get((message.seq, call.id))
        return pending.pop(0) if pending else None

    return MessageItem(
        message,
        tuple(
            CallWithResult(block, take_result(block)) if isinstance(block, ToolCall) else block
            for block in message.content
        ),
    )


def _removed_item(messages: Sequence[Message], markers: MarkerIndex) -> RemovedItem:
    rewound = sum(markers.fate(message.seq) == "rewound" for message in messages)
    return RemovedItem(messages[0].seq, messages[-1].seq, rewound, len(messages) - rewound)


def _note_items(entry: Entry, markers: MarkerIndex) -> Iterator[PageItem]:
    if isinstance(entry, Damaged):
        yield entry
    elif isinstance(entry, Unknown):
        if entry.schema_version > SCHEMA_VERSION:
            text = f"A record of schema version {entry.schema_version}, newer than supported"
            yield NoteItem(entry.seq, "newer", text, entry.timestamp)
    elif markers.fate(entry.seq) == "rewound":
        return
    elif isinstance(entry, Compaction):
        if entry.seq in {record.seq for record in markers.active_compactions()}:
            text = f"Messages before {entry.first_kept_seq} were summarised for the model"
            yield NoteItem(entry.seq, "compacted", text, entry.timestamp, entry.first_kept_seq)
    elif isinstance(entry, Event):
        if entry.kind == TURN_INTERRUPTED:
            yield NoteItem(entry.seq, "interrupted", "The turn was interrupted", entry.timestamp)
        elif entry.kind == TURN_END and entry.data.get("stop") == "cancelled":
            yield NoteItem(entry.seq, "cancelled", "The turn was stopped", entry.timestamp)
        elif entry.kind == TURN_END and entry.data.get("error"):
            reason = str(entry.data["error"])[:500]
            yield NoteItem(entry.seq, "failed", f"The turn failed: {reason}", entry.timestamp)
        elif entry.kind == TURN_END and entry.data.get("stop") == "max_steps":
            text = "The turn reached its step limit"
            yield NoteItem(entry.seq, "cancelled", text, entry.timestamp)
