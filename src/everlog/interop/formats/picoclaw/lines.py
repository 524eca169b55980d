"""PicoClaw's lines: which of them it counts, which it can read, and their messages as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.jsonl import parse
from everlog.interop.formats.picoclaw.go_json import TIME, dump, go_time
from everlog.interop.formats.picoclaw.messages import read_message, write_message
from everlog.model import Message

NAME = "picoclaw"
READABLE = 10 * 1024 * 1024  # bytes of a line that PicoClaw itself can read
ROLES = ("user", "assistant", "tool")
THEIRS = ("created_at", "model_name", "media", "attachments", "system_parts", "tool_call_id")

_KEYS = ("role", "content", "reasoning_content", "tool_calls", *THEIRS)


def counted(data: bytes) -> int:
    """How many lines PicoClaw counts: all but empty ones."""
    return sum(line.removesuffix(b"\r") != b"" for line in data.split(b"\n"))


def lowered(value: dict[str, Any]) -> dict[str, Any]:
    """Go takes the names of fields in any case."""
    if all(key in _KEYS for key in value):
        return value
    found = {key.lower(): item for key, item in value.items() if key.lower() in _KEYS}
    return {**found, **value}


def is_thought(value: Mapping[str, Any]) -> bool:
    """Whether a message is nothing but a thought, which PicoClaw passes over and never writes."""
    content, thought = value.get("content") or "", value.get("reasoning_content") or ""
    others = ("tool_calls", "media", "attachments", "tool_call_id")
    return bool(
        value.get("role") == "assistant"
        and isinstance(content, str)
        and isinstance(thought, str)
        and not content.strip()
        and thought.strip()
        and not any(value.get(key) for key in others)
    )


def message_in(value: Mapping[str, Any], name: str, at: str) -> Message | None:
    """The message in an object; None for one that PicoClaw, too, cannot read."""
    created = value.get("created_at")
    if created is not None and not (isinstance(created, str) and TIME.fullmatch(created)):
        return None
    calls = value.get("tool_calls") or []
    try:
        for call in calls:
            if not isinstance(call["function"].get("arguments", ""), str | None):
                return None
        record = read_message(value, at)
    except (FormatError, TypeError, AttributeError, KeyError):
        return None
    return replace(record, id=name) if isinstance(record, Message) else None


def message_of(data: bytes, name: str, at: str) -> Message | None:
    """The message in a line, with nothing kept of the line; None if it is none."""
    value = parse(data)[0]
    if value is None:
        return None
    value = lowered(value)
    if value.get("role") not in ROLES or is_thought(value):
        return None
    message = message_in(value, name, at)
    return None if message is None else replace(message, line=b"")


def is_shown(data: bytes) -> bool:
    """Whether a line is part of the history for PicoClaw, such as a system prompt, which for us
    is no message."""
    value = parse(data)[0]
    if value is None:
        return False
    value = lowered(value)
    if not isinstance(value.get("role") or "", str) or is_thought(value):
        return False
    return message_in({**value, "role": "user"}, "", "") is not None


def message_line(message: Message) -> bytes:
    """A message as PicoClaw would write it."""
    made = write_message(message)
    if "created_at" in made:
        made["created_at"] = go_time(message.timestamp)
        if not made["created_at"]:
            del made["created_at"]
    return dump(made)
