"""Pairs of tool calls and their results, which nothing may separate.

A result belongs to the newest call before it that has its id and no result yet; failing that, to
the first such call after it. A result that belongs to no call is a stray: its call was never
logged, or has a result already.

A round is one model call with everything that belongs to it; messages are never cut inside one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from everlog.model import Message, ToolCall, tool_result

NO_RESULT = "No result was recorded for this call: the run was interrupted before it ended."


class ToolPairs(msgspec.Struct, frozen=True):
    """The pairs of calls and results in a list of messages, by index."""

    caller: dict[int, int]  # result → the message with its call
    open_calls: tuple[tuple[int, ToolCall], ...]  # calls without a result, each with its message
    strays: tuple[int, ...]  # results without a call


def pair_results(messages: Sequence[Message]) -> ToolPairs:
    """Match every tool result with its call."""
    open_calls: dict[str, list[tuple[int, ToolCall]]] = {}  # calls without a result so far
    early_results: dict[str, list[int]] = {}  # results that came before any call of their id
    answered_ids: set[str] = set()
    caller: dict[int, int] = {}
    strays: list[int] = []
    for index, message in enumerate(messages):
        if message.role == "toolResult":
            call_id = message.tool_call_id or ""
            calls = open_calls.get(call_id)
            if calls:
                caller[index] = calls.pop()[0]
                answered_ids.add(call_id)
            elif call_id and call_id not in answered_ids:
                early_results.setdefault(call_id, []).append(index)
            else:
                strays.append(index)
            continue
        for block in message.content:
            if type(block) is ToolCall:
                results = early_results.get(block.id)
                if results:
                    caller[results.pop(0)] = index
                    answered_ids.add(block.id)
                else:
                    open_calls.setdefault(block.id, []).append((index, block))
    strays += [index for indexes in early_results.values() for index in indexes]
    unanswered = (call for calls in open_calls.values() for call in calls)
    return ToolPairs(
        caller=caller, open_calls=tuple(sorted(unanswered, key=lambda item: item[0])), strays=tuple(sorted(strays))
    )


def arrange_results(messages: Sequence[Message], pairs: ToolPairs) -> list[Message]:
    """Return the messages as a model needs them: every result directly after its call.

    Calls without a result are answered with an error; strays are left out.
    """
    results: dict[int, list[Message]] = {}
    for result in sorted(pairs.caller):
        results.setdefault(pairs.caller[result], []).append(messages[result])
    for index, call in pairs.open_calls:
        results.setdefault(index, []).append(make_missing_result(call))
    arranged: list[Message] = []
    for index, message in enumerate(messages):
        if message.role != "toolResult":
            arranged.append(message)
            arranged += results.get(index, ())
    return arranged


def make_missing_result(call: ToolCall) -> Message:
    """Return the error result for a call whose own result was never recorded."""
    return tool_result(call.id, NO_RESULT, is_error=True, tool_name=call.name)


def split_rounds(messages: Sequence[Message]) -> list[range]:
    """Return the index range of each round: user messages, the model's answer, its results."""
    starts = [
        index
        for index, message in enumerate(messages)
        if index == 0 or (message.role != "toolResult" and messages[index - 1].role != "user")
    ]
    return [range(start, stop) for start, stop in pairwise([*starts, len(messages)])]


def exchange_seqs(messages: Sequence[Message], seq: int) -> tuple[int, ...]:
    """Return the seqs inseparable from a message: its own, its call's, those of all results."""
    caller = {messages[r].seq: messages[c].seq for r, c in pair_results(messages).caller.items()}
    owner = caller.get(seq, seq)
    results = (result for result, owner_seq in caller.items() if owner_seq == owner)
    return tuple(sorted({owner, seq, *results}))
