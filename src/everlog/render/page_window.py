"""Windows of a session's transcript, for pages that are read from the end backwards.

A window shows the records from `low` up to, not including, `high`. It is read in small steps from
its end, so its cost depends on what it shows. A window that is read backwards ends at a summary:
the messages that the summary covers are another window, read on request.

A tool result is shown with its call. If the two are in different windows, each window looks a
little further for the other: the window of the call shows the result, the other one does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import msgspec

from everlog.log.tool_pairs import pair_results
from everlog.model import Damaged, Entry, Message
from everlog.render.marker_index import MarkerIndex
from everlog.render.transcript_items import MessageItem, SummaryItem, ToolResults, TranscriptItem, arrange_items

WINDOW_SIZE = 60  # messages in a window, not counting tool results
MAX_RECORDS = 400  # records in a window, and how far it looks beyond its ends
MAX_BYTES = 8_000_000  # of the lines in a window
MAX_ANSWERS = 150_000  # characters of answers, the slowest part to render, above all code
_MAX_ANSWER = 15_000  # characters counted of one answer; a longer one is shown cut
_FIRST_STEP, _MAX_STEP = 8, 64  # records read in one step


class PageWindow(msgspec.Struct, frozen=True):
    """The items shown of the records in [low, high)."""

    low: int
    high: int
    items: tuple[TranscriptItem, ...]
    starts_with_summary: bool = False  # whose messages are in the window before

    @property
    def is_first(self) -> bool:
        """Return whether there are no earlier records."""
        return self.low <= 1


def window_before(index: MarkerIndex, before: int, size: int = WINDOW_SIZE) -> PageWindow:
    """Return the window that ends before a seq."""
    before = index.clamp(before)
    index.extend_to(before)
    entries: list[Entry] = []
    low, step, count, total_bytes, weight = before, _FIRST_STEP, 0, 0, 0
    begin = 0  # the first seq of the window, once known
    while low > 1 and not begin:
        start = max(1, low - step)
        chunk = index.read(start, low)
        boundary = index.summary_end_before(before)
        for entry in reversed(chunk):
            seq = entry.seq
            if seq is not None and seq < (begin or boundary):
                break  # a damaged line may have the seq of the next record, and stays with it
            entries.append(entry)
            total_bytes += 0 if isinstance(entry, Damaged) else len(entry.line)
            if isinstance(entry, Message) and entry.role != "toolResult":
                count += index.is_live(entry.seq)
                weight += _weight(entry)
            is_full = count >= size or total_bytes >= MAX_BYTES or weight >= MAX_ANSWERS
            if seq is not None and (is_full or before - seq >= MAX_RECORDS):
                begin = seq
        low = max(begin, start, boundary)
        if low <= boundary:
            break
        step = min(step * 2, _MAX_STEP)
    entries.reverse()
    return _build_window(index, max(low, 1), before, entries)


def window_after(index: MarkerIndex, after: int, size: int = WINDOW_SIZE) -> PageWindow:
    """Return the window that begins after a seq."""
    low = index.clamp(after) + 1
    index.extend_to(low)
    entries: list[Entry] = []
    high, count, total_bytes, weight = low, 0, 0, 0
    while high <= index.high and count < size and high - low < MAX_RECORDS:
        if total_bytes >= MAX_BYTES or weight >= MAX_ANSWERS:
            break
        chunk = index.read(high, min(high + _FIRST_STEP, index.high + 1))
        entries += chunk
        high = min(high + _FIRST_STEP, index.high + 1)
        count += sum(isinstance(entry, Message) and entry.role != "toolResult" for entry in chunk)
        total_bytes += sum(0 if isinstance(entry, Damaged) else len(entry.line) for entry in chunk)
        weight += sum(_weight(entry) for entry in chunk if isinstance(entry, Message))
    return _build_window(index, low, high, entries)


def _weight(message: Message) -> int:
    return min(len(message.line), _MAX_ANSWER) if message.role == "assistant" else 0


def window_between(index: MarkerIndex, low: int, high: int) -> PageWindow:
    """Return the window of the records in [low, high), at most MAX_RECORDS of them."""
    low = max(index.clamp(low), 1)
    high = min(index.clamp(high), low + MAX_RECORDS)
    index.extend_to(low)
    return _build_window(index, low, high, index.read(low, high))


def window_of_message(index: MarkerIndex, seq: int) -> PageWindow:
    """Return a window with the one item that shows a message; for a result, that of its call."""
    seq = index.clamp(seq)
    window = window_between(index, seq, seq + 1)
    if window.items:
        return window
    messages = (entry for entry in index.read(seq, seq + 1) if isinstance(entry, Message))
    call_ids = {message.tool_call_id for message in messages} - {None}
    position = seq
    while call_ids and position > max(1, seq - MAX_RECORDS):
        start = max(1, position - _MAX_STEP)
        earlier = index.read(start, position)
        for message in reversed(index.live(earlier)):
            if any(call.id in call_ids for call in message.tool_calls):
                return window_between(index, message.seq, message.seq + 1)
        position = start
    return window


def removed_messages(index: MarkerIndex, first: int, last: int) -> list[MessageItem]:
    """Return the deleted or rewound messages from `first` to `last`."""
    first = max(index.clamp(first), 1)
    last = min(index.clamp(last), first + MAX_RECORDS)
    index.extend_to(first)
    messages = [m for m in index.read(first, last + 1) if isinstance(m, Message) and not index.is_live(m.seq)]
    results = ToolResults(messages)
    return [item for message in messages for item in results.items(message, index.fate(message.seq))]


# --- items of a window -------------------------------------------------------------------------


def _build_window(index: MarkerIndex, low: int, high: int, entries: Sequence[Entry]) -> PageWindow:
    results = ToolResults(_paired_messages(index, low, high, index.live(entries)))
    end = high if high <= index.high else inf  # a summary may stand after the last record
    items = tuple(arrange_items(entries, index, results, (low, end)))
    first = items[0] if items else None
    return PageWindow(low, high, items, isinstance(first, SummaryItem) and not first.is_expanded)


def _paired_messages(index: MarkerIndex, low: int, high: int, live: Sequence[Message]) -> list[Message]:
    """Return the live messages of a window and of its surroundings, as far as open calls and results need them."""
    before: list[Message] = []
    after: list[Message] = []
    first, end = low, high
    while True:
        messages = [*before, *live, *after]
        is_complete = _is_complete(messages, range(len(before), len(before) + len(live)))
        if not is_complete and first > max(1, low - MAX_RECORDS):
            start = max(1, first - _MAX_STEP)
            before[:0] = index.live(index.read(start, first))
            first = start
        elif not is_complete and end <= min(index.high, high + MAX_RECORDS):
            stop = min(end + _MAX_STEP, index.high + 1)
            after += index.live(index.read(end, stop))
            end = stop
        else:
            return messages


def _is_complete(messages: Sequence[Message], inside: range) -> bool:
    """Return whether every call in a window has its result, and every result an earlier call."""
    pairs = pair_results(messages)
    early = (result for result, caller in pairs.caller.items() if caller > result)
    calls = (call for call, _ in pairs.open_calls)
    return not any(position in inside for position in (*early, *calls, *pairs.strays))
