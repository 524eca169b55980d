"""Cron: jobs run at their times, never pile up, and their fate is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

import everlog
from everlog.app import open_runtime
from everlog.errors import NotFoundError, SessionBusyError, SettingsError
from everlog.runtime.cron import Cron, check_jobs, next_time
from everlog.runtime.shared_jobs import JobState, SharedJobs
from everlog.settings import CronJob, CronPolicy, CronSettings, Settings, TurnSettings

T = TypeVar("T")
DAILY = CronJob(id="daily", schedule="0 9 * * *", prompt="!say good morning", timezone="UTC")


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Clock:
    """A clock that a test sets."""

    def __init__(self, text: str) -> None:
        self.set(text)

    def set(self, text: str) -> None:
        self.now = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.now


class Runs:
    """What was started, and how each ends."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str]] = []
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, job: CronJob, when: datetime) -> tuple[str, Awaitable[object]]:
        self.started.append((job.id, f"{when:%Y-%m-%d %H:%M}"))
        return f"session{len(self.started)}", self.end


async def _pass(cron: Cron) -> None:
    """Let the cron look at its clock again."""
    cron.task.wake()
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "due"),
    [
        ("*/15 * * * *", "UTC", "2026-01-01T10:07:00", "2026-01-01T10:15:00+00:00"),
        ("0 9 * * 1-5", "UTC", "2026-01-03T10:00:00", "2026-01-05T09:00:00+00:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-01-01T02:00:00", "2026-01-02T02:30:00+01:00"),
    ],
)
def test_the_next_time_is_that_of_the_schedule_in_its_zone(schedule: str, zone: str, after: str, due: str) -> None:
    async def scenario() -> str | None:
        job = CronJob(id="j", schedule=schedule, prompt="p", timezone=zone)
        cron = Cron([job], Runs(), clock=Clock(after))
        return cron.statuses()[0].next_run_at

    expected = datetime.fromisoformat(due).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert _run(scenario()) == expected


@pytest.mark.parametrize(
    "jobs",
    [
        [CronJob(id="a", schedule="every day", prompt="p")],
        [CronJob(id="a", schedule="99 * * * *", prompt="p")],
        [CronJob(id="", schedule="* * * * *", prompt="p")],
        [DAILY, DAILY],
        [CronJob(id="a", schedule="* * * * *", prompt="p", timezone="Mars/Olympus")],
    ],
)
def test_a_job_that_could_never_run_is_refused(jobs: list[CronJob]) -> None:
    with pytest.raises(SettingsError, match=r"\[\[cron\.jobs\]\]"):
        check_jobs(jobs)


def test_a_schedule_that_never_comes_is_refused() -> None:
    with pytest.raises(SettingsError):
        next_time(CronJob(id="a", schedule="0 0 30 2 *", prompt="p"), datetime.now(UTC))


def test_a_job_runs_when_it_is_due_and_not_before() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:59:59"), Runs()
        cron = Cron([DAILY], runs, clock=clock)
        cron.task.start()
        await _pass(cron)
        assert runs.started == []
        clock.set("2026-01-01T09:00:00")
        await _pass(cron)
        assert runs.started == [("daily", "2026-01-01 09:00")]
        assert cron.statuses()[0].running
        runs.end.set_result(None)
        await _pass(cron)
        status = cron.statuses()[0]
        assert (status.running, status.last_status, status.last_session_id) == (False, "success", "session1")
        assert status.next_run_at == "2026-01-02T09:00:00.000Z"
        await cron.task.stop()

    _run(scenario())


def test_runs_that_were_missed_or_overlap_do_not_pile_up() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:00:00"), Runs()
        cron = Cron([DAILY], runs, clock=clock)
        cron.task.start()
        clock.set("2026-01-05T12:00:00")  # the machine slept for days
        await _pass(cron)
        assert len(runs.started) == 1
        clock.set("2026-01-06T09:00:00")  # it is due, and the last one still runs
        await _pass(cron)
        assert len(runs.started) == 1
        with pytest.raises(SessionBusyError):
            await cron.run("daily")
        runs.end.set_result(None)
        await _pass(cron)
        clock.set("2026-01-07T09:00:00")
        await _pass(cron)
        assert len(runs.started) == 2
        await cron.task.stop()

    _run(scenario())


def test_a_restart_does_not_run_what_was_due_before_it() -> None:
    async def scenario() -> None:
        runs = Runs()
        cron = Cron([DAILY], runs, clock=Clock("2026-01-01T09:00:30"))
        cron.task.start()
        await _pass(cron)
        assert runs.started == []
        await cron.task.stop()

    _run(scenario())


def test_a_paused_job_does_not_run_until_it_is_resumed_and_that_is_kept() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:00:00"), Runs()
        saved: dict[str, JobState] = {}
        cron = Cron([DAILY], runs, clock=clock, save=saved.update)
        cron.task.start()
        await cron.pause("daily")
        assert cron.statuses()[0].next_run_at is None
        clock.set("2026-01-01T09:00:00")
        await _pass(cron)
        assert runs.started == [] and saved["daily"].paused
        await cron.task.stop()

        cron = Cron([DAILY], runs, clock=clock, states=saved)
        assert cron.statuses()[0].paused
        cron.task.start()
        await cron.resume("daily")
        clock.set("2026-01-02T09:00:00")
        await _pass(cron)
        assert len(runs.started) == 1
        await cron.task.stop()
        for verb in (cron.pause, cron.resume, cron.run):
            with pytest.raises(NotFoundError):
                await verb("nothing")

    _run(scenario())


def test_a_job_that_is_disabled_is_not_run_by_resuming_it() -> None:
    async def scenario() -> None:
        job = CronJob(id="off", schedule="* * * * *", prompt="p", enabled=False)
        cron = Cron([job], Runs(), clock=Clock("2026-01-01T08:00:00"))
        await cron.resume("off")
        assert cron.statuses()[0].next_run_at is None

    _run(scenario())


def test_the_machines_own_zone_follows_its_summer_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        job = CronJob(id="j", schedule="0 9 * * *", prompt="p")

        async def scenario() -> str | None:
            cron = Cron([job], Runs(), clock=Clock("2026-10-24T12:00:00"))
            return cron.statuses()[0].next_run_at

        assert _run(scenario()) == "2026-10-25T08:00:00.000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_mistake_of_ours_in_one_job_does_not_stop_the_others() -> None:
    async def scenario() -> None:
        clock = Clock("2026-01-01T08:59:00")
        started: list[str] = []

        async def start(job: CronJob, when: datetime) -> tuple[str, Awaitable[object]]:
            started.append(job.id)
            raise ZeroDivisionError("odd")

        other = CronJob(id="other", schedule="0 9 * * *", prompt="p", timezone="UTC")
        cron = Cron([DAILY, other], start, clock=clock)
        cron.task.start()
        clock.set("2026-01-01T09:00:00")
        await _pass(cron)
        assert started == ["daily", "other"]
        assert [one.last_error_snippet for one in cron.statuses()] == ["odd", "odd"]
        await cron.task.stop()

    _run(scenario())


def test_failures_in_a_row_are_counted_and_the_last_one_is_told() -> None:
    async def scenario() -> None:
        runs = Runs()
        cron = Cron([DAILY], runs, clock=Clock("2026-01-01T08:00:00"))
        for at in (1, 2):
            runs.end = asyncio.get_running_loop().create_future()
            await cron.run("daily")
            runs.end.set_exception(everlog.ProviderError("x" * 300))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            status = cron.statuses()[0]
            assert (status.last_status, status.consecutive_failures) == ("error", at)
            assert len(status.last_error_snippet or "") == 200
        runs.end = asyncio.get_running_loop().create_future()
        await cron.run("daily")
        runs.end.set_result(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert cron.statuses()[0].consecutive_failures == 0

    _run(scenario())


def test_how_the_run_before_ended_is_not_told_of_one_that_was_broken_off() -> None:
    async def scenario() -> None:
        runs, kept = Runs(), dict[str, JobState]()
        cron = Cron([DAILY], runs, save=kept.update, clock=Clock("2026-01-01T08:00:00"))
        for ended in (None, everlog.ProviderError("away"), everlog.RunCancelledError("stopped")):
            runs.end = asyncio.get_running_loop().create_future()
            await cron.run("daily")
            begun = kept["daily"]  # as another process finds it when this one is killed
            assert (begun.last_status, begun.last_error_snippet) == (None, None)
            assert begun.last_run_at
            if ended is None:
                runs.end.set_result(None)
            else:
                runs.end.set_exception(ended)
            while cron.statuses()[0].running:
                await asyncio.sleep(0)
        assert cron.statuses()[0].last_status is None, "it was stopped, and neither of the two"

    _run(scenario())


def test_a_pause_outlives_that_its_job_is_out_of_the_settings() -> None:
    async def scenario() -> None:
        saved: list[Mapping[str, JobState]] = []
        other = CronJob(id="other", schedule="* * * * *", prompt="p")
        cron = Cron([DAILY, other], Runs(), save=saved.append, clock=Clock("2026-01-01T08:00:00"))
        await cron.pause("daily")
        cron.replace([other])
        await cron.pause("other")
        await cron.resume("other")
        again = Cron([DAILY], Runs(), states=saved[-1], clock=Clock("2026-01-01T08:00:00"))
        assert again.statuses()[0].paused

    _run(scenario())


@pytest.mark.parametrize("name", [".", ".."])
def test_an_id_that_no_address_can_name_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be used in a URL"):
        check_jobs([CronJob(id=name, schedule="* * * * *", prompt="p")])


def test_other_jobs_take_over_at_once_and_wrong_ones_change_nothing() -> None:
    async def scenario() -> None:
        cron = Cron([DAILY], Runs(), clock=Clock("2026-01-01T08:00:00"))
        with pytest.raises(SettingsError):
            cron.replace([CronJob(id="a", schedule="nonsense", prompt="p")])
        assert [one.id for one in cron.statuses()] == ["daily"]
        cron.replace([CronJob(id="b", schedule="* * * * *", prompt="p", enabled=False)])
        assert [(one.id, one.enabled, one.next_run_at) for one in cron.statuses()] == [("b", False, None)]

    _run(scenario())


# --- through the runtime


def _settings(*jobs: CronJob) -> Settings:
    return Settings(cron=CronSettings(jobs=jobs), turn=TurnSettings(titles=False))


def test_each_run_is_a_session_of_its_own_tagged_with_its_job(tmp_path: Path) -> None:
    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=_settings(DAILY))
        await runtime.start()
        for _ in range(2):
            session = await runtime.store.session(await runtime.cron.run("daily"))
            await _answered(runtime, session.id)
            known = await session.metadata()
            assert (known.source, known.cron_job_id, known.sender) == ("cron", "daily", "cron")
            assert (known.title or "").startswith("[cron] daily — 20")
            said = [one.text for one in await session.messages()]
            assert said == ["!say good morning", "good morning"]
        assert (await runtime.store.list(source="cron")).total == 2
        await runtime.drain(1)
        await runtime.store.close()

    _run(scenario())
    saved = (tmp_path / "run" / "cron.json").read_text()
    assert '"lastStatus":"success"' in saved
    assert (tmp_path / "run" / "cron.json").stat().st_mode & 0o777 == 0o600


async def _answered(runtime: Any, session: str) -> None:
    while (run := runtime.current(session)) is not None:
        await run.answer()
        await asyncio.sleep(0)


def test_a_run_may_use_tools_that_read_and_others_only_if_its_policy_says_so(tmp_path: Path) -> None:
    prompt = "!call current_time {}\n!then\n!call ask_agent {}"
    jobs = [
        CronJob(id="read", schedule="0 0 1 1 *", prompt=prompt),
        CronJob(id="none", schedule="0 0 1 1 *", prompt=prompt, policy=CronPolicy(allowed_tools=())),
        CronJob(id="once", schedule="0 0 1 1 *", prompt=prompt, policy=CronPolicy(max_iterations=1)),
    ]

    async def scenario() -> dict[str, list[str]]:
        runtime = open_runtime(home=tmp_path, create=True, settings=_settings(*jobs))
        await runtime.start()
        results = {}
        for job in jobs:
            session = await runtime.store.session(await runtime.cron.run(job.id))
            await _answered(runtime, session.id)
            messages = await session.messages()
            results[job.id] = [one.text for one in messages if one.role == "toolResult"]
        await runtime.drain(1)
        await runtime.store.close()
        return results

    results = _run(scenario())
    assert results["read"][0].startswith("20")
    assert "unknown tool 'ask_agent'" in results["read"][1]
    assert ["unknown tool" in text for text in results["none"]] == [True, True]
    assert len(results["once"]) == 1


def test_a_system_job_runs_in_the_main_session_of_its_agent(tmp_path: Path) -> None:
    job = CronJob(id="tidy", schedule="0 0 1 1 *", prompt="!say tidy", system=True, agent="Main")

    async def scenario() -> None:
        runtime = open_runtime(home=tmp_path, create=True, settings=_settings(job))
        await runtime.start()
        first = await runtime.cron.run("tidy")
        await _answered(runtime, first)
        while any(status.running for status in runtime.cron.statuses()):
            await asyncio.sleep(0.001)
        assert await runtime.cron.run("tidy") == first
        assert (await runtime.store.session("agent:main:main")).id == first
        await runtime.drain(1)
        await runtime.store.close()

    _run(scenario())


# --- when things go wrong


HOURLY = CronJob(id="hourly", schedule="0 * * * *", prompt="p", timezone="UTC")
OTHER = CronJob(id="other", schedule="0 9 * * *", prompt="p", timezone="UTC")


class Slow(Runs):
    """Runs that take a while to start."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start = asyncio.Event()

    async def __call__(self, job: CronJob, when: datetime) -> tuple[str, Awaitable[object]]:
        if job.id == "daily":
            await self.may_start.wait()
        return await super().__call__(job, when)


def test_a_job_whose_start_hangs_does_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:59:00"), Slow()
        cron = Cron([DAILY, OTHER], runs, clock=clock)
        cron.task.start()
        clock.set("2026-01-01T09:00:00")
        await _pass(cron)
        assert [name for name, _ in runs.started] == ["other"]
        assert [one.running for one in cron.statuses()] == [True, True]
        runs.may_start.set()
        await _pass(cron)
        assert [name for name, _ in runs.started] == ["other", "daily"]
        await cron.task.stop()

    _run(scenario())


def test_a_job_that_is_just_being_started_is_not_started_once_more() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:59:00"), Slow()
        cron = Cron([DAILY], runs, clock=clock)
        cron.task.start()
        first = asyncio.create_task(cron.run("daily"))
        await asyncio.sleep(0)
        with pytest.raises(SessionBusyError):
            await cron.run("daily")
        clock.set("2026-01-01T09:00:00")
        await _pass(cron)
        runs.may_start.set()
        assert await first == "session1"
        await _pass(cron)
        assert len(runs.started) == 1
        await cron.task.stop()

    _run(scenario())


def test_who_goes_away_while_a_job_starts_does_not_stop_it() -> None:
    async def scenario() -> None:
        runs = Slow()
        cron = Cron([DAILY], runs, clock=Clock("2026-01-01T08:59:00"))
        asking = asyncio.create_task(cron.run("daily"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        runs.may_start.set()
        runs.end.set_result(None)
        await _pass(cron)
        status = cron.statuses()[0]
        assert (status.running, status.last_status) == (False, "success")

    _run(scenario())


def test_a_job_that_is_removed_while_another_starts_does_not_stop_the_rest() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:59:00"), Slow()
        cron = Cron([DAILY, OTHER, HOURLY], runs, clock=clock)
        cron.task.start()
        clock.set("2026-01-01T09:00:00")
        cron.task.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cron.replace([HOURLY])
        runs.may_start.set()
        runs.end.set_result(None)
        await _pass(cron)
        clock.set("2026-01-01T10:00:00")
        await _pass(cron)
        assert ("hourly", "2026-01-01 10:00") in runs.started
        await cron.task.stop()

    _run(scenario())


def test_a_state_that_cannot_be_saved_stops_no_job() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:59:00"), Runs()
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)

        def full(_: Any) -> None:
            raise everlog.StoreFullError("no room")

        cron = Cron([HOURLY], runs, clock=clock, save=full)
        cron.task.start()
        for hour in ("09", "10", "11"):
            runs.end = asyncio.get_running_loop().create_future()
            clock.set(f"2026-01-01T{hour}:00:00")
            await _pass(cron)
            runs.end.set_result(None)
            await _pass(cron)
            assert not cron.statuses()[0].running
        assert len(runs.started) == 3
        assert cron.statuses()[0].last_status == "success"
        await cron.task.stop()

    _run(scenario())


class Elsewhere(SharedJobs):
    """What is kept of jobs, in a place that takes its time."""

    def __init__(self) -> None:
        self.state = JobState()
        self.is_answering = asyncio.Event()

    async def load(self) -> dict[str, JobState]:
        return {DAILY.id: self.state}

    async def claim(self, job: CronJob, due: datetime) -> JobState | None:
        return self.state

    async def update(self, job: str, **changes: Any) -> JobState:
        await self.is_answering.wait()
        self.state = replace(self.state, **changes)
        return self.state


def test_a_job_is_running_until_how_it_ended_is_known() -> None:
    async def scenario() -> None:
        runs, shared = Runs(), Elsewhere()
        cron = Cron([DAILY], runs, shared=shared, clock=Clock("2026-01-01T08:00:00"))
        shared.is_answering.set()
        await cron.run("daily")
        shared.is_answering.clear()
        runs.end.set_result(None)
        await _pass(cron)
        assert (cron.statuses()[0].running, cron.statuses()[0].last_status) == (True, None)
        shared.is_answering.set()
        await _pass(cron)
        assert (cron.statuses()[0].running, cron.statuses()[0].last_status) == (False, "success")

    _run(scenario())


def test_settings_that_are_read_again_just_when_a_job_is_due_do_not_skip_it() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2026-01-01T08:59:00"), Runs()
        cron = Cron([DAILY], runs, clock=clock)
        cron.task.start()
        clock.set("2026-01-01T09:00:00")
        cron.replace([DAILY, OTHER])
        await _pass(cron)
        assert runs.started == [("daily", "2026-01-01 09:00")]
        await cron.task.stop()

    _run(scenario())


def test_a_clock_that_is_set_back_far_does_not_silence_the_jobs() -> None:
    async def scenario() -> None:
        clock, runs = Clock("2030-01-01T08:30:00"), Runs()
        cron = Cron([HOURLY], runs, clock=clock)
        cron.task.start()
        await _pass(cron)
        clock.set("2026-01-01T08:30:00")
        await _pass(cron)
        assert cron.statuses()[0].next_run_at == "2026-01-01T09:00:00.000Z"
        clock.set("2026-01-01T09:00:00")
        await _pass(cron)
        clock.set("2026-01-01T08:59:59")  # a small step back runs nothing twice
        await _pass(cron)
        clock.set("2026-01-01T09:00:01")
        await _pass(cron)
        assert len(runs.started) == 1
        await cron.task.stop()

    _run(scenario())


@pytest.mark.parametrize("zone", ["", "Europe/Berlin"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_days_with_a_changed_clock_have_each_run_once(monkeypatch: pytest.MonkeyPatch, zone: str, day: str) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    jobs = [
        CronJob(id="night", schedule="30 2 * * *", prompt="p", timezone=zone),
        CronJob(id="often", schedule="*/20 * * * *", prompt="p", timezone=zone),
    ]

    async def scenario() -> list[str]:
        clock, runs = Clock(f"{day}T00:00:00"), Runs()
        runs.end.set_result(None)
        cron = Cron(jobs, runs, clock=clock)
        cron.task.start()
        for minute in range(3 * 60):
            clock.now += 60
            before = len(runs.started)
            await _pass(cron)
            await _pass(cron)
            assert len(runs.started) - before <= 2, f"minute {minute}"
        await cron.task.stop()
        return [name for name, _ in runs.started]

    try:
        started = _run(scenario())
    finally:
        monkeypatch.undo()
        time.tzset()
    assert started.count("night") == 1
    assert started.count("often") == 9, "each 20 minutes of three hours"


@pytest.mark.parametrize("zone", ["", "Europe/Berlin"])
@pytest.mark.parametrize("schedule", ["30 2 * * *", "*/20 * * * *", "* * * * *"])
def test_the_next_time_is_never_in_the_past_when_an_hour_comes_twice(
    monkeypatch: pytest.MonkeyPatch, zone: str, schedule: str
) -> None:
    """Otherwise a job is due at once, again and again, for as long as that hour lasts."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        job = CronJob(id="j", schedule=schedule, prompt="p", timezone=zone)

        async def scenario() -> float:
            clock = Clock("2026-10-25T01:10:00")  # 02:10 for the second time
            due = Cron([job], Runs(), clock=clock).statuses()[0].next_run_at
            return datetime.fromisoformat(due or "").timestamp() - clock.now

        assert _run(scenario()) > 0
    finally:
        monkeypatch.undo()
        time.tzset()
