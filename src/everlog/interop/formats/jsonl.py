"""Reading foreign JSONL files so that damage costs nothing but itself.

Most lines take one call of a fast parser. In the others, text that is not valid Unicode is read as
U+FFFD; `parse_records` also finds records that follow a torn record or NULs in the same line. Bytes
that are not a record become an event that contains them. A record whose line could not be
reproduced keeps the line itself under the format's name: `{"line": "…"}`. A line without a
newline is stored with `"ended": false`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from everlog.errors import FormatError
from everlog.interop.formats.format_types import MAX_LINE_BYTES, DamagedBytes, Line, derive_id, split_lines
from everlog.log.line_codec import build_line, decode, encode_other_block, replace_surrogates, with_key
from everlog.model import AnyRecord, Event, Message

MAX_DEPTH = 150  # levels; our records allow log.line_codec.MAX_DEPTH and wrap preserved data
_Kind = TypeVar("_Kind", bound=Message | Event)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(enc_hook=encode_other_block).encode
_lenient = json.JSONDecoder(parse_constant=lambda _: None)
# How a record may start, and what may follow it, in a line of several records.
_RECORD_START = re.compile(r'\{"(?:type|parentUuid|uuid|sessionId|isSidechain|logicalParentUuid|timestamp)"')
_AFTER_RECORD = re.compile(r'[\s\0]|[^,]?\{"|$')  # one character may be a damaged newline
_WHITESPACE = " \t\n\r\x0b\x0c"  # as in bytes.strip; NBSP and the like are damage
_MAX_WASTED_CHARS = 50_000_000  # failed parsing before a line is given up


class Row(msgspec.Struct, frozen=True, gc=False):
    """One line, a run of blank lines, or one chunk of a line that holds several records."""

    path: str
    number: int  # line number in its file, from 1
    start: int  # offset in the file
    data: bytes
    ended: bool  # False: no newline follows
    value: dict[str, Any] | None = None  # None: blank or damaged
    problem: str = ""
    exact: bool = True  # False: no JSON value represents the bytes exactly
    starts_line: bool = True  # False: a further chunk of the same line

    @property
    def is_blank(self) -> bool:
        """Return whether the row is empty."""
        return self.value is None and not self.problem

    @property
    def end(self) -> int:
        """Return the offset of its end."""
        return self.start + len(self.data)

    @property
    def event_data(self) -> dict[str, Any]:
        """Return its position and bytes, for an event that stores them."""
        return {"path": self.path, "start": self.start, **as_text(self.data)}


def report_damage(parsed_rows: Iterable[Row]) -> tuple[DamagedBytes, ...]:
    """Return the damage found in some rows."""
    return tuple(DamagedBytes(row.path, row.start, row.end, row.problem) for row in parsed_rows if row.problem)


# --- lines ----------------------------------------------------------------------------------


def parse_lines(lines: Iterable[Line], path: str = "") -> Iterator[Row]:
    """Yield the rows of a file, line by line."""
    run: list[Line] = []  # adjacent blank lines
    number = 0
    for line in lines:
        number += 1
        if not line.data.strip(b" \t\r"):
            run.append(line)
            continue
        if run:
            yield _blank_row(path, number - len(run), run)
            run = []
        start, data, ended = line
        yield Row(path, number, start, data, ended, *parse_object(data, ended=ended))
    if run:
        yield _blank_row(path, number + 1 - len(run), run)


def _blank_row(path: str, number: int, run: Sequence[Line]) -> Row:
    data = b"\n".join(line.data for line in run)
    return Row(path, number, run[0].start, data, run[-1].ended)


def parse_object(data: bytes, *, ended: bool = True) -> tuple[dict[str, Any] | None, str, bool]:
    """Return the object in a line, the problem with it, and whether it is exactly the line."""
    if len(data) > MAX_LINE_BYTES:
        return None, f"longer than {MAX_LINE_BYTES} bytes", False
    problem = ""
    try:
        try:
            value = _decode(data)
        except ValueError as error:
            # Invalid Unicode, or a number beyond all floats: other readers accept these.
            text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
            decoded = _lenient.decode(text.strip(_WHITESPACE))
            value, problem = replace_surrogates(decoded), f"not strict JSON: {str(error)[:120]}"
            if value != decoded:
                problem = "text that is not valid Unicode is read as U+FFFD"
        if type(value) is not dict:
            return None, "not a JSON object", False
        if is_too_deep(data, value):
            return None, "nested too deeply", False
    except RecursionError:
        return None, "nested too deeply", False
    except ValueError as error:
        return None, _explain_failure(data, error, ended=ended), False
    return value, problem, not problem


def _explain_failure(data: bytes, error: ValueError, *, ended: bool) -> str:
    if data and not data.strip(b"\0"):
        return "NUL bytes"
    try:
        data.decode()
    except UnicodeDecodeError as unicode_error:
        return f"not valid UTF-8 at byte {unicode_error.start}"
    torn = "" if ended else "the line is torn: "
    return f"{torn}not valid JSON: {str(error)[:120]}"


def is_too_deep(data: bytes, value: Any) -> bool:
    """Return whether a value has more levels than our records can hold."""
    # At most so many objects and arrays; `count` looks at each byte, `replace` searches by memchr.
    unseen = 2 * len(data) - len(data.replace(b"{", b"")) - len(data.replace(b"[", b""))
    if unseen <= MAX_DEPTH:
        return False
    layer = [value]
    for level in range(MAX_DEPTH):
        unseen -= len(layer)
        if level + unseen < MAX_DEPTH:
            return False  # even if each of the others is in the one before
        inner = [container.values() if type(container) is dict else container for container in layer]
        layer = [item for values in inner for item in values if type(item) in (dict, list)]
        if not layer:
            return False
    return True


def head_objects(head: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects in the first lines of a file, for `recognises`; skip damaged lines."""
    return (row.value for row in parse_lines(split_lines(head)) if row.value is not None)


# --- several records in one line ------------------------------------------------------------


def parse_records(lines: Iterable[Line], path: str = "") -> Iterator[Row]:
    """Yield records and damage of a file, also several from one line; skip blank lines.

    A last line without a newline that does not end with a record is still being written: it is
    damage as a whole.
    """
    for row in parse_lines(lines, path):
        if row.value is not None or len(row.data) > MAX_LINE_BYTES:
            yield row
        elif not row.is_blank:
            chunks = list(_split_records(row))
            if not row.ended and chunks[-1].value is None:
                chunks = [row]
            for number, chunk in enumerate(chunks):
                yield msgspec.structs.replace(chunk, starts_line=number == 0)


def _split_records(row: Row) -> Iterator[Row]:
    text = row.data.decode("utf-8", "surrogateescape")
    position = damage_start = 0  # `damage_start`: of damage not reported yet
    attempts = max(_MAX_WASTED_CHARS // len(text), 4)
    while position < len(text) and attempts:
        attempts -= 1
        end = _record_end(text, position)
        if end is not None:
            yield from _chunk_row(row, text, damage_start, position, "not valid JSON")
            yield from _chunk_row(row, text, position, end)
            position = damage_start = end
        match = _RECORD_START.search(text, position + (end is None))
        if match is None:
            break
        position = match.start()
    yield from _chunk_row(row, text, damage_start, len(text), row.problem)


def _record_end(text: str, position: int) -> int | None:
    """Return where the record at a position ends; None if none starts there."""
    try:
        value, end = _lenient.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
    # A torn record contains complete objects too; a record has a type and an owner.
    is_record = (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and (
            isinstance(value.get("sessionId") or value.get("messageId"), str)
            or isinstance(value.get("payload"), dict)  # Codex
        )
    )
    return end if is_record and _AFTER_RECORD.match(text, end) else None


def _chunk_row(row: Row, text: str, start: int, end: int, problem: str = "") -> Iterator[Row]:
    if text[start:end].strip(_WHITESPACE):
        before, data = (part.encode("utf-8", "surrogateescape") for part in (text[:start], text[start:end]))
        parsed = (None, problem, False) if problem else parse_object(data)
        yield Row(row.path, row.number, row.start + len(before), data, row.ended, *parsed)


# --- events and preserved data --------------------------------------------------------------


def line_position(row: Row, transcript_path: str) -> str | int:
    """Return the position of a line, for its id; parts are named relative to the transcript."""
    return row.number if row.path == transcript_path else f"{row.path} {row.number}"


def unreadable_event(format_name: str, session_id: str, row: Row, transcript_path: str, timestamp: str) -> Event:
    """Return the event for a blank or damaged line."""
    data, position = row.event_data, f"{line_position(row, transcript_path)}"
    if not row.ended:
        data["ended"] = False
    if row.is_blank or not row.ended:
        position += f" {len(row.data)}"  # it may still grow, and is another item then
    kind = f"{format_name}.{'blank' if row.is_blank else 'damaged'}"
    return Event(id=derive_id(session_id, position), kind=kind, data=data, timestamp=timestamp)


def event_kind(format_name: str, foreign_type: object) -> str:
    """Return the event kind for a foreign record that is not a message."""
    if isinstance(foreign_type, str) and foreign_type and foreign_type not in ("damaged", "blank", "record"):
        return f"{format_name}.{foreign_type}"
    return f"{format_name}.record"  # "damaged" and "blank" are event kinds of ours


def record_event(row: Row, kind: str, event_id: str, timestamp: str, line: bytes) -> Event:
    """Return the event for a record outside the conversation; `line` is what we would write."""
    plain = Event(id=event_id, kind=kind, data=row.value or {}, timestamp=timestamp)
    preserved = preserved_data(row, is_lossless=line == row.data)
    return attach_preserved(plain, kind.partition(".")[0], preserved) if preserved else plain


def preserved_data(row: Row, *, is_lossless: bool, **fields: Any) -> dict[str, Any]:
    """Return what to store of a row: `fields` if they can rebuild the line, else the line."""
    preserved = fields if is_lossless and row.exact else as_text(row.data, "line")
    return preserved if row.ended else {**preserved, "ended": False}


def attach_preserved(record: _Kind, format_name: str, preserved: Any, *, is_shallow: bool = False) -> _Kind:
    """Return the record with the preserved part of its line, in stored form.

    Both must contain only values parsed here, or text; if `is_shallow`, with few more levels than MAX_DEPTH.
    """
    return with_key(record, format_name, preserved, is_shallow=is_shallow)


def build_record(data: Mapping[str, Any]) -> AnyRecord:
    """Build a record from its JSON object: `recordType` first, only values parsed here.

    `log.line_codec.from_object` accepts objects from anywhere, and is much slower.
    """
    record, problem, _ = decode(build_line(_encode(data), data["recordType"], 0))
    if record is None:
        raise FormatError(problem)
    return record


def as_text(data: bytes, key: str = "text") -> dict[str, Any]:
    """Return bytes as JSON can hold them: text, or base64 (NULs would take six bytes each)."""
    try:
        if b"\0" not in data:
            return {key: data.decode()}
    except UnicodeDecodeError:
        pass
    return {"base64": b64encode(data).decode()}


def as_bytes(data: Mapping[str, Any], key: str = "text") -> bytes | None:
    """Return the bytes from which `as_text` made an object; None if it did not."""
    text, encoded = data.get(key), data.get("base64")
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    try:
        return b64decode(encoded, validate=True) if isinstance(encoded, str) else None
    except ValueError:
        return None


def text_of(value: Mapping[str, Any], key: str) -> str:
    """Return the string under a key; an empty one if the value is not a string."""
    text = value.get(key)
    return text if isinstance(text, str) else ""
