"""One record, one line: encode and decode.

A line that we wrote ends in exactly 18 bytes, `,"crc":"xxxxxxxx"}`: the CRC-32 of the bytes
before them, compared as bytes. Such a line takes the fast path. A line without it was written
by somebody else and takes the strict one: valid UTF-8, no duplicate keys, everything decoded at
once. Whatever the bytes are, `decode` returns a record or a reason, and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, get_args
from zlib import crc32

import msgspec
from msgspec.structs import force_setattr, replace

from everlog.errors import FormatError
from everlog.model import (
    LINE_KEY,
    SCHEMA_VERSION,
    AnyRecord,
    Event,
    KnownRecord,
    Message,
    OtherBlock,
    Role,
    Text,
    Unknown,
    blocks,
)

# Deeper values could be written here and then not be read under a deeper call stack.
MAX_DEPTH = 200


def encode_other(value: object) -> Any:
    """For encoders: a block of a kind we do not know as the object it is."""
    if isinstance(value, OtherBlock):
        return value.data
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_Kind = TypeVar("_Kind", bound=Message | Event)
_ROLES = frozenset(get_args(Role))
_encoder = msgspec.json.Encoder(enc_hook=encode_other)
_decoder = msgspec.json.Decoder(KnownRecord)
_plain = msgspec.json.Decoder()
_PREFIX = re.compile(rb'\{"recordType":"([^"\\]*)","schemaVersion":(\d+),"seq":(\d{1,18})[,}]')


class Reading(NamedTuple):
    """What a line turned out to be: a record, or the reason why it is none."""

    record: AnyRecord | None
    problem: str = ""
    checked: bool = False  # a crc was there and matched


# --- writing --------------------------------------------------------------------------------


class _Own(bytes):
    """The JSON of a record as `_encode` gives it, written here: nobody else makes one.

    The record that has it for its line may have been changed since; a record that is decoded
    from it is one that a store can hold.
    """

    __slots__ = ()


def with_key(record: _Kind, key: str, value: Any) -> _Kind:
    """A record with one more key, which is not ours, in the form in which a store writes it.

    Both hold only what was parsed, or text: no objects that stand for other JSON than themselves.
    """
    known = _encoder.encode(bare(record))
    line = b'%b,"%b":%b}' % (known[:-1], key.encode(), _encoder.encode(value))
    # Otherwise it would be written in another form: under a key of ours, or with escapes.
    as_written = key.isidentifier() and key.isascii() and key not in _FIELDS
    return replace(record, line=_Own(line) if as_written else line)


def as_kept(record: AnyRecord) -> KnownRecord | None:
    """A record that `with_key` made, as a later reader will see it; its line is its JSON.

    None if it did not, or was changed since, or cannot be written: ask `encode`.
    """
    line = record.line
    if type(line) is not _Own or _is_deep(line):
        return None
    try:
        read: KnownRecord = _decoder.decode(line)
    except (ValueError, RecursionError):
        return None
    force_setattr(read, "line", line)
    return read if read == record else None


def encode(record: AnyRecord) -> tuple[AnyRecord, bytes]:
    """The record with what JSON cannot hold made good, and its JSON without seq, version and crc.

    NaN and infinities become null, lone surrogates U+FFFD. Raises FormatError for what JSON or
    a later reader could not hold.
    """
    record, body, _ = encode_read(record)
    return record, body


def encode_read(record: AnyRecord) -> tuple[AnyRecord, bytes, KnownRecord | None]:
    """The same, with the record as a later reader will see it, unless that is slow to say."""
    try:
        body = _encode(record)
    except UnicodeEncodeError:
        record = _without_surrogates(record)
        body = _encode(record)
    if _is_deep(body):
        raise FormatError(
            f"content is nested deeper than {MAX_DEPTH} levels", hint="store it as text"
        )
    if record.schema_version != SCHEMA_VERSION:
        raise FormatError(f"a record of schema version {record.schema_version} cannot be written")
    # Structs take any value: what is acknowledged must be readable, so read it.
    try:
        read: KnownRecord = _decoder.decode(body)
    except (ValueError, RecursionError):
        problem = _decode_slowly(body).problem
        if problem:
            raise FormatError(problem) from None
        return record, body, None
    force_setattr(read, "line", body if record.line else b"")
    return record, body, read


def encode_plain(record: AnyRecord) -> bytes | None:
    """The same for most messages: new, and nothing but text, which JSON holds as it is.

    None means: ask `encode`.
    """
    if type(record) is not Message or record.line or record.seq or record.role not in _ROLES:
        return None
    for block in record.content:
        if type(block) is not Text or type(block.text) is not str:
            return None
    if (
        record.tool_call_id is not None
        or record.tool_name is not None
        or record.is_error is not None
        or record.model is not None
        or record.usage is not None
        or record.stop_reason is not None
        or record.sender is not None
        or record.cwd is not None
        or not (record.run_id is None or type(record.run_id) is str)
        or type(record.id) is not str
        or type(record.timestamp) is not str
    ):
        return None
    try:
        return _encoder.encode(record)
    except UnicodeEncodeError:
        return None


def seal(body: bytes, kind: str, seq: int) -> bytes:
    """The line (without newline) of an encoded record at its place in the log."""
    head = _HEADS.get(kind) or _head(kind)
    line = b'%b,"schemaVersion":%d,"seq":%d%b' % (head, SCHEMA_VERSION, seq, body[len(head) : -1])
    return b'%b,"crc":"%08x"}' % (line, crc32(line))


def stored(record: AnyRecord, seq: int, line: bytes, *, plain: bool) -> AnyRecord:
    """The record as a later reader will see it; a plain one is so but for its place."""
    if not plain:
        return decode(line).record or record  # it may hold sets, NaN …: the line is what counts
    force_setattr(record, "seq", seq)
    force_setattr(record, "line", line)
    return record


def same(given: AnyRecord, record: AnyRecord) -> bool:
    """Whether a record that is stored is the one that is given again."""
    ours, theirs = _plain.decode(encode(given)[1]), _plain.decode(record.line)
    for data in (ours, theirs):
        for key in ("schemaVersion", "seq", "crc", "timestamp"):
            data.pop(key, None)
    return bool(ours == theirs)


def from_object(data: Mapping[str, Any]) -> AnyRecord:
    """A record from its JSON object; keys that we do not know survive into the line."""
    try:
        line = _encoder.encode(clean(dict(data)))
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"not a JSON value: {error}") from error
    record, problem, _ = decode_strict(line)
    if record is None:
        raise FormatError(problem)
    return record


def to_object(record: AnyRecord) -> dict[str, Any]:
    """A record as a JSON object, from which `from_object` makes it again."""
    without = replace(record, line=b"") if record.line else record
    made: dict[str, Any] = msgspec.to_builtins(without, enc_hook=encode_other)
    return made


def extended(record: AnyRecord, keys: Mapping[str, Any]) -> AnyRecord:
    """A record with further keys that are not ours; those that it has stay."""
    known = to_object(record)
    others = msgspec.json.decode(record.line) if record.line else {}
    others.pop("crc", None)
    return from_object({**known, **{k: v for k, v in others.items() if k not in known}, **keys})


def _encode(record: AnyRecord) -> bytes:
    try:
        if record.line:
            return _splice(record)
        if isinstance(record, Unknown):
            raise TypeError(f"a {record.record_type!r} record without its line")
        return _encoder.encode(bare(record))
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"the record cannot be written as JSON: {error}") from error


def bare(record: KnownRecord) -> KnownRecord:
    """The record without what only its place in a log gave it."""
    if record.seq == 0 and not record.line and record.schema_version == SCHEMA_VERSION:
        return record
    return replace(record, seq=0, line=b"", schema_version=SCHEMA_VERSION)


def _splice(record: AnyRecord) -> bytes:
    """The JSON of a record that was made from JSON: all its keys, the known ones as they are now.

    The typed record has no room for keys that we do not know, at any depth; its line has.
    """
    data = _plain.decode(record.line)
    original = _original(record.line)
    changed: set[str] = set()  # keys that came or went
    if original is not None and not _alike(original, record):
        now, before = _known(record), _known(original)
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                data[key] = now.get(key)
        changed = before.keys() ^ now.keys()
    first = {"recordType": record.record_type, "id": data.pop("id", None)}
    for key in ("recordType", "schemaVersion", "seq", "crc"):
        data.pop(key, None)
    rest = {key: value for key, value in data.items() if value is not None or key not in changed}
    return _encoder.encode({key: value for key, value in first.items() if value} | rest)


def _original(line: bytes) -> AnyRecord | None:
    """The record that a line was read as."""
    try:
        record: KnownRecord = _decoder.decode(line)
        return record
    except (ValueError, RecursionError):
        return decode(line).record


def _alike(one: AnyRecord, other: AnyRecord) -> bool:
    """Whether two records say the same, wherever they stand."""
    if isinstance(one, Unknown) or isinstance(other, Unknown):
        return False
    return bare(one) == bare(other)


def _known(record: AnyRecord) -> dict[str, Any]:
    """The fields of a record that its type has room for."""
    if isinstance(record, Unknown):
        return {"id": record.id or None, "timestamp": record.timestamp or None}
    known: dict[str, Any] = _plain.decode(_encoder.encode(bare(record)))
    return known


def _without_surrogates(record: AnyRecord) -> AnyRecord:
    if isinstance(record, Message):
        record = replace(record, content=tuple(clean(list(record.content))))
    fields = {
        name: clean(getattr(record, name))
        for name in record.__struct_fields__
        if name not in ("content", "line")
    }
    return replace(record, **fields)


def clean(value: Any) -> Any:
    """A value with U+FFFD in place of lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(clean(item) for item in value)
    if isinstance(value, OtherBlock):
        return OtherBlock(clean(value.data))
    if isinstance(value, msgspec.Struct):
        return replace(
            value, **{name: clean(getattr(value, name)) for name in value.__struct_fields__}
        )
    return value


def _is_deep(body: bytes) -> bool:
    """Whether a later reader may not get to the bottom of it."""
    return body.count(b"[") + body.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH


def _depth(body: bytes) -> int:
    deepest = depth = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


# --- reading --------------------------------------------------------------------------------


def has_crc(line: bytes) -> bool:
    """Whether the line ends in a crc; not whether it matches."""
    return line[-18:-10] == b',"crc":"' and line[-2:] == b'"}'


def crc_matches(line: bytes) -> bool:
    """Whether the line ends in its own crc."""
    return line[-18:] == b',"crc":"%08x"}' % crc32(line[:-18])


def decode_fast(line: bytes) -> KnownRecord | None:
    """The record in a line as we write it; None means: ask `decode`."""
    if line[-18:] != b',"crc":"%08x"}' % crc32(line[:-18]):
        return None
    try:
        record: KnownRecord = _decoder.decode(line)
    except (ValueError, RecursionError):
        return None
    force_setattr(record, "line", line)
    return record


def decode(line: bytes) -> Reading:
    """The record in a line (without its newline), or why there is none."""
    record = decode_fast(line)
    if record is not None:
        return Reading(record, "", checked=True)
    if not line:
        return Reading(None, "the line is empty")
    if not has_crc(line):
        return decode_strict(line)
    if not crc_matches(line):
        return Reading(None, "crc does not match")
    return _decode_slowly(line)._replace(checked=True)


def decode_strict(line: bytes) -> Reading:
    """Decode a line that no crc vouches for."""
    problem = _strict_problem(line)
    return Reading(None, problem) if problem else _decode_slowly(line)


def peek_seq(line: bytes) -> int | None:
    """The seq of a line, from its first bytes if it begins as we write it."""
    if prefix := _PREFIX.match(line):
        return int(prefix[3])
    record = decode(line).record
    return None if record is None else record.seq


def _strict_problem(line: bytes) -> str:
    # orjson and msgspec both take the last of two equal keys, which smuggles roles.
    import json  # noqa: PLC0415 - only lines of other writers need it

    try:
        _plain.decode(line)
        line.decode()
        json.loads(line, object_pairs_hook=refuse_duplicates)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not valid JSON: {str(error)[:120]}"
    return ""


class DuplicateKey(ValueError):
    """A JSON object names a key twice, and readers would differ on which one counts."""


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its pairs, for `json.loads(object_pairs_hook=…)`."""
    data = dict(pairs)
    if len(data) != len(pairs):
        for name, _ in pairs:
            if name not in data:
                raise DuplicateKey(f"duplicate key {name[:40]!r}")
            del data[name]
    return data


def _decode_slowly(line: bytes) -> Reading:
    """Decode what the fast decoder refused: newer versions, unknown kinds, unknown blocks."""
    try:
        data = _plain.decode(line)
        if not isinstance(data, dict) or not isinstance(data.get("recordType"), str):
            return Reading(None, "not a record: no recordType")
        data.pop(LINE_KEY, None)  # the bytes still have it
        header = msgspec.convert(data, Unknown)
        record: AnyRecord = header
        if header.schema_version <= SCHEMA_VERSION and header.record_type in _KINDS:
            record = _convert(data)
    except RecursionError:
        return Reading(None, "nested too deeply")
    except ValueError as error:
        return Reading(None, f"not a valid record: {str(error)[:120]}")
    force_setattr(record, "line", line)
    return Reading(record)


def _convert(data: dict[str, Any]) -> KnownRecord:
    content = data.get("content")
    if data["recordType"] != "message" or not isinstance(content, list):
        return msgspec.convert(data, KnownRecord)  # type: ignore[no-any-return]
    if not all(isinstance(block, dict) for block in content):
        raise ValueError("content holds something that is not a block")
    empty: KnownRecord = msgspec.convert({**data, "content": []}, KnownRecord)
    force_setattr(empty, "content", blocks(content))
    return empty


def _head(kind: str) -> bytes:
    """What the body of a record of some kind begins with."""
    return b'{"recordType":%b' % _encoder.encode(kind)


_KINDS = frozenset(kind.record_type for kind in KnownRecord.__args__)
_HEADS = {kind: _head(kind) for kind in _KINDS}
_FIELDS = frozenset({"recordType", "crc"}).union(
    *(kind.__struct_encode_fields__ for kind in KnownRecord.__args__)
)
