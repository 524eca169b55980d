"""The asynchronous face: the same verbs, and an append that is never half awaited."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import everlog
from everlog.model import AnyRecord
from everlog.ports import Store as Port
from everlog.stores.in_memory import InMemoryStore


def test_the_verbs_are_there_and_do_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        async with everlog.open_async_store(tmp_path / "root") as store:
            session = await store.create(agent="a", sender="s")
            await session.append(everlog.user("one"))
            await session.append_many(
                [everlog.assistant("two"), everlog.user("three")], expected_seq=1
            )
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
            latest = await store.latest(agent="a", sender="s")
            assert latest is not None
            assert latest.id == fork.id
            (await session.lease()).release()
            assert await fork.delete() == 1
            assert [row.id for row in await store.list(agent="a")] == [session.id]
            assert (await store.session(session.id)).id == session.id

    asyncio.run(work())


def test_many_appends_at_once_are_all_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with everlog.open_async_store(tmp_path / "root") as store:
            session = await store.create()
            await asyncio.gather(*(session.append(everlog.user(str(n))) for n in range(40)))
            assert [record.seq for record in await session.records()] == list(range(1, 41))

    asyncio.run(work())


def test_a_cancelled_append_is_awaited_to_its_end() -> None:
    class Slow(InMemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.started = asyncio.Event()
            self.loop = asyncio.get_running_loop()

        def append(self, session: str, records: object, **rest: object) -> list[AnyRecord]:
            self.loop.call_soon_threadsafe(self.started.set)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), self.loop).result()
            return super().append(session, records, **rest)  # type: ignore[arg-type]

    async def work() -> None:
        port = Slow()
        checked: Port = port
        async with everlog.AsyncStore(everlog.Store(checked)) as store:
            session = await store.create()
            task = asyncio.create_task(session.append(everlog.user("x")))
            await port.started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await session.records()) == 1  # it was there when the task ended

    asyncio.run(work())


def test_a_lease_taken_for_a_cancelled_task_is_given_back() -> None:
    async def run() -> None:
        async with everlog.open_async_store("memory:") as store:
            session = await store.create()
            taking = threading.Event()
            cancelled = threading.Event()
            take = session.sync.lease

            def slowly() -> everlog.Lease:
                taking.set()
                cancelled.wait(10)
                return take()

            session.sync.lease = slowly  # type: ignore[method-assign]
            task = asyncio.create_task(session.lease())
            await asyncio.to_thread(taking.wait, 10)
            task.cancel()
            cancelled.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            take().release()

    asyncio.run(run())


def test_a_lease_is_given_back_however_often_its_taker_is_cancelled(tmp_path: Path) -> None:
    """The thread takes it after the second cancellation; nobody would ever give it back."""

    async def scenario() -> None:
        async with everlog.open_async_store(tmp_path) as store:
            session = await store.create()
            go = threading.Event()
            take = session.sync.lease

            def slowly() -> everlog.Lease:
                go.wait(5)
                return take()

            session.sync.lease = slowly  # type: ignore[method-assign]
            taking = asyncio.create_task(session.lease())
            await asyncio.sleep(0.01)
            for _ in range(3):
                taking.cancel()
                await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await taking
            take().release()  # it is free

    asyncio.run(scenario())
