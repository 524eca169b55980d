"""The content of Cersei's messages: as blocks of ours, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from everlog.model import AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall

NAME = "cersei"

# What the content was: a string, a list, or one result with a string or a list in it.
Shape = Literal["text", "blocks", "result-text", "result-blocks"]
Piece = dict[str, Any]  # fields of a message of ours


def read_content(role: str, content: Any) -> tuple[list[Piece], Shape] | None:
    """The messages that a content makes: results are messages of their own. None: not content."""
    if isinstance(content, str):
        return [{"role": role, "content": [{"type": "text", "text": content}]}], "text"
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        return None
    shape: Shape = "blocks"
    pieces: list[Piece] = []
    rest: list[dict[str, Any]] = []
    for block in content:
        if role == "user" and block.get("type") == "tool_result":
            inner = block.get("content")
            is_text = not isinstance(inner, list) or not all(isinstance(x, dict) for x in inner)
            shape = "result-text" if is_text else "result-blocks"
            pieces.append(_result(block))
        else:
            rest.append(read_block(block))
    if rest or not pieces:
        pieces.append({"role": role, "content": rest})
    return pieces, shape


def _result(block: Mapping[str, Any]) -> Piece:
    inner = block.get("content")
    content: list[dict[str, Any]]
    if isinstance(inner, list) and all(isinstance(one, dict) for one in inner):
        content = [read_block(one) for one in inner]
    else:
        content = [{"type": "text", "text": inner}] if isinstance(inner, str) else []
    name = block.get("tool_use_id")
    piece: Piece = {
        "role": "toolResult",
        "toolCallId": name if isinstance(name, str) else "",
        "content": content,
    }
    if isinstance(block.get("is_error"), bool):
        piece["isError"] = block["is_error"]
    return piece


def read_block(block: dict[str, Any]) -> dict[str, Any]:
    """One of their blocks; what we have no kind for stays as it is."""
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
            made = {"type": "image", "mimeType": mime if isinstance(mime, str) else ""}
            return {**made, "data": data}
        if isinstance(url, str) and url:
            return {"type": "image", "url": url}
    return block


def rebuilt(message: Message, shape: str) -> Any:
    """The content that a message came from, as far as its fields say it."""
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
    """A block of ours as one of theirs."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, ToolCall):
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}
    if isinstance(block, Thinking):
        signature = block.signature or ""
        return {"type": "thinking", "thinking": block.thinking, "signature": signature}
    if isinstance(block, OtherBlock):
        return block.data
    made: dict[str, Any] = {"type": "image" if isinstance(block, Image) else "document"}
    made["source"] = _source(block)
    if isinstance(block, File) and block.name:
        made["title"] = block.name
    return made


def _source(block: Image | File) -> dict[str, Any]:
    if block.url:
        return {"type": "url", "url": block.url}
    return {"type": "base64", "media_type": block.mime_type, "data": block.data}


def content_of(message: Message) -> Any:
    """The content of a message that came from elsewhere."""
    plain = len(message.content) == 1 and isinstance(message.content[0], Text)
    if message.role == "toolResult":
        return rebuilt(message, "result-text" if plain else "result-blocks")
    return rebuilt(message, "text" if plain else "blocks")


def message_of(message: Message) -> dict[str, Any]:
    """A message that came from elsewhere as their `message` object."""
    role = "assistant" if message.role == "assistant" else "user"
    made: dict[str, Any] = {"role": role, "content": content_of(message)}
    given: dict[str, Any] = {}
    if message.model:
        given["model"] = message.model
    if message.usage is not None:
        usage = message.usage
        given["usage"] = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        }
        if usage.cost:
            given["usage"]["cost_usd"] = usage.cost
    if message.stop_reason in _STOPS:
        given["stop_reason"] = message.stop_reason
    if given:
        made["metadata"] = given
    return made


_STOPS = ("end_turn", "max_tokens", "tool_use", "stop_sequence", "content_filter")
