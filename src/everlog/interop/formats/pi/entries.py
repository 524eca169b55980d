"""Conversion of pi's entries to our messages and summaries, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.context.compaction.file_operations import TAGS as FILE_TAGS
from everlog.context.fence import Origin, fence, restore_blocks
from everlog.errors import FormatError
from everlog.interop.formats.format_types import Summary
from everlog.interop.formats.jsonl import Row, build_record, preserved_data, text_of
from everlog.model import PROGRAM, Message

NAME = "pi"
SESSION_EVENT = f"{NAME}.session"
EDIT_KEY = "of"  # preserved of a message with the new text of another: the entry that edits it
BRANCH_INTRO = "The following is a summary of a branch that this conversation came back from:"

MESSAGE_ROLES = ("user", "assistant", "toolResult")  # whose messages are used as they are
# pi's keys for what goes back to the model's provider; ours is `signature`.
_SIGNATURE_KEYS = {"thinking": "thinkingSignature", "toolCall": "thoughtSignature"}
_encoder = msgspec.json.Encoder()
_sorted_encoder = msgspec.json.Encoder(order="sorted")


def encode_json(value: Any) -> bytes:
    """Encode a value as compact JSON."""
    return _encoder.encode(value)


def shows_edits(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry is of a version that understands a `context_edit`.

    These are of 0.86 and newer; edits are of 0.87, which came two days later.
    """
    message = entry.get("message")
    is_prompt = type(message) is dict and message.get("role") == "system"
    return is_prompt or entry.get("type") in ("usage", "context_edit")


# --- reading --------------------------------------------------------------------------------


def read_message(row: Row, message_id: str, timestamp: str, *, without_line: bool = False) -> Message | None:
    """Return the message that an entry adds to the conversation; None if it adds none.

    With `without_line`, the message does not preserve the entry.
    """
    value = row.value or {}
    fields = _message_fields(value)
    if fields is None:
        return None
    data = {"recordType": "message", "id": message_id, "timestamp": timestamp, **fields}
    if not without_line:
        data[NAME] = _preserved_entry(row, value, fields["content"])
    try:
        record = build_record(data)
    except FormatError:
        return None  # imported as an event
    if not isinstance(record, Message):
        return None
    return replace(record, line=b"") if without_line else record


def _message_fields(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of the message in an entry; None if it has none."""
    message, kind = value.get("message"), value.get("type")
    content: Any = None
    if kind == "message" and isinstance(message, dict):
        if message.get("role") in MESSAGE_ROLES:
            content = message.get("content")
            if content is not None and not isinstance(content, str | list):
                return None
            blocks = _read_blocks(content)
            return {"role": message["role"], "content": blocks, **_read_fields(message)}
        content = _context_text(message)
    elif kind == "branch_summary" and text_of(value, "summary"):
        summary = restore_blocks(fence(value["summary"], Origin.BRANCH_SUMMARY), FILE_TAGS)
        content = f"{BRANCH_INTRO}\n\n<summary>\n{summary}</summary>"
    elif kind == "custom_message":
        content = value.get("content")
    if not isinstance(content, str | list):
        return None
    return {"role": "user", "content": _read_blocks(content), "sender": PROGRAM}  # derived from the entry


def _preserved_entry(row: Row, value: Mapping[str, Any], blocks: list[Any]) -> dict[str, Any]:
    """Return what must be preserved of an entry to write it again."""
    message = value.get("message")
    if value.get("type") != "message" or not isinstance(message, dict) or message.get("role") not in MESSAGE_ROLES:
        return preserved_data(row, is_lossless=False)
    content = message.get("content")
    stripped = dict(message)
    if content:
        stripped["content"] = "" if isinstance(content, str) else []  # only its type; the record has the content
    is_lossless = _is_equal_json(_restore_content(blocks, content), content)
    return preserved_data(row, is_lossless=is_lossless, entry={**value, "message": stripped})


def _context_text(message: Mapping[str, Any]) -> Any:
    """Return what a model is sent for a message of another role; None if nothing."""
    if message.get("role") in ("custom", "hookMessage"):  # its name in version 2
        return message.get("content")
    if message.get("role") != "bashExecution" or message.get("excludeFromContext"):
        return None
    text, code = f"Ran `{text_of(message, 'command')}`\n", message.get("exitCode")
    output = text_of(message, "output")
    text += f"```\n{output}\n```" if output else "(no output)"
    if message.get("cancelled"):
        text += "\n\n(command cancelled)"
    elif type(code) is int and code != 0:
        text += f"\n\nCommand exited with code {code}"
    if message.get("truncated") and text_of(message, "fullOutputPath"):
        text += f"\n\n[Output truncated. Full output: {message['fullOutputPath']}]"
    return text


def _read_blocks(content: str | list[Any] | None) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_read_block(block) if isinstance(block, dict) else block for block in content or []]


def _read_block(block: dict[str, Any]) -> dict[str, Any]:
    foreign_key = _SIGNATURE_KEYS.get(str(block.get("type")))
    if foreign_key is None or not isinstance(block.get(foreign_key), str) or "signature" in block:
        return block
    return {("signature" if key == foreign_key else key): value for key, value in block.items()}


def _read_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if message["role"] == "toolResult":
        fields["toolCallId"] = text_of(message, "toolCallId")
        if isinstance(message.get("isError"), bool):
            fields["isError"] = message["isError"]
        if text_of(message, "toolName"):
            fields["toolName"] = message["toolName"]
    if message["role"] == "assistant":
        if text_of(message, "model"):
            fields["model"] = message["model"]
        if text_of(message, "stopReason"):
            fields["stopReason"] = message["stopReason"]
        if isinstance(message.get("usage"), dict):
            fields["usage"] = _read_usage(message["usage"])
    return fields


def _read_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    cost = usage.get("cost")
    total = cost.get("total") if isinstance(cost, dict) else cost
    return {
        "inputTokens": _count_of(usage.get("input")),
        "outputTokens": _count_of(usage.get("output")),
        "totalTokens": _count_of(usage.get("totalTokens")),
        "cacheReadTokens": _count_of(usage.get("cacheRead")),
        "cacheWriteTokens": _count_of(usage.get("cacheWrite")),
        "cost": total if isinstance(total, int | float) and not isinstance(total, bool) else 0.0,
    }


def _count_of(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def read_summary(
    value: Mapping[str, Any], summary_id: str, timestamp: str, first_kept: str | None, extra: dict[str, Any]
) -> Summary:
    """Return the summary in a compaction entry."""
    details = value.get("details")
    details = details if isinstance(details, dict) else {}
    return Summary(
        id=summary_id,
        text=value["summary"],
        first_kept=first_kept,
        strategy="structured",
        tokens_before=_count_of(value.get("tokensBefore")),
        read_files=_texts_of(details.get("readFiles")),
        modified_files=_texts_of(details.get("modifiedFiles")),
        timestamp=timestamp,
        extra=extra,
    )


def _texts_of(value: object) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


# --- writing -----------------------------------------------------------------------------------


def restore_entry(record: Message, preserved: Mapping[str, Any]) -> dict[str, Any]:
    """Restore the entry that a message came from, with the content of its line."""
    entry = dict(preserved["entry"])
    message = dict(entry.get("message") or {})
    if "content" in message:
        blocks = msgspec.json.decode(record.line).get("content") or []
        message["content"] = _restore_content(blocks, message["content"])
    return {**entry, "message": message}


def _restore_content(blocks: list[Any], shape: object) -> Any:
    if shape is None:
        return None
    if isinstance(shape, str):
        return blocks[0].get("text") if len(blocks) == 1 and isinstance(blocks[0], dict) else None
    return [_restore_block(block) if isinstance(block, dict) else block for block in blocks]


def _restore_block(block: dict[str, Any]) -> dict[str, Any]:
    foreign_key = _SIGNATURE_KEYS.get(str(block.get("type")))
    if foreign_key is None or not isinstance(block.get("signature"), str):
        return block
    return {(foreign_key if key == "signature" else key): value for key, value in block.items()}


def _is_equal_json(left: Any, right: Any) -> bool:
    return _sorted_encoder.encode(left) == _sorted_encoder.encode(right)
