"""CrabTalk's lines: the one about the session, and messages, as ours and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.jsonl import parse, text_of
from everlog.model import AnyBlock, Message, Role, Text, Thinking, ToolCall

NAME = "crabtalk"
ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "toolResult"}

_BACK = {ours: theirs for theirs, ours in ROLES.items()}
_REQUIRED = ("agent", "created_by", "created_at")


def is_meta(value: Mapping[str, Any]) -> bool:
    """Whether an object is the line about the session."""
    return all(isinstance(value.get(key), str) for key in _REQUIRED) and "role" not in value


def created(meta: Mapping[str, Any]) -> str:
    """When a session was made; empty if its line does not say it."""
    made = epoch_ms(text_of(meta, "created_at"))
    return timestamp(made / 1000) if made is not None and made > 0 else ""


def dump(value: Any) -> bytes:
    """Compact JSON as serde_json writes it."""
    return msgspec.json.encode(value)


# --- reading --------------------------------------------------------------------------------


def read_message(value: Mapping[str, Any], name: str, at: str) -> Message:
    """One of their messages; FormatError if it is not of their form."""
    content, thought = value.get("content") or "", value.get("reasoning_content") or ""
    calls = value.get("tool_calls") or []
    if not isinstance(content, str) or not isinstance(thought, str) or not isinstance(calls, list):
        raise FormatError("not a message: its fields have other types")
    blocks: list[AnyBlock] = []
    if thought:
        blocks.append(Thinking(thought))
    if content:
        blocks.append(Text(content))
    blocks += [read_call(call) for call in calls]
    is_result = value["role"] == "tool"
    return Message(
        id=name,
        role=ROLES[value["role"]],
        content=tuple(blocks),
        tool_call_id=text_of(value, "tool_call_id") if is_result else None,
        tool_name=text_of(value, "name") or None if is_result else None,
        timestamp=at,
    )


def read_call(call: Any) -> ToolCall:
    """A tool call in the form that OpenAI gave it: its arguments are JSON in a string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise FormatError("tool_calls: not objects with a function")
    text = function.get("arguments") or "{}"
    arguments = parse(text.encode())[0] if isinstance(text, str) else None
    if arguments is None:
        arguments = {"arguments": text}  # what the model wrote is no JSON object: kept as it is
    return ToolCall(text_of(call, "id"), text_of(function, "name"), arguments)


# --- writing --------------------------------------------------------------------------------


def write_message(message: Message) -> dict[str, Any]:
    """A message in their keys and their order; what they have no key for is left out."""
    made: dict[str, Any] = {"role": _BACK[message.role]}
    thoughts = [block.thinking for block in message.content if isinstance(block, Thinking)]
    for key, value in (
        ("content", message.text),
        ("reasoning_content", "\n".join(thoughts)),
        ("name", message.tool_name if message.role == "toolResult" else None),
        ("tool_call_id", message.tool_call_id),
        ("tool_calls", [write_call(call) for call in message.tool_calls]),
    ):
        if value:
            made[key] = value
    return made


def write_call(call: ToolCall) -> dict[str, Any]:
    """A tool call. Arguments are always there: CrabTalk drops a line that has none."""
    arguments = dump(call.arguments).decode()
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
