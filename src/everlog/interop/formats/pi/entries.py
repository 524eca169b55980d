"""One entry of pi's as a message or a summary of ours, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.format_types import Summary
from everlog.interop.formats.jsonl import Row, built, remains, text_of
from everlog.model import Message

NAME = "pi"
SESSION = f"{NAME}.session"
BRANCH = "The following is a summary of a branch that this conversation came back from:"

ROLES = ("user", "assistant", "toolResult")  # those that are said as they stand
# Their names of what goes back to a model's provider; ours is `signature`.
_SIGNATURES = {"thinking": "thinkingSignature", "toolCall": "thoughtSignature"}
_encoder = msgspec.json.Encoder()
_sorted = msgspec.json.Encoder(order="sorted")


def compact(value: Any) -> bytes:
    """Compact JSON."""
    return _encoder.encode(value)


# --- reading --------------------------------------------------------------------------------


def read_message(row: Row, name: str, at: str, *, light: bool = False) -> Message | None:
    """The message that an entry puts into the conversation; None if it puts none there.

    A light one keeps nothing of the line.
    """
    value = row.value or {}
    fields = _spoken(value)
    if fields is None:
        return None
    data = {"recordType": "message", "id": name, "timestamp": at, **fields}
    if not light:
        data[NAME] = _kept(row, value, fields["content"])
    try:
        record = built(data)
    except FormatError:
        return None  # kept as an event
    if not isinstance(record, Message):
        return None
    return replace(record, line=b"") if light else record


def _spoken(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of the message in an entry."""
    said, kind = value.get("message"), value.get("type")
    content: Any = None
    if kind == "message" and isinstance(said, dict):
        if said.get("role") in ROLES:
            content = said.get("content")
            if content is not None and not isinstance(content, str | list):
                return None
            return {"role": said["role"], "content": _blocks(content), **_fields(said)}
        content = _text_for(said)
    elif kind == "branch_summary" and text_of(value, "summary"):
        content = f"{BRANCH}\n\n<summary>\n{value['summary']}</summary>"
    elif kind == "custom_message":
        content = value.get("content")
    if not isinstance(content, str | list):
        return None
    return {"role": "user", "content": _blocks(content)}  # the entry only stands for it


def _kept(row: Row, value: Mapping[str, Any], blocks: list[Any]) -> dict[str, Any]:
    """What must be kept of an entry to write it again."""
    said = value.get("message")
    if (
        value.get("type") != "message"
        or not isinstance(said, dict)
        or said.get("role") not in ROLES
    ):
        return remains(row, whole=False)
    content = said.get("content")
    rest = dict(said)
    if content:
        rest["content"] = "" if isinstance(content, str) else []  # its shape; the rest is ours
    whole = _same(_content_back(blocks, content), content)
    return remains(row, whole=whole, entry={**value, "message": rest})


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


def read_summary(
    value: Mapping[str, Any], name: str, at: str, first_kept: str | None, extra: dict[str, Any]
) -> Summary:
    """The summary in an entry of a compaction."""
    details = value.get("details")
    details = details if isinstance(details, dict) else {}
    return Summary(
        id=name,
        text=value["summary"],
        first_kept=first_kept,
        strategy="structured",
        tokens_before=_whole(value.get("tokensBefore")),
        read_files=_texts(details.get("readFiles")),
        modified_files=_texts(details.get("modifiedFiles")),
        timestamp=at,
        extra=extra,
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


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
