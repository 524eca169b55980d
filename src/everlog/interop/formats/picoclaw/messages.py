"""PicoClaw's messages, and its legacy files of one JSON document per session.

    {"key": "agent:main:direct:42", "messages": […], "summary": "…", "created": …, "updated": …}

Keys of a message that our records have no field for are preserved with the record under `picoclaw`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.jsonl import parse_object
from everlog.log.line_codec import with_keys
from everlog.model import AnyBlock, AnyRecord, Compaction, Event, File, Image, Message, Role, Text, Thinking, ToolCall

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "tool": "toolResult"}

_PICOCLAW_ROLES = {native: foreign for foreign, native in ROLES.items()}
_PRESERVED_KEYS = ("system_parts",)  # without a field in our records


class NotASessionError(FormatError):
    """A JSON file that is not a session."""


class Document(msgspec.Struct, frozen=True):
    """The content of one legacy file."""

    key: str
    records: tuple[AnyRecord, ...]  # the summary, if there is one, before the messages
    created_ms: int
    updated_ms: int
    is_certain: bool  # it has a key and times, as only such a file does


def read_document(data: bytes, stem: str, modified_ms: int) -> Document:
    """Return the session in a legacy file; FormatError if it is damaged.

    `stem` of the file name and `modified_ms` are used if the file has no key or no times.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("messages") or [], list):
        raise NotASessionError("not a session: expected a JSON object with a list of messages")
    if "messages" not in value:
        raise NotASessionError("not a session: it has no messages")
    key = value.get("key") or stem
    if not isinstance(key, str):
        raise FormatError("key: not a string")
    created, updated = _read_time(value, "created"), _read_time(value, "updated")
    updated = updated or created or modified_ms
    created = created or updated
    records: list[AnyRecord] = []
    summary = value.get("summary") or ""
    if not isinstance(summary, str):
        raise FormatError("summary: not a string")
    for index, message in enumerate(value["messages"] or []):
        is_last = index == len(value["messages"]) - 1
        time = timestamp((updated if is_last else created) / 1000)
        try:
            records.append(read_message(message, time))
        except FormatError as error:
            raise FormatError(f"messages[{index}]: {error.message}") from error
    if summary:
        time = timestamp(updated / 1000)
        compaction = Compaction(first_kept_seq=2, strategy="prose", summary=summary, timestamp=time)
        records.insert(0, compaction)
    is_certain = "key" in value and ("created" in value or "updated" in value)
    return Document(key, tuple(records), created, updated, is_certain)


def _read_time(value: Mapping[str, Any], key: str) -> int | None:
    text = value.get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise FormatError(f"{key}: not a time")
    milliseconds = epoch_ms(text)
    return milliseconds if milliseconds is not None and milliseconds > 0 else None


def read_message(value: Any, default_time: str) -> AnyRecord:
    """Return a message of PicoClaw's as a record; `default_time` is used if it has no time."""
    if not isinstance(value, Mapping):
        raise FormatError("not an object")
    role, content = value.get("role"), value.get("content") or ""
    if not isinstance(role, str) or not isinstance(content, str):
        raise FormatError("role and content must be strings")
    if role not in ROLES:  # a system prompt: stored, never sent
        time = value.get("created_at") if isinstance(value.get("created_at"), str) else default_time
        kind = f"picoclaw.{role or 'message'}"
        return Event(kind=kind, data=dict(value), timestamp=time or default_time)
    message = build_message(value, default_time)
    calls = value.get("tool_calls") or []
    preserved = {key: value[key] for key in _PRESERVED_KEYS if value.get(key)}
    if any(set(call) - {"id", "type", "function"} or _has_signature(call) for call in calls):
        preserved["tool_calls"] = list(calls)
    return with_keys(message, {"picoclaw": preserved}) if preserved else message


def build_message(value: Mapping[str, Any], default_time: str, message_id: str = "") -> Message:
    """Return the message in an object with one of ROLES; FormatError or TypeError if it has faults."""
    content, time = value.get("content") or "", value.get("created_at")
    if not isinstance(content, str):
        raise FormatError("the content must be a string")
    blocks: list[AnyBlock] = []
    if value.get("reasoning_content"):
        blocks.append(Thinking(str(value["reasoning_content"])))
    if content:
        blocks.append(Text(content))
    blocks += [Image(url=str(url)) for url in value.get("media") or []]
    blocks += [_read_attachment(attachment) for attachment in value.get("attachments") or []]
    blocks += [_read_call(call) for call in value.get("tool_calls") or []]
    return Message(
        id=message_id,
        role=ROLES[value["role"]],
        content=tuple(blocks),
        tool_call_id=str(value.get("tool_call_id") or "") if value["role"] == "tool" else None,
        model=str(value["model_name"]) if value.get("model_name") else None,
        timestamp=time if isinstance(time, str) else default_time,
    )


def _read_attachment(attachment: Any) -> File:
    if not isinstance(attachment, Mapping):
        raise FormatError("attachments: not objects")
    return File(
        name=str(attachment.get("filename") or ""),
        mime_type=str(attachment.get("content_type") or ""),
        url=str(attachment.get("url") or attachment.get("ref") or ""),
    )


def _read_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise FormatError("tool_calls: not objects with a function")
    text = function.get("arguments") or "{}"
    arguments = parse_object(text.encode("utf-8", "replace"))[0] if isinstance(text, str) else text
    if not isinstance(arguments, dict):
        arguments = {"arguments": text}
    return ToolCall(str(call.get("id") or ""), str(function.get("name") or ""), arguments)


def _has_signature(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    return isinstance(function, Mapping) and bool(function.get("thought_signature"))


def write_document(key: str, messages: Sequence[Message], summary: str, created: str, updated: str) -> bytes:
    """Encode a legacy file so that PicoClaw can read it."""
    value = {
        "key": key,
        "messages": [write_message(message) for message in messages],
        "summary": summary,
        "created": created,
        "updated": updated,
    }
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace")


def write_message(message: Message) -> dict[str, Any]:
    """Return a message with PicoClaw's keys; anything without a key there is left out."""
    encoded: dict[str, Any] = {"role": _PICOCLAW_ROLES[message.role], "content": message.text}
    if message.model:
        encoded["model_name"] = message.model
    if message.timestamp:
        encoded["created_at"] = message.timestamp
    media = [block.url for block in message.content if isinstance(block, Image) and block.url]
    files = [_encode_attachment(block) for block in message.content if isinstance(block, File)]
    thoughts = [block.thinking for block in message.content if isinstance(block, Thinking)]
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":")),
            },
        }
        for call in message.tool_calls
    ]
    for name, value in (
        ("media", media),
        ("attachments", files),
        ("reasoning_content", "\n".join(thoughts)),
        ("tool_calls", calls),
        ("tool_call_id", message.tool_call_id),
    ):
        if value:
            encoded[name] = value
    return encoded


def _encode_attachment(block: File) -> dict[str, str]:
    fields = {"url": block.url or "", "filename": block.name, "content_type": block.mime_type}
    return {"type": "file"} | {key: value for key, value in fields.items() if value}
