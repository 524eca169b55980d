"""Lines that should each be a JSON object, read so that damage costs nothing beside it.

Most lines take one call of a fast parser. The others are looked at more closely: text that is no
valid Unicode is read with U+FFFD in its place, and a line in which a record was torn and another
one appended (or NULs stand before it) still gives the record. What is no record is given as it is.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.dialects.form import LONGEST, Line, Lost
from holdfast.log.lines import clean, encode_other
from holdfast.model import Event, Message

DEEPEST = 150  # levels; a record of ours may have 200, and wraps what it keeps in a few
_Kind = TypeVar("_Kind", Message, Event)
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder(enc_hook=encode_other).encode
_raw_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode
# What a record may begin with, and what may follow it, when lines have run into each other.
_BEGIN = re.compile(
    r'\{"(?:type|parentUuid|uuid|sessionId|isSidechain|logicalParentUuid|timestamp)"'
)
_BEHIND = re.compile(r'[\s\0]|[^,]?\{"|$')  # one character may have been the newline
_BLANK = " \t\n\r\x0b\x0c"  # as bytes have it; NBSP and the like are damage
_TRIES = 50_000_000  # characters that are parsed in vain before a line is given up


class Row(NamedTuple):
    """One record of a file, or a stretch that is none."""

    start: int
    end: int
    value: dict[str, Any] | None  # None: damage
    raw: bytes | None = None  # the bytes, where the value does not say all of them
    problem: str = ""
    begins: bool = True  # a line; False: more of the same

    def lost(self, path: str) -> Lost:
        """The report of what is wrong with it."""
        return Lost(path, self.start, self.end, self.problem)


def rows(lines: Iterable[Line]) -> Iterator[Row]:
    """The records and the damage of a file, in order; blank lines are neither."""
    for start, data, ended in lines:
        if len(data) <= LONGEST:
            try:
                value = _decode(data)
            except (ValueError, RecursionError):
                if not data.strip():
                    continue
            else:
                if type(value) is dict and not too_deep(data, value):
                    yield Row(start, start + len(data), value)
                    continue
        for number, row in enumerate(_closely(start, data, ended)):
            yield row._replace(begins=number == 0)


def _closely(start: int, data: bytes, ended: bool) -> Iterator[Row]:
    if len(data) > LONGEST:
        yield Row(start, start + len(data), None, data, f"longer than {LONGEST} bytes")
        return
    text = data.decode("utf-8", "surrogateescape")
    place = first = 0  # `first` is where the damage begins that was not told yet
    tries = max(_TRIES // len(text), 4)
    while place < len(text) and tries:
        tries -= 1
        found = _record(text, place)
        if found is not None:
            value, end = found
            yield from _damage(start, text, first, place, "not valid JSON")
            yield _row(start, text, place, end, value)
            place = first = end
        begin = _BEGIN.search(text, place if found else place + 1)
        if begin is None:
            break
        place = begin.start()
    yield from _damage(start, text, first, len(text), _problem(data, ended))


def _record(text: str, place: int) -> tuple[dict[str, Any], int] | None:
    """The record that begins at a place, and where it ends."""
    try:
        value, end = _raw_decode(text, place)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or too_deep(text[place:end].encode("utf-8", "replace"), value):
        return None
    alone = place == 0 and not text[end:].strip(_BLANK)
    # Inside a torn record there are whole objects too; a record says what it is and whose.
    whole = isinstance(value.get("type"), str) and (
        isinstance(value.get("sessionId") or value.get("messageId"), str)
        or isinstance(value.get("payload"), dict)  # Codex
    )
    return (value, end) if alone or (whole and _BEHIND.match(text, end)) else None


def _row(start: int, text: str, place: int, end: int, value: dict[str, Any]) -> Row:
    data = text[place:end].encode("utf-8", "surrogateescape")
    begin = start + len(text[:place].encode("utf-8", "surrogateescape"))
    try:
        return Row(begin, begin + len(data), _decode(data))
    except (ValueError, RecursionError):
        problem = "text that is not valid Unicode is read as U+FFFD"
        return Row(begin, begin + len(data), clean(value), data, problem)


def _damage(start: int, text: str, first: int, last: int, problem: str) -> Iterator[Row]:
    stretch = text[first:last]
    if stretch.strip(_BLANK):
        data = stretch.encode("utf-8", "surrogateescape")
        begin = start + len(text[:first].encode("utf-8", "surrogateescape"))
        yield Row(begin, begin + len(data), None, data, problem)


def _problem(data: bytes, ended: bool) -> str:
    if not data.strip(b"\0"):
        return "NUL bytes"
    try:
        value = _decode(data)
    except (ValueError, RecursionError) as error:
        torn = "" if ended else "the line is torn: "
        return f"{torn}not valid JSON: {str(error)[:120]}"
    return "not a JSON object" if type(value) is not dict else "nested too deeply"


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


def as_text(data: bytes) -> dict[str, str]:
    """Bytes as JSON can hold them; NULs would take six bytes each."""
    try:
        if b"\0" not in data:
            return {"text": data.decode()}
    except UnicodeDecodeError:
        pass
    return {"base64": b64encode(data).decode()}


def as_bytes(data: Mapping[str, Any]) -> bytes | None:
    """The bytes that `as_text` was given."""
    text, coded = data.get("text"), data.get("base64")
    if isinstance(text, str):
        return text.encode("utf-8", "replace")
    try:
        return b64decode(coded, validate=True) if isinstance(coded, str) else None
    except ValueError:
        return None


def keeping(record: _Kind, dialect: str, keep: Any) -> _Kind:
    """The record with what is kept of its line, in the form in which a store writes it."""
    line = b'%b,"%b":%b}' % (_encode(record)[:-1], dialect.encode(), _encode(keep))
    return msgspec.structs.replace(record, line=line)
