"""What `append` is given, as records: text, one JSON message, or JSON lines of messages.

What is a JSON object, or begins like a message, is taken for a message and must be a proper one:
an error names the line, and nothing is guessed. Everything else is text.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.log.line_codec import DuplicateKey, from_object, refuse_duplicates
from everlog.model import AnyRecord, Message, assistant, user

_TEXT_HINT = "with --text it is stored as text"
_LIKE_A_MESSAGE = re.compile(r'\s*\{\s*"(role|recordType|content)"\s*:')


def stdin() -> bytes:
    """All of stdin; on a terminal, what is typed until Ctrl-D."""
    if sys.stdin is None:
        return b""
    if sys.stdin.isatty():
        print("type the message, then Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer.read()


def message(text: str, role: str) -> Message:
    """A message of plain text."""
    if not text.strip():
        raise FormatError("there is no message: the input is empty")
    return assistant(text) if role == "assistant" else user(text)


def with_id(records: list[AnyRecord], record_id: str) -> AnyRecord:
    """The one record, with an id that makes a retry harmless."""
    if len(records) != 1:
        raise FormatError(
            f"--id names one message and the input has {len(records)}",
            hint='give each line an "id" of its own',
        )
    if not record_id:
        raise FormatError("--id is empty")
    return replace(records[0], id=record_id)


def records(data: bytes, *, role: str, as_text: bool) -> list[AnyRecord]:
    """The records in an input."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"the input is not valid UTF-8 at byte {error.start}") from error
    if as_text or not text.lstrip().startswith("{"):
        return [message(text.rstrip("\r\n"), role)]
    whole = _parse(text, "")
    if isinstance(whole, dict):
        return [_record(whole, "")]
    rows = [(number, row) for number, row in enumerate(text.split("\n"), 1) if row.strip()]
    values = [(number, _parse(row, f"line {number}: ")) for number, row in rows]
    objects = [(number, value) for number, value in values if isinstance(value, dict)]
    if len(objects) == len(values):
        return [_record(value, f"line {number}: ") for number, value in objects]
    if not _LIKE_A_MESSAGE.match(text):
        return [message(text.rstrip("\r\n"), role)]
    if len(rows) == 1:
        raise FormatError(f"not a message: {whole}", hint=_TEXT_HINT)
    number, problem = next((n, value) for n, value in values if not isinstance(value, dict))
    raise FormatError(f"line {number}: not a message: {problem}", hint=_TEXT_HINT)


class _Unacceptable(ValueError):
    """JSON that is well-formed and still refused."""


def _parse(text: str, place: str) -> dict[str, Any] | str:
    """The JSON object in a text, or why there is none; FormatError for one that is refused."""
    try:
        value = json.loads(
            text, object_pairs_hook=refuse_duplicates, parse_constant=_refuse_constant
        )
    except (DuplicateKey, _Unacceptable) as error:
        raise FormatError(f"{place}not a message: {error}", hint=_TEXT_HINT) from error
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return str(error)
    return value if isinstance(value, dict) else "not a JSON object"


def _refuse_constant(name: str) -> Any:
    raise _Unacceptable(f"{name} is not JSON")


def _record(data: dict[str, Any], place: str) -> AnyRecord:
    kind = data.get("recordType", "message")
    if kind != "message":
        raise FormatError(f"{place}append takes messages, not {kind!r}")
    if "role" not in data:
        raise FormatError(f"{place}the JSON object has no role", hint=_TEXT_HINT)
    content = data.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    try:
        record = from_object({**data, "recordType": "message", "content": content})
    except FormatError as error:
        raise FormatError(f"{place}{error.message}", hint=error.hint) from error
    if not isinstance(record, Message):
        version = record.schema_version
        raise FormatError(f"{place}schemaVersion {version} is newer than this everlog")
    return record
