"""The queue under everything at once: each message that was taken is answered or told why not.

At rest nothing is left: no task, no lease, no line, no open turn and nothing that waits.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

import everlog
from everlog import ports
from everlog.agent.answer import Answer
from everlog.aio import AsyncSession, AsyncStore
from everlog.app import open_runtime
from everlog.errors import (
    EverlogError,
    QueueFullError,
    RunCancelledError,
    SessionBusyError,
    StoreFailedError,
    StoreFullError,
)
from everlog.log.tool_pairs import pair_results
from everlog.model import QUEUED, WITHDRAWN, Event, Message, assistant, user
from everlog.ports import Lease
from everlog.runtime.queue import Queue
from everlog.runtime.queue_log import TurnOptions, queued_event, read_outcome
from everlog.runtime.run import Run
from everlog.runtime.runtime import Runtime
from everlog.settings import Settings, TurnSettings
from everlog.wire.events import RunEvent, Sink, Status, ignore_event
from tests.runtime.places import runtime_on

T = TypeVar("T")
QUIET = Settings(turn=TurnSettings(titles=False, waiting=3))


def _run(work: Coroutine[Any, Any, T], seconds: float = 60) -> T:
    async def timed() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(timed())


async def _ended(runtime: Runtime) -> None:
    await runtime.drain(5)
    assert runtime.queue._queues == {}
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    await runtime.store.close()


@pytest.fixture(params=["memory:", "file"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    return tmp_path if request.param == "file" else "memory:"


async def _until(true: Any) -> None:
    while not true():
        await asyncio.sleep(0.005)


# --- everything at once


class Told:
    """What the sender of a message was told of it."""

    def __init__(self, text: str, run: Run) -> None:
        self.text, self.run = text, run


async def _play(dice: random.Random, runtimes: list[Runtime], names: list[str]) -> list[Told]:
    """Some hundred moves of several clients at once; what came of the messages."""
    told: list[Told] = []

    async def client(number: int) -> None:
        for move in range(12):
            runtime = dice.choice(runtimes)
            session = await runtime.store.session(dice.choice(names))
            kind = dice.random()
            if kind < 0.6:
                wait = dice.choice(("", "", "!wait 0.01\n", "!wait 20\n"))
                text = f"{wait}!say {number}.{move}"
                asking = asyncio.ensure_future(runtime.submit(session, text))
                if dice.random() < 0.2:  # who asks goes away, the message does not
                    for _ in range(dice.randrange(4)):
                        await asyncio.sleep(0)
                    asyncio.get_running_loop().call_soon(asking.cancel)
                    await asyncio.wait([asking])
                    continue
                try:
                    told.append(Told(text, await asking))
                except QueueFullError:
                    if (current := runtime.current(session.id)) is not None:
                        await runtime.cancel(session.id, current.id)
            elif kind < 0.8:
                await runtime.cancel(session.id)
            elif told:
                run = dice.choice(told).run
                await runtime.cancel(run.session_id, run.id)
            await asyncio.sleep(dice.choice((0, 0, 0.001, 0.005)))

    async def stop_all() -> None:  # what waits for long is stopped in the end
        while True:
            await asyncio.sleep(0.05)
            for runtime in runtimes:
                for name in names:
                    await runtime.cancel(name)

    await asyncio.gather(*(client(number) for number in range(6)))
    stopping = asyncio.create_task(stop_all())
    for one in told:
        await one.run.wait()
    while any(one.queue._queues for one in runtimes):
        await asyncio.sleep(0.01)
    stopping.cancel()
    await asyncio.wait([stopping])
    return told


def _checked(session: everlog.Session, told: list[Told], answers: dict[str, Any]) -> None:
    """The log and what was told are one story."""
    known = session.metadata
    assert known.run is None and known.waiting == ()
    session.lease().release()
    records = session.records()
    messages = [one for one in records if isinstance(one, Message)]
    assert pair_results(messages).open_calls == ()
    asked = [one for one in messages if one.role == "user"]
    assert len({one.id for one in asked}) == len(asked)
    gone = {str(e.data["id"]) for e in records if isinstance(e, Event) and e.kind == WITHDRAWN}
    assert not gone & {one.id for one in asked}, "withdrawn and answered"
    for one in told:
        if one.run.session_id != session.id:
            continue
        mine = [m for m in asked if m.id == one.run.message_id]
        ends = [
            e
            for e in records
            if isinstance(e, Event) and e.kind in ("turn_end", "turn_interrupted") and e.data.get("runId") == one.run.id
        ]
        answer = answers[one.run.id]
        if one.run.message_id in gone:
            assert isinstance(answer, RunCancelledError) and not mine and not ends
        else:
            assert len(mine) == len(ends) == 1, (one.text, answer, mine, ends)
            if isinstance(answer, Answer):
                assert answer.reply.text == one.text.split("!say ")[1]
            else:
                assert isinstance(answer, RunCancelledError) and ends[0].data["stop"] == "cancelled"
    # Taken is taken in order: the queued ones by their events, the others when they were stored.
    taken = [
        str(one.data["id"]) if isinstance(one, Event) else one.id
        for one in records
        if (isinstance(one, Event) and one.kind == QUEUED) or (isinstance(one, Message) and one.role == "user")
    ]
    order = [name for name in dict.fromkeys(taken) if name not in gone]
    assert order == [one.id for one in asked]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kept", "processes"), [("memory:", 1), ("file", 1), ("file", 2)])
def test_every_message_that_was_taken_has_one_end(tmp_path: Path, kept: str, processes: int, seed: int) -> None:
    where = tmp_path if kept == "file" else kept

    async def scenario() -> None:
        runtimes = [runtime_on(where, QUIET) for _ in range(processes)]
        names = [(await runtimes[0].create()).id for _ in range(3)]
        told = await _play(random.Random(seed), runtimes, names)
        answers: dict[str, Any] = {}
        for one in told:
            try:
                answers[one.run.id] = await one.run.answer()
            except EverlogError as error:
                answers[one.run.id] = error
        for name in names:
            _checked((await runtimes[0].store.session(name)).sync, told, answers)
        for runtime in runtimes:
            assert (runtime.queue.running, runtime.queue.waiting) == (0, 0)
            await runtime.drain(5)
            assert runtime.queue._queues == {}
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for runtime in runtimes:
            await runtime.store.close()

    _run(scenario())


# --- a store that fails


class Failing:
    """A store whose n-th call of some kind fails, once."""

    def __init__(self, port: ports.Store, verb: str, at: int, error: EverlogError) -> None:
        self._port, self._verb, self._at, self._error = port, verb, at, error
        self.failed = self.mended = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name != self._verb:
            return found

        def call(*given: Any, **named: Any) -> Any:
            self._at -= 1
            if self._at == 0 and not self.mended:
                self.failed = True
                raise self._error
            return found(*given, **named)

        return call


@pytest.mark.parametrize("verb", ["append", "metadata", "lease", "tail"])
@pytest.mark.parametrize("error", [StoreFullError("x"), SessionBusyError("x"), StoreFailedError("x")], ids=repr)
def test_a_store_that_fails_once_anywhere_holds_up_nobody(verb: str, error: EverlogError) -> None:
    async def scenario(at: int) -> bool:
        base = everlog.open_store("memory:", settings=QUIET)
        port = Failing(base.port, verb, at, error)
        made = everlog.session.Store(port, QUIET, provider=base.provider)
        runtime = Runtime(AsyncStore(made))
        session = await runtime.create()
        runs = []
        script = "!call current_time {}\n!call current_time {}\n!then\n!say a"
        for text in (script, "!say b", "!say c"):
            try:
                runs.append(await runtime.submit(session, text))
            except (type(error), QueueFullError):
                pass
        for run in runs:
            try:
                await run.answer()
            except EverlogError:
                pass
        port.mended = True
        last = await runtime.submit(session, "!say at last")
        assert (await last.answer()).reply.text == "at last"
        await last.wait()
        await runtime.wait_for_release(session.id)
        known = await session.metadata()
        assert (known.run, known.waiting) == (None, ())
        assert pair_results(await session.messages()).open_calls == ()
        (await session.lease()).release()
        await _ended(runtime)
        return port.failed

    at = 1
    while _run(scenario(at)):
        at += 1
    assert at > 3 or verb == "lease"


# --- one at a time


class Echo:
    """Answers each message with its own text."""

    async def answer(
        self, session: AsyncSession, message: Message, lease: Lease, *, emit: Sink, options: TurnOptions
    ) -> Answer:
        reply = await session.append(assistant(f"re: {message.text}"), lease=lease)
        await session.end_turn(duration_ms=0, run_id=message.run_id, stop="end")
        return Answer(
            run_id=message.run_id or "",
            session_id=session.id,
            reply=reply,
            messages=(message, reply),
            usage=everlog.Usage(),
            duration_ms=0,
            tool_calls=0,
            stop="end",
        )


class Panic(BaseException):
    """No Exception."""


@pytest.mark.parametrize("error", [Panic("rust"), asyncio.CancelledError()], ids=repr)
def test_a_turn_that_raises_what_is_no_exception_leaves_nobody_waiting(error: BaseException) -> None:
    async def scenario() -> None:
        store = AsyncStore(everlog.open_store("memory:"))

        class Breaking(Echo):
            async def answer(
                self, session: AsyncSession, message: Message, lease: Lease, *, emit: Sink, options: TurnOptions
            ) -> Answer:
                if message.text == "odd":
                    await asyncio.sleep(0.02)
                    raise error
                return await super().answer(session, message, lease, emit=emit, options=options)

        queue = Queue(Breaking(), max_waiting=3, emit=ignore_event)
        session = await store.create()
        runs = [await queue.submit(session, user(text)) for text in ("odd", "next")]
        with pytest.raises(EverlogError):
            await runs[0].answer()
        assert (await runs[1].answer()).reply.text == "re: next"
        assert (await session.metadata()).run is None
        await queue.drain(1)
        assert queue._queues == {}
        await store.close()

    _run(scenario(), 5)


def test_a_listener_that_raises_leaves_nobody_waiting() -> None:
    async def scenario() -> None:
        store = AsyncStore(everlog.open_store("memory:"))
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)

        def raising(event: RunEvent) -> None:
            raise ValueError("a listener")

        class Slow:
            async def answer(self, *given: Any, **named: Any) -> Answer:
                await asyncio.sleep(0.02)
                raise everlog.ProviderError("no")

        queue = Queue(Slow(), max_waiting=3, emit=raising)
        session = await store.create()
        first = await queue.submit(session, user("a"))
        others = await asyncio.gather(*(queue.submit(session, user(text)) for text in "bc"), return_exceptions=True)
        assert all(isinstance(one, ValueError) for one in others)
        await first.wait()
        await _until(lambda: not queue._queues)
        (await session.lease()).release()
        await store.close()

    _run(scenario(), 5)


def test_a_full_queue_that_nobody_works_on_is_worked_on_by_the_next_who_asks(where: Path | str) -> None:
    """As another process leaves it that was killed."""

    async def scenario() -> None:
        runtime = runtime_on(where, QUIET)
        session = await runtime.create()
        for at in range(3):
            message = user(f"!say {at}", id=f"m{at}", run_id=f"01M7HA9T1PNDJZVY1PB3VHMHB{at}")
            await session.append(queued_event(message, TurnOptions(), f"e{at}"))
        with pytest.raises(QueueFullError):
            await runtime.submit(session, "!say one too many")
        await _until(lambda: not runtime.queue._queues)
        said = [one.text for one in await session.messages() if one.role == "assistant"]
        assert said == ["0", "1", "2"]
        assert (await (await runtime.submit(session, "!say now")).answer()).reply.text == "now"
        await _ended(runtime)

    _run(scenario(), 5)


def test_a_message_that_another_process_has_begun_is_not_withdrawn(tmp_path: Path) -> None:
    async def scenario() -> None:
        one, two = (open_runtime(home=tmp_path, create=True, settings=QUIET) for _ in range(2))
        session = await one.create()
        there = await two.store.session(session.id)
        first = await one.submit(session, "!wait 20")
        second = await two.submit(there, "!wait 0.5\n!say answered")
        await one.cancel(session.id, first.id)
        await _until(lambda: one.current(session.id) is not None)
        while (await there.metadata()).waiting:
            await asyncio.sleep(0.005)
        assert not await two.cancel(session.id, second.id)
        assert (await second.answer()).reply.text == "answered"
        kinds = [e.kind for e in await session.records() if isinstance(e, Event)]
        assert WITHDRAWN not in kinds
        await one.drain(1)
        await two.drain(1)
        await one.store.close()
        await two.store.close()

    _run(scenario(), 15)


def test_a_turn_that_another_process_left_is_repaired_by_who_waited_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=QUIET)
        session = await runtime.create()
        other = everlog.open_store(tmp_path, create=True)
        there = other.session(session.id)
        lease = there.lease()
        run = await runtime.submit(session, "!say x")
        message = next(e for e in there.records() if isinstance(e, Event)).data["id"]
        there.append(replace(user("!say x"), id=message, run_id=run.id), lease=lease)
        lease.release()  # as if it had been killed
        with pytest.raises(RunCancelledError):
            await run.answer()
        assert (await session.metadata()).run is None
        other.close()
        await _ended(runtime)

    _run(scenario(), 5)


def test_an_end_without_an_answer_is_told_as_such() -> None:
    """A damaged line, or another program's turn: a wait for it must end."""
    with everlog.open_store("memory:") as store:
        session = store.create()
        session.append(user("hello", id="m", run_id="r"))
        session.end_turn(duration_ms=1, run_id="r", stop="end")
        assert isinstance(read_outcome(session, "r", "m"), EverlogError)


def test_a_session_that_is_gone_leaves_no_line(where: Path | str) -> None:
    async def scenario() -> None:
        runtime = runtime_on(where, QUIET)
        session = await runtime.create()
        await session.delete()
        with pytest.raises(everlog.NotFoundError):
            await runtime.submit(session, "hello")
        assert runtime.queue._queues == {}
        await _ended(runtime)
        with pytest.raises(SessionBusyError):
            await runtime.submit(session, "hello")
        assert runtime.queue._queues == {}

    _run(scenario(), 5)


def test_one_session_that_cannot_be_repaired_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    with everlog.open_store(tmp_path, create=True) as store:
        sessions = [store.create() for _ in range(3)]
        for one in sessions:
            one.append(user("hello", run_id="01M7HA9T1PNDJZVY1PB3VHMHBD"))

    async def scenario() -> None:
        base = everlog.open_store(tmp_path, create=True, settings=QUIET)
        port = Failing(base.port, "lease", 2, StoreFailedError("turn.lock: permission denied"))
        made = everlog.session.Store(port, QUIET, provider=base.provider)
        runtime = Runtime(AsyncStore(made))
        events: list[RunEvent] = []
        runtime.listeners.append(events.append)
        assert len(await runtime.start()) == 2
        told = [one.message for one in events if isinstance(one, Status)]
        assert told == ["could not repair the session: turn.lock: permission denied"]
        await _ended(runtime)

    _run(scenario(), 5)


@pytest.mark.parametrize("passes", range(0, 24, 2))
def test_a_message_that_comes_while_draining_is_refused_or_seen_to_its_end(tmp_path: Path, passes: int) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=QUIET)
        session = await runtime.create()
        asking = asyncio.ensure_future(runtime.submit(session, "!wait 20"))
        for _ in range(passes):
            await asyncio.sleep(0.0002)
        await runtime.drain(0.05)
        try:
            run = await asking
        except SessionBusyError:
            assert await session.messages() == []
        else:
            assert run.is_done
            assert (await session.metadata()).run is None
        await _ended(runtime)

    _run(scenario(), 5)


def test_a_loop_that_ends_without_draining_is_not_held_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=QUIET)
        session = await runtime.create()
        for _ in range(3):
            await runtime.submit(session, "!wait 60")

    _run(scenario(), 5)
    with everlog.open_store(tmp_path, create=True) as store:
        session = store.session(store.list()[0].id)
        assert len(session.metadata.waiting) == 2
        session.lease().release()


def test_nothing_grows_with_the_number_of_sessions() -> None:
    async def scenario() -> None:
        runtime = open_runtime("memory:", settings=QUIET)
        for _ in range(20):
            sessions = [await runtime.create() for _ in range(25)]
            runs = await asyncio.gather(*(runtime.submit(one, "!say ok") for one in sessions))
            await asyncio.gather(*(run.answer() for run in runs))
        await _until(lambda: not runtime.queue._queues)
        assert len(runtime.agents._current) == 1
        agent = runtime.agents.by_name("main")
        assert (agent._warned_percentages, agent._background, agent.is_idle) == ({}, set(), True)
        assert len(runtime.open_sessions()) == 500  # what had a turn since the start
        await _ended(runtime)

    _run(scenario())


def test_a_refusal_that_nobody_waits_for_any_more_is_no_noise() -> None:
    async def scenario() -> list[Any]:
        noise: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: noise.append(told))
        runtime = open_runtime("memory:", settings=QUIET)
        session = await runtime.create()
        for _ in range(4):
            await runtime.submit(session, "!wait 20")
        asking = asyncio.create_task(runtime.submit(session, "one too many"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await runtime.drain(0.05)
        gc.collect()
        await runtime.store.close()
        return noise

    assert _run(scenario(), 10) == []
