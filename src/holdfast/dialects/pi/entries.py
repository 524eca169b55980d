"""One entry of pi's as a message of ours, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.dialects.jsonl import Row, built, remains, text_of
from holdfast.errors import FormatError
from holdfast.model import Message

NAME = "pi"
SESSION = f"{NAME}.session"
BRANCH = "The following is a summary of a branch that this conversation came back from:"

_ROLES = ("user", "assistant", "toolResult")
# Their names of what goes back to a model's provider; ours is `signature`.
_SIGNATURES = {"thinking": "thinkingSignature", "toolCall": "thoughtSignature"}
_encoder = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")


def compact(value: Any) -> bytes:
    """Compact JSON."""
    return _encoder.encode(value)


# --- reading --------------------------------------------------------------------------------


def read_message(row: Row, name: str, at: str) -> Message | None:
    """The message that an entry puts into the conversation; None if it puts none there."""
    value = row.value or {}
    said = value.get("message")
    try:
        if value.get("type") == "message" and isinstance(said, dict):
            if said.get("role") in _ROLES:
                return _said(row, said, name, at)
            return _other(row, _text_for(said), name, at)
        if value.get("type") == "branch_summary" and text_of(value, "summary"):
            text = f"{BRANCH}\n\n<summary>\n{value['summary']}</summary>"
            return _other(row, text, name, at)
        if value.get("type") == "custom_message":
            return _other(row, value.get("content"), name, at)
    except FormatError:
        pass  # kept as an event
    return None


def _said(row: Row, said: Mapping[str, Any], name: str, at: str) -> Message | None:
    content = said.get("content")
    if content is not None and not isinstance(content, str | list):
        return None
    blocks = _blocks(content)
    data: dict[str, Any] = {
        "recordType": "message",
        "id": name,
        "role": said["role"],
        "content": blocks,
        "timestamp": at,
        **_fields(said),
    }
    whole = _same(_content_back(blocks, content), content)
    rest = dict(said)
    if content:
        rest["content"] = "" if isinstance(content, str) else []  # its shape; the rest is ours
    data[NAME] = remains(row, whole=whole, entry={**(row.value or {}), "message": rest})
    return _made(data)


def _other(row: Row, content: Any, name: str, at: str) -> Message | None:
    """A message of the user's that the entry only stands for."""
    if not isinstance(content, str | list):
        return None
    keep = remains(row, whole=False)
    data = {"recordType": "message", "id": name, "role": "user", "timestamp": at, NAME: keep}
    return _made({**data, "content": _blocks(content)})


def _made(data: dict[str, Any]) -> Message | None:
    record = built(data)
    return record if isinstance(record, Message) else None


def _text_for(said: Mapping[str, Any]) -> Any:
    """What a model is told of a message of another role."""
    if said.get("role") in ("custom", "hookMessage"):  # its name in version 2
        return said.get("content")
    if said.get("role") != "bashExecution" or said.get("excludeFromContext"):
        return None
    text, code = f"Ran `{text_of(said, 'command')}`\n", said.get("exitCode")
    output = text_of(said, "output")
    text += f"```\n{output}\n```" if output else "(no output)"
    if said.get("cancelled"):
        text += "\n\n(command cancelled)"
    elif type(code) is int and code != 0:
        text += f"\n\nCommand exited with code {code}"
    if said.get("truncated") and text_of(said, "fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {said['fullOutputPath']}]"
    return text


def _blocks(content: str | list[Any] | None) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_block(one) if isinstance(one, dict) else one for one in content or []]


def _block(block: dict[str, Any]) -> dict[str, Any]:
    theirs = _SIGNATURES.get(str(block.get("type")))
    if theirs is None or not isinstance(block.get(theirs), str) or "signature" in block:
        return block
    return {("signature" if key == theirs else key): value for key, value in block.items()}


def _fields(said: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if said["role"] == "toolResult":
        fields["toolCallId"] = text_of(said, "toolCallId")
        if isinstance(said.get("isError"), bool):
            fields["isError"] = said["isError"]
        if text_of(said, "toolName"):
            fields["toolName"] = said["toolName"]
    if said["role"] == "assistant":
        if text_of(said, "model"):
            fields["model"] = said["model"]
        if text_of(said, "stopReason"):
            fields["stopReason"] = said["stopReason"]
        if isinstance(said.get("usage"), dict):
            fields["usage"] = _usage(said["usage"])
    return fields


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    cost = usage.get("cost")
    total = cost.get("total") if isinstance(cost, dict) else cost
    return {
        "inputTokens": _whole(usage.get("input")),
        "outputTokens": _whole(usage.get("output")),
        "totalTokens": _whole(usage.get("totalTokens")),
        "cacheReadTokens": _whole(usage.get("cacheRead")),
        "cacheWriteTokens": _whole(usage.get("cacheWrite")),
        "cost": total if isinstance(total, int | float) and not isinstance(total, bool) else 0.0,
    }


def _whole(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


# --- back -----------------------------------------------------------------------------------


def entry_of(record: Message, keep: Mapping[str, Any]) -> dict[str, Any]:
    """The entry that a message came from: what was kept, with the content of its line."""
    entry = dict(keep["entry"])
    said = dict(entry.get("message") or {})
    if "content" in said:
        blocks = msgspec.json.decode(record.line).get("content") or []
        said["content"] = _content_back(blocks, said["content"])
    return {**entry, "message": said}


def _content_back(blocks: list[Any], shape: object) -> Any:
    if shape is None:
        return None
    if isinstance(shape, str):
        return blocks[0].get("text") if len(blocks) == 1 and isinstance(blocks[0], dict) else None
    return [_block_back(one) if isinstance(one, dict) else one for one in blocks]


def _block_back(block: dict[str, Any]) -> dict[str, Any]:
    theirs = _SIGNATURES.get(str(block.get("type")))
    if theirs is None or not isinstance(block.get("signature"), str):
        return block
    return {(theirs if key == "signature" else key): value for key, value in block.items()}


def _same(one: Any, other: Any) -> bool:
    return _sorted.encode(one) == _sorted.encode(other)
