"""Conversion of one transcript record to our messages."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import astuple

from everlog.interop.formats.claude.blocks import Content, LoadText, read_content
from everlog.interop.formats.claude.records import ConversationMessage, Record, is_inserted
from everlog.interop.formats.format_types import Summary
from everlog.log.usage_fold import parse_count
from everlog.model import PROGRAM, Message, Text, ToolCall, Usage


def messages_of(
    record: Record, content: Content, timestamp: str, tool_names: dict[str, str], usage: Usage | None
) -> list[Message]:
    """Return one message for each result in a record, and one for the remainder.

    Adds the calls in the record to `tool_names`.
    """
    uuid, cwd, blocks = record.uuid, record.cwd if isinstance(record.cwd, str) else None, content.blocks
    messages: list[Message] = []
    for number, result in enumerate(content.results):
        messages.append(
            Message(
                id=f"{uuid}:{number}" if number else uuid,
                role="toolResult",
                content=result.content,
                tool_call_id=result.call_id,
                tool_name=tool_names.get(result.call_id),
                is_error=result.is_error,
                cwd=cwd,
                timestamp=timestamp,
            )
        )
    if messages and not blocks:
        return messages
    message_id = f"{uuid}:{len(messages)}" if messages else uuid
    if record.type == "user":
        sender = PROGRAM if _is_by_program(record, content) else "user"
        messages.append(
            Message(id=message_id, role="user", content=blocks, sender=sender, cwd=cwd, timestamp=timestamp)
        )
        return messages
    for block in blocks:
        if type(block) is ToolCall:
            tool_names[block.id] = block.name
    message = record.message or ConversationMessage()
    messages.append(
        Message(
            id=message_id,
            role="assistant",
            content=blocks,
            model=message.model if isinstance(message.model, str) else None,
            stop_reason=message.stop_reason if isinstance(message.stop_reason, str) else None,
            usage=usage,
            cwd=cwd,
            timestamp=timestamp,
        )
    )
    return messages


def _is_by_program(record: Record, content: Content) -> bool:
    """Return whether Claude Code wrote a user record, and the user no word of it."""
    if record.isMeta or record.isCompactSummary:
        return True
    for block in content.blocks:
        if type(block) is not Text or not is_inserted(block.text):
            return False
    return bool(content.blocks)


class Boundary(msgspec.Struct, frozen=True, rename={"tokens_before": "before", "first_kept": "kept"}):
    """A compaction whose summary follows."""

    uuid: str = ""
    tokens_before: int = 0
    first_kept: str | None = None  # the first message that stays in the context


def summary_of(record: Record, load_text: LoadText, timestamp: str, boundary: Boundary) -> Summary | None:
    """Return the summary in a record; None if it is unreadable."""
    content = None if record.message is None else record.message.content
    if content is None:
        return None
    blocks = read_content(content, load_text).blocks
    return Summary(
        id=record.uuid,
        text="\n".join(block.text for block in blocks if isinstance(block, Text)),
        first_kept=boundary.first_kept,
        tokens_before=boundary.tokens_before,
        timestamp=timestamp,
    )


def read_boundary(uuid: str, details: Any, first_kept: str | None) -> Boundary:
    """Return a boundary from its metadata."""
    tokens = details.get("preTokens") if isinstance(details, dict) else 0
    return Boundary(uuid, parse_count(tokens), first_kept)


# --- usage ----------------------------------------------------------------------------------

UsageCounts = tuple[int, int, int, int]  # input, output, cache read, cache write


def count_usage(record: Record, counts: dict[str, UsageCounts]) -> Usage | None:
    """Return what a record adds to the usage of its response, and update `counts`.

    Every record of a response repeats its usage, and a later one may report more. The sum over them
    is the maximum that any of them reports, however the lines arrive.
    """
    message = record.message
    if message is None or message.usage is None or record.type != "assistant":
        return None
    totals: Any = astuple(message.usage)
    if message.id:
        key = f"{message.id} {record.requestId}"
        before = counts.get(key)
        if before is None:
            counts[key] = totals
        elif before == totals:
            return None
        else:
            counts[key] = largest = tuple(map(max, before, totals))
            totals = [new - old for new, old in zip(largest, before, strict=True)]
            if not any(totals):
                return None
    input_tokens, output_tokens, cache_read, cache_write = totals
    return Usage(input_tokens, output_tokens, sum(totals), cache_read, cache_write)
