"""Conversion of one transcript record to our messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everlog.interop.formats.claude.blocks import Content, LoadText, read_content
from everlog.interop.formats.claude.chain import JsonObject, content_blocks, preserved_uuids
from everlog.interop.formats.format_types import Summary
from everlog.model import AnyBlock, Message, Text, Usage

MakeId = Callable[[int], str]  # returns the id of the n-th message of a record


def content_of(value: JsonObject) -> str | list[Any] | None:
    """Return the content of a record's message; None if it is missing or unreadable."""
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str | list) else None


def messages_of(
    value: JsonObject,
    content: Content,
    make_id: MakeId,
    *,
    timestamp: str,
    tool_names: Mapping[str, str],
    usage: Usage | None,
) -> list[Message]:
    """Return one message for each result in a record, and one for the remainder."""
    cwd = value.get("cwd")
    if not isinstance(cwd, str):
        cwd = None
    messages: list[Message] = []
    for result in content.results:
        messages.append(
            Message(
                id=make_id(len(messages)),
                role="toolResult",
                content=result.content,
                tool_call_id=result.call_id,
                tool_name=tool_names.get(result.call_id),
                is_error=result.is_error,
                cwd=cwd,
                timestamp=timestamp,
            )
        )
    if content.blocks or not messages:
        blocks: tuple[AnyBlock, ...] = tuple(content.blocks)
        message_id = make_id(len(messages))
        if value["type"] == "user":
            message = Message(id=message_id, role="user", content=blocks, sender="user", cwd=cwd, timestamp=timestamp)
        else:
            model, stop_reason = value["message"].get("model"), value["message"].get("stop_reason")
            message = Message(
                id=message_id,
                role="assistant",
                content=blocks,
                model=model if isinstance(model, str) else None,
                stop_reason=stop_reason if isinstance(stop_reason, str) else None,
                usage=usage,
                cwd=cwd,
                timestamp=timestamp,
            )
        messages.append(message)
    return messages


def iter_tool_calls(value: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield the id and tool name of each call in a record."""
    for block in content_blocks(value):
        if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
            yield block["id"], str(block.get("name") or "")


def summary_of(
    value: JsonObject, load_text: LoadText, *, timestamp: str, tokens_before: int, first_kept: str | None
) -> Summary | None:
    """Return the summary in a record; `tokens_before` is from its boundary."""
    content = content_of(value)
    if content is None:
        return None
    blocks = read_content(content, load_text).blocks
    return Summary(
        id=value["uuid"],
        text="\n".join(block.text for block in blocks if isinstance(block, Text)),
        first_kept=first_kept,
        tokens_before=tokens_before,
        timestamp=timestamp,
    )


def read_tokens_before(boundary: JsonObject) -> int:
    """Return the number of tokens before a boundary, according to it."""
    details = boundary.get("compactMetadata")
    tokens = details.get("preTokens") if isinstance(details, dict) else 0
    return tokens if isinstance(tokens, int) and tokens > 0 else 0


def find_first_kept(boundary: JsonObject, positions: Mapping[str, int], message_ids: Mapping[str, str]) -> str | None:
    """Return the id of the first message before a boundary that stays in the context.

    `positions` are those of all records, by uuid; `message_ids` has the id of the first message
    of each record so far.
    """
    preserved = [uuid for uuid in preserved_uuids(boundary) if uuid in positions]
    if not preserved:
        return None
    head = min(positions[uuid] for uuid in preserved)
    return next((message_id for uuid, message_id in message_ids.items() if positions[uuid] >= head), None)


# --- usage ----------------------------------------------------------------------------------


def usage_of(value: JsonObject) -> Usage | None:
    """Return the provider's count, which every record of a response repeats."""
    message = value.get("message")
    raw_usage = message.get("usage") if isinstance(message, dict) else None
    if not isinstance(raw_usage, dict):
        return None
    return _usage(
        _token_count(raw_usage.get("input_tokens")),
        _token_count(raw_usage.get("output_tokens")),
        _token_count(raw_usage.get("cache_read_input_tokens")),
        _token_count(raw_usage.get("cache_creation_input_tokens")),
    )


def _token_count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def response_key(value: JsonObject) -> str:
    """Return the key that identifies a response in usage counts; empty if unknown."""
    message_id = value["message"].get("id")
    return repr((message_id, value.get("requestId"))) if message_id else ""


UsageCounts = tuple[int, int, int, int]  # input, output, cache read, cache write


def count_usage(value: JsonObject, counts: dict[str, UsageCounts]) -> Usage | None:
    """Return what a record adds to the usage of its response, and update `counts`.

    The sum over the records of a response is the maximum that any of them reports.
    """
    usage = usage_of(value) if value["type"] == "assistant" else None
    key = response_key(value) if usage is not None else ""
    if usage is None or not key:
        return usage
    totals = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
    before = counts.get(key)
    if before is None:
        counts[key] = totals
        return usage
    input_tokens, output_tokens, cache_read, cache_write = map(max, before, totals)
    counts[key] = (input_tokens, output_tokens, cache_read, cache_write)
    increments = [new - old for new, old in zip(counts[key], before, strict=True)]
    return _usage(*increments) if any(increments) else None


def _usage(input_tokens: int, output_tokens: int, cache_read: int, cache_write: int) -> Usage:
    return Usage(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens + cache_read + cache_write,
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
    )
