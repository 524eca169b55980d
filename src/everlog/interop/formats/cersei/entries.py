"""Conversion of Cersei's entries to messages, and construction of new entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.cersei.blocks import NAME, read_content, rebuild_content, write_message
from everlog.interop.formats.format_types import derive_id
from everlog.interop.formats.jsonl import Row, attach_preserved, build_record, preserved_data, text_of
from everlog.model import PROGRAM, Message

_SUMMARY_START = "<context_summary>"  # of a message in which Cersei repeats its own summary
_encoder = msgspec.json.Encoder()
_sorted_encoder = msgspec.json.Encoder(order="sorted")


def message_object(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the `message` of an entry, or a bare line itself; None if it has none."""
    message = value.get("message") if "type" in value else value
    return message if isinstance(message, dict) else None


def read_messages(value: Mapping[str, Any], entry_id: str, timestamp: str) -> list[Message]:
    """Return the messages in an entry, one for each result; none if it is something else."""
    message = message_object(value)
    role = None if message is None else message.get("role")
    if message is None or role not in ("user", "assistant") or value.get("type", role) != role:
        return []
    content = read_content(role, message.get("content"))
    fields = {"timestamp": timestamp, **_read_metadata(message)}
    if text_of(value, "cwd"):
        fields["cwd"] = value["cwd"]
    messages: list[Message] = []
    for number, own_fields in enumerate(content[0] if content is not None else ()):
        data = {"recordType": "message", "id": member_id(entry_id, number), **own_fields, **fields}
        try:
            record = build_record(data)
        except FormatError:
            return []
        if isinstance(record, Message):
            is_summary = record.role == "user" and record.text.startswith(_SUMMARY_START)
            messages.append(replace(record, line=b"", sender=PROGRAM if is_summary else None))
    return messages


def preserve_message(row: Row, messages: list[Message]) -> Iterator[Message]:
    """Yield the messages of an entry with what must survive of its line; the first has all of it."""
    value = row.value or {}
    message = message_object(value) or {}
    content = read_content(str(message.get("role")), message.get("content"))
    shape = content[1] if content is not None else "blocks"
    is_lossless = len(messages) == 1 and is_same_json(rebuild_content(messages[0], shape), message.get("content"))
    skeleton: dict[str, Any] = {**message, "content": None}
    entry = skeleton if "type" not in value else {**value, "message": skeleton}
    preserved = preserved_data(row, is_lossless=is_lossless, entry=entry, shape=shape)
    for number, member in enumerate(messages):
        yield attach_preserved(member, NAME, {"of": messages[0].id} if number else preserved)


def is_same_json(first: Any, second: Any) -> bool:
    """Return whether two values are the same JSON; 1, 1.0 and true are different."""
    return _encoder.encode(first) == _encoder.encode(second) or (
        first == second and _sorted_encoder.encode(first) == _sorted_encoder.encode(second)
    )


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
