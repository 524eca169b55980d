"""A page of a session, as it is turned over backwards.

A leaf is what is shown of the records from `low` up to, not including, `high`. It is read in small
steps from its end, so its cost follows what it shows. Going back stops where a summary begins to
stand for what was said: what lies before is another leaf, read when somebody asks for it.

A result stands with its call. Where the two are on different leaves, each looks a little further
for the other: the leaf of the call shows the result, the other one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from everlog.log.tool_pairs import Pairs, pair
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
from everlog.render.marker_index import Fate, Sketch
from everlog.render.transcript_items import Call, Said

SIZE = 60  # messages of a leaf, results not counted
MOST = 400  # records of a leaf, and how far it looks around itself
BYTES = 8_000_000  # of its lines
HEAVY = 150_000  # characters of answers: to render them takes longest, code above all
_WHOLE = 15_000  # of one answer, which is cut where it is longer
_FIRST, _LARGEST = 8, 64  # records that are read in one step

# The entries whose seq is in [low, high), in the log's order; damage stands in its place.
Span = Callable[[int, int], Sequence[Entry]]
Results = dict[tuple[int, str], list[Message]]


class Gone(msgspec.Struct, frozen=True):
    """Messages in a row that are live no more."""

    first: int
    last: int
    rewound: int
    hidden: int


class Note(msgspec.Struct, frozen=True):
    """Something that happened between messages."""

    seq: int
    kind: str  # cancelled, failed, interrupted, compacted, newer
    text: str
    timestamp: str
    about: int = 0  # of a compaction: where its summary stands


class Fold(msgspec.Struct, frozen=True):
    """A summary, which stands where the messages begin that it kept."""

    record: Compaction
    before: bool  # whether what it stands for is on this leaf, or must be asked for


Part = Said | Gone | Note | Fold | Damaged


class Leaf(msgspec.Struct, frozen=True):
    """What is shown of [low, high)."""

    low: int
    high: int
    parts: tuple[Part, ...]
    folded: bool = False  # it begins with a summary

    @property
    def first(self) -> bool:
        """Whether nothing stands before it."""
        return self.low <= 1


def turn_back(span: Span, sketch: Sketch, before: int, size: int = SIZE) -> Leaf:
    """The leaf that ends before a seq."""
    before = min(before, sketch.high + 1)
    reach(span, sketch, before)
    entries: list[Entry] = []
    low, step, count, read, weight = before, _FIRST, 0, 0, 0
    full = 0  # where the leaf begins, once that is known
    while low > 1 and not full:
        start = max(1, low - step)
        chunk = _taken(span, sketch, start, low)
        wall = sketch.fold_below(before)
        for entry in reversed(chunk):
            seq = entry.seq
            if seq is not None and seq < (full or wall):
                break  # damage may have the number of the record behind it, and stays with it
            entries.append(entry)
            read += 0 if isinstance(entry, Damaged) else len(entry.line)
            if isinstance(entry, Message) and entry.role != "toolResult":
                count += sketch.fate(entry.seq) == "live"
                weight += _weight(entry)
            enough = count >= size or read >= BYTES or weight >= HEAVY
            if seq is not None and (enough or before - seq >= MOST):
                full = seq
        low = max(full, start, wall)
        if low <= wall:
            break
        step = min(step * 2, _LARGEST)
    entries.reverse()
    return _leaf(span, sketch, max(low, 1), before, entries)


def turn_on(span: Span, sketch: Sketch, after: int, size: int = SIZE) -> Leaf:
    """The leaf that begins behind a seq."""
    low = after + 1
    reach(span, sketch, low)
    entries: list[Entry] = []
    high, count, read, weight = low, 0, 0, 0
    while high <= sketch.high and count < size and high - low < MOST and read < BYTES:
        if weight >= HEAVY:
            break
        chunk = span(high, min(high + _FIRST, sketch.high + 1))
        entries += chunk
        high = min(high + _FIRST, sketch.high + 1)
        count += sum(isinstance(one, Message) and one.role != "toolResult" for one in chunk)
        read += sum(0 if isinstance(one, Damaged) else len(one.line) for one in chunk)
        weight += sum(_weight(one) for one in chunk if isinstance(one, Message))
    return _leaf(span, sketch, low, high, entries)


def _weight(message: Message) -> int:
    return min(len(message.line), _WHOLE) if message.role == "assistant" else 0


def between(span: Span, sketch: Sketch, low: int, high: int) -> Leaf:
    """What is shown of some records."""
    high = min(high, sketch.high + 1, low + MOST)
    reach(span, sketch, low)
    return _leaf(span, sketch, low, high, span(low, high))


def part_of(span: Span, sketch: Sketch, seq: int) -> Leaf:
    """The one part that shows a message; for a result, that of its call."""
    leaf = between(span, sketch, seq, seq + 1)
    if leaf.parts:
        return leaf
    wanted = {one.tool_call_id for one in span(seq, seq + 1) if isinstance(one, Message)} - {None}
    back = seq
    while wanted and back > max(1, seq - MOST):
        start = max(1, back - _LARGEST)
        for message in reversed(_live(_taken(span, sketch, start, back), sketch)):
            if any(call.id in wanted for call in message.tool_calls):
                return between(span, sketch, message.seq, message.seq + 1)
        back = start
    return leaf


def departed(span: Span, sketch: Sketch, first: int, last: int) -> list[tuple[Said, Fate]]:
    """The messages of a stretch that are live no more, and what became of each."""
    reach(span, sketch, first)
    last = min(last, first + MOST)
    messages = [
        one
        for one in span(first, last + 1)
        if isinstance(one, Message) and sketch.fate(one.seq) != "live"
    ]
    results, answers = _results(messages)
    said = [_said(one, results) for one in messages if one.seq not in answers]
    return [(one, sketch.fate(one.message.seq)) for one in said]


def reach(span: Span, sketch: Sketch, low: int, step: int = 500) -> None:
    """Let a sketch cover everything from a seq on."""
    while sketch.low > max(low, 1):
        _taken(span, sketch, max(low, 1, sketch.low - step), sketch.low)


def _taken(span: Span, sketch: Sketch, low: int, high: int) -> Sequence[Entry]:
    entries = span(low, high)
    if low < sketch.low:
        new = [one for one in entries if one.seq is None or one.seq < sketch.low]
        sketch.go_back(low, new)
    return entries


# --- what of it is shown --------------------------------------------------------------------


def _leaf(span: Span, sketch: Sketch, low: int, high: int, entries: Sequence[Entry]) -> Leaf:
    own = _live(entries, sketch)
    before, after = _around(span, sketch, low, high, own)
    results, answers = _results([*before, *own, *after])
    parts = tuple(_parts(entries, sketch, low, results, answers))
    folded = bool(parts) and isinstance(parts[0], Fold) and not parts[0].before
    return Leaf(low, high, parts, folded)


def _results(messages: Sequence[Message]) -> tuple[Results, set[int]]:
    """The results by the message and the id of their call, and the numbers of all of them."""
    pairs = pair(messages)
    results: Results = {}
    for place in sorted(pairs.caller):
        result, caller = messages[place], messages[pairs.caller[place]]
        results.setdefault((caller.seq, result.tool_call_id or ""), []).append(result)
    return results, {messages[place].seq for place in pairs.caller}


def _live(entries: Sequence[Entry], sketch: Sketch) -> list[Message]:
    messages = (one for one in entries if isinstance(one, Message))
    return [one for one in messages if sketch.fate(one.seq) == "live"]


def _around(
    span: Span, sketch: Sketch, low: int, high: int, own: Sequence[Message]
) -> tuple[list[Message], list[Message]]:
    """Live messages on both sides, as far as calls and results on the leaf need them."""
    before: list[Message] = []
    after: list[Message] = []
    back, on = low, high
    while True:
        pairs = pair([*before, *own, *after])
        inside = range(len(before), len(before) + len(own))
        calls, results = _unmatched(pairs, inside)
        if (calls or results) and back > max(1, low - MOST):
            start = max(1, back - _LARGEST)
            before[:0] = _live(_taken(span, sketch, start, back), sketch)
            back = start
        elif (calls or results) and on <= min(sketch.high, high + MOST):
            stop = min(on + _LARGEST, sketch.high + 1)
            after += _live(span(on, stop), sketch)
            on = stop
        else:
            return before, after


def _unmatched(pairs: Pairs, inside: range) -> tuple[bool, bool]:
    """Whether some calls of a leaf want a result, and some results an earlier call, or any."""
    early = any(place in inside and of > place for place, of in pairs.caller.items())
    calls = any(place in inside for place, _ in pairs.open)
    return calls, early or any(place in inside for place in pairs.strays)


def _parts(
    entries: Sequence[Entry],
    sketch: Sketch,
    low: int,
    results: Results,
    answers: set[int],
) -> Iterator[Part]:
    folds = [one for one in sketch.standing() if one.first_kept_seq >= low]
    gone: list[Message] = []
    for entry in entries:
        made: list[Part] = []
        while folds and entry.seq is not None and folds[0].first_kept_seq <= entry.seq:
            record = folds.pop(0)
            made.append(Fold(record, record.first_kept_seq > low))
        if isinstance(entry, Message):
            if sketch.fate(entry.seq) != "live":
                if made and gone:
                    yield _gone(gone, sketch)
                    gone = []
                yield from made
                gone.append(entry)
                continue
            if entry.seq not in answers:
                made.append(_said(entry, results))
        else:
            made += _note(entry, sketch)
        if made and gone:
            yield _gone(gone, sketch)
            gone = []
        yield from made
    if gone:
        yield _gone(gone, sketch)


def _said(message: Message, results: Results) -> Said:
    def answer(call: ToolCall) -> Message | None:
        found = results.get((message.seq, call.id))
        return found.pop(0) if found else None

    return Said(
        message,
        tuple(
            Call(block, answer(block)) if isinstance(block, ToolCall) else block
            for block in message.content
        ),
    )


def _gone(messages: Sequence[Message], sketch: Sketch) -> Gone:
    rewound = sum(sketch.fate(one.seq) == "rewound" for one in messages)
    return Gone(messages[0].seq, messages[-1].seq, rewound, len(messages) - rewound)


def _note(entry: Entry, sketch: Sketch) -> Iterator[Part]:
    if isinstance(entry, Damaged):
        yield entry
    elif isinstance(entry, Unknown):
        if entry.schema_version > SCHEMA_VERSION:
            text = f"A record of schema version {entry.schema_version}, which is newer than ours"
            yield Note(entry.seq, "newer", text, entry.timestamp)
    elif sketch.fate(entry.seq) == "rewound":
        return
    elif isinstance(entry, Compaction):
        if entry.seq in {one.seq for one in sketch.standing()}:
            text = f"What came before message {entry.first_kept_seq} was summarised for the model"
            yield Note(entry.seq, "compacted", text, entry.timestamp, entry.first_kept_seq)
    elif isinstance(entry, Event):
        if entry.kind == TURN_INTERRUPTED:
            yield Note(entry.seq, "interrupted", "The turn was interrupted", entry.timestamp)
        elif entry.kind == TURN_END and entry.data.get("stop") == "cancelled":
            yield Note(entry.seq, "cancelled", "The turn was stopped", entry.timestamp)
        elif entry.kind == TURN_END and entry.data.get("error"):
            reason = str(entry.data["error"])[:500]
            yield Note(entry.seq, "failed", f"The turn failed: {reason}", entry.timestamp)
        elif entry.kind == TURN_END and entry.data.get("stop") == "max_steps":
            text = "The turn ended at its limit of steps"
            yield Note(entry.seq, "cancelled", text, entry.timestamp)
