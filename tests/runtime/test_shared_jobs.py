"""Jobs of several daemons on one database: each time is one daemon's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from datetime import datetime

import pytest

from everlog.aio import AsyncStore
from everlog.context.tokens import estimate_text
from everlog.model import Event, user
from everlog.runtime.cron import Cron
from everlog.runtime.shared_jobs import SharedJobs
from everlog.session import Store
from everlog.settings import CronJob, Settings
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores, shared_server

DAILY = CronJob(id="daily", schedule="0 9 * * *", prompt="!say good morning", timezone="UTC")
RUN = "01M7HA9T1PNDJZVY1PB3VHMHB1"


@pytest.fixture
def stores() -> Iterator[Stores]:
    with Stores(shared_server()) as made:
        yield made


class Clock:
    """One that a test sets."""

    def __init__(self, text: str) -> None:
        self.set(text)

    def set(self, text: str) -> None:
        self.now = datetime.fromisoformat(f"{text}+00:00").timestamp()

    def __call__(self) -> float:
        return self.now


class Daemon:
    """The cron of one, on a store of its own; a run is a session that is left unfinished."""

    def __init__(self, port: PostgresStore, clock: Clock) -> None:
        self.store = AsyncStore(Store(port, Settings(), estimate_text))
        self.runs: list[str] = []
        jobs = SharedJobs(self.store, port.sharing)
        self.cron = Cron([DAILY], self._start, shared=jobs, clock=clock)

    async def _start(self, job: CronJob, when: datetime) -> tuple[str, Awaitable[object]]:
        session = await self.store.create(source="cron", cron_job_id=job.id)
        await session.append(user("work", run_id=RUN))
        self.runs.append(session.id)
        return session.id, asyncio.sleep(0)

    async def look(self) -> None:
        """Let it look at its clock, and do what is due."""
        self.cron.task.wake()
        for _ in range(20):
            await asyncio.sleep(0)
        while self.cron._running:
            await asyncio.sleep(0.005)


def test_a_time_is_one_daemons_and_one_that_comes_late_has_lost_it(stores: Stores) -> None:
    async def scenario() -> None:
        clock, late = Clock("2026-01-01T08:00"), Clock("2026-01-01T08:00")
        port = stores.new()
        daemons = [Daemon(port, clock), Daemon(stores.again(port), clock)]
        slow = Daemon(stores.again(port), late)
        for one in (*daemons, slow):
            one.cron.task.start()
        clock.set("2026-01-01T09:00:01")
        await asyncio.gather(*(one.look() for one in daemons))
        assert sorted(len(one.runs) for one in daemons) == [0, 1]
        late.set("2026-01-01T09:00:40")
        await slow.look()
        assert slow.runs == []
        for one in (*daemons, slow):
            await one.cron.refresh()
            (status,) = one.cron.statuses()
            assert status.last_status == "success"
            assert [status.last_session_id] == [*daemons[0].runs, *daemons[1].runs]
            await one.cron.task.stop()

    asyncio.run(scenario())


def test_a_run_is_left_out_while_the_last_one_goes_on_elsewhere(stores: Stores) -> None:
    async def scenario() -> None:
        clock, other = Clock("2026-01-01T08:00"), Clock("2026-01-01T08:00")
        port = stores.new()
        first, second = Daemon(port, clock), Daemon(stores.again(port), other)
        first.cron.task.start()
        second.cron.task.start()
        clock.set("2026-01-01T09:00:01")
        await first.look()
        (session,) = first.runs
        other.set("2026-01-02T09:00:01")
        await second.look()
        assert second.runs == []
        ended = Event(kind="turn_end", data={"runId": RUN})
        await (await second.store.session(session)).append(ended)
        other.set("2026-01-03T09:00:01")
        await second.look()
        assert len(second.runs) == 1
        await first.cron.task.stop()
        await second.cron.task.stop()

    asyncio.run(scenario())


def test_a_job_that_is_paused_on_one_daemon_rests_on_all(stores: Stores) -> None:
    async def scenario() -> None:
        clock = Clock("2026-01-01T08:00")
        port = stores.new()
        first, second = Daemon(port, clock), Daemon(stores.again(port), clock)
        second.cron.task.start()
        await first.cron.pause("daily")
        clock.set("2026-01-01T09:00:01")
        await second.look()
        assert second.runs == []
        await first.cron.resume("daily")
        clock.set("2026-01-02T09:00:01")
        await second.look()
        assert len(second.runs) == 1
        await second.cron.task.stop()

    asyncio.run(scenario())


def test_how_a_job_fared_survives_what_is_no_json(stores: Stores) -> None:
    async def scenario() -> None:
        port = stores.new()
        daemon = Daemon(port, Clock("2026-01-01T08:00"))
        port.sharing.change_job("daily", lambda _: b"\xff{")
        await daemon.cron.refresh()
        assert daemon.cron.statuses()[0].last_status is None
        await daemon.cron.pause("daily")
        assert daemon.cron.statuses()[0].paused

    asyncio.run(scenario())


def test_a_daemon_whose_clock_is_wrong_runs_no_job_and_says_so_once(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        year = datetime.now().year + 2
        ahead, right = Clock(f"{year}-01-01T08:00"), Clock("2026-01-01T08:00")
        port = stores.new()
        wrong, other = Daemon(port, ahead), Daemon(stores.again(port), right)
        wrong.cron.task.start()
        other.cron.task.start()
        for day in ("01", "02"):
            ahead.set(f"{year}-01-{day}T09:00:01")
            await wrong.look()
        right.set("2026-01-01T09:00:01")
        await other.look()
        assert (len(wrong.runs), len(other.runs)) == (0, 1)
        await wrong.cron.refresh()
        assert [one.last_status for one in wrong.cron.statuses()] == ["success"]
        await wrong.cron.task.stop()
        await other.cron.task.stop()

    asyncio.run(scenario())
    assert [one.levelname for one in caplog.records if "clock" in one.message] == ["WARNING"]
