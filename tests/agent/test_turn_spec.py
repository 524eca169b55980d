"""A turn needs its spec and no agent."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError, replace

import pytest

import everlog
from everlog.agent.agent import Agent
from everlog.agent.turn import Turn, new_run_id
from everlog.agent.turn_lease import acquire_lease
from everlog.aio import AsyncStore
from everlog.model import Message, ToolCall, assistant, user
from everlog.testing import ScriptedModel
from everlog.wire.events import RunEvent


@everlog.tool(reads=True)
def look() -> str:
    """Look."""
    return "seen"


def change() -> str:
    """Change something."""
    return "changed"


def test_a_turn_runs_from_a_spec_alone_and_within_its_limits() -> None:
    async def scenario() -> tuple[Message, list[RunEvent]]:
        store = AsyncStore(everlog.open_store("memory:"))
        calls = [ToolCall("a", "look", {}), ToolCall("b", "change", {})]
        model = ScriptedModel(assistant(calls), assistant("done"))
        spec = replace(Agent(store, model, name="x", tools=[look, change]).spec, reads_only=True)
        session = await store.create()
        events: list[RunEvent] = []
        async with acquire_lease(session) as lease:
            message = user("go", run_id=new_run_id())
            turn = Turn(spec, session, lease, message, warned_percentages={}, emit=events.append)
            answer = await turn.run()
        results = [one.text for one in answer.messages if one.role == "toolResult"]
        assert sorted(results) == ["seen", "unknown tool 'change'"]
        assert turn.needs_title
        assert {event.run_id for event in events} == {message.run_id}
        return answer.reply, events

    reply, events = asyncio.run(scenario())
    assert reply.text == "done" and isinstance(events[-1], everlog.events.MessageComplete)


def test_a_spec_does_not_change() -> None:
    spec = Agent(everlog.open_store("memory:"), ScriptedModel()).spec
    with pytest.raises(FrozenInstanceError):
        spec.model = "other"  # type: ignore[misc]
