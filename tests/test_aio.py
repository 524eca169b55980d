"""The asynchronous interface, on asyncio and on trio: the same verbs, never half awaited."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import anyio
import anyio.to_thread
import pytest

import everlog
from everlog import aio
from everlog.model import AnyRecord
from everlog.stores.in_memory import InMemoryStore

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs an asynchronous function on one of the two event loops."""
    return lambda work: anyio.run(work, backend=request.param)


# --- signatures -----------------------------------------------------------------------------

# Lazy reading is for synchronous code, and models and ephemeral stores are the agent's business.
ONLY_SYNC = {"entries", "provider", "ephemeral"}
ONLY_ASYNC = {"call"}


@pytest.mark.parametrize(
    ("sync", "twin"), [(everlog.Store, everlog.AsyncStore), (everlog.Session, everlog.AsyncSession)]
)
def test_each_method_has_a_twin_with_the_same_signature(sync: type, twin: type) -> None:
    methods = {name for name in vars(sync) if not name.startswith("_")} - ONLY_SYNC
    assert methods == {name for name in vars(twin) if not name.startswith("_")} - ONLY_ASYNC
    for name in methods:
        member = inspect.getattr_static(sync, name)
        if isinstance(member, property):  # awaited in place of read
            assert list(inspect.signature(getattr(twin, name)).parameters) == ["self"]
            continue
        one, other = (inspect.signature(getattr(kind, name)) for kind in (sync, twin))
        assert one.parameters == other.parameters, name
        assert inspect.getdoc(getattr(twin, name)), name


# --- verbs ----------------------------------------------------------------------------------


def test_the_verbs_are_there_and_do_the_same(tmp_path: Path, run: Run) -> None:
    async def work() -> None:
        async with everlog.open_async_store(tmp_path / "root", create=True) as store:
            session = await store.create(agent="a", sender="s")
            assert (await session.append("one")).role == "user"
            await session.append_many([everlog.assistant("two"), everlog.user("three")], expected_seq=1)
            assert [message.text for message in await session.messages()] == ["one", "two", "three"]
            assert (await session.record(2)).seq == 2
            assert len((await session.context()).messages) == 3
            await session.tombstone(2)
            await session.restore(2)
            await session.rewind(2)
            await session.rename("Title")
            await session.update(model="m")
            await session.end_turn(duration_ms=5)
            assert (await session.metadata()).title == "Title"
            assert (await session.view()).damage == ()
            assert len(await session.records()) == 9
            assert len(await session.parts()) == 1
            assert await session.size() > 0
            assert await session.verify() == ()
            assert await session.repair() == ()
            fork = await session.fork(at=1)
            assert [message.text for message in await fork.messages()] == ["one"]
            assert await store.latest(agent="a", sender="s") == fork
            (await session.lease()).release()
            assert await fork.delete() == 1
            assert [row.id for row in await store.list(agent="a")] == [session.id]
            assert [row.id async for row in store.walk()] == [session.id]
            assert await store.session(session.id) == session

    run(work)


def test_many_appends_at_once_are_all_kept(tmp_path: Path, run: Run) -> None:
    async def work() -> None:
        async with everlog.open_async_store(tmp_path / "root", create=True) as store:
            session = await store.create()
            async with anyio.create_task_group() as group:
                for number in range(40):
                    group.start_soon(session.append, str(number))
            assert [record.seq for record in await session.records()] == list(range(1, 41))

    run(work)


def test_a_store_that_is_closed_says_so(run: Run) -> None:
    async def work() -> None:
        store = everlog.open_async_store("memory:")
        await store.close()
        with pytest.raises(everlog.StoreFailedError, match="closed"):
            await store.create()

    run(work)


def test_one_store_serves_one_event_loop_after_the_other(tmp_path: Path) -> None:
    store = everlog.open_async_store(tmp_path / "root", create=True)
    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(store.create, backend=backend)
    assert anyio.run(store.list).total == 3


# --- cancellation ---------------------------------------------------------------------------


class Gated(InMemoryStore):
    """A store whose appends wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.may_go_on = threading.Event()

    def append(self, session: str, records: object, **options: object) -> list[AnyRecord]:
        self.started.set()
        assert self.may_go_on.wait(60)
        return super().append(session, records, **options)  # type: ignore[arg-type]


def test_an_append_whose_scope_is_cancelled_is_awaited_to_its_end(run: Run) -> None:
    async def work() -> None:
        port = Gated()
        async with everlog.AsyncStore(everlog.Store(port)) as store:
            session = await store.create()

            async def cancel(scope: anyio.CancelScope) -> None:
                await anyio.to_thread.run_sync(port.started.wait, 60)
                scope.cancel()
                port.may_go_on.set()

            async with anyio.create_task_group() as group:
                with anyio.CancelScope() as scope:
                    group.start_soon(cancel, scope)
                    await session.append("x")
            assert len(await session.records()) == 1  # it was there when the scope ended

    run(work)


def test_an_append_whose_task_is_cancelled_is_awaited_to_its_end() -> None:
    async def work() -> None:
        port = Gated()
        async with everlog.AsyncStore(everlog.Store(port)) as store:
            session = await store.create()
            task = asyncio.create_task(session.append(everlog.user("x")))
            await asyncio.to_thread(port.started.wait, 60)
            for _ in range(3):  # however often
                task.cancel()
                await asyncio.sleep(0)
            assert not task.done()
            port.may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await session.records()) == 1  # it was there when the task ended

    asyncio.run(work())


def test_a_call_that_is_cancelled_before_its_thread_begins_it_never_runs() -> None:
    """A thread was chosen for it and is held back: what it did later, nobody would ever learn."""
    chosen, may_begin = threading.Event(), threading.Event()

    def hold_back(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == "run" and frame.f_code.co_filename == aio.__file__:
            chosen.set()
            assert may_begin.wait(60)

    async def work() -> None:
        ran: list[str] = []
        async with everlog.open_async_store("memory:") as store:
            task = asyncio.create_task(store.call(ran.append, "late"))
            while not chosen.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            may_begin.set()
            await asyncio.gather(*(store.call(int) for _ in range(32)))  # every thread has had its turn
        assert ran == []

    threading.setprofile(hold_back)
    try:
        asyncio.run(work())
    finally:
        threading.setprofile(None)


@pytest.mark.parametrize("times", [1, 3])
def test_a_lease_taken_for_a_cancelled_task_is_given_back(times: int) -> None:
    """The thread takes it after the cancellation; nobody would ever give it back."""

    async def work() -> None:
        async with everlog.open_async_store("memory:") as store:
            session = await store.create()
            taking, cancelled = threading.Event(), threading.Event()
            take = session.sync.lease

            def take_late() -> everlog.Lease:
                taking.set()
                assert cancelled.wait(60)
                return take()

            session.sync.lease = take_late  # type: ignore[method-assign]
            task = asyncio.create_task(session.lease())
            await asyncio.to_thread(taking.wait, 60)
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            cancelled.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            take().release()  # it is free

    asyncio.run(work())
