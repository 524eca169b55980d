"""Encoding of our records as entries of version 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everlog.ids import epoch_ms
from everlog.model import PROGRAM, AnyBlock, Compaction, Image, Message, Text, Thinking, ToolCall, Usage

VERSION = 3
# In the details of our compactions: the first entry that they keep, which is a message. In pi's own
# compactions it may be another entry.
FIRST_KEPT_KEY = "firstKeptMessageId"
# Custom type of entries that take the place of a missing parent. pi follows them to the earlier
# entries; they have no content and are never a leaf.
LINK_TYPE = "everlog.link"
# Custom type of the first entry of a branch that goes back to an earlier entry; it has no content.
REWIND_TYPE = "everlog.rewind"

NewEntry = tuple[str, dict[str, Any]]  # type and fields
_STOP_REASONS = {"length": "length", "max_tokens": "length", "error": "error", "aborted": "aborted"}


def entry_head(kind: str, entry_id: str, parent: str | None, timestamp: str) -> dict[str, Any]:
    """Return the fields that every entry begins with."""
    return {"type": kind, "id": entry_id, "parentId": parent, "timestamp": timestamp}


def message_entry(message: Message, calls: Mapping[str, str], answer: Mapping[str, str]) -> NewEntry:
    """Return the entry of a message, without blocks of types that pi does not have.

    `calls` are names of tool calls by id; `answer` has the provider, model and API of the last
    answer, for messages that do not say theirs.
    """
    content = [encoded for block in message.content if (encoded := encode_block(block))]
    if message.role == "user" and message.sender == PROGRAM:
        return "custom_message", {"customType": "everlog", "content": content, "display": True}
    fields: dict[str, Any] = {"role": message.role}
    if message.role == "toolResult":
        fields["toolCallId"] = message.tool_call_id or ""
        fields["toolName"] = message.tool_name or calls.get(message.tool_call_id or "", "")
    fields["content"] = content
    if message.role == "assistant":
        fields |= _answer_fields(message, answer)
    elif message.role == "toolResult":
        fields["isError"] = bool(message.is_error)
    return "message", {"message": fields | {"timestamp": max(epoch_ms(message.timestamp) or 0, 0)}}


def encode_block(block: AnyBlock) -> dict[str, Any] | None:
    """Return a block in pi's form; None if pi does not have its type."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, Thinking):
        signature = {"thinkingSignature": block.signature} if block.signature else {}
        return {"type": "thinking", "thinking": block.thinking, **signature}
    if isinstance(block, ToolCall):
        signature = {"thoughtSignature": block.signature} if block.signature else {}
        return {"type": "toolCall", "id": block.id, "name": block.name, "arguments": block.arguments, **signature}
    if isinstance(block, Image) and block.data:
        return {"type": "image", "data": block.data, "mimeType": block.mime_type}
    return None


def compaction_fields(record: Compaction, first_kept_id: str) -> dict[str, Any]:
    """Return the fields of a compaction that keeps the entries from an id on; empty: none."""
    return {
        "summary": record.summary,
        "firstKeptEntryId": first_kept_id,
        "tokensBefore": record.tokens_before,
        "details": {"readFiles": list(record.read_files), "modifiedFiles": list(record.modified_files)},
    }


def _answer_fields(message: Message, answer: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that pi requires of an answer."""
    provider, separator, model = (message.model or "").partition(":")
    if not separator:
        provider, model = "", provider
    model = model or answer.get("model", "")
    provider = provider or answer.get("provider", "")
    is_same = (provider, model) == (answer.get("provider"), answer.get("model"))
    usage = message.usage or Usage()
    costs = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": usage.cost}
    return {
        "api": answer.get("api", "") if is_same else "",
        "provider": provider,
        "model": model,
        "usage": {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cacheRead": usage.cache_read_tokens,
            "cacheWrite": usage.cache_write_tokens,
            "totalTokens": usage.total_tokens or usage.input_tokens + usage.output_tokens,
            "cost": costs,
        },
        "stopReason": _STOP_REASONS.get(message.stop_reason or "") or ("toolUse" if message.tool_calls else "stop"),
    }
