"""PicoClaw's lines: which it counts, which it can read, and the messages in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.jsonl import parse_object
from everlog.interop.formats.picoclaw.go_json import TIME_PATTERN, encode_go_json, format_go_time
from everlog.interop.formats.picoclaw.messages import read_message, write_message
from everlog.model import Message

NAME = "picoclaw"
MAX_READABLE_BYTES = 10 * 1024 * 1024  # in a line, by PicoClaw itself
ROLES = ("user", "assistant", "tool")
PICOCLAW_KEYS = ("created_at", "model_name", "media", "attachments", "system_parts", "tool_call_id")

_KEYS = ("role", "content", "reasoning_content", "tool_calls", *PICOCLAW_KEYS)


def count_lines(data: bytes) -> int:
    """Return how many lines PicoClaw counts: all but empty ones."""
    return sum(line.removesuffix(b"\r") != b"" for line in data.split(b"\n"))


def lowercase_keys(value: dict[str, Any]) -> dict[str, Any]:
    """Add known keys in lower case, because Go accepts field names in any case."""
    if all(key in _KEYS for key in value):
        return value
    lowercase = {key.lower(): item for key, item in value.items() if key.lower() in _KEYS}
    return {**lowercase, **value}


def is_only_thinking(value: Mapping[str, Any]) -> bool:
    """Return whether a message has only thinking, which PicoClaw ignores and never writes."""
    content, thought = value.get("content") or "", value.get("reasoning_content") or ""
    other_keys = ("tool_calls", "media", "attachments", "tool_call_id")
    return bool(
        value.get("role") == "assistant"
        and isinstance(content, str)
        and isinstance(thought, str)
        and not content.strip()
        and thought.strip()
        and not any(value.get(key) for key in other_keys)
    )


def parse_message(value: Mapping[str, Any], message_id: str, default_time: str) -> Message | None:
    """Return the message in an object; None if PicoClaw could not read it either."""
    created = value.get("created_at")
    if created is not None and not (isinstance(created, str) and TIME_PATTERN.fullmatch(created)):
        return None
    calls = value.get("tool_calls") or []
    try:
        for call in calls:
            if not isinstance(call["function"].get("arguments", ""), str | None):
                return None
        record = read_message(value, default_time)
    except (FormatError, TypeError, AttributeError, KeyError):
        return None
    return replace(record, id=message_id) if isinstance(record, Message) else None


def parse_message_line(data: bytes, message_id: str, default_time: str) -> Message | None:
    """Return the message in a line, without preserving the line; None if it has none."""
    value = parse_object(data)[0]
    if value is None:
        return None
    value = lowercase_keys(value)
    if value.get("role") not in ROLES or is_only_thinking(value):
        return None
    message = parse_message(value, message_id, default_time)
    return None if message is None else replace(message, line=b"")


def is_in_history(data: bytes) -> bool:
    """Return whether a line is part of the history for PicoClaw.

    Such as a system prompt, which is not a message here.
    """
    value = parse_object(data)[0]
    if value is None:
        return False
    value = lowercase_keys(value)
    if not isinstance(value.get("role") or "", str) or is_only_thinking(value):
        return False
    return parse_message({**value, "role": "user"}, "", "") is not None


def encode_message_line(message: Message) -> bytes:
    """Encode a message as PicoClaw would write it."""
    value = write_message(message)
    if "created_at" in value:
        value["created_at"] = format_go_time(message.timestamp)
        if not value["created_at"]:
            del value["created_at"]
    return encode_go_json(value)
