"""Decide what a compaction summarises and what it keeps. Pure, over the live part of a log.

    structured   keeps about keep_recent_tokens of what is newest
    rounds       keeps the ten newest messages
    prose        keeps nothing but an open round and the user message that it serves

A cut never stands between a call and its results: it is made in the list in which every result
stands behind its call. A call without a result, and everything after it, is never summarised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from everlog.context.tokens import Counter, estimate, estimate_text
from everlog.log.backward_read import Live, arranged
from everlog.model import Compaction, Message
from everlog.settings import CompactionSettings, Strategy

KEPT_MESSAGES = 10  # by `rounds`


class Plan(msgspec.Struct, frozen=True):
    """What one compaction will do."""

    strategy: Strategy
    messages: list[Message]  # the live part, every result behind its call
    cut: int  # the messages before it are summarised
    first_kept_seq: int
    split: bool  # the cut is inside a turn: its beginning is summarised, its end kept
    previous: Compaction | None  # whose summary is updated
    guard: int  # the last marker seen

    @property
    def covered(self) -> list[Message]:
        """What is summarised."""
        return self.messages[: self.cut]


def budget(settings: CompactionSettings, window: int) -> int:
    """Tokens that a context may have: the window without the room for an answer.

    In a small window at most half of it is reserved, or no context would ever be small enough.
    """
    return window - min(settings.reserve_tokens, window // 2)


def trigger(settings: CompactionSettings, window: int) -> int:
    """The size of context above which the strategy compacts."""
    if settings.strategy == "rounds":
        return int(window * settings.threshold)
    if settings.strategy == "prose":
        return min(settings.compact_threshold, budget(settings, window))
    return budget(settings, window)


def plan(
    live: Live,
    settings: CompactionSettings,
    window: int,
    *,
    at_least: int = 0,
    squeeze: bool = False,
    count: Counter = estimate_text,
) -> Plan | str:
    """What to compact, or the reason why there is nothing to.

    `at_least`: what an earlier compaction covered up to this seq is covered again. `squeeze`: a
    provider found the context too large, whatever we count: keep less.
    """
    messages, _, unanswered = arranged(live)
    keep = min(settings.keep_recent_tokens, budget(settings, window) // 2)
    if squeeze:
        keep = min(keep, sum(estimate(one, count) for one in messages) // 4)
    # What an earlier summary covered is not waited for.
    ceiling = min((seq for seq in unanswered if seq >= at_least), default=math.inf)
    if settings.strategy == "rounds":
        cut = cut_by_number(messages, KEPT_MESSAGES, ceiling)
        why = f"the {KEPT_MESSAGES} newest messages are always kept"
    elif settings.strategy == "prose":
        cut = cut_at_open_round(messages, keep, ceiling, count)
        why = "only the open round is there"
    else:
        cut = cut_by_tokens(messages, keep, ceiling, count)
        why = f"everything is within the newest {keep} tokens, which are kept"
    if not messages:
        return "there is nothing new to summarise"
    while cut < len(messages) and messages[cut].seq < min(at_least, ceiling):
        cut += 1
    if cut == 0:
        if not math.isinf(ceiling) and messages[0].seq >= ceiling:
            why = "a tool call is still without its result"
        return f"there is nothing to summarise: {why}"
    if cut < len(messages):
        first_kept = messages[cut].seq
        split = messages[cut].role != "user" and any(m.role == "user" for m in messages[:cut])
    else:
        first_kept = max(message.seq for message in messages) + 1
        split = False
    return Plan(
        strategy=settings.strategy,
        messages=messages,
        cut=cut,
        first_kept_seq=first_kept,
        split=split,
        previous=live.summary,
        guard=live.marker,
    )


def cut_by_tokens(
    messages: Sequence[Message], keep: int, ceiling: float, count: Counter = estimate_text
) -> int:
    """Where to cut so that about `keep` tokens stay: at or behind the message that fills them.

    If no cut is possible there, because one round alone is larger, then before that round.
    """
    kept = 0
    cut = None
    lowest = math.inf
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        kept += estimate(message, count)
        lowest = min(lowest, message.seq or math.inf)
        if _cuttable(message, lowest, ceiling):
            cut = place
        if kept >= keep and cut is not None:
            return cut
    return 0


def cut_by_number(messages: Sequence[Message], keep: int, ceiling: float) -> int:
    """Where to cut so that the newest messages stay, with the calls of their results."""
    lowest = math.inf
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        lowest = min(lowest, message.seq or math.inf)
        if len(messages) - place >= keep and _cuttable(message, lowest, ceiling):
            return place
    return 0


def cut_at_open_round(
    messages: Sequence[Message], keep: int, ceiling: float, count: Counter = estimate_text
) -> int:
    """Where to cut so that only what is not finished stays.

    A finished conversation is cut behind its end. An open one keeps what the user said last and
    all that was done for it; if that is more than `keep` tokens, only its newest rounds.
    """
    if not messages:
        return 0
    last = messages[-1]
    if last.role == "assistant" and not last.tool_calls and math.isinf(ceiling):
        return len(messages)
    kept = 0
    cut = 0
    lowest = math.inf
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        kept += estimate(message, count)
        lowest = min(lowest, message.seq or math.inf)
        if cut and kept > keep:
            return cut
        if _cuttable(message, lowest, ceiling):
            cut = place
            if message.role == "user" and (place == 0 or messages[place - 1].role != "user"):
                return cut
    return 0


def _cuttable(message: Message, lowest: float, ceiling: float) -> bool:
    """Whether everything from this message on may be kept and everything before it not.

    `lowest` is the smallest seq from here on: a result that came before its call stays with it.
    """
    return message.role != "toolResult" and message.seq <= lowest and message.seq <= ceiling
