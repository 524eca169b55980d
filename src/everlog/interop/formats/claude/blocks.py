"""Conversion between our blocks and Claude Code's message content (that of Anthropic's API).

`read_content` also returns whether its blocks are exact: then `write_content` rebuilds equal
content, and only otherwise the original has to be preserved.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from everlog.model import AnyBlock, File, Image, OtherBlock, Text, Thinking, ToolCall

PERSISTED_TAG = "<persisted-output>"
_SAVED_PATH = re.compile(r"tool-results[/\\]+([^/\\\n<>\"]+?\.(?:txt|json))")
_NATIVE_TYPES = frozenset({"text", "toolCall", "thinking", "image", "file"})
ParsedBlock = tuple[AnyBlock, bool]  # a block, and whether it is exact
LoadText = Callable[[str], str | None]  # reads a large result by file name


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """The result of one tool call."""

    call_id: str
    content: tuple[AnyBlock, ...]
    is_error: bool | None


class Content(msgspec.Struct, frozen=True, gc=False):
    """The content of one message."""

    results: Sequence[ToolResult]
    blocks: tuple[AnyBlock, ...]
    exact: bool


# --- Claude Code's blocks -------------------------------------------------------------------

_Absent = msgspec.UnsetType


class TextBlock(msgspec.Struct, tag="text", forbid_unknown_fields=True, gc=False):
    """A text in its usual form."""

    type: ClassVar[str] = "text"
    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking", forbid_unknown_fields=True, gc=False):
    """Reasoning in its usual form."""

    type: ClassVar[str] = "thinking"
    thinking: str
    signature: str | _Absent = msgspec.UNSET


class ToolUseBlock(msgspec.Struct, tag="tool_use", forbid_unknown_fields=True, gc=False):
    """A tool call in its usual form."""

    type: ClassVar[str] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]
    caller: Any = msgspec.UNSET


class ToolResultBlock(msgspec.Struct, tag="tool_result", forbid_unknown_fields=True, gc=False):
    """The result of a tool call in its usual form."""

    type: ClassVar[str] = "tool_result"
    tool_use_id: str
    content: str
    is_error: bool | _Absent = msgspec.UNSET


class UnusualBlock(msgspec.Struct, gc=False):
    """A block of another type or form, or something else in its place."""

    type: Any
    data: Any


UsualBlock = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
ClaudeBlock = UsualBlock | UnusualBlock


def typed_content(content: object) -> str | tuple[Any, ...] | None:
    """Return the content of a message with its blocks as structs; None if it is unreadable."""
    if type(content) is list:
        return tuple(map(_typed_block, content))
    return content if type(content) is str else None


def _typed_block(data: Any) -> ClaudeBlock:
    try:
        block: UsualBlock = msgspec.convert(data, UsualBlock)
        return block
    except msgspec.ValidationError:
        return UnusualBlock(data.get("type") if type(data) is dict else None, data)


def saved_file_name(text: str) -> str | None:
    """Return the name of the file with the full text of a large result."""
    match = _SAVED_PATH.search(text) if PERSISTED_TAG in text else None
    return match[1] if match else None


# --- reading --------------------------------------------------------------------------------


def read_content(content: str | Sequence[ClaudeBlock], load_text: LoadText) -> Content:
    """Return the blocks of message content, as `typed_content` returns it."""
    if isinstance(content, str):
        return Content((), (Text(content),), True)
    results: list[ToolResult] = []
    blocks: list[AnyBlock] = []
    exact = True
    for block in content:
        if isinstance(block, TextBlock):
            blocks.append(Text(block.text))
        elif isinstance(block, ToolUseBlock):
            blocks.append(ToolCall(block.id, block.name, block.input))
            exact = exact and block.caller is msgspec.UNSET
        elif isinstance(block, ThinkingBlock):
            blocks.append(Thinking(block.thinking, None if block.signature is msgspec.UNSET else block.signature))
        elif isinstance(block, ToolResultBlock) or block.type == "tool_result":
            result, is_exact = _read_result(block, load_text)
            results.append(result)
            exact = exact and is_exact and not blocks
        else:
            parsed, is_exact = _read_block(block.data)
            blocks.append(parsed)
            exact = exact and is_exact
    return Content(results, tuple(blocks), exact)


def _read_result(block: ToolResultBlock | UnusualBlock, load_text: LoadText) -> tuple[ToolResult, bool]:
    call_id: Any
    if isinstance(block, ToolResultBlock):
        call_id, content, is_error, exact = block.tool_use_id, block.content, block.is_error, True
    else:
        data = block.data
        call_id, content, is_error = data.get("tool_use_id"), data.get("content"), data.get("is_error")
        exact = isinstance(call_id, str) and len(data) == 3 + (type(is_error) is bool)
    blocks: list[AnyBlock] = []
    if isinstance(content, str):
        blocks.append(Text(content))
    elif isinstance(content, list):
        exact = exact and not (len(content) == 1 and _is_text(content[0]))
        for inner in content:
            inner_block, block_exact = _read_block(inner)
            blocks.append(inner_block)
            exact = exact and block_exact
    else:
        exact = False
    for index, inner_block in enumerate(blocks):
        name = saved_file_name(inner_block.text) if isinstance(inner_block, Text) else None
        full = load_text(name) if name else None
        if full is not None:
            blocks[index] = Text(full)
            exact = False
    result = ToolResult(
        call_id if isinstance(call_id, str) else "", tuple(blocks), is_error if isinstance(is_error, bool) else None
    )
    return result, exact


def _is_text(data: Any) -> bool:
    return isinstance(data, dict) and data.get("type") == "text"


def _read_block(data: Any) -> ParsedBlock:
    if not isinstance(data, dict):
        return OtherBlock({"type": "unknown", "value": data}), False
    kind = data.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    parsed = reader(data) if reader else None
    return parsed or (OtherBlock(data), not isinstance(kind, str) or kind not in _NATIVE_TYPES)


def _read_text(data: dict[str, Any]) -> ParsedBlock | None:
    text = data.get("text")
    return (Text(text), len(data) == 2) if isinstance(text, str) else None


def _read_thinking(data: dict[str, Any]) -> ParsedBlock | None:
    thinking, signature = data.get("thinking"), data.get("signature")
    if not isinstance(thinking, str):
        return None
    is_signed = isinstance(signature, str)
    return Thinking(thinking, signature if is_signed else None), len(data) == 2 + is_signed


def _read_tool_use(data: dict[str, Any]) -> ParsedBlock | None:
    name, call_id, arguments = data.get("name"), data.get("id"), data.get("input")
    if not isinstance(name, str) or not isinstance(call_id, str):
        return None
    if not isinstance(arguments, dict):
        return ToolCall(call_id, name, {"input": arguments}), False
    return ToolCall(call_id, name, arguments), len(data) == 4


def _read_image(data: dict[str, Any]) -> ParsedBlock | None:
    mime, encoded, url = _read_source(data)
    if url is not None:
        return Image(url=url), _is_same(data, _write_image(Image(url=url)))
    if encoded is None:
        return None
    image = Image(mime, encoded)
    return image, _is_same(data, _write_image(image))


def _read_document(data: dict[str, Any]) -> ParsedBlock | None:
    title = data.get("title") if isinstance(data.get("title"), str) else ""
    mime, encoded, url = _read_source(data)
    if url is not None:
        file = File(title or "", url=url)
    elif encoded is None:
        return None
    elif data["source"].get("type") == "text":
        file = File(title or "", mime, b64encode(encoded.encode("utf-8", "replace")).decode())
    else:
        file = File(title or "", mime, encoded)
    return file, _is_same(data, _write_file(file))


def _read_source(data: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """Return media type, data and URL of a block, as far as present."""
    source = data.get("source")
    if not isinstance(source, dict):
        return "", None, None
    mime, encoded, url = source.get("media_type"), source.get("data"), source.get("url")
    return (
        mime if isinstance(mime, str) else "",
        encoded if isinstance(encoded, str) else None,
        url if isinstance(url, str) else None,
    )


def _is_same(data: dict[str, Any], rebuilt: dict[str, Any] | None) -> bool:
    return data == rebuilt


_READERS: dict[str, Callable[[dict[str, Any]], ParsedBlock | None]] = {
    "text": _read_text,
    "thinking": _read_thinking,
    "tool_use": _read_tool_use,
    "image": _read_image,
    "document": _read_document,
}


# --- writing --------------------------------------------------------------------------------


def write_content(results: Sequence[ToolResult], blocks: Sequence[AnyBlock]) -> list[dict[str, Any]]:
    """Return the content from which `read_content` made these, if it was exact."""
    return [*map(write_result, results), *_write_blocks(blocks)]


def _write_blocks(blocks: Sequence[AnyBlock]) -> list[dict[str, Any]]:
    return [written for written in map(write_block, blocks) if written is not None]


def write_result(result: ToolResult) -> dict[str, Any]:
    """Return a result as a Claude Code block."""
    content: str | list[dict[str, Any]]
    if len(result.content) == 1 and isinstance(result.content[0], Text):
        content = result.content[0].text
    else:
        content = _write_blocks(result.content)
    block = {"type": "tool_result", "tool_use_id": result.call_id, "content": content}
    return block if result.is_error is None else {**block, "is_error": result.is_error}


def write_block(block: AnyBlock) -> dict[str, Any] | None:
    """Return a block as a Claude Code block; None if there is no equivalent."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, ToolCall):
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}
    if isinstance(block, Thinking):
        thinking = {"type": "thinking", "thinking": block.thinking}
        return thinking if block.signature is None else {**thinking, "signature": block.signature}
    if isinstance(block, Image):
        return _write_image(block)
    if isinstance(block, File):
        return _write_file(block)
    return block.data


def _write_image(image: Image) -> dict[str, Any] | None:
    if image.url is not None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    source = {"type": "base64", "media_type": image.mime_type, "data": image.data}
    return {"type": "image", "source": source}


def _write_file(file: File) -> dict[str, Any] | None:
    source: dict[str, Any]
    if file.url is not None:
        source = {"type": "url", "url": file.url}
    elif file.mime_type == "application/pdf":
        source = {"type": "base64", "media_type": file.mime_type, "data": file.data}
    elif file.mime_type.startswith("text/"):
        try:
            text = b64decode(file.data, validate=True).decode()
        except ValueError:
            return None
        source = {"type": "text", "media_type": "text/plain", "data": text}
    else:
        return None
    document: dict[str, Any] = {"type": "document", "source": source}
    return {**document, "title": file.name} if file.name else document
