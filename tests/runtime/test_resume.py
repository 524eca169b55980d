"""Turns by the caller's own id, turns that go on where they stopped, messages delivered twice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import everlog
from everlog.errors import ConflictError, NotFoundError, ProviderDeniedError
from everlog.identity.scope import Inbound
from everlog.model import Event, ToolCall, assistant, user
from everlog.runtime.queue_log import DEFAULT_OPTIONS, queued_event
from everlog.settings import Settings, TurnSettings
from everlog.testing import ScriptedModel

T = TypeVar("T")
QUIET = Settings(turn=TurnSettings(titles=False, retry_seconds=0.0))
TELEGRAM = Inbound(channel="telegram", chat_id="7", chat_type="direct", sender_id="7")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _kinds(session: everlog.Session) -> list[str]:
    return [record.kind for record in session.records() if isinstance(record, Event)]


# --- an id of the caller


def test_an_agent_runs_in_a_session_that_the_caller_names(tmp_path: Path) -> None:
    with everlog.open_store(tmp_path, create=True, settings=QUIET) as store:
        agent = everlog.Agent(store, ScriptedModel("one", "two"), name="helper")
        assert _run(agent.run("hello", session="my-session")).text == "one"
        assert _run(agent.run("again", session="my-session")).text == "two"
        session = store.session("my-session")
        assert (session.metadata.agent, len(session.messages())) == ("helper", 4)
        assert store.list().total == 1


# --- going on with a turn


def test_a_turn_that_failed_goes_on_without_a_new_message() -> None:
    with everlog.open_store("memory:", settings=QUIET) as store:
        session = store.create()
        failing = everlog.Agent(store, ScriptedModel(ProviderDeniedError("no")))
        with pytest.raises(ProviderDeniedError):
            _run(failing.run("hello", session=session))
        agent = everlog.Agent(store, ScriptedModel("hi"))
        assert _run(agent.resume(session)).text == "hi"
        assert [message.role for message in session.messages()] == ["user", "assistant"]
        assert _kinds(session) == ["turn_end", "turn_resumed", "turn_end"]
        assert not session.metadata.unfinished


def test_a_turn_whose_process_died_goes_on_after_its_tool_call() -> None:
    with everlog.open_store("memory:", settings=QUIET) as store:
        session = store.create()
        session.append(user("look", run_id="run-1"))
        session.append(assistant([ToolCall("c1", "look", {})]))
        model = ScriptedModel("seen")
        assert _run(everlog.Agent(store, model).resume(session)).text == "seen"
        roles = [message.role for message in session.messages()]
        assert roles == ["user", "assistant", "toolResult", "assistant"]
        assert _kinds(session) == ["turn_interrupted", "turn_resumed", "turn_end"]


def test_a_resumed_turn_whose_process_dies_is_unfinished_until_it_is_repaired() -> None:
    with everlog.open_store("memory:", settings=QUIET) as store:
        session = store.create()
        session.append(user("look"))
        session.append(Event(kind="turn_resumed", data={"runId": "run-2"}))
        assert session.metadata.run == "run-2" and session.metadata.unfinished
        _run(everlog.Agent(store, ScriptedModel("seen")).resume(session))
        assert "turn_interrupted" in _kinds(session) and session.metadata.run is None


def test_there_is_nothing_to_resume_after_an_answer_and_in_an_empty_session() -> None:
    with everlog.open_store("memory:", settings=QUIET) as store:
        agent = everlog.Agent(store, ScriptedModel("hi"))
        session = store.create()
        with pytest.raises(ConflictError, match="nothing to resume"):
            _run(agent.resume(session))
        _run(agent.run("hello", session=session))
        before = len(session.records())
        with pytest.raises(ConflictError, match="nothing to resume"):
            _run(agent.resume(session))
        assert len(session.records()) == before
        with pytest.raises(NotFoundError):
            _run(agent.resume("nobody"))


# --- delivered again


def test_a_message_that_is_delivered_again_is_answered_once(tmp_path: Path) -> None:
    async def deliver(*, new_chat: bool = False) -> tuple[str, str, str]:
        runtime = everlog.open_runtime(home=tmp_path, create=True, settings=QUIET)
        await runtime.start()
        try:
            first, second = [
                await runtime.inbound(TELEGRAM, "!say hello", id="update-1", new_chat=new_chat) for _ in range(2)
            ]
            assert first.session == second.session and first.run.id == second.run.id
            assert (await second.run.answer()).reply.text == "hello"
            return first.session.id, first.run.id, (await first.run.answer()).reply.text
        finally:
            await runtime.drain(5)
            await runtime.store.close()

    session, run, text = _run(deliver())
    assert _run(deliver()) == (session, run, text)  # also after a restart
    assert _run(deliver(new_chat=True)) == (session, run, text)
    with everlog.open_store(tmp_path, create=True) as store:
        assert store.list().total == 1
        assert len(store.session(session).messages()) == 2


def test_another_message_with_the_same_id_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = everlog.open_runtime(home=tmp_path, create=True, settings=QUIET)
        session = await runtime.create()
        await (await runtime.submit(session, "!say a", id="m1")).answer()
        with pytest.raises(ConflictError, match="another message"):
            await runtime.submit(session, "!say b", id="m1")
        await runtime.drain(5)
        assert len(await session.messages()) == 2
        await runtime.store.close()

    _run(scenario())


def test_a_message_that_waits_is_not_queued_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = everlog.open_runtime(home=tmp_path, create=True, settings=QUIET)
        session = await runtime.create()
        running = await runtime.submit(session, "!wait 0.2\n!say first")
        waiting = [await runtime.submit(session, "!say second", id="m2") for _ in range(3)]
        assert len({run.id for run in waiting}) == 1
        await running.answer()
        assert (await waiting[-1].answer()).reply.text == "second"
        assert len(await session.messages()) == 4
        await runtime.drain(5)
        await runtime.store.close()

    _run(scenario())


def test_a_message_that_two_processes_accepted_at_once_does_not_block_the_queue(tmp_path: Path) -> None:
    """One stored it and answered it while the other queued it."""
    with everlog.open_store(tmp_path, create=True, settings=QUIET) as store:
        session = store.create()
        session.append(user("!say a", id="m1", run_id="run-1"))
        session.append(assistant("a"))
        session.end_turn(duration_ms=1, run_id="run-1", stop="end")
        twin = user("!say a", id="m1", run_id="run-2")
        session.append(queued_event(twin, DEFAULT_OPTIONS, "event-1"))
        assert session.metadata.waiting == ("m1",)

    async def scenario() -> None:
        runtime = everlog.open_runtime(home=tmp_path, create=True, settings=QUIET)
        await runtime.start()
        after = await runtime.submit(await runtime.store.session(session.id), "!say b")
        assert (await after.answer()).reply.text == "b"
        await runtime.drain(5)
        await runtime.store.close()

    _run(scenario())
    with everlog.open_store(tmp_path, create=True) as store:
        texts = [message.text for message in store.session(session.id).messages()]
        assert texts == ["!say a", "a", "!say b", "b"]
        assert not store.session(session.id).metadata.unfinished
