"""Make a context fit: shorten old tool results, leave out the oldest rounds.

Only the context is changed, never the log; whatever is missing is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from everlog.context.tokens import Counter, estimate
from everlog.errors import ContextOverflowError
from everlog.log.backward_read import LeftOut
from everlog.log.tool_pairs import rounds
from everlog.model import AnyBlock, Message, Text, user

TOOL_RESULT_BUDGET = 50_000  # characters
UNTOUCHED = 6  # newest messages that are sent whole
HEAD = 200  # characters that a shortened result keeps


def shorten_results(messages: Sequence[Message], budget: int) -> list[Message]:
    """The messages with the oldest tool results cut until all of them are within the budget."""
    made = list(messages)
    total = sum(_characters(one) for one in messages if one.role == "toolResult")
    for at, message in enumerate(messages[:-UNTOUCHED]):
        if total <= budget:
            break
        if message.role == "toolResult" and _characters(message) > 2 * HEAD:
            made[at] = _shortened(message)
            total -= _characters(message) - _characters(made[at])
    return made


def _characters(message: Message) -> int:
    return sum(len(block.text) for block in message.content if isinstance(block, Text))


def _shortened(message: Message) -> Message:
    text = message.text
    where = f"record {message.seq} of this session has" if message.seq else "the history has"
    note = f"[{len(text) - HEAD} more characters; {where} the whole result. Run the tool again.]"
    others: tuple[AnyBlock, ...] = tuple(b for b in message.content if not isinstance(b, Text))
    return replace(message, content=(Text(f"{text[:HEAD]}\n{note}"), *others), line=b"")


def leave_out_rounds(
    messages: Sequence[Message], first: int, wanted: int, needed: int, count: Counter
) -> tuple[list[Message], list[LeftOut], int]:
    """Leave out the oldest rounds until the context is `wanted` tokens smaller.

    Never what stands before `first` (the summary), nor the newest round, nor the last thing that
    the user said, with what was injected for it. Returns the messages with a note in the gap,
    what is missing, and the tokens saved. ContextOverflowError if not even `needed` can be saved.
    """
    pinned = _last_said(messages, first)
    gone: list[int] = []
    saved = -_NOTE_TOKENS
    for places in rounds(messages[first:])[:-1]:
        if saved >= wanted:
            break
        for at in range(places.start + first, places.stop + first):
            if at not in pinned:
                gone.append(at)
                saved += estimate(messages[at], count)
    if saved < needed:
        raise ContextOverflowError(
            f"the newest round, with what must go before it, is {needed - max(saved, 0)} tokens "
            "over the model's window",
            hint="take a model with a larger window, or rewind the session",
        )
    if saved <= 0:
        return list(messages), [], 0
    missing = set(gone)
    kept = [message for at, message in enumerate(messages) if at not in missing]
    kept.insert(first, _gap(len(gone)))
    seqs = (messages[at].seq or None for at in gone)
    left_out = [LeftOut(seq, "the context would not fit the window") for seq in seqs]
    return kept, left_out, saved


_NOTE_TOKENS = 40


def _last_said(messages: Sequence[Message], first: int) -> range:
    end = len(messages)
    while end > first and messages[end - 1].role != "user":
        end -= 1
    start = end
    while start > first and messages[start - 1].role == "user":
        start -= 1
    return range(start, end)


def _gap(count: int) -> Message:
    what = "1 earlier message is" if count == 1 else f"{count} earlier messages are"
    text = f"[{what} left out here to fit the model's window; the session's log has them all.]"
    return user(text, auto_injected=True)
