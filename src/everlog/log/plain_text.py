"""A conversation as plain text, for a model that must read it and not continue it.

[User]: What pods are running?
[Assistant]: Let me check.
[Assistant tool calls]: bash(command="kubectl get pods")
[Tool result]: NAME   READY   STATUS
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from everlog.model import AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall

RESULT_CHARACTERS = 2_000


def render_plain_text(messages: Iterable[Message], *, result_bytes: int | None = None) -> str:
    """Render messages as lines; long tool results are truncated.

    At 2,000 characters or, if given, at `result_bytes` of UTF-8.
    """
    return "\n".join(line for message in messages for line in _lines(message, result_bytes=result_bytes))


def _lines(message: Message, *, result_bytes: int | None) -> Iterator[str]:
    body = "\n".join(text for block in message.content if (text := name_block(block)))
    if message.role == "toolResult":
        if result_bytes is None:
            body = _cut_characters(body, RESULT_CHARACTERS)
        else:
            body = _cut_bytes(body, result_bytes)
        yield f"[Tool result]: {body}"
        return
    if body:
        yield f"[{'User' if message.role == 'user' else 'Assistant'}]: {body}"
    if calls := message.tool_calls:
        yield "[Assistant tool calls]: " + "; ".join(format_call(call) for call in calls)


def format_call(call: ToolCall) -> str:
    """Format a call as `name(key="value", other=1)`."""
    arguments = (f"{key}={_json(value)}" for key, value in call.arguments.items())
    return f"{call.name}({', '.join(arguments)})"


def name_block(block: AnyBlock) -> str:
    """Return a block's text, or its name in brackets; empty for thinking and tool calls."""
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Image):
        return f"[image {block.mime_type}]" if block.mime_type else "[image]"
    if isinstance(block, File):
        return f"[file {block.name}]" if block.name else "[file]"
    if isinstance(block, OtherBlock):
        return f"[{block.type or 'block'}]"
    assert isinstance(block, Thinking | ToolCall)
    return ""  # calls have a line of their own; thinking is left out


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, ValueError):
        return repr(value)


def _cut_characters(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[... {len(text) - limit} more characters truncated]"


def _cut_bytes(text: str, limit: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    return data[:limit].decode("utf-8", "ignore") + "... [truncated]"
