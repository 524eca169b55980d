"""Real sessions of other agents as our messages: enough to measure with, not an importer.

Lines that are no message, or no JSON, are passed over without a word. The order is that of the
file: branches that the agent left behind are read too.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from everlog.model import AnyBlock, Message, Role, Usage, blocks

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "toolResult": "toolResult"}


def claude_code(path: Path) -> list[Message]:
    """The main conversation of a Claude Code transcript."""
    found: list[Message] = []
    answers: dict[str, int] = {}  # the place of each API message, which is written block by block
    names: dict[str, str] = {}
    for line in _lines(path):
        if line.get("isSidechain") or line.get("isMeta") or line.get("isCompactSummary"):
            continue
        message, kind = line.get("message"), line.get("type")
        if kind not in ("user", "assistant") or not isinstance(message, dict):
            continue
        timestamp, cwd = str(line.get("timestamp", "")), line.get("cwd")
        items = _items(message.get("content"))
        rest = [item for item in items if item.get("type") != "tool_result"]
        if kind == "assistant":
            content = tuple(_claude_block(item) for item in rest)
            names |= {i["id"]: i.get("name", "") for i in rest if i.get("type") == "tool_use"}
            key = str(message.get("id", ""))
            if key and key in answers:
                before = found[answers[key]]
                found[answers[key]] = msgspec.structs.replace(before, content=before.content + content)
                continue
            answers = {key: len(found)}
            found.append(
                Message(
                    role="assistant",
                    content=content,
                    model=message.get("model"),
                    usage=_usage(message.get("usage"), "input_tokens", "output_tokens"),
                    stop_reason=message.get("stop_reason"),
                    timestamp=timestamp,
                    cwd=cwd,
                )
            )
            continue
        for item in items:
            if item.get("type") == "tool_result":
                call = str(item.get("tool_use_id", ""))
                found.append(
                    Message(
                        role="toolResult",
                        content=tuple(_claude_block(i) for i in _items(item.get("content"))),
                        tool_call_id=call,
                        tool_name=names.get(call),
                        is_error=bool(item.get("is_error")),
                        timestamp=timestamp,
                    )
                )
        if rest:
            answers = {}
            content = tuple(_claude_block(item) for item in rest)
            found.append(Message(role="user", content=content, timestamp=timestamp, cwd=cwd))
    return _numbered(found)


def pi(path: Path) -> list[Message]:
    """The messages of a pi session of any version, those it ran itself as the user's."""
    found: list[Message] = []
    for line in _lines(path):
        message = line.get("message")
        if line.get("type") != "message" or not isinstance(message, dict):
            continue
        if message.get("role") == "bashExecution" and not message.get("excludeFromContext"):
            text = f"Ran `{message.get('command')}`\n```\n{message.get('output')}\n```"
            found.append(Message(role="user", content=blocks(text)))
        role = _ROLES.get(str(message.get("role")))
        if role is None:
            continue
        found.append(
            Message(
                role=role,
                content=blocks(_items(message.get("content"))),
                tool_call_id=message.get("toolCallId"),
                tool_name=message.get("toolName"),
                is_error=message.get("isError"),
                model=message.get("model"),
                usage=_usage(message.get("usage"), "input", "output"),
                stop_reason=message.get("stopReason"),
                timestamp=_stamp(message.get("timestamp"), line.get("timestamp")),
            )
        )
    return _numbered(found)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, whatever stands between them."""
    with path.open("rb") as file:
        for raw in file:
            try:
                line = msgspec.json.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if isinstance(line, dict):
                yield line


def _items(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [item for item in content or () if isinstance(item, dict)]


def _claude_block(item: dict[str, Any]) -> AnyBlock:
    if item.get("type") == "tool_use":
        item = {
            "type": "toolCall",
            "id": item.get("id", ""),
            "name": item.get("name", ""),
            "arguments": item.get("input") or {},
        }
    elif item.get("type") == "image":
        source = item.get("source") or {}
        item = {
            "type": "image",
            "mimeType": source.get("media_type", ""),
            "data": source.get("data", ""),
            "url": source.get("url"),
        }
    return blocks([item])[0]


def _usage(found: Any, into: str, out: str) -> Usage | None:
    if not isinstance(found, dict):
        return None
    taken, given = int(found.get(into) or 0), int(found.get(out) or 0)
    return Usage(input_tokens=taken, output_tokens=given, total_tokens=taken + given)


def _stamp(millis: Any, text: Any) -> str:
    if isinstance(millis, int):
        moment = datetime.fromtimestamp(millis / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(text or "")


def _numbered(found: list[Message]) -> list[Message]:
    return [msgspec.structs.replace(one, seq=seq) for seq, one in enumerate(found, 1)]
