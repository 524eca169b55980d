"""Build the content of one model call from the live part of a log.

    summary             as its strategy writes it
    live messages       each tool result directly after its call; open calls answered
    tool results        the oldest shortened, if the context would be too large otherwise
    injections          just before the last user message
    rounds              the oldest left out, if nothing else helped

Pure: the log is not changed, and everything left out is listed with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from everlog.context.compaction.file_operations import TAGS
from everlog.context.compaction.summary import NEXT_BLOCK
from everlog.context.fence import Origin, block, fence, restore_blocks
from everlog.context.fit import TOOL_RESULT_BUDGET, leave_out_rounds, shorten_results
from everlog.context.inject import insert_injections, mark_injections, select_within_budget
from everlog.context.tokens import DEFAULT_WINDOW, TokenCounter, estimate, estimate_text, usage_tokens
from everlog.ids import epoch_ms
from everlog.log.backward_read import LeftOut, LiveMessages, arrange_live
from everlog.model import Compaction, Message, user

SUMMARY_SENTENCE = "The conversation history before this point was compacted into the following summary:"
# How far above the estimate a provider's count is still plausible.
MAX_COUNT_RATIO, MAX_COUNT_EXCESS = 3, 100_000
FAILED_STOP_REASONS = frozenset({"error", "aborted", "cancelled"})  # their usage is meaningless


class Context(msgspec.Struct, frozen=True, rename="camel"):
    """Exactly what one model call is sent, apart from the system prompt."""

    messages: tuple[Message, ...]
    tokens: int  # the last provider count, plus an estimate of what followed
    window: int  # the model's limit
    left_out: tuple[LeftOut, ...] = ()
    # Messages deleted or restored since the summary, which it still mentions or lacks.
    stale: tuple[int, ...] = ()


def build(
    live: LiveMessages,
    *,
    window: int = DEFAULT_WINDOW,
    inject: Iterable[Message] = (),
    tool_result_budget: int = TOOL_RESULT_BUDGET,
    count: TokenCounter = estimate_text,
) -> Context:
    """Build the context of a session; ContextOverflowError if the newest round does not fit."""
    context = assemble(live, window=window, inject=inject, tool_result_budget=tool_result_budget, count=count)
    return fit(context, live, window, count)


def assemble(
    live: LiveMessages,
    *,
    window: int = DEFAULT_WINDOW,
    limit: int = 0,
    overhead: int = 0,
    inject: Iterable[Message] = (),
    tool_result_budget: int = TOOL_RESULT_BUDGET,
    count: TokenCounter = estimate_text,
) -> Context:
    """Assemble the full context, whether it fits or not.

    `limit`: tokens above which tool results are shortened; 0: the window. `overhead`: tokens of the
    system prompt and the tools, which are sent with it.
    """
    whole, left_out, _ = arrange_live(live)
    limit = limit or window
    messages = shorten_results(whole, tool_result_budget)
    shortened = [short for message, short in zip(whole, messages, strict=True) if short is not message]
    # By the estimate alone, so that what an earlier call was sent can be told from the messages.
    if shortened and _estimate_context(live, whole, count, overhead) > limit:
        why = "shortened: the context would not fit otherwise"
        left_out += [LeftOut(message.seq or None, why) for message in shortened]
        tokens = context_tokens(live, messages, count, overhead, counted=whole, limit=limit)
    else:
        messages = whole
        tokens = context_tokens(live, messages, count, overhead)
    if tokens > window:
        # In an imported session the count may come from a conversation that is not in the session.
        guess = _estimate_context(live, messages, count, overhead)
        tokens = tokens if tokens <= MAX_COUNT_RATIO * guess + MAX_COUNT_EXCESS else guess
    first = 0
    if live.summary is not None:
        messages.insert(0, summary_message(live.summary))
        first = 1
    injections, over_budget = select_within_budget(mark_injections(inject), window, count)
    if injections:
        messages = insert_injections(messages, injections, first)
        tokens += sum(estimate(message, count) for message in injections)
    return Context(
        messages=tuple(messages),
        tokens=tokens,
        window=window,
        left_out=(*live.unreadable, *left_out, *over_budget),
        stale=live.stale_seqs,
    )


def fit(context: Context, live: LiveMessages, limit: int, count: TokenCounter = estimate_text) -> Context:
    """Return the context within `limit` tokens, leaving out the oldest rounds if necessary.

    If the newest round alone exceeds the limit, it may still use the whole window.
    """
    target, required = context.tokens - limit, context.tokens - context.window
    if target <= 0:
        return context
    first = 0 if live.summary is None else 1
    messages, omitted, saved = leave_out_rounds(context.messages, first, target, required, count)
    return replace(
        context, messages=tuple(messages), tokens=context.tokens - saved, left_out=(*context.left_out, *omitted)
    )


def context_tokens(
    live: LiveMessages,
    messages: Sequence[Message],
    count: TokenCounter = estimate_text,
    overhead: int = 0,
    *,
    counted: Sequence[Message] = (),
    limit: int = 0,
) -> int:
    """Return the size of a context: the last usable provider count, plus an estimate.

    A count is usable if nothing was deleted or compacted since, and if that call was sent
    everything. A count of output alone is not one: it adds to the count of an earlier record of the same
    answer. In a foreign file the messages that a summary keeps may follow it: their counts are older
    than the summary. It covers the system prompt and the tools as well. `counted` are the messages
    before tool results were shortened: a call within `limit` was sent those.
    """
    after = 0
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if (
            message.usage is not None
            and message.role == "assistant"
            and message.stop_reason not in FAILED_STOP_REASONS
            and message.seq >= live.last_edit_seq
            and not 0 < live.first_trimmed_seq < message.seq
            and not _is_older(message, live.summary)
            and (tokens := usage_tokens(message.usage)) > message.usage.output_tokens
        ):
            if counted and _estimate_context(live, counted[:index], count, overhead) <= limit:
                tokens -= sum(estimate(item, count) for item in counted[:index])
                tokens += sum(estimate(item, count) for item in messages[:index])
            return tokens + after
        after += estimate(message, count)
    return _estimate_context(live, messages, count, overhead)


def _estimate_context(live: LiveMessages, messages: Sequence[Message], count: TokenCounter, overhead: int) -> int:
    summary = [] if live.summary is None else [summary_message(live.summary)]
    return sum(estimate(message, count) for message in (*summary, *messages)) + overhead


def _is_older(message: Message, summary: Compaction | None) -> bool:
    """Return whether a message is older than the summary."""
    times = (epoch_ms(message.timestamp), epoch_ms(summary.timestamp)) if summary is not None else (None, None)
    return times[0] is not None and times[1] is not None and times[0] < times[1]


def summary_message(compaction: Compaction) -> Message:
    """Return a compaction as the model reads it: each strategy has its own wrapper."""
    if compaction.strategy == "rounds":
        parts = (fence(part, Origin.SUMMARY) for part in compaction.summary.split(NEXT_BLOCK))
        text = "\n".join(block("context_summary", part) for part in parts)
    else:
        summary = restore_blocks(fence(compaction.summary, Origin.SUMMARY), TAGS)
        text = summary if compaction.strategy == "prose" else f"{SUMMARY_SENTENCE}\n{block('summary', summary)}"
    return user(str(text), timestamp=compaction.timestamp)
