"""Fit a context into its window: shorten old tool results, leave out the oldest rounds.

Only the context is changed, never the log; everything that is left out is listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from everlog.context.tokens import TokenCounter, estimate
from everlog.log.backward_read import LeftOut
from everlog.log.tool_pairs import split_rounds
from everlog.model import AnyBlock, Message, Text, user

TOOL_RESULT_BUDGET = 50_000  # characters
UNTOUCHED_MESSAGES = 6  # the newest ones, sent whole
HEAD_LENGTH = 200  # characters that a shortened result keeps


def shorten_results(messages: Sequence[Message], budget: int) -> list[Message]:
    """Shorten the oldest tool results until all of them together are within the budget."""
    shortened = list(messages)
    total = sum(_count_characters(message) for message in messages if message.role == "toolResult")
    for index, message in enumerate(messages[:-UNTOUCHED_MESSAGES]):
        if total <= budget:
            break
        if message.role == "toolResult" and _count_characters(message) > 2 * HEAD_LENGTH:
            shortened[index] = _shorten(message)
            total -= _count_characters(message) - _count_characters(shortened[index])
    return shortened


def _count_characters(message: Message) -> int:
    return sum(len(block.text) for block in message.content if isinstance(block, Text))


def _shorten(message: Message) -> Message:
    text = message.text
    source = f"record {message.seq} of this session has" if message.seq else "the history has"
    more = len(text) - HEAD_LENGTH
    note = f"[{more} more characters; {source} the whole result. Run the tool again.]"
    attached: tuple[AnyBlock, ...] = tuple(b for b in message.content if not isinstance(b, Text))
    return replace(message, content=(Text(f"{text[:HEAD_LENGTH]}\n{note}"), *attached), line=b"")


def leave_out_rounds(
    messages: Sequence[Message], first: int, target: int, count: TokenCounter
) -> tuple[list[Message], list[LeftOut], int]:
    """Leave out the oldest rounds until the context is `target` tokens smaller.

    Never the messages before `first` (the summary), the newest round, or the last user message and
    its injections. Returns the messages with a note in the gap, what was left out, and the tokens
    saved.
    """
    pinned = _last_user_messages(messages, first)
    dropped: list[int] = []
    saved = -_GAP_TOKENS
    for span in split_rounds(messages[first:])[:-1]:
        if saved >= target:
            break
        for index in range(span.start + first, span.stop + first):
            if index not in pinned:
                dropped.append(index)
                saved += estimate(messages[index], count)
    if saved <= 0:
        return list(messages), [], 0
    skipped = set(dropped)
    remaining = [message for index, message in enumerate(messages) if index not in skipped]
    remaining.insert(first, _gap_message(len(dropped)))
    seqs = (messages[index].seq or None for index in dropped)
    left_out = [LeftOut(seq, "the context would not fit the window") for seq in seqs]
    return remaining, left_out, saved


_GAP_TOKENS = 40


def _last_user_messages(messages: Sequence[Message], first: int) -> range:
    end = len(messages)
    while end > first and messages[end - 1].role != "user":
        end -= 1
    start = end
    while start > first and messages[start - 1].role == "user":
        start -= 1
    return range(start, end)


def _gap_message(count: int) -> Message:
    subject = "1 earlier message is" if count == 1 else f"{count} earlier messages are"
    text = f"[{subject} left out here to fit the model's window; the session's log has them all.]"
    return user(text, auto_injected=True)
