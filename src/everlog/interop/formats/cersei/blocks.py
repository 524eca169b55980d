"""Conversion of Cersei's message content to our blocks, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from everlog.model import AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall

NAME = "cersei"

# The original content: a string, a list, or one result that contains a string or a list.
Shape = Literal["text", "blocks", "result-text", "result-blocks"]
MessageFields = dict[str, Any]  # fields of one of our messages


def read_content(role: str, content: Any) -> tuple[list[MessageFields], Shape] | None:
    """Return the messages in some content, one for each result. None: not content."""
    if isinstance(content, str):
        return [{"role": role, "content": [{"type": "text", "text": content}]}], "text"
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        return None
    shape: Shape = "blocks"
    messages: list[MessageFields] = []
    blocks: list[dict[str, Any]] = []
    for block in content:
        if role == "user" and block.get("type") == "tool_result":
            inner = block.get("content")
            is_text = not isinstance(inner, list) or not all(isinstance(x, dict) for x in inner)
            shape = "result-text" if is_text else "result-blocks"
            messages.append(_read_result(block))
        else:
            blocks.append(read_block(block))
    if blocks or not messages:
        messages.append({"role": role, "content": blocks})
    return messages, shape


def _read_result(block: Mapping[str, Any]) -> MessageFields:
    inner = block.get("content")
    content: list[dict[str, Any]]
    if isinstance(inner, list) and all(isinstance(item, dict) for item in inner):
        content = [read_block(item) for item in inner]
    else:
        content = [{"type": "text", "text": inner}] if isinstance(inner, str) else []
    call_id = block.get("tool_use_id")
    fields: MessageFields = {
        "role": "toolResult",
        "toolCallId": call_id if isinstance(call_id, str) else "",
        "content": content,
    }
    if isinstance(block.get("is_error"), bool):
        fields["isError"] = block["is_error"]
    return fields


def read_block(block: dict[str, Any]) -> dict[str, Any]:
    """Return a Cersei block as ours; an unknown type stays as it is."""
    kind = block.get("type")
    if kind == "tool_use" and isinstance(block.get("input"), dict):
        call = {"id": block.get("id"), "name": block.get("name"), "arguments": block["input"]}
        if isinstance(call["id"], str) and isinstance(call["name"], str):
            return {"type": "toolCall", **call}
    source = block.get("source")
    if kind == "image" and isinstance(source, dict):
        data, url = source.get("data"), source.get("url")
        if isinstance(data, str) and data:
            mime = source.get("media_type")
            image = {"type": "image", "mimeType": mime if isinstance(mime, str) else ""}
            return {**image, "data": data}
        if isinstance(url, str) and url:
            return {"type": "image", "url": url}
    return block


def rebuild_content(message: Message, shape: str) -> Any:
    """Return the original content of a message, as far as its fields contain it."""
    if shape == "text":
        return message.text
    blocks = [write_block(block) for block in message.content]
    if shape == "blocks":
        return blocks
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id or ""}
    result["content"] = message.text if shape == "result-text" else blocks
    if message.is_error is not None:
        result["is_error"] = message.is_error
    return [result]


def write_block(block: AnyBlock) -> dict[str, Any]:
    """Return one of our blocks as a Cersei block."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, ToolCall):
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}
    if isinstance(block, Thinking):
        signature = block.signature or ""
        return {"type": "thinking", "thinking": block.thinking, "signature": signature}
    if isinstance(block, OtherBlock):
        return block.data
    media: dict[str, Any] = {"type": "image" if isinstance(block, Image) else "document"}
    media["source"] = _source(block)
    if isinstance(block, File) and block.name:
        media["title"] = block.name
    return media


def _source(block: Image | File) -> dict[str, Any]:
    if block.url:
        return {"type": "url", "url": block.url}
    return {"type": "base64", "media_type": block.mime_type, "data": block.data}


def content_of(message: Message) -> Any:
    """Return the content for a message that came from elsewhere."""
    is_plain_text = len(message.content) == 1 and isinstance(message.content[0], Text)
    if message.role == "toolResult":
        return rebuild_content(message, "result-text" if is_plain_text else "result-blocks")
    return rebuild_content(message, "text" if is_plain_text else "blocks")


def write_message(message: Message) -> dict[str, Any]:
    """Return a message that came from elsewhere as a `message` object."""
    role = "assistant" if message.role == "assistant" else "user"
    fields: dict[str, Any] = {"role": role, "content": content_of(message)}
    metadata: dict[str, Any] = {}
    if message.model:
        metadata["model"] = message.model
    if message.usage is not None:
        usage = message.usage
        metadata["usage"] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        }
        if usage.cost:
            metadata["usage"]["cost_usd"] = usage.cost
    if message.stop_reason in STOP_REASONS:
        metadata["stop_reason"] = message.stop_reason
    if metadata:
        fields["metadata"] = metadata
    return fields


STOP_REASONS = ("end_turn", "max_tokens", "tool_use", "stop_sequence", "content_filter")
