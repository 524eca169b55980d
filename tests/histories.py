"""Random conversations as they really come about, for tests of contexts and compactions."""

from __future__ import annotations

from hypothesis import strategies as st

import everlog
from everlog.model import Compaction, Message, Rewind, Tombstone, ToolCall, assistant, tool_result, user

KINDS = [
    "user",
    "assistant",
    "calls",
    "late",
    "early",
    "stray",
    "giant user",
    "giant result",
    "tombstone",
    "restore",
    "rewind",
    "compaction",
    "usage",
]
Step = tuple[str, int, int]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 60), st.integers(0, 60)), max_size=40)


def append(session: everlog.Session, step: Step) -> None:
    """Do one random thing to a session."""
    kind, first, second = step
    head = session.metadata.through.seq
    if kind == "user":
        session.append(user(f"do task {head} " + "please " * first * 4))
    elif kind == "assistant":
        session.append(assistant(f"task {head} is done " + "so " * first * 4))
    elif kind in ("calls", "late"):
        names = [f"c{head}.{number}" for number in range(1 + first % 3)]
        session.append(assistant([ToolCall(name, "bash", {"n": head}) for name in names]))
        if kind == "late":
            session.append(user("meanwhile"))
        for name in reversed(names) if second % 2 else names:
            if (second + len(name)) % 5:  # some results never come
                session.append(tool_result(name, "output line\n" * second))
    elif kind == "early":
        session.append(tool_result(f"e{head}", "before its call"))
        session.append(assistant([ToolCall(f"e{head}", "bash", {})]))
    elif kind == "stray":
        session.append(tool_result("never-called", "x"))
    elif kind == "giant user":
        session.append(user("long " * 3000))
    elif kind == "giant result":
        session.append(assistant([ToolCall(f"g{head}", "read", {"path": f"/src/{first}.py"})]))
        session.append(tool_result(f"g{head}", "row " * 4000))
    elif kind == "usage":
        count = everlog.Usage(input_tokens=500 * first, output_tokens=7)
        session.append(assistant("counted", usage=count, stop_reason="stop"))
    elif head:
        _mark(session, kind, first % head, second % head)


def _mark(session: everlog.Session, kind: str, low: int, high: int) -> None:
    if kind == "tombstone":
        session.append(Tombstone(deletes=(low, high)))
    elif kind == "restore":
        session.append(Tombstone(restores=(low, high)))
    elif kind == "rewind":
        session.append(Rewind(to_seq=low))
    else:
        session.append(Compaction(first_kept_seq=low + 1, summary="earlier\n" * 20))


def check_order(messages: tuple[Message, ...]) -> None:
    """Every call is answered directly behind its message, and nothing else is an answer."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "toolResult":
            assert message.tool_call_id in waiting, "a result that answers nothing"
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting, "a call without its result"
            waiting = [call.id for call in message.tool_calls]
    assert not waiting
