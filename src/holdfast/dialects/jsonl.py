"""The lines of a foreign JSONL file: what can be read of them, and how they are given back.

A line that is no JSON object becomes an event with its bytes, so that nothing is lost and its
neighbours are not either. A record whose line would not come out the same keeps the line itself
under the dialect's name: `{"line": "…"}`. What a newline did not end says `"ended": false`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.dialects.form import DERIVED, LONGEST, Line, Lost, Source, kept, made_id
from holdfast.errors import FormatError
from holdfast.log.fold import fold
from holdfast.log.lines import clean, decode, encode_other, seal, to_object
from holdfast.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    OtherBlock,
    Thinking,
    Tombstone,
    ToolCall,
)

DEEPEST = 150  # levels of a value; our own limit (log.lines.MAX_DEPTH) minus what we wrap it in

_plain = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder(enc_hook=encode_other)


class Row(NamedTuple):
    """One line, or a run of blank ones."""

    path: str
    number: int  # of the line in its file, from 1
    line: Line
    value: dict[str, Any] | None = None  # None: blank or damaged
    problem: str = ""  # why it is damaged
    exact: bool = True  # False: the bytes say something that no value of ours can

    @property
    def blank(self) -> bool:
        """Whether there is nothing in it."""
        return self.value is None and not self.problem


# --- reading --------------------------------------------------------------------------------


def rows(source: Source, path: str) -> Iterator[Row]:
    """What is in a file, in order."""
    run: list[Line] = []  # blank lines that stand together
    number = 0
    for line in source.lines(path):
        number += 1
        if not line.data.strip(b" \t\r"):
            run.append(line)
            continue
        if run:
            yield _blank(path, number - len(run), run)
            run = []
        yield Row(path, number, line, *parse(line.data))
    if run:
        yield _blank(path, number + 1 - len(run), run)


def _blank(path: str, number: int, run: Sequence[Line]) -> Row:
    data = b"\n".join(line.data for line in run)
    return Row(path, number, Line(run[0].start, data, run[-1].ended))


def parse(data: bytes) -> tuple[dict[str, Any] | None, str, bool]:
    """The object in a line, or what is wrong with it; and whether it says all of the line."""
    if len(data) > LONGEST:
        return None, f"longer than {LONGEST} bytes", False
    exact = True
    try:
        data.decode()
        try:
            value = _plain.decode(data)
        except msgspec.MsgspecError:
            # A lone surrogate in an escape, or a number beyond all floats: other readers take it.
            value, exact = clean(json.loads(data, parse_constant=_refuse)), False
        if not isinstance(value, dict):
            return None, "not a JSON object", False
        if data.count(b"[") + data.count(b"{") > DEEPEST and _depth(value) > DEEPEST:
            return None, "nested too deeply", False
    except RecursionError:
        return None, "nested too deeply", False
    except UnicodeDecodeError as error:
        return None, f"not valid UTF-8 at byte {error.start}", False
    except ValueError as error:
        return None, f"not valid JSON: {str(error)[:120]}", False
    return value, "", exact


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _depth(value: Any) -> int:
    deepest, layer = 0, [value]
    while layer:
        deepest += 1
        inner = [one.values() if isinstance(one, dict) else one for one in layer]
        layer = [item for one in inner for item in one if isinstance(item, dict | list)]
    return deepest


def head_objects(head: bytes) -> Iterator[dict[str, Any]]:
    """The objects in the first lines of a file; a line that is cut off or damaged is passed over.

    For `recognises`.
    """
    for data in head.split(b"\n"):
        if data.strip(b" \t\r"):
            value = parse(data)[0]
            if value is not None:
                yield value


def place(row: Row, first: str) -> str | int:
    """Where a line stands, for its id; `first` is the transcript's own path."""
    return row.number if row.path == first else f"{row.path} {row.number}"


def aside(dialect: str, name: str, row: Row, first: str, timestamp: str) -> Event:
    """The event for a line that is blank or damaged."""
    data = {"path": row.path, "start": row.line.start, **as_text(row.line.data)}
    where = f"{place(row, first)}"
    if not row.line.ended:
        data["ended"] = False
    if row.blank or not row.line.ended:
        where += f" {len(row.line.data)}"  # it may grow into something else: then it is another
    kind = f"{dialect}.{'blank' if row.blank else 'damaged'}"
    return Event(id=made_id(name, where), kind=kind, data=data, timestamp=timestamp)


def event_kind(dialect: str, word: object) -> str:
    """The kind of event for a record of theirs that is not a message."""
    if isinstance(word, str) and word and word not in ("damaged", "blank", "record"):
        return f"{dialect}.{word}"
    return f"{dialect}.record"  # those are ours


def event(row: Row, kind: str, name: str, at: str, line: bytes) -> Event:
    """A record of theirs that has no place in a conversation; `line` is what we would write."""
    plain = Event(id=name, kind=kind, data=row.value or {}, timestamp=at)
    keep = remains(row, line)
    full = keeping(plain, kind.partition(".")[0], keep) if keep else plain
    return full if isinstance(full, Event) else plain


def as_text(data: bytes) -> dict[str, Any]:
    """Bytes as JSON can hold them."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


def lost(row: Row) -> Lost:
    """The report of a damaged line."""
    return Lost(row.path, row.line.start, row.line.start + len(row.line.data), row.problem)


def keeping(record: AnyRecord, dialect: str, keep: Mapping[str, Any]) -> AnyRecord:
    """The record with something more under the dialect's name."""
    data = to_object(record)
    for key in ("seq", "schemaVersion"):
        data.pop(key, None)
    return built({**data, dialect: dict(keep)})


def built(data: Mapping[str, Any]) -> AnyRecord:
    """A record from its JSON object, `recordType` first, which holds only what was parsed here.

    `log.lines.from_object` does the same for objects from anywhere, and is much slower.
    """
    line = seal(_encoder.encode(data), data["recordType"], 0)
    record, problem, _ = decode(line)
    if record is None:
        raise FormatError(problem)
    return record


def remains(row: Row, line: bytes | None) -> dict[str, Any]:
    """What must be kept of a row, if this is the line that would be written for it."""
    keep: dict[str, Any] = {}
    if line != row.line.data or not row.exact:
        keep["line"] = row.line.data.decode()
    if not row.line.ended:
        keep["ended"] = False
    return keep


def text_of(value: Mapping[str, Any], key: str) -> str:
    """A value that should be a string; else an empty one."""
    found = value.get(key)
    return found if isinstance(found, str) else ""


# --- writing --------------------------------------------------------------------------------


class Raw(NamedTuple):
    """The bytes that a record came from."""

    data: bytes
    ended: bool
    blank: bool = False


def origin(record: AnyRecord, dialect: str) -> dict[str, Any] | None:
    """What a record keeps under the dialect's name; None if it came from elsewhere."""
    if b'"%b"' % dialect.encode() not in record.line:
        return None
    keep = kept(record, dialect)
    return keep if isinstance(keep, dict) else None


def original(record: AnyRecord, dialect: str) -> Raw | None:
    """The line that a record keeps, if it does."""
    if isinstance(record, Event) and record.kind in (f"{dialect}.damaged", f"{dialect}.blank"):
        return _unaside(record, blank=record.kind.endswith(".blank"))
    keep = origin(record, dialect)
    if keep is None or not isinstance(keep.get("line"), str):
        return None
    return Raw(keep["line"].encode("utf-8", "replace"), keep.get("ended") is not False)


def is_ended(record: AnyRecord, dialect: str) -> bool:
    """Whether a newline ended the line that a record came from."""
    keep = origin(record, dialect)
    return keep is None or keep.get("ended") is not False


def _unaside(event: Event, *, blank: bool) -> Raw | None:
    text, coded = event.data.get("text"), event.data.get("base64")
    ended = event.data.get("ended") is not False
    if isinstance(text, str):
        return Raw(text.encode("utf-8", "replace"), ended, blank)
    try:
        return Raw(b64decode(coded or "", validate=True), ended, blank)
    except (ValueError, TypeError):
        return None


class Sheet:
    """A file that is being written. No line ever continues one that was not ended."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ended = True

    def add(self, data: bytes, *, ended: bool = True) -> None:
        """Add one line."""
        if not self._ended:
            self._pieces.append(b"\n")
        self._pieces.append(data)
        if ended:
            self._pieces.append(b"\n")
        self._ended = ended

    def content(self) -> bytes:
        """Everything so far."""
        return b"".join(self._pieces)


def came_from(records: Sequence[AnyRecord], dialect: str) -> bool:
    """Whether a session was read from files of the dialect."""
    return any(
        (isinstance(one, Event) and one.kind.startswith(f"{dialect}."))
        or origin(one, dialect) is not None
        for one in records
    )


def dropped(records: Sequence[AnyRecord], dialect: str) -> set[int]:
    """The seqs of messages that we took out of the conversation.

    What the dialect's own file had hidden is not among them: that stays in the file.
    """
    own = came_from(records, dialect)
    view = fold(one for one in records if not (own and _is_theirs(one, dialect)))
    live = {message.seq for message in view.messages}
    return {one.seq for one in records if isinstance(one, Message) and one.seq not in live}


def _is_theirs(record: AnyRecord, dialect: str) -> bool:
    return isinstance(record, Tombstone) and (
        origin(record, dialect) is not None or kept(record, DERIVED) is not None
    )


def placed(records: Sequence[AnyRecord]) -> Iterator[AnyRecord]:
    """The records, each compaction directly before what it keeps.

    For formats in which a summary stands for everything before it.
    """
    early: dict[int, list[Compaction]] = {}
    for record in records:
        if isinstance(record, Compaction) and record.first_kept_seq < record.seq:
            early.setdefault(record.first_kept_seq, []).append(record)
    waiting = sorted(early)
    for record in records:
        while waiting and waiting[0] <= record.seq:
            yield from early[waiting.pop(0)]
        if not (isinstance(record, Compaction) and record.first_kept_seq < record.seq):
            yield record


class Losses:
    """Counts what a format cannot hold."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, what: str, count: int = 1) -> None:
        """Count something."""
        if count:
            self._counts[what] += count

    def blocks(self, message: Message, kinds: Iterable[type]) -> None:
        """Count the blocks of these kinds; of thoughts and calls, only signatures are lost."""
        for block in message.content:
            if type(block) in kinds and (
                not isinstance(block, Thinking | ToolCall) or block.signature
            ):
                self.add(_WORDS[type(block)])

    def record(self, record: AnyRecord) -> None:
        """Count a record that has no place at all."""
        if isinstance(record, Event):
            self.add(f"event {record.kind}")
        elif record.record_type not in ("meta", "tombstone", "rewind"):
            self.add(f"record {record.record_type}")

    def words(self) -> tuple[str, ...]:
        """All of it, in words."""
        return tuple(f"{what}: {count}" for what, count in sorted(self._counts.items()))


_WORDS: dict[type, str] = {
    Image: "image",
    File: "file",
    OtherBlock: "block of an unknown kind",
    Thinking: "signature of a thought",
    ToolCall: "signature of a call",
}
