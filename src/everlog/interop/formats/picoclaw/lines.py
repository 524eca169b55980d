"""PicoClaw's lines: which it counts, which it can read, and the messages in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everlog.errors import FormatError
from everlog.interop.formats.jsonl import parse_object
from everlog.interop.formats.picoclaw.go_json import TIME_PATTERN, encode_go_json, format_go_time
from everlog.interop.formats.picoclaw.messages import ROLES, build_message, write_message
from everlog.model import Message

NAME = "picoclaw"
MAX_READABLE_BYTES = 10 * 1024 * 1024  # in a line, by PicoClaw itself
PICOCLAW_KEYS = ("model_name", "created_at", "media", "attachments", "system_parts")  # that no other program writes
# All known keys, in the order of PicoClaw's lines.
_KEYS = (
    "role",
    "content",
    "model_name",
    "created_at",
    "media",
    "attachments",
    "reasoning_content",
    "system_parts",
    "tool_calls",
    "tool_call_id",
)


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
    """Return the message in an object; None if PicoClaw could not read it either, or ignores it."""
    created = value.get("created_at")
    if created is not None and not (isinstance(created, str) and TIME_PATTERN.fullmatch(created)):
        return None
    try:
        if value.get("role") not in ROLES or is_only_thinking(value):
            return None
        for call in value.get("tool_calls") or []:
            if not isinstance(call["function"].get("arguments", ""), str | None):
                return None
        return build_message(value, default_time, message_id)
    except (FormatError, TypeError, AttributeError, KeyError):
        return None


def is_in_history(data: bytes) -> bool:
    """Return whether a line is part of the history for PicoClaw.

    Such as a system prompt, which is not a message here.
    """
    parsed = parse_object(data)[0]
    if parsed is None:
        return False
    value = lowercase_keys(parsed)
    if not isinstance(value.get("role") or "", str) or is_only_thinking(value):
        return False
    return parse_message({**value, "role": "user"}, "", "") is not None


def encode_message_line(message: Message) -> bytes:
    """Encode a message as PicoClaw would write it."""
    return encode_object(write_message(message))


def encode_object(value: Mapping[str, Any]) -> bytes:
    """Encode the known keys of a message as PicoClaw does when it rewrites its line."""
    known = {key: value.get(key) for key in _KEYS if value.get(key) or key in ("role", "content")}
    created = known.get("created_at")
    if isinstance(created, str):
        known["created_at"] = format_go_time(created)
        if not known["created_at"]:
            del known["created_at"]
    return encode_go_json(known)
