"""What did not come from pi as entries of version 3."""

from __future__ import annotations

from typing import Any

from everlog.ids import epoch_ms
from everlog.model import (
    AnyBlock,
    Compaction,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    Usage,
)

# In the details of a compaction of ours: that the first entry it keeps is a message. Those that pi
# makes may begin with an entry that is none.
FIRST_KEPT = "firstKeptMessageId"


def head_of(kind: str, name: str, parent: str | None, when: str) -> dict[str, Any]:
    """What every entry begins with."""
    return {"type": kind, "id": name, "parentId": parent, "timestamp": when}


def said_of(message: Message) -> dict[str, Any]:
    """The `message` of an entry, without the blocks that pi has no kind for."""
    said: dict[str, Any] = {"role": message.role}
    if message.role == "toolResult":
        said["toolCallId"] = message.tool_call_id or ""
        said["toolName"] = message.tool_name or ""
    said["content"] = [made for one in message.content if (made := block_of(one))]
    if message.role == "assistant":
        said |= _answer(message)
    elif message.role == "toolResult":
        said["isError"] = bool(message.is_error)
    said["timestamp"] = max(epoch_ms(message.timestamp) or 0, 0)
    return said


def block_of(block: AnyBlock) -> dict[str, Any] | None:
    """A block as one of theirs; None if they have no kind for it."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    signed: dict[str, Any] = {}
    if isinstance(block, Thinking):
        if block.signature:
            signed["thinkingSignature"] = block.signature
        return {"type": "thinking", "thinking": block.thinking, **signed}
    if isinstance(block, ToolCall):
        if block.signature:
            signed["thoughtSignature"] = block.signature
        call = {"id": block.id, "name": block.name, "arguments": block.arguments}
        return {"type": "toolCall", **call, **signed}
    if isinstance(block, Image) and block.data:
        return {"type": "image", "data": block.data, "mimeType": block.mime_type}
    return None


def compaction_of(record: Compaction, first: str) -> dict[str, Any]:
    """The fields of a compaction that keeps from an entry on; an empty id: nothing is kept."""
    return {
        "summary": record.summary,
        "firstKeptEntryId": first,
        "tokensBefore": record.tokens_before,
        "details": {
            "readFiles": list(record.read_files),
            "modifiedFiles": list(record.modified_files),
        },
    }


def _answer(message: Message) -> dict[str, Any]:
    """What pi wants to know of an answer."""
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
        "stopReason": _stop(message),
    }


def _stop(message: Message) -> str:
    known = {"length": "length", "max_tokens": "length", "error": "error", "aborted": "aborted"}
    return known.get(message.stop_reason or "") or ("toolUse" if message.tool_calls else "stop")
