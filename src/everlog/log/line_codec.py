"""The line codec: encode a record as one line, decode a line as one record.

A native line ends in exactly 18 bytes, `,"crc":"xxxxxxxx"}`: the CRC-32 of the bytes before
them, compared as bytes. Such a line takes the fast path. A line without it was written by another
program and takes the strict path: valid UTF-8, no duplicate keys, everything decoded at once.
Whatever the bytes are, `decode` returns a record or a reason, and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
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

# Deeper values could be written here and then fail to decode under a deeper call stack.
MAX_DEPTH = 200
# Of a line that `with_key` made. JSON allows it, and no line of a file contains a newline.
SEAL = b"\n\t\n"
_SEALED_END = b"}" + SEAL


def encode_other_block(value: object) -> Any:
    """Return the JSON object of a block of unknown kind; an `enc_hook` for encoders."""
    if isinstance(value, OtherBlock):
        return value.data
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_Kind = TypeVar("_Kind", bound=Message | Event)
_ROLES = frozenset(get_args(Role))
_encoder = msgspec.json.Encoder(enc_hook=encode_other_block)
_decoder = msgspec.json.Decoder(KnownRecord)
_json_decoder = msgspec.json.Decoder()
_PREFIX = re.compile(rb'\{"recordType":"([^"\\]*)","schemaVersion":(\d+),"seq":(\d{1,18})[,}]')


class DecodedLine(NamedTuple):
    """The result of decoding a line: a record, or the reason why it is not one."""

    record: AnyRecord | None
    problem: str = ""
    checked: bool = False  # the line has a crc and it matches


# --- writing --------------------------------------------------------------------------------


def with_key(record: _Kind, key: str, value: Any, *, is_shallow: bool = False) -> _Kind:
    """Return a record with one more, foreign key, in the form in which a store writes it.

    Record and value must hold only parsed JSON or text: no objects that encode as other JSON.
    `is_shallow`: the caller knows that the record will have at most MAX_DEPTH levels.

    Its line is sealed, so that `read_back` knows that the JSON is in the form that `_encode` returns,
    and not too deep.
    """
    name, is_own_form = _encode_key(key)
    line = b"".join((_encoder.encode(without_position(record))[:-1], name, _encoder.encode(value), _SEALED_END))
    if not is_own_form or (not is_shallow and is_too_deep(line)):
        line = line.removesuffix(SEAL)
    return replace(record, line=line)


@cache
def _encode_key(key: str) -> tuple[bytes, bool]:
    """Return a key as it follows other keys, and whether a store would write it in this form.

    It would write it differently if the key is native, or needs escapes.
    """
    return b',"%b":' % key.encode(), key.isidentifier() and key.isascii() and key not in _FIELDS


def read_back(record: AnyRecord) -> KnownRecord | None:
    """Return a record made by `with_key` as a later reader will see it; its line is its JSON.

    None if it was not made so, was changed since or cannot be written: use `encode` then.
    """
    line = record.line
    if line[-len(SEAL) :] != SEAL:
        return None
    try:
        decoded: KnownRecord = _decoder.decode(line)
    except (ValueError, RecursionError):
        return None
    force_setattr(decoded, "line", line)
    return decoded if decoded == record else None


def encode(record: AnyRecord) -> tuple[AnyRecord, bytes]:
    """Return the record, made valid for JSON, and its JSON without seq, version and crc.

    NaN and infinities become null, lone surrogates U+FFFD. Raises FormatError for anything that
    JSON or a later reader cannot hold.
    """
    record, body, _ = encode_and_read_back(record)
    return record, body


def encode_and_read_back(record: AnyRecord) -> tuple[AnyRecord, bytes, KnownRecord | None]:
    """Encode like `encode`; also return the record as a later reader sees it, None if slow."""
    try:
        body = _encode(record)
    except UnicodeEncodeError:
        record = _without_surrogates(record)
        body = _encode(record)
    if is_too_deep(body):
        raise FormatError(f"content is nested deeper than {MAX_DEPTH} levels", hint="store it as text")
    if record.schema_version != SCHEMA_VERSION:
        raise FormatError(f"a record of schema version {record.schema_version} cannot be written")
    # Structs take any value, but an acknowledged record must be readable: so decode it.
    try:
        decoded: KnownRecord = _decoder.decode(body)
    except (ValueError, RecursionError):
        problem = _decode_slowly(body).problem
        if problem:
            raise FormatError(problem) from None
        return record, body, None
    force_setattr(decoded, "line", body if record.line else b"")
    return record, body, decoded


def encode_plain(record: AnyRecord) -> bytes | None:
    """Encode a plain message: new, with only text, which JSON holds unchanged.

    Most messages are plain. None means that the record is not: use `encode`.
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


def build_line(body: bytes, kind: str, seq: int) -> bytes:
    """Return the line (without newline) of an encoded record: seq, version and crc added."""
    start, template = _LINE_STARTS.get(kind) or _line_start(kind)
    line = template % seq + body[start:-1]
    return line + b',"crc":"%08x"}' % crc32(line)


def as_stored(record: AnyRecord, seq: int, line: bytes, *, plain: bool) -> AnyRecord:
    """Return the record as a later reader will see it; a plain one only lacks seq and line."""
    if not plain:
        return decode(line).record or record  # it may hold sets, NaN …: the line is the truth
    force_setattr(record, "seq", seq)
    force_setattr(record, "line", line)
    return record


def is_same_record(candidate: AnyRecord, stored: AnyRecord) -> bool:
    """Return whether a record is a retry of a stored one: equal but for position and time."""
    left, right = _json_decoder.decode(encode(candidate)[1]), _json_decoder.decode(stored.line)
    for data in (left, right):
        for key in ("schemaVersion", "seq", "crc", "timestamp"):
            data.pop(key, None)
    return bool(left == right)


def from_object(data: Mapping[str, Any]) -> AnyRecord:
    """Return a record from its JSON object; unknown keys are kept in its line."""
    try:
        line = _encoder.encode(replace_surrogates(dict(data)))
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"not a JSON value: {error}") from error
    record, problem, _ = decode_strict(line)
    if record is None:
        raise FormatError(problem)
    return record


def to_object(record: AnyRecord) -> dict[str, Any]:
    """Return a record as a JSON object, which `from_object` turns back into the record."""
    unpositioned = replace(record, line=b"") if record.line else record
    data: dict[str, Any] = msgspec.to_builtins(unpositioned, enc_hook=encode_other_block)
    return data


def with_keys(record: AnyRecord, keys: Mapping[str, Any]) -> AnyRecord:
    """Return a record with further foreign keys; the keys that it has stay."""
    extra = msgspec.json.decode(record.line) if record.line else {}
    extra.pop("crc", None)
    try:
        plain = without_keys(record)
        names = plain.__struct_encode_fields__
        added = {**{key: value for key, value in extra.items() if key not in names and key != "recordType"}, **keys}
        line = plain.line[:-1] + b"," + _encoder.encode(added)[1:] if added else plain.line
    except UnicodeEncodeError:
        fields = to_object(record)
        return from_object({**fields, **{k: v for k, v in extra.items() if k not in fields}, **keys})
    force_setattr(plain, "line", line)
    return plain


def without_keys(record: AnyRecord) -> AnyRecord:
    """Return a record without foreign keys."""
    if isinstance(record, Unknown):
        return from_object(to_object(record))
    plain = replace(record, line=b"")
    force_setattr(plain, "line", _encoder.encode(plain))
    return plain


def _encode(record: AnyRecord) -> bytes:
    try:
        if record.line:
            return _splice(record)
        if isinstance(record, Unknown):
            raise TypeError(f"a {record.record_type!r} record without its line")
        return _encoder.encode(without_position(record))
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"the record cannot be written as JSON: {error}") from error


def without_position(record: KnownRecord) -> KnownRecord:
    """Return the record without its position in a log: seq, line and version."""
    if record.seq == 0 and not record.line and record.schema_version == SCHEMA_VERSION:
        return record
    return replace(record, seq=0, line=b"", schema_version=SCHEMA_VERSION)


def _splice(record: AnyRecord) -> bytes:
    """Encode a record that was made from JSON: all its keys, known ones with current values.

    Unknown keys, at any depth, are only in the record's line, not in its typed fields.
    """
    data = _json_decoder.decode(record.line)
    original = _decode_original(record.line)
    toggled: set[str] = set()  # keys that were added or removed
    if original is not None and not _has_same_content(original, record):
        current, previous = _known_fields(record), _known_fields(original)
        for key in {**previous, **current}:
            if previous.get(key) != current.get(key):
                data[key] = current.get(key)
        toggled = previous.keys() ^ current.keys()
    first = {"recordType": record.record_type, "id": data.pop("id", None)}
    for key in ("recordType", "schemaVersion", "seq", "crc"):
        data.pop(key, None)
    remainder = {key: data[key] for key in data if data[key] is not None or key not in toggled}
    return _encoder.encode({key: value for key, value in first.items() if value} | remainder)


def _decode_original(line: bytes) -> AnyRecord | None:
    """Return the record that a line was decoded to."""
    try:
        record: KnownRecord = _decoder.decode(line)
        return record
    except (ValueError, RecursionError):
        return decode(line).record


def _has_same_content(left: AnyRecord, right: AnyRecord) -> bool:
    """Return whether two records are equal apart from their position."""
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        return False
    return without_position(left) == without_position(right)


def _known_fields(record: AnyRecord) -> dict[str, Any]:
    """Return the fields of a record that its type defines, as JSON values."""
    if isinstance(record, Unknown):
        return {"id": record.id or None, "timestamp": record.timestamp or None}
    fields: dict[str, Any] = _json_decoder.decode(_encoder.encode(without_position(record)))
    return fields


def _without_surrogates(record: AnyRecord) -> AnyRecord:
    if isinstance(record, Message):
        record = replace(record, content=tuple(replace_surrogates(list(record.content))))
    fields = {
        name: replace_surrogates(getattr(record, name))
        for name in record.__struct_fields__
        if name not in ("content", "line")
    }
    return replace(record, **fields)


def replace_surrogates(value: Any) -> Any:
    """Return a value with every lone surrogate replaced by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replace_surrogates(item) for item in value)
    if isinstance(value, OtherBlock):
        return OtherBlock(replace_surrogates(value.data))
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        return replace(value, **{name: replace_surrogates(getattr(value, name)) for name in names})
    return value


# An unterminated string is one token too; otherwise each quote in it would be scanned to the end.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def is_too_deep(body: bytes, limit: int = MAX_DEPTH) -> bool:
    """Return whether JSON, valid or not, is nested deeper than `limit` levels."""
    # `count` looks at each byte, `replace` searches by memchr.
    if 2 * len(body) - len(body.replace(b"[", b"")) - len(body.replace(b"{", b"")) <= limit:
        return False
    depth = 0
    for token in _TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            if depth > limit:
                return True
        elif first in b"]}":
            depth -= 1
    return False


# --- reading --------------------------------------------------------------------------------


def has_crc(line: bytes) -> bool:
    """Return whether the line ends in a crc; not whether it matches."""
    return line[-18:-10] == b',"crc":"' and line[-2:] == b'"}'


def crc_matches(line: bytes) -> bool:
    """Return whether the line ends in its own crc."""
    return line[-18:] == b',"crc":"%08x"}' % crc32(line[:-18])


def decode_fast(line: bytes) -> KnownRecord | None:
    """Return the record of a native line; None means: use `decode`."""
    if line[-18:] != b',"crc":"%08x"}' % crc32(line[:-18]):
        return None
    try:
        record: KnownRecord = _decoder.decode(line)
    except (ValueError, RecursionError):
        return None
    force_setattr(record, "line", line)
    return record


def decode(line: bytes) -> DecodedLine:
    """Decode a line (without its newline) to a record, or say why it is not one."""
    record = decode_fast(line)
    if record is not None:
        return DecodedLine(record, "", checked=True)
    if not line:
        return DecodedLine(None, "the line is empty")
    if not has_crc(line):
        return decode_strict(line)
    if not crc_matches(line):
        return DecodedLine(None, "crc does not match")
    return _decode_slowly(line)._replace(checked=True)


def decode_strict(line: bytes) -> DecodedLine:
    """Decode a line without a crc, strictly."""
    problem = _strict_problem(line)
    return DecodedLine(None, problem) if problem else _decode_slowly(line)


def peek_seq(line: bytes) -> int | None:
    """Return the seq of a line, from its first bytes if it starts like a native line."""
    if prefix := _PREFIX.match(line):
        return int(prefix[3])
    record = decode(line).record
    return None if record is None else record.seq


def _strict_problem(line: bytes) -> str:
    # orjson and msgspec both take the last of two equal keys, which could smuggle in a role.
    import json  # noqa: PLC0415 - only lines of other programs need it

    try:
        _json_decoder.decode(line)
        line.decode()
        json.loads(line, object_pairs_hook=reject_duplicate_keys)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return f"not valid JSON: {str(error)[:120]}"
    return ""


class DuplicateKeyError(ValueError):
    """A JSON object contains a key twice, and readers would disagree about its value."""


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its pairs; for `json.loads(object_pairs_hook=…)`."""
    data = dict(pairs)
    if len(data) != len(pairs):
        for name, _ in pairs:
            if name not in data:
                raise DuplicateKeyError(f"duplicate key {name[:40]!r}")
            del data[name]
    return data


def _decode_slowly(line: bytes) -> DecodedLine:
    """Decode what the fast decoder refuses: newer versions, unknown kinds, unknown blocks."""
    try:
        data = _json_decoder.decode(line)
        if not isinstance(data, dict) or not isinstance(data.get("recordType"), str):
            return DecodedLine(None, "not a record: no recordType")
        data.pop(LINE_KEY, None)  # the line still has it
        header = msgspec.convert(data, Unknown)
        record: AnyRecord = header
        if header.schema_version <= SCHEMA_VERSION and header.record_type in _KINDS:
            record = _convert(data)
    except RecursionError:
        return DecodedLine(None, "nested too deeply")
    except ValueError as error:
        return DecodedLine(None, f"not a valid record: {str(error)[:120]}")
    force_setattr(record, "line", line)
    return DecodedLine(record)


def _convert(data: dict[str, Any]) -> KnownRecord:
    content = data.get("content")
    if data["recordType"] != "message" or not isinstance(content, list):
        return msgspec.convert(data, KnownRecord)  # type: ignore[no-any-return]
    if not all(isinstance(block, dict) for block in content):
        raise ValueError("content holds something that is not a block")
    empty: KnownRecord = msgspec.convert({**data, "content": []}, KnownRecord)
    force_setattr(empty, "content", blocks(content))
    return empty


def _line_start(kind: str) -> tuple[int, bytes]:
    """Return the length of the beginning of every body of a kind, and what a line has in its place, for `%`."""
    prefix = b'{"recordType":%b' % _encoder.encode(kind)
    return len(prefix), prefix.replace(b"%", b"%%") + b',"schemaVersion":%d,"seq":%%d' % SCHEMA_VERSION


_KINDS = frozenset(kind.record_type for kind in KnownRecord.__args__)
_LINE_STARTS = {kind: _line_start(kind) for kind in _KINDS}
_FIELDS = frozenset({"recordType", "crc"}).union(*(kind.__struct_encode_fields__ for kind in KnownRecord.__args__))
