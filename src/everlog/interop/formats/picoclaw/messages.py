"""PicoClaw's messages, and its old files of one JSON document per session.

    {"key": "agent:main:direct:42", "messages": […], "summary": "…", "created": …, "updated": …}

What a message has and ours has no field for is kept with the record under `picoclaw`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.jsonl import built, parse
from everlog.log.line_codec import from_object
from everlog.model import (
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Thinking,
)

_ROLES = {"user": "user", "assistant": "assistant", "tool": "toolResult"}
_BACK = {ours: theirs for theirs, ours in _ROLES.items()}
_KEPT = ("system_parts",)  # keys without a place of ours


class NoSession(FormatError):
    """A JSON file that is something else."""


class Document(msgspec.Struct, frozen=True):
    """One old file, read."""

    key: str
    records: tuple[AnyRecord, ...]  # the summary, if there is one, before the messages
    created: int  # ms
    updated: int
    certain: bool  # it says its key and its times, as only such a file does


def read_document(data: bytes, stem: str, written: int) -> Document:
    """The session in an old file; FormatError names what is wrong with it.

    `stem` is its name, `written` when the file was last written, in ms: for one that says neither
    its key nor its times.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("messages") or [], list):
        raise NoSession("not a session: a JSON object with a list of messages is wanted")
    if "messages" not in value:
        raise NoSession("not a session: it has no messages")
    key = value.get("key") or stem
    if not isinstance(key, str):
        raise FormatError("key: not a string")
    created, updated = _time(value, "created"), _time(value, "updated")
    updated = updated or created or written
    created = created or updated
    records: list[AnyRecord] = []
    summary = value.get("summary") or ""
    if not isinstance(summary, str):
        raise FormatError("summary: not a string")
    for place, message in enumerate(value["messages"] or []):
        last = place == len(value["messages"]) - 1
        when = timestamp((updated if last else created) / 1000)
        try:
            records.append(read_message(message, when))
        except FormatError as error:
            raise FormatError(f"messages[{place}]: {error.message}") from error
    if summary:
        made = timestamp(updated / 1000)
        records.insert(
            0, Compaction(strategy="prose", first_kept_seq=2, summary=summary, timestamp=made)
        )
    certain = "key" in value and ("created" in value or "updated" in value)
    return Document(key, tuple(records), created, updated, certain)


def _time(value: Mapping[str, Any], key: str) -> int | None:
    text = value.get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise FormatError(f"{key}: not a time")
    milliseconds = epoch_ms(text)
    return milliseconds if milliseconds is not None and milliseconds > 0 else None


def read_message(value: Any, at: str) -> AnyRecord:
    """One of their messages as a record; `at` is its time if it has none of its own."""
    if not isinstance(value, Mapping):
        raise FormatError("not an object")
    role, content = value.get("role"), value.get("content") or ""
    if not isinstance(role, str) or not isinstance(content, str):
        raise FormatError("role and content must be strings")
    when = value.get("created_at") if isinstance(value.get("created_at"), str) else at
    if role not in _ROLES:  # a system prompt: kept, never sent
        return Event(kind=f"picoclaw.{role or 'message'}", data=dict(value), timestamp=when or at)
    calls = value.get("tool_calls") or []
    data: dict[str, Any] = {
        "recordType": "message",
        "role": _ROLES[role],
        "content": [*_blocks(value, content), *(_call(call) for call in calls)],
        "timestamp": when,
    }
    if role == "tool":
        data["toolCallId"] = str(value.get("tool_call_id") or "")
    if value.get("model_name"):
        data["model"] = str(value["model_name"])
    rest = {key: value[key] for key in _KEPT if value.get(key)}
    if any(set(call) - {"id", "type", "function"} or _signed(call) for call in calls):
        rest["tool_calls"] = list(calls)
    if rest:
        data["picoclaw"] = rest
    try:
        return built(data)
    except UnicodeEncodeError:  # a lone surrogate
        return from_object(data)


def _blocks(value: Mapping[str, Any], content: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if value.get("reasoning_content"):
        made.append({"type": "thinking", "thinking": str(value["reasoning_content"])})
    if content:
        made.append({"type": "text", "text": content})
    made += [{"type": "image", "url": str(one)} for one in value.get("media") or []]
    for one in value.get("attachments") or []:
        if not isinstance(one, Mapping):
            raise FormatError("attachments: not objects")
        made.append(
            {
                "type": "file",
                "name": str(one.get("filename") or ""),
                "mimeType": str(one.get("content_type") or ""),
                "url": str(one.get("url") or one.get("ref") or ""),
            }
        )
    return made


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise FormatError("tool_calls: not objects with a function")
    text = function.get("arguments") or "{}"
    arguments = parse(text.encode("utf-8", "replace"))[0] if isinstance(text, str) else text
    if not isinstance(arguments, dict):
        arguments = {"arguments": text}
    name = str(function.get("name") or "")
    return {
        "type": "toolCall",
        "id": str(call.get("id") or ""),
        "name": name,
        "arguments": arguments,
    }


def _signed(call: Mapping[str, Any]) -> bool:
    function = call.get("function")
    return isinstance(function, Mapping) and bool(function.get("thought_signature"))


def write_document(
    key: str, messages: Sequence[Message], summary: str, created: str, updated: str
) -> bytes:
    """An old file, as their own program would read it."""
    value = {
        "key": key,
        "messages": [write_message(message) for message in messages],
        "summary": summary,
        "created": created,
        "updated": updated,
    }
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "replace")


def write_message(message: Message) -> dict[str, Any]:
    """A message in their keys; what they have no key for is left out."""
    made: dict[str, Any] = {"role": _BACK[message.role], "content": message.text}
    if message.model:
        made["model_name"] = message.model
    if message.timestamp:
        made["created_at"] = message.timestamp
    media = [block.url for block in message.content if isinstance(block, Image) and block.url]
    files = [_attachment(block) for block in message.content if isinstance(block, File)]
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
            made[name] = value
    return made


def _attachment(block: File) -> dict[str, str]:
    given = {"url": block.url or "", "filename": block.name, "content_type": block.mime_type}
    return {"type": "file"} | {key: value for key, value in given.items() if value}
