"""Construction of new records for a Claude Code transcript.

They continue the end of the conversation, one after the other, and contain nothing that Claude Code
or the model's API would reject: no thinking without its signature, no empty text, no call id with
characters that are not allowed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.claude.blocks import ToolResult, write_block, write_result
from everlog.interop.formats.format_types import derive_id
from everlog.model import (
    PROGRAM,
    AnyBlock,
    Compaction,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
)

VERSION = "2.1.325"  # of Claude Code, unless an earlier record names another
UNSIGNED = "thinking block without a signature"  # the API rejects these
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_API_STOP_REASONS = ("end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal", "pause_turn")
# Stop reasons of any program → that of the API.
STOP_REASONS = {reason: reason for reason in _API_STOP_REASONS} | {
    "stop": "end_turn",
    "toolUse": "tool_use",
    "tool_calls": "tool_use",
    "length": "max_tokens",
}


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID as Claude Code writes them."""
    return _UUID.fullmatch(text) is not None


def boundary_uuid(summary: str) -> str:
    """Return the uuid of the boundary that we write before a summary."""
    return _derive_uuid("claude boundary", summary)


def _derive_uuid(name: str, position: str) -> str:
    return str(UUID(bytes=UUID(derive_id(name, position)).bytes, version=4))


class ChainStart(NamedTuple):
    """The position where new records start, and what they share with earlier ones."""

    session_id: str
    leaf: str | None = None  # of the conversation so far
    used_uuids: frozenset[str] = frozenset()
    timestamp: str = ""
    cwd: str = ""
    version: str = ""
    git_branch: str = ""
    is_subagent: bool = False  # in a subagent's transcript
    agent_id: str = ""  # of that subagent


class EntryBuilder:
    """Builder of records, each the child of the one before."""

    def __init__(self, metadata: Metadata, start: ChainStart) -> None:
        self._metadata = metadata
        self.session_id = start.session_id
        self.leaf = start.leaf
        self._used_uuids = set(start.used_uuids)
        self._timestamp = _format_time(start.timestamp)
        inner = f"{start.session_id}/subagents/agent-{start.agent_id}.jsonl"
        self.path = inner if start.is_subagent else f"{start.session_id}.jsonl"
        self._common_fields: dict[str, Any] = {
            "isSidechain": start.is_subagent,
            "userType": "external",
            "cwd": start.cwd or "/",
            "sessionId": start.session_id,
            "version": start.version or VERSION,
            "gitBranch": start.git_branch,
        }
        if start.agent_id:
            self._common_fields["agentId"] = start.agent_id

    def _build_record(self, record_id: str, position: object, at: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Return a record that follows the last one, and make it the last."""
        uuid = self._free_uuid(record_id, f"{position} {fields['type']}")
        self._used_uuids.add(uuid)
        self._timestamp = _format_time(at) or self._timestamp or _format_time(self._metadata.created_at) or timestamp(0)
        head = {"parentUuid": self.leaf, **self._common_fields}
        self.leaf = uuid
        return {**head, **fields, "uuid": uuid, "timestamp": self._timestamp}

    def _free_uuid(self, record_id: str, position: str) -> str:
        """Return the id of a record if it is an unused UUID; else derive one."""
        if is_uuid(record_id) and record_id not in self._used_uuids:
            return record_id
        return _derive_uuid(f"claude {self._metadata.id}", position)

    def build_message(
        self, message: Message, caller_uuid: str | None, position: object, losses: Counter[str]
    ) -> dict[str, Any] | None:
        """Return the record of a message; None if none of it can be written."""
        if message.cwd:
            self._common_fields["cwd"] = message.cwd
        if message.role == "toolResult":
            blocks = _writable_blocks(message.content, "user", losses)
            result = ToolResult(safe_call_id(message.tool_call_id or ""), blocks, message.is_error or None)
            fields: dict[str, Any] = {"type": "user", "message": {"role": "user", "content": [write_result(result)]}}
            if caller_uuid:
                fields["sourceToolAssistantUUID"] = caller_uuid
            return self._build_record(message.id, position, message.timestamp, fields)
        content = _writable_blocks(message.content, message.role, losses)
        if not content:
            return None
        if message.role == "user":
            single_text = content[0].text if len(content) == 1 and isinstance(content[0], Text) else None
            user_content = [write_block(block) for block in content] if single_text is None else single_text
            fields = {"type": "user", "message": {"role": "user", "content": user_content}}
            if message.sender == PROGRAM:
                fields["isMeta"] = True
            return self._build_record(message.id, position, message.timestamp, fields)
        fields = {"type": "assistant", "message": self._assistant_message(message, content, position)}
        return self._build_record(message.id, position, message.timestamp, fields)

    def _assistant_message(self, message: Message, content: Sequence[AnyBlock], position: object) -> dict[str, Any]:
        """Return an assistant message as the API returns it."""
        usage = message.usage
        stop_reason = STOP_REASONS.get(message.stop_reason or "", "tool_use" if message.tool_calls else "end_turn")
        message_id = derive_id(f"claude {self._metadata.id}", f"{position} message")
        return {
            "id": f"msg_{message_id.replace('-', '')}",
            "type": "message",
            "role": "assistant",
            "model": message.model or self._metadata.model or "unknown",
            "content": [write_block(block) for block in content],
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.input_tokens if usage else 0,
                "output_tokens": usage.output_tokens if usage else 0,
                "cache_read_input_tokens": usage.cache_read_tokens if usage else 0,
                "cache_creation_input_tokens": usage.cache_write_tokens if usage else 0,
            },
        }

    def build_compaction(self, record: Compaction, kept_uuids: Sequence[str], position: object) -> list[dict[str, Any]]:
        """Return a boundary and its summary; `kept_uuids` stay in the context."""
        previous_leaf = self.leaf
        self.leaf = None
        details: dict[str, Any] = {"trigger": "auto", "preTokens": record.tokens_before}
        boundary_fields = {
            "logicalParentUuid": previous_leaf,
            "type": "system",
            "subtype": "compact_boundary",
            "content": "Conversation compacted",
            "isMeta": False,
            "level": "info",
            "compactMetadata": details,
        }
        summary_uuid = self._free_uuid(record.id, f"{position} user")
        boundary = self._build_record(boundary_uuid(summary_uuid), position, record.timestamp, boundary_fields)
        summary_fields = {
            "type": "user",
            "message": {"role": "user", "content": record.summary},
            "isVisibleInTranscriptOnly": True,
            "isCompactSummary": True,
        }
        summary = self._build_record(summary_uuid, position, record.timestamp, summary_fields)
        if kept_uuids:
            anchor = summary["uuid"]
            details["preservedSegment"] = {"headUuid": kept_uuids[0], "anchorUuid": anchor, "tailUuid": kept_uuids[-1]}
            details["preservedMessages"] = {
                "anchorUuid": anchor,
                "uuids": list(kept_uuids),
                "allUuids": list(kept_uuids),
            }
        return [boundary, summary]

    def build_title(self, name: str) -> dict[str, Any]:
        """Return the record of a title."""
        return {"type": "custom-title", "customTitle": name, "sessionId": self.session_id}


def _writable_blocks(content: Sequence[AnyBlock], role: str, losses: Counter[str]) -> tuple[AnyBlock, ...]:
    """Return the blocks that the API accepts in a message with this role."""
    blocks: list[AnyBlock] = []
    for block in content:
        if isinstance(block, Text):
            if block.text:
                blocks.append(block)
        elif _is_signed(block) and role == "assistant":
            blocks.append(block)
        elif isinstance(block, ToolCall) and role == "assistant":
            blocks.append(ToolCall(safe_call_id(block.id), safe_tool_name(block.name), block.arguments))
        elif isinstance(block, Image | File) and role == "user" and write_block(block):
            blocks.append(block)
        else:
            losses[_BLOCK_NAMES.get(type(block), "block of an unknown type")] += 1
    return tuple(blocks)


def _is_signed(block: AnyBlock) -> bool:
    """Return whether the API can verify a thinking block."""
    if isinstance(block, OtherBlock):
        return block.type == "redacted_thinking"
    return isinstance(block, Thinking) and bool(block.signature)


_BLOCK_NAMES: dict[type, str] = {
    Thinking: UNSIGNED,
    Image: "image from the model",
    File: "file of a type that Claude Code cannot store",
}


def safe_call_id(text: str) -> str:
    """Return a call id in characters that the API accepts; stable, so results still match."""
    return text if _CALL_ID.fullmatch(text) else _safe_name(text)


def safe_tool_name(text: str) -> str:
    """Return a tool name in characters that the API accepts; the same one for every call."""
    return text if _TOOL_NAME.fullmatch(text) else _safe_name(text)


def _safe_name(text: str) -> str:
    letters = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:40]
    return f"{letters}_{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _format_time(text: object) -> str:
    """Return a time as Claude Code writes it; empty if it is not a time."""
    if not isinstance(text, str) or _TIMESTAMP.fullmatch(text):
        return text if isinstance(text, str) else ""
    time_ms = epoch_ms(text)
    return "" if time_ms is None else timestamp(time_ms / 1000)
