"""The plan of a compaction: what is summarised and what is kept. Pure, over the live part of a log.

    structured   keeps about keep_recent_tokens of the newest content
    rounds       keeps the ten newest messages
    prose        keeps only an open round and the user message it serves

A cut never separates a call from its results: it is made in the list in which every result follows
its call. A call without a result, and everything after it, is never summarised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from everlog.context.tokens import TokenCounter, estimate, estimate_text
from everlog.errors import SettingsError
from everlog.log.backward_read import LiveMessages, arrange_live
from everlog.model import Compaction, Message
from everlog.settings import CompactionSettings, Strategy

KEPT_MESSAGES = 10  # by `rounds`
# When the settings say nothing: of `structured`, of `rounds` as a share of the window, of `prose`.
RESERVE_TOKENS, ROUNDS_THRESHOLD, PROSE_THRESHOLD = 16_384, 0.9, 100_000


class CompactionPlan(msgspec.Struct, frozen=True):
    """The messages that one compaction summarises and keeps."""

    strategy: Strategy
    messages: list[Message]  # the live part, every result after its call
    cut: int  # the messages before it are summarised
    first_kept_seq: int
    split: bool  # the cut is inside a turn: its beginning is summarised, its end kept
    previous: Compaction | None  # whose summary is updated
    last_marker: int  # seq of the last marker seen

    @property
    def covered(self) -> list[Message]:
        """Return the messages that are summarised."""
        return self.messages[: self.cut]


def token_budget(settings: CompactionSettings, window: int) -> int:
    """Return the tokens that a context may have: the window without the room for an answer.

    Unless the settings say how much, at most half of a small window is reserved, or no context
    would ever be small enough.
    """
    if settings.reserve_tokens is not None:
        return window - settings.reserve_tokens
    return window - min(RESERVE_TOKENS, window // 2)


def trigger_tokens(settings: CompactionSettings, window: int) -> int:
    """Return the context size above which a session is compacted.

    The smallest of the sizes that the settings give; without any, the strategy's own.
    """
    sizes: list[float] = []
    if settings.reserve_tokens is not None:
        sizes.append(window - settings.reserve_tokens)
    if settings.threshold is not None:
        sizes.append(window * settings.threshold)
    if settings.compact_threshold is not None:
        sizes.append(settings.compact_threshold)
    if sizes:
        return int(min(sizes))
    if settings.strategy == "rounds":
        return int(window * ROUNDS_THRESHOLD)
    budget = token_budget(settings, window)
    return min(PROSE_THRESHOLD, budget) if settings.strategy == "prose" else budget


def check_triggers(settings: CompactionSettings, window: int) -> None:
    """Raise SettingsError for a size that no context in this window could have."""
    for name in ("reserve_tokens", "compact_threshold"):
        tokens = getattr(settings, name)
        if tokens is not None and tokens >= window:
            raise SettingsError(
                f"[compaction] {name}: {tokens} cannot apply, since the model's window has {window} tokens",
                hint="set a smaller number, or the window",
            )


def plan_compaction(
    live: LiveMessages,
    settings: CompactionSettings,
    window: int,
    *,
    covered_before: int = 0,
    squeeze: bool = False,
    count: TokenCounter = estimate_text,
) -> CompactionPlan | str:
    """Return the plan, or the reason why there is nothing to compact.

    `covered_before`: messages below this seq, which an earlier compaction covered, are covered
    again. `squeeze`: a provider rejected the context as too large, whatever we count: keep less.
    """
    messages, _, unanswered = arrange_live(live)
    keep = min(settings.keep_recent_tokens, token_budget(settings, window) // 2)
    if squeeze:
        keep = min(keep, sum(estimate(message, count) for message in messages) // 4)
    # Calls that an earlier summary covered need no result any more.
    ceiling = min((seq for seq in unanswered if seq >= covered_before), default=math.inf)
    if settings.strategy == "rounds":
        cut = cut_by_number(messages, KEPT_MESSAGES, ceiling)
        reason = f"the {KEPT_MESSAGES} newest messages are always kept"
    elif settings.strategy == "prose":
        cut = cut_at_open_round(messages, keep, ceiling, count)
        reason = "there is only the open round"
    else:
        cut = cut_by_tokens(messages, keep, ceiling, count)
        reason = f"everything is within the newest {keep} tokens, which are kept"
    if not messages:
        return "there is nothing new to summarise"
    while cut < len(messages) and messages[cut].seq < min(covered_before, ceiling):
        cut += 1
    if cut == 0:
        if not math.isinf(ceiling) and messages[0].seq >= ceiling:
            reason = "a tool call is still waiting for its result"
        return f"there is nothing to summarise: {reason}"
    if cut < len(messages):
        first_kept = messages[cut].seq
        split = messages[cut].role != "user" and any(m.role == "user" for m in messages[:cut])
    else:
        first_kept = max(message.seq for message in messages) + 1
        split = False
    return CompactionPlan(
        strategy=settings.strategy,
        messages=messages,
        cut=cut,
        first_kept_seq=first_kept,
        split=split,
        previous=live.summary,
        last_marker=live.last_marker_seq,
    )


def cut_by_tokens(messages: Sequence[Message], keep: int, ceiling: float, count: TokenCounter = estimate_text) -> int:
    """Return the cut that keeps about `keep` tokens: at or after the message that fills them.

    If no cut is possible there, because one round alone is larger, then before that round.
    """
    cut = None
    for position, tokens, possible in _walk_back(messages, ceiling, count):
        cut = position if possible else cut
        if tokens >= keep and cut is not None:
            return cut
    return 0


def cut_by_number(messages: Sequence[Message], keep: int, ceiling: float) -> int:
    """Return the cut that keeps the newest messages, with the calls of their results."""
    positions = (position for position, _, possible in _walk_back(messages, ceiling, len) if possible)
    return next((position for position in positions if len(messages) - position >= keep), 0)


def cut_at_open_round(
    messages: Sequence[Message], keep: int, ceiling: float, count: TokenCounter = estimate_text
) -> int:
    """Return the cut that keeps only unfinished work.

    A finished conversation is cut at its end. An open one keeps the last user message and
    everything done for it; if that is more than `keep` tokens, only its newest rounds.
    """
    if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls and math.isinf(ceiling):
        return len(messages)
    cut = 0
    for position, tokens, possible in _walk_back(messages, ceiling, count):
        if cut and tokens > keep:
            return cut
        cut = position if possible else cut
        is_first = position == 0 or messages[position - 1].role != "user"
        if possible and messages[position].role == "user" and is_first:
            return cut
    return 0


def _walk_back(messages: Sequence[Message], ceiling: float, count: TokenCounter) -> Iterator[tuple[int, int, bool]]:
    """Yield each position from the last, with the tokens from there on and whether a cut is possible.

    It is if everything from there on may be kept without what precedes it: a result stays with its
    call, also one that came before its call and so has a smaller seq.
    """
    tokens, lowest = 0, ceiling
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        tokens += estimate(message, count)
        lowest = min(lowest, message.seq or math.inf)
        yield position, tokens, message.role != "toolResult" and message.seq <= lowest
