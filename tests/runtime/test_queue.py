"""The queue: one turn at a time, in order, across processes and restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

import everlog
from everlog.aio import AsyncSession, AsyncStore
from everlog.errors import ProviderError, QueueFullError, RunCancelledError, SessionBusyError
from everlog.model import Event, Message, ToolCall, assistant, user
from everlog.runtime.runtime import Runtime
from everlog.settings import Settings, TurnSettings
from everlog.wire.events import Error, MessageComplete, Queued, RunEvent
from tests.runtime.places import runtime_on

T = TypeVar("T")
QUIET = Settings(turn=TurnSettings(titles=False, waiting=3))


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Scene:
    """A runtime with one session, and everything it told."""

    def __init__(self, root: Path | str, settings: Settings = QUIET) -> None:
        self.root, self.settings = root, settings
        self.events: list[RunEvent] = []

    async def __aenter__(self) -> Scene:
        self.runtime: Runtime = runtime_on(self.root, self.settings)
        self.runtime.listeners.append(self.events.append)
        self.recovered = await self.runtime.start()
        listed = await self.runtime.store.list()
        if listed:
            self.session = await self.runtime.store.session(listed[0].id)
        else:
            self.session = await self.runtime.create()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.runtime.drain(2)
        await self.runtime.store.close()

    async def submit(self, text: str) -> Any:
        return await self.runtime.submit(self.session, text)

    async def said(self) -> list[str]:
        return [one.text for one in await self.session.messages() if one.role == "user"]


@pytest.fixture(params=["memory:", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return tmp_path if request.param == "file" else "memory:"


async def _kinds(session: AsyncSession) -> list[str]:
    return [one.kind for one in await session.records() if isinstance(one, Event)]


# --- in order


def test_messages_are_answered_one_after_the_other_in_order(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            runs = [await scene.submit(f"!say {at}") for at in range(4)]
            assert [(await run.answer()).reply.text for run in runs] == ["0", "1", "2", "3"]
            roles = [one.role for one in await scene.session.messages()]
            assert roles == ["user", "assistant"] * 4
            assert (await scene.session.metadata()).waiting == ()

    _run(scenario())


def test_a_waiting_message_is_durable_and_told_its_place(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            first = await scene.submit("!wait 30")
            second = await scene.submit("!say two")
            third = await scene.submit("!say three")
            assert [first.position, second.position, third.position] == [0, 1, 2]
            known = await scene.session.metadata()
            assert known.waiting == (second.message_id, third.message_id)
            assert known.run == first.id
            told = [one for one in scene.events if isinstance(one, Queued)]
            assert [(one.run_id, one.position) for one in told] == [(second.id, 1), (third.id, 2)]
            assert await scene.runtime.cancel(scene.session.id)
            assert (await third.answer()).reply.text == "three"
            stored = {one.id for one in await scene.session.messages() if one.role == "user"}
            assert {second.message_id, third.message_id} <= stored, "under the same id"

    _run(scenario())


def test_one_too_many_is_refused_and_the_others_are_not(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            runs = [await scene.submit("!wait 30")]
            runs += [await scene.submit(f"!say {at}") for at in range(3)]
            with pytest.raises(QueueFullError, match="3 messages wait"):
                await scene.submit("!say too much")
            await scene.runtime.cancel(scene.session.id)
            assert [(await run.answer()).reply.text for run in runs[1:]] == ["0", "1", "2"]
            assert "!say too much" not in await scene.said()

    _run(scenario())


def test_sessions_run_side_by_side(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            await scene.submit("!wait 30")
            other = await scene.runtime.create()
            run = await scene.runtime.submit(other, "!say at once")
            assert (await run.answer()).reply.text == "at once"
            await scene.runtime.cancel(scene.session.id)

    _run(scenario())


def test_a_failed_turn_fails_its_sender_only_and_the_queue_goes_on(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            first, second = (await scene.submit("!fail denied"), await scene.submit("!say still here"))
            with pytest.raises(ProviderError):
                await first.answer()
            assert (await second.answer()).reply.text == "still here"

    _run(scenario())


@pytest.mark.parametrize("failure", ["!fail denied", "model"])
def test_a_session_is_free_once_the_release_of_a_failed_turn_was_awaited(where: Path | str, failure: str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            if failure == "model":
                await scene.session.update(model="nowhere:nothing")
            for passes in range(40):  # of the event loop, between the end and the call
                ends = sum(isinstance(event, Error) for event in scene.events)
                await scene.submit(failure)
                while sum(isinstance(event, Error) for event in scene.events) == ends:
                    await asyncio.sleep(0)
                for _ in range(passes):
                    await asyncio.sleep(0)
                await scene.runtime.wait_for_release(scene.session.id)
                (await scene.session.lease()).release()

    _run(scenario())


def test_a_model_that_cannot_be_had_is_an_error_of_the_turn_and_recorded(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            await scene.session.update(model="nowhere:nothing")
            run = await scene.submit("hello")
            with pytest.raises(everlog.SettingsError):
                await run.answer()
            assert (await scene.session.metadata()).run is None
            assert await _kinds(scene.session) == ["turn_end"]
            last = scene.events[-1]
            assert isinstance(last, Error) and last.run_id == run.id
            await scene.session.update(model="offline")
            assert (await (await scene.submit("!say ok")).answer()).reply.text == "ok"

    _run(scenario())


def test_one_who_goes_away_while_asking_stops_nothing(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            asking = asyncio.create_task(scene.submit("!say kept"))
            await asyncio.sleep(0)
            asking.cancel()
            run = await scene.submit("!say next")
            waiting = asyncio.create_task(run.answer())
            await asyncio.sleep(0)
            waiting.cancel()
            assert (await run.answer()).reply.text == "next"
            answers = [one.text for one in await scene.session.messages() if one.role != "user"]
            assert answers == ["kept", "next"]

    _run(scenario())


# --- stopping


def test_a_waiting_message_can_be_withdrawn(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            await scene.submit("!wait 30")
            second = await scene.submit("!say never")
            third = await scene.submit("!say three")
            assert await scene.runtime.cancel(scene.session.id, second.id)
            with pytest.raises(RunCancelledError):
                await second.answer()
            assert await scene.runtime.cancel(scene.session.id)
            assert (await third.answer()).reply.text == "three"
            assert await scene.said() == ["!wait 30", "!say three"]
            assert "withdrawn" in await _kinds(scene.session)

    _run(scenario())


def test_stopping_what_is_not_there_says_so(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            assert not await scene.runtime.cancel(scene.session.id)
            run = await scene.submit("!wait 30")
            assert not await scene.runtime.cancel(scene.session.id, "01M7HA9T1PNDJZVY1PB3VHMHBD")
            assert await scene.runtime.cancel(scene.session.id, run.id)

    _run(scenario())


@pytest.mark.parametrize("passes", [0, 1, 2, 3, 5, 8, 13, 21, 34])
def test_a_stop_at_any_moment_ends_the_turn_and_no_other(passes: int, where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            first, second = await scene.submit("!wait 30"), await scene.submit("!say on")
            for _ in range(passes):
                await asyncio.sleep(0.0003)
            assert await scene.runtime.cancel(scene.session.id, first.id)
            with pytest.raises(RunCancelledError):
                await first.answer()
            assert (await second.answer()).reply.text == "on"
            assert (await scene.session.metadata()).run is None

    _run(scenario())


def test_draining_lets_turns_end_keeps_what_waits_and_takes_nothing_more(tmp_path: Path) -> None:
    async def before() -> None:
        async with Scene(tmp_path) as scene:
            first = await scene.submit("!wait 0.2\n!say in time")
            second = await scene.submit("!say later")
            await scene.runtime.drain(5)
            assert (await first.answer()).reply.text == "in time"
            with pytest.raises(SessionBusyError, match="after a restart"):
                await second.answer()
            with pytest.raises(SessionBusyError, match="shutting down"):
                await scene.submit("!say no")

    async def after() -> None:
        async with Scene(tmp_path) as scene:
            assert [one.waiting for one in scene.recovered] == [1]
            await _until(lambda: any(isinstance(one, MessageComplete) for one in scene.events))
            assert await scene.said() == ["!wait 0.2\n!say in time", "!say later"]

    _run(before())
    _run(after())


def test_draining_stops_what_does_not_end_in_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Scene(tmp_path) as scene:
            run = await scene.submit("!wait 60")
            await scene.runtime.drain(0.05)
            with pytest.raises(RunCancelledError):
                await run.answer()
            assert (await scene.session.metadata()).run is None

    _run(scenario())


async def _until(true: Any) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)


# --- another process


def test_a_message_waits_for_a_turn_of_another_process(tmp_path: Path) -> None:
    """Here another store of the same root holds the lease, as another process would."""

    async def scenario() -> None:
        async with Scene(tmp_path) as scene:
            other = everlog.open_store(tmp_path, create=True)
            lease = other.session(scene.session.id).lease()
            run = await scene.submit("!say at last")
            assert run.position == 1
            assert (await scene.session.metadata()).waiting == (run.message_id,)
            lease.release()
            assert (await run.answer()).reply.text == "at last"
            other.close()

    _run(scenario())


def test_whoever_has_the_lease_answers_in_the_order_of_the_log(tmp_path: Path) -> None:
    """Two runtimes on one root: all messages are answered once, in the order they were taken."""

    async def scenario() -> None:
        async with Scene(tmp_path) as one, Scene(tmp_path) as two:
            two.session = await two.runtime.store.session(one.session.id)
            holding = await one.submit("!wait 0.3\n!say first")
            runs = [await two.submit("!say second"), await one.submit("!say third")]
            runs.append(await two.submit("!say fourth"))
            texts = [(await run.answer()).reply.text for run in (holding, *runs)]
            assert texts == ["first", "second", "third", "fourth"]
            answers = [m.text for m in await one.session.messages() if m.role == "assistant"]
            assert answers == texts
            full = [await two.submit("!wait 0.2")]
            full += [await scene.submit("!say x") for scene in (one, two, one)]
            with pytest.raises(QueueFullError):
                await two.submit("!say x")
            for run in full:
                await run.answer()

    _run(scenario())


# --- after a crash


def test_a_queue_that_was_left_goes_on_in_order_at_the_next_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Scene(tmp_path) as scene:
            await _until(lambda: sum(isinstance(one, MessageComplete) for one in scene.events) == 2)
            assert [(one.interrupted, one.waiting) for one in scene.recovered] == [(running, 2)]
            assert await scene.said() == ["!wait 50", "!say a", "!say b"]
            view = await scene.session.view()
            calls = {call.id for one in view.messages for call in one.tool_calls}
            assert calls == {one.tool_call_id for one in view.messages if one.tool_call_id}
            assert await _kinds(scene.session) == ["queued", "queued", "turn_interrupted", "turn_end", "turn_end"]
            assert [one.role for one in view.messages][-4:] == ["user", "assistant"] * 2
            again = await scene.runtime.takeover.recover_all()
            assert again == []

    running = _killed(tmp_path, "!wait 50", "!say a", "!say b")
    with everlog.open_store(tmp_path, create=True) as store:  # its turn had called a tool
        store.session(store.list()[0].id).append(assistant([ToolCall("c", "x", {})]))
    _run(scenario())


def _killed(root: Path, *texts: str) -> str:
    """Have a process take messages, kill it, and return the run that was under way."""
    source = f"""
import asyncio, os, signal
from pathlib import Path
from tests.runtime.test_queue import QUIET, Scene
from tests.runtime.places import runtime_on
async def main():
    async with Scene(Path({os.fspath(root)!r})) as scene:
        runs = [await scene.submit(text) for text in {texts!r}]
        print(runs[0].id, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    path = os.pathsep.join(sys.path)
    child = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        run = child.stdout.readline().strip()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert run
    return run


def test_a_queued_event_that_nobody_can_read_is_withdrawn_and_told(tmp_path: Path) -> None:
    with everlog.open_store(tmp_path, create=True) as store:
        session = store.create()
        session.append(Event(kind="queued", data={"id": "m1"}))
        session.append(Event(kind="queued", data={"id": "m2", "message": {"recordType": "odd"}}))
        assert session.metadata.waiting == ("m1", "m2")

    async def scenario() -> None:
        async with Scene(tmp_path) as scene:
            assert (await (await scene.submit("!say fine")).answer()).reply.text == "fine"
            assert (await scene.session.metadata()).waiting == ()
            assert sum("cannot be read" in str(getattr(e, "message", "")) for e in scene.events) == 2

    _run(scenario())


def test_a_fork_takes_neither_the_turn_nor_the_queue_with_it(where: Path | str) -> None:
    async def scenario() -> None:
        async with Scene(where) as scene:
            await scene.submit("!wait 30")
            await scene.submit("!say x")
            fork = await scene.session.fork()
            known = await fork.metadata()
            assert (known.run, known.waiting) == (None, ())
            assert not known.unfinished
            await scene.runtime.cancel(scene.session.id)

    _run(scenario())


def test_unfinished_sessions_are_found_without_looking_at_the_others(where: Path | str) -> None:
    with everlog.open_store(where, create=True) as store:
        sessions = [store.create() for _ in range(5)]
        for one in sessions:
            one.append(user("hello"))
        sessions[1].append(user("go", run_id="01M7HA9T1PNDJZVY1PB3VHMHBD"))
        sessions[3].append(Event(kind="queued", data={"id": "m1"}))
        found = {row.id for row in store.list(unfinished=True)}
        assert found == {sessions[1].id, sessions[3].id}
        assert store.list(unfinished=True).total == 2 and store.list(unfinished=False).total == 3
        sessions[1].end_turn(duration_ms=1)
        assert {row.id for row in store.list(unfinished=True)} == {sessions[3].id}


# --- a naive twin


def test_a_queue_in_memory_alone_would_have_lost_what_waited(tmp_path: Path) -> None:
    """What the recorded queue is for: a runner that keeps waiting messages in memory only."""

    class Naive:
        def __init__(self, session: AsyncSession) -> None:
            self.session, self.waiting = session, list[str]()

        async def submit(self, text: str) -> None:
            if self.waiting:  # a turn is running: keep it for later
                self.waiting.append(text)
                return
            self.waiting.append(text)
            await self.session.append(user(text))

    async def scenario() -> list[Message]:
        store = AsyncStore(everlog.open_store(tmp_path, create=True))
        session = await store.create()
        naive = Naive(session)
        for text in ("!wait 50", "!say a", "!say b"):
            await naive.submit(text)
        kept = await session.messages()  # all a restart would find
        await store.close()
        return kept

    assert [one.text for one in _run(scenario())] == ["!wait 50"]
