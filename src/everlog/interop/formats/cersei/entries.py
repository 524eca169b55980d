"""One entry of Cersei's: the messages that it holds, and the entries that we write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.cersei.blocks import Piece, Shape, message_of, read_content
from everlog.interop.formats.format_types import made_id
from everlog.interop.formats.jsonl import built, text_of
from everlog.model import Message


def said_in(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `message` of an entry, which of a bare line is all of it; None if it has none."""
    said = value.get("message") if "type" in value else value
    return said if isinstance(said, dict) else None


def pieces_of(value: Mapping[str, Any], when: str) -> tuple[list[Piece], Shape] | None:
    """The fields of the messages in an entry; several results make several. None: it has none."""
    said = said_in(value)
    role = None if said is None else said.get("role")
    if said is None or role not in ("user", "assistant") or value.get("type", role) != role:
        return None
    content = read_content(role, said.get("content"))
    if content is None:
        return None
    fields = {"timestamp": when, **_metadata(said)}
    if text_of(value, "cwd"):
        fields["cwd"] = value["cwd"]
    return [{**piece, **fields} for piece in content[0]], content[1]


def messages_in(value: Mapping[str, Any], name: str, when: str) -> list[Message]:
    """The messages in an entry, without what is kept of its line; none if it is something else."""
    content = pieces_of(value, when)
    made: list[Message] = []
    for number, piece in enumerate(content[0] if content is not None else ()):
        try:
            record = built({"recordType": "message", "id": member_id(name, number), **piece})
        except FormatError:
            return []
        if isinstance(record, Message):
            made.append(replace(record, line=b""))
    return made


def member_id(name: str, number: int) -> str:
    """The id of a message by its place in an entry; the first has that of the entry."""
    return made_id(name, number) if number else name


def _metadata(said: Mapping[str, Any]) -> dict[str, Any]:
    given = said.get("metadata")
    given = given if isinstance(given, dict) else {}
    fields = {
        "model": text_of(given, "model"),
        "stopReason": text_of(given, "stop_reason"),
    }
    made: dict[str, Any] = {key: value for key, value in fields.items() if value}
    usage = given.get("usage")
    if isinstance(usage, dict):
        cost = usage.get("cost_usd")
        made["usage"] = {
            "inputTokens": _whole(usage.get("input_tokens")),
            "outputTokens": _whole(usage.get("output_tokens")),
            "totalTokens": _whole(usage.get("total_tokens")),
            "cost": cost if isinstance(cost, int | float) and not isinstance(cost, bool) else 0.0,
        }
    return made


def _whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


# --- what we write --------------------------------------------------------------------------


def message_entry(
    message: Message, uuid: str, parent: str | None, session: str, cwd: str
) -> dict[str, Any]:
    """An entry for a message; `parent` is the user entry that an answer belongs to."""
    said = message_of(message)
    entry: dict[str, Any] = {"type": said["role"], "uuid": uuid}
    if message.role == "assistant" and parent is not None:
        entry["parent_uuid"] = parent
    return entry | {
        "timestamp": message.timestamp,
        "session_id": session,
        "cwd": message.cwd or cwd,
        "message": said,
        "is_sidechain": False,
    }


def summary_entry(
    uuid: str, when: str, session: str, summary: str, compacted: int
) -> dict[str, Any]:
    """An entry for a summary of so many messages."""
    return {
        "type": "summary",
        "uuid": uuid,
        "timestamp": when,
        "session_id": session,
        "summary": summary,
        "messages_compacted": compacted,
    }


def tombstone_entry(uuid: str, when: str) -> dict[str, Any]:
    """An entry that deletes another."""
    return {"type": "tombstone", "deleted_uuid": uuid, "timestamp": when}
