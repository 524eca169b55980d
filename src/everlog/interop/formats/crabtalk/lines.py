"""CrabTalk's lines: conversion of messages to ours and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.model import AnyBlock, Message, Role, Text, Thinking, ToolCall

NAME = "crabtalk"
ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "toolResult"}

_CRABTALK_ROLES = {native: foreign for foreign, native in ROLES.items()}


def encode_json(value: Any) -> bytes:
    """Encode a value as compact JSON as serde_json writes it."""
    return msgspec.json.encode(value)


# --- reading --------------------------------------------------------------------------------


def read_message(value: Mapping[str, Any], message_id: str, timestamp: str) -> Message:
    """Return a message of CrabTalk's as ours; FormatError if it is malformed."""
    content, thinking = value.get("content") or "", value.get("reasoning_content") or ""
    calls = value.get("tool_calls") or []
    if not isinstance(content, str) or not isinstance(thinking, str) or not isinstance(calls, list):
        raise FormatError("not a message: fields have wrong types")
    blocks: list[AnyBlock] = []
    if thinking:
        blocks.append(Thinking(thinking))
    if content:
        blocks.append(Text(content))
    blocks += [read_call(call) for call in calls]
    is_result = value["role"] == "tool"
    return Message(
        id=message_id,
        role=ROLES[value["role"]],
        content=tuple(blocks),
        tool_call_id=text_of(value, "tool_call_id") if is_result else None,
        tool_name=text_of(value, "name") or None if is_result else None,
        timestamp=timestamp,
    )


def read_call(call: Any) -> ToolCall:
    """Return a tool call from OpenAI's form, in which the arguments are JSON in a string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise FormatError("tool_calls: not objects with a function")
    text = function.get("arguments") or "{}"
    arguments = parse_object(text.encode())[0] if isinstance(text, str) else None
    if arguments is None:
        arguments = {"arguments": text}  # not a JSON object: kept as the model wrote it
    return ToolCall(text_of(call, "id"), text_of(function, "name"), arguments)


# --- writing --------------------------------------------------------------------------------


def write_message(message: Message) -> dict[str, Any]:
    """Return a message with CrabTalk's keys, in its order; the rest is left out."""
    encoded: dict[str, Any] = {"role": _CRABTALK_ROLES[message.role]}
    thoughts = [block.thinking for block in message.content if isinstance(block, Thinking)]
    for key, value in (
        ("content", message.text),
        ("reasoning_content", "\n".join(thoughts)),
        ("name", message.tool_name if message.role == "toolResult" else None),
        ("tool_call_id", message.tool_call_id),
        ("tool_calls", [write_call(call) for call in message.tool_calls]),
    ):
        if value:
            encoded[key] = value
    return encoded


def write_call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call, always with arguments: CrabTalk drops a line without them."""
    arguments = encode_json(call.arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
