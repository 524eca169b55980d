"""Encoding of our records as entries of version 3."""

from __future__ import annotations

from typing import Any

from everlog.ids import epoch_ms
from everlog.model import AnyBlock, Compaction, Image, Message, Text, Thinking, ToolCall, Usage

# In the details of our compactions: the first entry that they keep, which is a message. In pi's own
# compactions it may be another entry.
FIRST_KEPT_KEY = "firstKeptMessageId"


def entry_head(kind: str, entry_id: str, parent: str | None, timestamp: str) -> dict[str, Any]:
    """Return the fields that every entry begins with."""
    return {"type": kind, "id": entry_id, "parentId": parent, "timestamp": timestamp}


def encode_message(message: Message) -> dict[str, Any]:
    """Return the `message` of an entry, without blocks of types that pi does not have."""
    encoded: dict[str, Any] = {"role": message.role}
    if message.role == "toolResult":
        encoded["toolCallId"] = message.tool_call_id or ""
        encoded["toolName"] = message.tool_name or ""
    encoded["content"] = [encoded_block for block in message.content if (encoded_block := encode_block(block))]
    if message.role == "assistant":
        encoded |= _answer_fields(message)
    elif message.role == "toolResult":
        encoded["isError"] = bool(message.is_error)
    encoded["timestamp"] = max(epoch_ms(message.timestamp) or 0, 0)
    return encoded


def encode_block(block: AnyBlock) -> dict[str, Any] | None:
    """Return a block in pi's form; None if pi does not have its type."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    signature: dict[str, Any] = {}
    if isinstance(block, Thinking):
        if block.signature:
            signature["thinkingSignature"] = block.signature
        return {"type": "thinking", "thinking": block.thinking, **signature}
    if isinstance(block, ToolCall):
        if block.signature:
            signature["thoughtSignature"] = block.signature
        call = {"id": block.id, "name": block.name, "arguments": block.arguments}
        return {"type": "toolCall", **call, **signature}
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


def _answer_fields(message: Message) -> dict[str, Any]:
    """Return the fields that pi requires of an answer."""
    provider, _, model = (message.model or "").rpartition(":")
    usage = message.usage or Usage()
    total = usage.total_tokens or usage.input_tokens + usage.output_tokens
    costs = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "total": usage.cost}
    return {
        "api": "",
        "provider": provider,
        "model": model,
        "usage": {
            "input": usage.input_tokens,
            "output": usage.output_tokens,
            "cacheRead": usage.cache_read_tokens,
            "cacheWrite": usage.cache_write_tokens,
            "totalTokens": total,
            "cost": costs,
        },
        "stopReason": _stop_reason(message),
    }


def _stop_reason(message: Message) -> str:
    reasons = {"length": "length", "max_tokens": "length", "error": "error", "aborted": "aborted"}
    return reasons.get(message.stop_reason or "") or ("toolUse" if message.tool_calls else "stop")
