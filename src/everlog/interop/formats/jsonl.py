"""The lines of a foreign JSONL file, read so that damage costs nothing beside it.

Most lines take one call of a fast parser. Of the others, text that is no valid Unicode is read
with U+FFFD in its place; `records` also finds those that a torn one, or NULs, stand before. What
is no record becomes an event with its bytes. A record whose line would not come out the same
keeps the line itself under the dialect's name: `{"line": "…"}`. What a newline did not end says
`"ended": false`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from everlog.errors import FormatError
from everlog.interop.formats.format_types import LONGEST, Line, Lost, made_id, split
from everlog.log.line_codec import clean, decode, encode_other, seal, with_key
from everlog.model import AnyRecord, Event, Message

DEEPEST = 150  # levels; a record of ours may have log.lines.MAX_DEPTH, and wraps what it keeps
_Kind = TypeVar("_Kind", bound=Message | Event)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(enc_hook=encode_other).encode
_lenient = json.JSONDecoder(parse_constant=lambda _: None)
# What a record may begin with, and what may follow it, when lines have run into each other.
_BEGIN = re.compile(
    r'\{"(?:type|parentUuid|uuid|sessionId|isSidechain|logicalParentUuid|timestamp)"'
)
_BEHIND = re.compile(r'[\s\0]|[^,]?\{"|$')  # one character may have been the newline
_BLANK = " \t\n\r\x0b\x0c"  # as bytes have it; NBSP and the like are damage
_TRIES = 50_000_000  # characters that are parsed in vain before a line is given up


class Row(msgspec.Struct, frozen=True, gc=False):
    """One line, a run of blank ones, or a piece of a line that others were glued to."""

    path: str
    number: int  # of the line in its file, from 1
    start: int  # offset in the file
    data: bytes
    ended: bool  # False: no newline stands behind it
    value: dict[str, Any] | None = None  # None: blank or damaged
    problem: str = ""  # what is wrong with it
    exact: bool = True  # False: the bytes say something that no value of ours can
    begins: bool = True  # False: a further piece of the same line

    @property
    def blank(self) -> bool:
        """Whether there is nothing in it."""
        return self.value is None and not self.problem

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.data)

    @property
    def told(self) -> dict[str, Any]:
        """Its place and its bytes, for an event that keeps them."""
        return {"path": self.path, "start": self.start, **as_text(self.data)}


def lost(found: Iterable[Row]) -> tuple[Lost, ...]:
    """The report of what is wrong with some rows."""
    return tuple(Lost(row.path, row.start, row.end, row.problem) for row in found if row.problem)


# --- lines ----------------------------------------------------------------------------------


def rows(lines: Iterable[Line], path: str = "") -> Iterator[Row]:
    """What is in a file, line by line."""
    run: list[Line] = []  # blank lines that stand together
    number = 0
    for line in lines:
        number += 1
        if not line.data.strip(b" \t\r"):
            run.append(line)
            continue
        if run:
            yield _blank(path, number - len(run), run)
            run = []
        start, data, ended = line
        yield Row(path, number, start, data, ended, *parse(data, ended=ended))
    if run:
        yield _blank(path, number + 1 - len(run), run)


def _blank(path: str, number: int, run: Sequence[Line]) -> Row:
    data = b"\n".join(line.data for line in run)
    return Row(path, number, run[0].start, data, run[-1].ended)


def parse(data: bytes, *, ended: bool = True) -> tuple[dict[str, Any] | None, str, bool]:
    """The object in a line, what is wrong with it, and whether the object says all of the line."""
    if len(data) > LONGEST:
        return None, f"longer than {LONGEST} bytes", False
    problem = ""
    try:
        try:
            value = _decode(data)
        except ValueError as error:
            # Text that is not valid Unicode, or a number beyond all floats: other readers take it.
            text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
            found = _lenient.decode(text.strip(_BLANK))
            value, problem = clean(found), f"not strict JSON: {str(error)[:120]}"
            if value != found:
                problem = "text that is not valid Unicode is read as U+FFFD"
        if type(value) is not dict:
            return None, "not a JSON object", False
        if too_deep(data, value):
            return None, "nested too deeply", False
    except RecursionError:
        return None, "nested too deeply", False
    except ValueError as error:
        return None, _why(data, error, ended=ended), False
    return value, problem, not problem


def _why(data: bytes, error: ValueError, *, ended: bool) -> str:
    if data and not data.strip(b"\0"):
        return "NUL bytes"
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return f"not valid UTF-8 at byte {wrong.start}"
    torn = "" if ended else "the line is torn: "
    return f"{torn}not valid JSON: {str(error)[:120]}"


def too_deep(data: bytes, value: Any) -> bool:
    """Whether a value has more levels than a record of ours can hold."""
    if data.count(b"{") + data.count(b"[") <= DEEPEST:
        return False
    layer = [value]
    for _ in range(DEEPEST):
        inner = [one.values() if type(one) is dict else one for one in layer]
        layer = [item for one in inner for item in one if type(item) in (dict, list)]
        if not layer:
            return False
    return True


def head_objects(head: bytes) -> Iterator[dict[str, Any]]:
    """The objects in the first lines of a file, for `recognises`; damaged lines are passed over."""
    return (row.value for row in rows(split(head)) if row.value is not None)


# --- records that were glued to each other --------------------------------------------------


def records(lines: Iterable[Line], path: str = "") -> Iterator[Row]:
    """The records and the damage of a file, also where several stand in one line; no blanks."""
    for row in rows(lines, path):
        if row.value is not None or len(row.data) > LONGEST:
            yield row
        elif not row.blank:
            for number, piece in enumerate(_pieces(row)):
                yield msgspec.structs.replace(piece, begins=number == 0)


def _pieces(row: Row) -> Iterator[Row]:
    text = row.data.decode("utf-8", "surrogateescape")
    place = first = 0  # `first` is where the damage begins that was not told yet
    tries = max(_TRIES // len(text), 4)
    while place < len(text) and tries:
        tries -= 1
        end = _end(text, place)
        if end is not None:
            yield from _piece(row, text, first, place, "not valid JSON")
            yield from _piece(row, text, place, end)
            place = first = end
        begin = _BEGIN.search(text, place + (end is None))
        if begin is None:
            break
        place = begin.start()
    yield from _piece(row, text, first, len(text), row.problem)


def _end(text: str, place: int) -> int | None:
    """Where the record ends that begins at a place; None if none does."""
    try:
        value, end = _lenient.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None
    # Inside a torn record there are whole objects too; a record says what it is and whose.
    whole = (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and (
            isinstance(value.get("sessionId") or value.get("messageId"), str)
            or isinstance(value.get("payload"), dict)  # Codex
        )
    )
    return end if whole and _BEHIND.match(text, end) else None


def _piece(row: Row, text: str, first: int, last: int, problem: str = "") -> Iterator[Row]:
    if text[first:last].strip(_BLANK):
        before, data = (
            part.encode("utf-8", "surrogateescape") for part in (text[:first], text[first:last])
        )
        found = (None, problem, False) if problem else parse(data)
        yield Row(row.path, row.number, row.start + len(before), data, row.ended, *found)


# --- what is kept of them -------------------------------------------------------------------


def place(row: Row, first: str) -> str | int:
    """Where a line stands, for its id; `first` is the transcript's own path."""
    return row.number if row.path == first else f"{row.path} {row.number}"


def aside(dialect: str, name: str, row: Row, first: str, timestamp: str) -> Event:
    """The event for a line that is blank or damaged."""
    data, where = row.told, f"{place(row, first)}"
    if not row.ended:
        data["ended"] = False
    if row.blank or not row.ended:
        where += f" {len(row.data)}"  # it may grow into something else: then it is another
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
    keep = remains(row, whole=line == row.data)
    return keeping(plain, kind.partition(".")[0], keep) if keep else plain


def remains(row: Row, *, whole: bool, **said: Any) -> dict[str, Any]:
    """What must be kept of a row: what is said, if it makes the line whole again; else the line."""
    keep = said if whole and row.exact else as_text(row.data, "line")
    return keep if row.ended else {**keep, "ended": False}


def keeping(record: _Kind, dialect: str, keep: Any) -> _Kind:
    """The record with what is kept of its line, in the form in which a store writes it.

    Both hold only what was parsed here, or text.
    """
    return with_key(record, dialect, keep)


def built(data: Mapping[str, Any]) -> AnyRecord:
    """A record from its JSON object, `recordType` first, which holds only what was parsed here.

    `log.lines.from_object` does the same for objects from anywhere, and is much slower.
    """
    record, problem, _ = decode(seal(_encode(data), data["recordType"], 0))
    if record is None:
        raise FormatError(problem)
    return record


def as_text(data: bytes, key: str = "text") -> dict[str, Any]:
    """Bytes as JSON can hold them; NULs would take six bytes each."""
    try:
        if b"\0" not in data:
            return {key: data.decode()}
    except UnicodeDecodeError:
        pass
    return {"base64": b64encode(data).decode()}


def as_bytes(data: Mapping[str, Any], key: str = "text") -> bytes | None:
    """The bytes that `as_text` was given."""
    text, coded = data.get(key), data.get("base64")
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    try:
        return b64decode(coded, validate=True) if isinstance(coded, str) else None
    except ValueError:
        return None


def text_of(value: Mapping[str, Any], key: str) -> str:
    """A value that should be a string; else an empty one."""
    found = value.get(key)
    return found if isinstance(found, str) else ""
