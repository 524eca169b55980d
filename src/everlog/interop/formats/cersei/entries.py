"""Conversion of Cersei's entries to messages, and construction of new entries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.cersei.blocks import MessageFields, Shape, read_content, write_message
from everlog.interop.formats.format_types import derive_id
from everlog.interop.formats.jsonl import build_record, text_of
from everlog.model import Message


def message_object(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `message` of an entry, or a bare line itself; None if it has none."""
    message = value.get("message") if "type" in value else value
    return message if isinstance(message, dict) else None


def read_message_fields(value: Mapping[str, Any], timestamp: str) -> tuple[list[MessageFields], Shape] | None:
    """Return the fields of each message in an entry, one for each result. None: no message."""
    message = message_object(value)
    role = None if message is None else message.get("role")
    if message is None or role not in ("user", "assistant") or value.get("type", role) != role:
        return None
    content = read_content(role, message.get("content"))
    if content is None:
        return None
    fields = {"timestamp": timestamp, **_read_metadata(message)}
    if text_of(value, "cwd"):
        fields["cwd"] = value["cwd"]
    return [{**message_fields, **fields} for message_fields in content[0]], content[1]


def read_messages(value: Mapping[str, Any], entry_id: str, timestamp: str) -> list[Message]:
    """Return the messages in an entry, without preserved data; none if it is something else."""
    content = read_message_fields(value, timestamp)
    messages: list[Message] = []
    for number, fields in enumerate(content[0] if content is not None else ()):
        try:
            record = build_record({"recordType": "message", "id": member_id(entry_id, number), **fields})
        except FormatError:
            return []
        if isinstance(record, Message):
            messages.append(replace(record, line=b""))
    return messages


def member_id(entry_id: str, number: int) -> str:
    """Return the id of the n-th message of an entry; the first has the entry's id."""
    return derive_id(entry_id, number) if number else entry_id


def _read_metadata(message: Mapping[str, Any]) -> dict[str, Any]:
    metadata = message.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    fields = {"model": text_of(metadata, "model"), "stopReason": text_of(metadata, "stop_reason")}
    result: dict[str, Any] = {key: value for key, value in fields.items() if value}
    usage = metadata.get("usage")
    if isinstance(usage, dict):
        cost = usage.get("cost_usd")
        result["usage"] = {
            "inputTokens": _token_count(usage.get("input_tokens")),
            "outputTokens": _token_count(usage.get("output_tokens")),
            "totalTokens": _token_count(usage.get("total_tokens")),
            "cost": cost if isinstance(cost, int | float) and not isinstance(cost, bool) else 0.0,
        }
    return result


def _token_count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


# --- writing --------------------------------------------------------------------------------


def message_entry(message: Message, uuid: str, parent_uuid: str | None, session_id: str, cwd: str) -> dict[str, Any]:
    """Return an entry for a message; `parent_uuid` is the user entry that it answers."""
    content = write_message(message)
    entry: dict[str, Any] = {"type": content["role"], "uuid": uuid}
    if message.role == "assistant" and parent_uuid is not None:
        entry["parent_uuid"] = parent_uuid
    return entry | {
        "timestamp": message.timestamp,
        "session_id": session_id,
        "cwd": message.cwd or cwd,
        "message": content,
        "is_sidechain": False,
    }


def summary_entry(uuid: str, timestamp: str, session_id: str, summary: str, message_count: int) -> dict[str, Any]:
    """Return an entry for a summary of so many messages."""
    return {
        "type": "summary",
        "uuid": uuid,
        "timestamp": timestamp,
        "session_id": session_id,
        "summary": summary,
        "messages_compacted": message_count,
    }


def tombstone_entry(uuid: str, timestamp: str) -> dict[str, Any]:
    """Return an entry that deletes another."""
    return {"type": "tombstone", "deleted_uuid": uuid, "timestamp": timestamp}
