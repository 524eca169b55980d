"""A store that breaks its word is told of; nothing that runs in the background ends by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.aio import AsyncStore
from everlog.daemon.listing_events import ListingWatcher
from everlog.model import Metadata, user
from everlog.ports import Page, Progress
from everlog.runtime import index_worker
from everlog.runtime.background_task import FIRST_PAUSE, RetryBackoff
from everlog.runtime.runtime import Runtime
from everlog.session import Store
from everlog.stores.file.file_store import FileStore
from everlog.wire.events import RunEvent, Status


class Breaking(FileStore):
    """A store that fails in a way no store may."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.breaks = False
        self.bad = ""
        self.caught_up = 0

    def metadata(self, session: str) -> Metadata:
        if session == self.bad:
            raise OverflowError("int too large to convert to float")
        return super().metadata(session)

    def list(self, *given: Any, **named: Any) -> Page:
        if self.breaks:
            raise OverflowError("int too large to convert to float")
        return super().list(*given, **named)

    def catch_up(self, progress: Progress | None = None) -> int:
        self.caught_up += 1
        if self.breaks:
            raise OverflowError("int too large to convert to float")
        return super().catch_up(progress)


@pytest.fixture
def port(tmp_path: Path) -> Breaking:
    return Breaking(tmp_path)


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.005)


def unfinished(port: Breaking) -> str:
    session = port.create().id
    port.append(session, [user("hello", run_id="r")])
    return session


def test_one_bad_session_does_not_keep_the_others_from_being_taken_over(port: Breaking) -> None:
    async def scenario() -> None:
        runtime = Runtime(AsyncStore(Store(port)))
        told: list[RunEvent] = []
        runtime.listeners.append(told.append)
        now = 0.0
        runtime.takeover.backoff = RetryBackoff(lambda: now)
        port.bad, *good = [unfinished(port) for _ in range(3)]
        await runtime.takeover.run_once()
        assert sorted(one.session_id for one in runtime.recovered) == sorted(good)
        (status,) = [one for one in told if isinstance(one, Status)]
        assert status.session_id == port.bad and "too large" in status.message
        port.bad, bad = "", port.bad
        now = FIRST_PAUSE
        await runtime.takeover.run_once()
        assert runtime.recovered[-1].session_id == bad
        await runtime.store.close()

    asyncio.run(scenario())


def test_looking_for_what_others_left_goes_on(port: Breaking) -> None:
    async def scenario() -> None:
        runtime = Runtime(AsyncStore(Store(port)))
        told: list[everlog.EverlogError] = []
        runtime.takeover.on_failure = told.append
        unfinished(port)
        port.breaks = True
        runtime.takeover.task.interval = 0.01
        runtime.takeover.task.start()
        await until(lambda: len(told) > 1)
        assert "OverflowError" in told[0].message
        port.breaks = False
        await until(lambda: runtime.recovered)
        await runtime.takeover.task.stop()
        await runtime.store.close()

    asyncio.run(scenario())


def test_taking_in_goes_on(port: Breaking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_worker, "PAUSE_SECONDS", 0.0)

    async def scenario() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        port.breaks = True
        taking = index_worker.IndexWorker(AsyncStore(Store(port)))
        taking.task.start()
        await until(lambda: told)
        assert isinstance(told[0]["exception"], OverflowError)
        port.breaks = False
        taking.task.wake()
        await until(lambda: port.caught_up == 2)
        await taking.task.stop()

    asyncio.run(scenario())


def test_looking_at_the_listing_goes_on(port: Breaking, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        runtime = Runtime(AsyncStore(Store(port)))
        watching = runtime.feed.subscribe()
        board = ListingWatcher(runtime, poll_seconds=0.01)
        port.breaks = True
        board.start()
        board.watch(watching)
        await until(lambda: "refresh_failed" in capsys.readouterr().err)
        port.breaks = False
        async with asyncio.timeout(60):
            await anext(aiter(watching))
        await board.stop()
        await runtime.store.close()

    asyncio.run(scenario())
