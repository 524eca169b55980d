"""The input of `everlog sessions append`: text, one JSON message, or JSON lines of messages.

A JSON object, or input that begins like a message, must be a valid message: an error names the
line, and nothing is guessed. Everything else is text.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.log.line_codec import DuplicateKeyError, from_object, reject_duplicate_keys
from everlog.model import AnyRecord, Message, assistant, user

_TEXT_HINT = "use --text to store it as text"
_LIKE_A_MESSAGE = re.compile(r'\s*\{\s*"(role|recordType|content)"\s*:')


def read_stdin() -> bytes:
    """Read all of stdin; on a terminal, until Ctrl-D."""
    if sys.stdin is None:
        return b""
    if sys.stdin.isatty():
        print("type the message, then Ctrl-D", file=sys.stderr)
    return sys.stdin.buffer.read()


def text_message(text: str, role: str) -> Message:
    """Return a message of plain text; raises FormatError if it is blank."""
    if not text.strip():
        raise FormatError("the message is empty")
    return assistant(text) if role == "assistant" else user(text)


def assign_id(records: list[AnyRecord], record_id: str) -> AnyRecord:
    """Return the only record with an id, so that a retried append is deduplicated."""
    if len(records) != 1:
        raise FormatError(
            f"--id takes exactly one message, and the input has {len(records)}", hint='give each line its own "id"'
        )
    if not record_id:
        raise FormatError("--id is empty")
    return replace(records[0], id=record_id)


def parse_records(data: bytes, *, role: str, as_text: bool) -> list[AnyRecord]:
    """Parse the records of an input; raises FormatError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"the input is not valid UTF-8 at byte {error.start}") from error
    if as_text or not text.lstrip().startswith("{"):
        return [text_message(text.rstrip("\r\n"), role)]
    document = _parse(text, "")
    if isinstance(document, dict):
        return [_to_record(document, "")]
    rows = [(number, row) for number, row in enumerate(text.split("\n"), 1) if row.strip()]
    values = [(number, _parse(row, f"line {number}: ")) for number, row in rows]
    objects = [(number, value) for number, value in values if isinstance(value, dict)]
    if len(objects) == len(values):
        return [_to_record(value, f"line {number}: ") for number, value in objects]
    if not _LIKE_A_MESSAGE.match(text):
        return [text_message(text.rstrip("\r\n"), role)]
    if len(rows) == 1:
        raise FormatError(f"not a message: {document}", hint=_TEXT_HINT)
    number, problem = next((n, value) for n, value in values if not isinstance(value, dict))
    raise FormatError(f"line {number}: not a message: {problem}", hint=_TEXT_HINT)


def _parse(text: str, prefix: str) -> dict[str, Any] | str:
    """Return the JSON object in a text, or the reason why it is none; FormatError if refused."""
    try:
        value = json.loads(text, object_pairs_hook=reject_duplicate_keys, parse_constant=_refuse_constant)
    except (DuplicateKeyError, FormatError) as error:
        raise FormatError(f"{prefix}not a message: {error}", hint=_TEXT_HINT) from error
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return str(error)
    return value if isinstance(value, dict) else "not a JSON object"


def _refuse_constant(name: str) -> Any:
    raise FormatError(f"{name} is not JSON")


def _to_record(data: dict[str, Any], prefix: str) -> AnyRecord:
    kind = data.get("recordType", "message")
    if kind != "message":
        raise FormatError(f"{prefix}append takes messages, not {kind!r}")
    if "role" not in data:
        raise FormatError(f"{prefix}the JSON object has no role", hint=_TEXT_HINT)
    if "auto_injected" in data:  # as Python and other programs spell it
        data = {"autoInjected": data["auto_injected"], **data}
        del data["auto_injected"]
    content = data.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    try:
        record = from_object({**data, "recordType": "message", "content": content})
    except FormatError as error:
        raise FormatError(f"{prefix}{error.message}", hint=error.hint) from error
    if not isinstance(record, Message):
        version = record.schema_version
        raise FormatError(f"{prefix}schemaVersion {version} is newer than this everlog")
    return record
