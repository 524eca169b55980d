"""What was said in one record of a transcript, as messages of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everlog.interop.formats.claude.blocks import Content, Texts, take
from everlog.interop.formats.claude.chain import Object, content_blocks, preserved
from everlog.interop.formats.format_types import Summary
from everlog.model import AnyBlock, Message, Text, Usage

Identify = Callable[[int], str]  # the id of the n-th message of a record


def content_of(value: Object) -> str | list[Any] | None:
    """The content of a record's message; None if it has none that can be read."""
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str | list) else None


def messages_of(
    value: Object,
    taken: Content,
    identify: Identify,
    *,
    at: str,
    tools: Mapping[str, str],
    usage: Usage | None,
) -> list[Message]:
    """One message for each result in a record, and one for the rest of it."""
    cwd = value.get("cwd")
    if not isinstance(cwd, str):
        cwd = None
    made: list[Message] = []
    for result in taken.results:
        made.append(
            Message(
                id=identify(len(made)),
                role="toolResult",
                content=result.content,
                tool_call_id=result.call,
                tool_name=tools.get(result.call),
                is_error=result.error,
                cwd=cwd,
                timestamp=at,
            )
        )
    if taken.blocks or not made:
        blocks: tuple[AnyBlock, ...] = tuple(taken.blocks)
        name = identify(len(made))
        if value["type"] == "user":
            message = Message(
                id=name, role="user", content=blocks, sender="user", cwd=cwd, timestamp=at
            )
        else:
            model, stop = value["message"].get("model"), value["message"].get("stop_reason")
            message = Message(
                id=name,
                role="assistant",
                content=blocks,
                model=model if isinstance(model, str) else None,
                stop_reason=stop if isinstance(stop, str) else None,
                usage=usage,
                cwd=cwd,
                timestamp=at,
            )
        made.append(message)
    return made


def tools_of(value: Object) -> Iterator[tuple[str, str]]:
    """The calls in a record: their ids and the names of the tools."""
    for block in content_blocks(value):
        if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
            yield block["id"], str(block.get("name") or "")


def summary_of(
    value: Object, texts: Texts, *, at: str, before: int, kept: str | None
) -> Summary | None:
    """The summary in a record; `before` are the tokens that its boundary tells."""
    content = content_of(value)
    if content is None:
        return None
    blocks = take(content, texts).blocks
    return Summary(
        id=value["uuid"],
        text="\n".join(block.text for block in blocks if isinstance(block, Text)),
        first_kept=kept,
        tokens_before=before,
        timestamp=at,
    )


def tokens_before(boundary: Object) -> int:
    """How many tokens a boundary says there were."""
    details = boundary.get("compactMetadata")
    before = details.get("preTokens") if isinstance(details, dict) else 0
    return before if isinstance(before, int) and before > 0 else 0


def first_kept(
    boundary: Object, places: Mapping[str, int], messages: Mapping[str, str]
) -> str | None:
    """The first message before a boundary that stays in the context.

    `places` are those of all records, by uuid; `messages` the ids of the first message of each
    record so far.
    """
    named = [uuid for uuid in preserved(boundary) if uuid in places]
    if not named:
        return None
    head = min(places[uuid] for uuid in named)
    return next((one for uuid, one in messages.items() if places[uuid] >= head), None)


# --- usage ----------------------------------------------------------------------------------


def usage_of(value: Object) -> Usage | None:
    """What the provider counted, as every record of a response repeats it."""
    message = value.get("message")
    told = message.get("usage") if isinstance(message, dict) else None
    if not isinstance(told, dict):
        return None
    return _usage(
        _tokens(told.get("input_tokens")),
        _tokens(told.get("output_tokens")),
        _tokens(told.get("cache_read_input_tokens")),
        _tokens(told.get("cache_creation_input_tokens")),
    )


def _tokens(found: Any) -> int:
    return found if isinstance(found, int) and found > 0 else 0


def response_key(value: Object) -> str:
    """What a response is counted under; empty if it does not say."""
    name = value["message"].get("id")
    return repr((name, value.get("requestId"))) if name else ""


Counted = tuple[int, int, int, int]  # input, output, read from the cache, written to it


def count(value: Object, counted: dict[str, Counted]) -> Usage | None:
    """What a record adds to the usage of its response, which is then counted.

    The sum over its records is the largest that any of them says.
    """
    usage = usage_of(value) if value["type"] == "assistant" else None
    key = response_key(value) if usage is not None else ""
    if usage is None or not key:
        return usage
    told = (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
    )
    before = counted.get(key)
    if before is None:
        counted[key] = told
        return usage
    given, answered, read, written = map(max, before, told)
    counted[key] = (given, answered, read, written)
    added = [new - old for new, old in zip(counted[key], before, strict=True)]
    return _usage(*added) if any(added) else None


def _usage(given: int, answered: int, read: int, written: int) -> Usage:
    return Usage(
        input_tokens=given,
        output_tokens=answered,
        total_tokens=given + answered + read + written,
        cache_read_tokens=read,
        cache_write_tokens=written,
    )
