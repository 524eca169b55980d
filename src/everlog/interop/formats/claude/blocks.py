"""The content of Claude Code's messages, which is that of Anthropic's API, and ours.

`take` also says whether what it gives is all there is: then `give` makes an equal content again,
and only otherwise the original has to be kept.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from everlog.model import AnyBlock, File, Image, OtherBlock, Text, Thinking, ToolCall

PERSISTED = "<persisted-output>"
_SAVED = re.compile(r"tool-results[/\\]+([^/\\\n<>\"]+?\.(?:txt|json))")
_OURS = frozenset({"text", "toolCall", "thinking", "image", "file"})
Given = tuple[AnyBlock, bool]  # a block, and whether it says all
Texts = Callable[[str], str | None]  # the full text of a large result, by the name of its file


class Result(NamedTuple):
    """What a tool answered."""

    call: str
    content: tuple[AnyBlock, ...]
    error: bool | None


class Content(NamedTuple):
    """The content of one message."""

    results: list[Result]
    blocks: list[AnyBlock]
    exact: bool


def saved_as(text: str) -> str | None:
    """The name of the file that holds the full text of a large result."""
    found = _SAVED.search(text) if PERSISTED in text else None
    return found[1] if found else None


# --- theirs to ours -------------------------------------------------------------------------


def take(content: str | Sequence[Any], texts: Texts) -> Content:
    """The blocks of a content."""
    if isinstance(content, str):
        return Content([], [Text(content)], True)
    results: list[Result] = []
    blocks: list[AnyBlock] = []
    exact = True
    for data in content:
        if isinstance(data, dict) and data.get("type") == "tool_result":
            result, same = _result(data, texts)
            results.append(result)
            exact = exact and same and not blocks
        else:
            block, same = _block(data)
            blocks.append(block)
            exact = exact and same
    return Content(results, blocks, exact)


def _result(data: Mapping[str, Any], texts: Texts) -> tuple[Result, bool]:
    call, content, error = data.get("tool_use_id"), data.get("content"), data.get("is_error")
    exact = isinstance(call, str) and len(data) == 3 + (type(error) is bool)
    blocks: list[AnyBlock] = []
    if isinstance(content, str):
        blocks.append(Text(content))
    elif isinstance(content, list):
        exact = exact and not (len(content) == 1 and _is_text(content[0]))
        for one in content:
            block, same = _block(one)
            blocks.append(block)
            exact = exact and same
    else:
        exact = False
    for place, block in enumerate(blocks):
        name = saved_as(block.text) if isinstance(block, Text) else None
        full = texts(name) if name else None
        if full is not None:
            blocks[place] = Text(full)
            exact = False
    made = Result(
        call if isinstance(call, str) else "",
        tuple(blocks),
        error if isinstance(error, bool) else None,
    )
    return made, exact


def _is_text(data: Any) -> bool:
    return isinstance(data, dict) and data.get("type") == "text"


def _block(data: Any) -> Given:
    if not isinstance(data, dict):
        return OtherBlock({"type": "unknown", "value": data}), False
    kind = data.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    made = reader(data) if reader else None
    return made or (OtherBlock(data), not isinstance(kind, str) or kind not in _OURS)


def _text(data: dict[str, Any]) -> Given | None:
    text = data.get("text")
    return (Text(text), len(data) == 2) if isinstance(text, str) else None


def _thinking(data: dict[str, Any]) -> Given | None:
    thinking, signature = data.get("thinking"), data.get("signature")
    if not isinstance(thinking, str):
        return None
    signed = isinstance(signature, str)
    return Thinking(thinking, signature if signed else None), len(data) == 2 + signed


def _tool_use(data: dict[str, Any]) -> Given | None:
    name, call, given = data.get("name"), data.get("id"), data.get("input")
    if not isinstance(name, str) or not isinstance(call, str):
        return None
    if not isinstance(given, dict):
        return ToolCall(call, name, {"input": given}), False
    return ToolCall(call, name, given), len(data) == 4


def _image(data: dict[str, Any]) -> Given | None:
    mime, coded, url = _source(data)
    if url is not None:
        return Image(url=url), _same(data, _write_image(Image(url=url)))
    if coded is None:
        return None
    image = Image(mime, coded)
    return image, _same(data, _write_image(image))


def _document(data: dict[str, Any]) -> Given | None:
    title = data.get("title") if isinstance(data.get("title"), str) else ""
    mime, coded, url = _source(data)
    if url is not None:
        file = File(title or "", url=url)
    elif coded is None:
        return None
    elif data["source"].get("type") == "text":
        file = File(title or "", mime, b64encode(coded.encode("utf-8", "replace")).decode())
    else:
        file = File(title or "", mime, coded)
    return file, _same(data, _write_file(file))


def _source(data: dict[str, Any]) -> tuple[str, str | None, str | None]:
    """Media type, data and URL of a block, as far as they are there."""
    source = data.get("source")
    if not isinstance(source, dict):
        return "", None, None
    mime, coded, url = source.get("media_type"), source.get("data"), source.get("url")
    return (
        mime if isinstance(mime, str) else "",
        coded if isinstance(coded, str) else None,
        url if isinstance(url, str) else None,
    )


def _same(data: dict[str, Any], made: dict[str, Any] | None) -> bool:
    return data == made


_READERS: dict[str, Callable[[dict[str, Any]], Given | None]] = {
    "text": _text,
    "thinking": _thinking,
    "tool_use": _tool_use,
    "image": _image,
    "document": _document,
}


# --- ours to theirs -------------------------------------------------------------------------


def give(results: Sequence[Result], blocks: Sequence[AnyBlock]) -> list[dict[str, Any]]:
    """The content that `take` was given, if it was exact."""
    return [*map(give_result, results), *_give_blocks(blocks)]


def _give_blocks(blocks: Sequence[AnyBlock]) -> list[dict[str, Any]]:
    return [made for made in map(give_block, blocks) if made is not None]


def give_result(result: Result) -> dict[str, Any]:
    """A result as a block of theirs."""
    content: str | list[dict[str, Any]]
    if len(result.content) == 1 and isinstance(result.content[0], Text):
        content = result.content[0].text
    else:
        content = _give_blocks(result.content)
    made = {"type": "tool_result", "tool_use_id": result.call, "content": content}
    return made if result.error is None else {**made, "is_error": result.error}


def give_block(block: AnyBlock) -> dict[str, Any] | None:
    """A block as theirs; None if they have none such."""
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    if isinstance(block, ToolCall):
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.arguments}
    if isinstance(block, Thinking):
        made = {"type": "thinking", "thinking": block.thinking}
        return made if block.signature is None else {**made, "signature": block.signature}
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
    made: dict[str, Any] = {"type": "document", "source": source}
    return {**made, "title": file.name} if file.name else made
