"""Tool calls and their results, which nothing may separate."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model import Message


def exchange(messages: Iterable[Message], seq: int) -> tuple[int, ...]:
    """The seqs that share the fate of one message: it, its call's message, all its results."""
    calls: dict[str, int] = {}  # call id → seq of the message that made it, newest wins
    owner: dict[int, int] = {}  # result → its call's message
    for message in messages:
        for call in message.tool_calls:
            calls[call.id] = message.seq
        if message.role == "toolResult" and message.tool_call_id in calls:
            owner[message.seq] = calls[message.tool_call_id]
    caller = owner.get(seq, seq)
    results = (result for result, of in owner.items() if of == caller)
    return tuple(sorted({caller, seq, *results}))
