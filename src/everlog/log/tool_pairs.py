"""Tool calls and their results, which nothing may separate.

A result belongs to the newest call before it that has its id and no result yet; failing that, to
the first such call behind it. What belongs to no call is a stray: a result of a call that was
never logged, or the second one of a call.

A round is one call of a model with what belongs to it; no list of messages is cut inside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from everlog.model import Message, ToolCall, tool_result

NO_RESULT = "No result was recorded for this call: the run was interrupted before it ended."


class Pairs(msgspec.Struct, frozen=True):
    """Which message answers which, by their places in a list."""

    caller: dict[int, int]  # result → the message that made its call
    open: tuple[tuple[int, ToolCall], ...]  # calls without a result, each with its message
    strays: tuple[int, ...]  # results without a call


def pair(messages: Sequence[Message]) -> Pairs:
    """Find the call of every result."""
    waiting: dict[str, list[tuple[int, ToolCall]]] = {}  # calls without a result so far
    early: dict[str, list[int]] = {}  # results that came before any call of their id
    answered: set[str] = set()
    caller: dict[int, int] = {}
    strays: list[int] = []
    for place, message in enumerate(messages):
        if message.role == "toolResult":
            name = message.tool_call_id or ""
            calls = waiting.get(name)
            if calls:
                caller[place] = calls.pop()[0]
                answered.add(name)
            elif name and name not in answered:
                early.setdefault(name, []).append(place)
            else:
                strays.append(place)
            continue
        for block in message.content:
            if type(block) is ToolCall:
                before = early.get(block.id)
                if before:
                    caller[before.pop(0)] = place
                    answered.add(block.id)
                else:
                    waiting.setdefault(block.id, []).append((place, block))
    strays += [place for places in early.values() for place in places]
    unanswered = (one for calls in waiting.values() for one in calls)
    return Pairs(
        caller=caller,
        open=tuple(sorted(unanswered, key=lambda one: one[0])),
        strays=tuple(sorted(strays)),
    )


def arrange(messages: Sequence[Message], pairs: Pairs) -> list[Message]:
    """The messages as a model takes them: every result directly behind its call's message.

    Calls without a result are answered by an error, strays are left out.
    """
    behind: dict[int, list[Message]] = {}
    for result in sorted(pairs.caller):
        behind.setdefault(pairs.caller[result], []).append(messages[result])
    for place, call in pairs.open:
        behind.setdefault(place, []).append(closing(call))
    arranged: list[Message] = []
    for place, message in enumerate(messages):
        if message.role != "toolResult":
            arranged.append(message)
            arranged += behind.get(place, ())
    return arranged


def closing(call: ToolCall) -> Message:
    """The error result that closes a call whose own was never recorded."""
    return tool_result(call.id, NO_RESULT, is_error=True, tool_name=call.name)


def rounds(messages: Sequence[Message]) -> list[range]:
    """The places of each API round: what the user said, the model's answer, its tool results."""
    starts = [
        place
        for place, message in enumerate(messages)
        if place == 0 or (message.role != "toolResult" and messages[place - 1].role != "user")
    ]
    return [range(start, stop) for start, stop in pairwise([*starts, len(messages)])]


def exchange(messages: Sequence[Message], seq: int) -> tuple[int, ...]:
    """The seqs that share the fate of one message: it, its call's message, all its results."""
    caller = {messages[r].seq: messages[c].seq for r, c in pair(messages).caller.items()}
    owner = caller.get(seq, seq)
    results = (result for result, of in caller.items() if of == owner)
    return tuple(sorted({owner, seq, *results}))
