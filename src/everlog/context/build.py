"""Build what one model call is sent from the live part of a log.

    summary             as its strategy writes it
    live messages       each tool result directly behind its call; open calls answered
    tool results        the oldest cut, if all together are too long
    injections          just before the last thing the user said
    rounds              the oldest left out, if nothing else helped

Pure: the log is not changed, and what is not in the context is named with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from everlog.context.fit import TOOL_RESULT_BUDGET, leave_out_rounds, shorten_results
from everlog.context.inject import marked, place, within_budget
from everlog.context.tokens import WINDOW, Counter, counted, estimate, estimate_text
from everlog.log.backward_read import LeftOut, Live, arranged
from everlog.model import Compaction, Message, user

SUMMARY_SENTENCE = (
    "The conversation history before this point was compacted into the following summary:"
)
ABSURD_TIMES, ABSURD_MORE = 3, 100_000  # how far above its estimate a count is still believed
FAILED = frozenset({"error", "aborted", "cancelled"})  # stop reasons whose usage says nothing


class Context(msgspec.Struct, frozen=True, rename="camel"):
    """Exactly what one model call is sent, apart from the system prompt."""

    messages: tuple[Message, ...]
    tokens: int  # what a provider counted, and an estimate of what came after it
    window: int  # the model's limit
    left_out: tuple[LeftOut, ...] = ()
    # Messages deleted or restored since the summary was made, which it still tells of or lacks.
    stale: tuple[int, ...] = ()


def build(
    live: Live,
    *,
    window: int = WINDOW,
    inject: Iterable[Message] = (),
    tool_result_budget: int = TOOL_RESULT_BUDGET,
    count: Counter = estimate_text,
) -> Context:
    """The context of a session; ContextOverflowError if the newest round alone does not fit."""
    context = assemble(
        live,
        window=window,
        inject=inject,
        tool_result_budget=tool_result_budget,
        count=count,
    )
    return fit(context, live, window, count)


def assemble(
    live: Live,
    *,
    window: int = WINDOW,
    overhead: int = 0,
    inject: Iterable[Message] = (),
    tool_result_budget: int = TOOL_RESULT_BUDGET,
    count: Counter = estimate_text,
) -> Context:
    """The context as it should be, whether it fits or not.

    `overhead`: tokens of the system prompt and the tools, which are sent beside it.
    """
    messages, left_out, _ = arranged(live)
    # Before counting: what a provider counted was shortened as well.
    messages = shorten_results(messages, tool_result_budget)
    tokens = context_tokens(live, messages, count, overhead)
    if tokens > window:
        tokens = _believed(tokens, live, messages, count, overhead)
    first = 0
    if live.summary is not None:
        messages.insert(0, summary_message(live.summary))
        first = 1
    injections, too_much = within_budget(marked(inject), window, count)
    if injections:
        messages = place(messages, injections, first)
        tokens += sum(estimate(message, count) for message in injections)
    return Context(
        messages=tuple(messages),
        tokens=tokens,
        window=window,
        left_out=(*live.unreadable, *left_out, *too_much),
        stale=live.stale,
    )


def fit(context: Context, live: Live, limit: int, count: Counter = estimate_text) -> Context:
    """The context within `limit` tokens, the oldest rounds left out if need be.

    If the newest round alone is above the limit, it may still go up to the window.
    """
    wanted, needed = context.tokens - limit, context.tokens - context.window
    if wanted <= 0:
        return context
    first = 0 if live.summary is None else 1
    messages, missing, saved = leave_out_rounds(context.messages, first, wanted, needed, count)
    return replace(
        context,
        messages=tuple(messages),
        tokens=context.tokens - saved,
        left_out=(*context.left_out, *missing),
    )


def context_tokens(
    live: Live, messages: Sequence[Message], count: Counter = estimate_text, overhead: int = 0
) -> int:
    """The size of a context: the last usable count of a provider, and an estimate of the rest.

    A count is usable if nothing was deleted or compacted since, and if that call was sent
    everything. It covers the system prompt and the tools as well.
    """
    after = 0
    for message in reversed(messages):
        if (
            message.usage is not None
            and message.role == "assistant"
            and message.stop_reason not in FAILED
            and message.seq >= live.edited
            and not 0 < live.trimmed < message.seq
            and (tokens := counted(message.usage)) > 0
        ):
            return tokens + after
        after += estimate(message, count)
    if live.summary is not None:
        after += estimate(summary_message(live.summary), count)
    return after + overhead


def _believed(
    tokens: int, live: Live, messages: Sequence[Message], count: Counter, overhead: int
) -> int:
    """The size of a context that seems too large for its window; an estimate if that is absurd.

    What another program's provider counted, in a session that was imported, may have been a
    conversation that is not in the session. No estimate is off by so much.
    """
    guess = overhead + sum(estimate(message, count) for message in messages)
    if live.summary is not None:
        guess += estimate(summary_message(live.summary), count)
    return tokens if tokens <= ABSURD_TIMES * guess + ABSURD_MORE else guess


def summary_message(compaction: Compaction) -> Message:
    """A compaction as the model reads it: each strategy has its own wrapper."""
    summary = compaction.summary
    if compaction.strategy == "prose":
        text = summary
    elif compaction.strategy == "rounds":
        text = f"<context_summary>\n{summary}\n</context_summary>"
    else:
        text = f"{SUMMARY_SENTENCE}\n<summary>\n{summary}\n</summary>"
    return user(text, timestamp=compaction.timestamp)
