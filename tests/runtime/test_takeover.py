"""A process that dies beside a running one: what it left goes on without a restart."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import everlog
from everlog.aio import AsyncStore
from everlog.app import open_runtime
from everlog.model import Event, user
from everlog.runtime.background_task import FIRST_PAUSE, MAX_ITEMS, MAX_PAUSE, RetryBackoff
from everlog.runtime.run import RecoveredSession
from everlog.runtime.runtime import Runtime
from everlog.session import Store
from everlog.settings import Settings, TurnSettings
from everlog.stores.file.file_store import FileStore
from everlog.stores.file.locks import FileLease
from everlog.wire.events import RunEvent, Status

QUIET = Settings(turn=TurnSettings(titles=False))
# Begins a turn that takes long, with another message behind it.
OTHER = """
import asyncio, sys
from everlog.app import open_runtime

async def main():
    runtime = open_runtime(home=sys.argv[1], create=True)
    session = await runtime.store.session(sys.argv[2])
    await runtime.submit(session, "!wait 50")
    await runtime.submit(session, "!say after it")
    print("taken", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.crash
def test_what_a_killed_process_left_is_taken_over_by_one_that_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=QUIET)
        found: list[RecoveredSession] = []
        runtime.takeover.on_takeover = found.append
        session = await runtime.create()
        other = subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path), session.id], stdout=subprocess.PIPE)
        assert other.stdout is not None
        await asyncio.to_thread(other.stdout.readline)
        await runtime.takeover.run_once()
        assert found == [], "it lives"
        other.send_signal(signal.SIGKILL)
        other.wait()
        other.stdout.close()
        left = await session.metadata()
        assert left.run is not None and len(left.waiting) == 1, "so it would stay until a restart"
        await runtime.takeover.run_once()
        assert [(one.session_id, one.waiting) for one in found] == [(session.id, 1)]
        assert runtime.health().recovered == 1
        async with asyncio.timeout(60):
            while (await session.metadata()).unfinished:
                await asyncio.sleep(0.01)
        texts = [one.text for one in await session.messages()]
        assert texts == ["!wait 50", "!say after it", "after it"]
        kinds = [one.kind for one in await session.records() if isinstance(one, Event)]
        assert kinds == ["queued", "turn_interrupted", "turn_end"]
        await runtime.takeover.run_once()
        assert len(found) == 1, "once is enough"
        await runtime.drain(5)
        await runtime.store.close()

    asyncio.run(scenario())


def test_a_turn_that_runs_here_is_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=QUIET)
        found: list[RecoveredSession] = []
        runtime.takeover.on_takeover = found.append
        session = await runtime.create()
        run = await runtime.submit(session, "!wait 0.2\n!say done")
        await runtime.takeover.run_once()
        assert (await run.answer()).reply.text == "done" and found == []
        await runtime.drain(5)
        await runtime.store.close()

    asyncio.run(scenario())


def test_a_store_that_fails_is_told_and_looked_at_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=QUIET)
        told: list[everlog.EverlogError] = []
        runtime.takeover.on_failure = told.append
        runtime.takeover.task.interval = 0.01
        runtime.takeover.task.start()
        await runtime.store.close()
        async with asyncio.timeout(60):
            while len(told) < 2:
                await asyncio.sleep(0.01)
        await runtime.takeover.task.stop()
        assert isinstance(told[0], everlog.StoreFailedError)

    asyncio.run(scenario())


class Counting(FileStore):
    """Counts how often a turn was taken."""

    taken = 0

    def lease(self, session: str) -> FileLease:
        self.taken += 1
        return super().lease(session)


def test_a_session_that_cannot_be_repaired_is_tried_ever_more_rarely_and_told_of_once(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    session = store.create().id
    store.append(session, [user("hello", run_id="r1")])
    store.close()
    with open(tmp_path / "sessions" / session / "session.jsonl", "ab") as log:
        log.write(b'{"recordType":"poll","schemaVersion":7,"seq":2}\n')

    async def scenario() -> None:
        port = Counting(tmp_path)
        runtime = Runtime(AsyncStore(Store(port, QUIET)))
        events: list[RunEvent] = []
        runtime.listeners.append(events.append)
        now = 0.0
        runtime.takeover.backoff = RetryBackoff(lambda: now)
        assert await runtime.start() == []
        tried = []
        for second in range(2000):
            now = float(second)
            before = port.taken
            await runtime.takeover.run_once()
            if port.taken > before:
                tried.append(second)
        assert tried == [5, 15, 35, 75, 155, 315, 635, 1235, 1835]
        (told,) = [one for one in events if isinstance(one, Status)]
        assert told.session_id == session and "newer everlog" in told.message
        await runtime.drain(5)
        await runtime.store.close()

    asyncio.run(scenario())


def test_setbacks_are_forgotten_with_their_cause_and_told_again_when_it_is_another() -> None:
    now = 0.0
    setbacks = RetryBackoff(lambda: now)
    assert setbacks.is_due("a")
    assert [setbacks.record_failure("a", why) for why in ("full", "full", "newer")] == [True, False, True]
    assert not setbacks.is_due("a") and setbacks.is_due("b")
    now = 4 * FIRST_PAUSE
    assert setbacks.is_due("a")
    for _ in range(20):
        setbacks.record_failure("a", "newer")
    now += MAX_PAUSE
    assert setbacks.is_due("a")
    setbacks.record_failure("a", "newer")
    setbacks.forget("a")
    assert setbacks.is_due("a") and setbacks.record_failure("a", "newer")
    for number in range(MAX_ITEMS):
        setbacks.record_failure(f"{number}", "x")
    assert setbacks.is_due("a"), "the oldest of very many is not kept"
