"""Cron: prompts that are sent on a schedule.

Each run is a session of its own, tagged with its job. A run that is due while the previous one is
still running is skipped, and so is one that was missed while no daemon ran: runs never pile up.
The result of a job's last run and whether it is paused survive restarts. If several daemons have
the same jobs on one store, each due run is claimed by one of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, NotFoundError, RunCancelledError, SessionBusyError, SettingsError
from everlog.ids import timestamp
from everlog.runtime.background_task import BackgroundTask
from everlog.runtime.shared_jobs import JobState, SharedJobs
from everlog.settings import CronJob
from everlog.wire.responses import JobStatus

SNIPPET_CHARACTERS = 200  # of an error message
_MAX_SLEEP = 60.0  # seconds, so that a changed clock or a suspended machine is noticed


# Starts a run of a job at a time in the job's zone; returns the session and an awaitable end.
StartRun = Callable[[CronJob, datetime], Awaitable[tuple[str, Awaitable[object]]]]
SaveStates = Callable[[Mapping[str, JobState]], None]


class _LocalZone(tzinfo):
    """The machine's time zone with daylight saving time, which a fixed offset would not have."""

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        """Return the machine's offset at that time."""
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, dt: datetime | None) -> timedelta | None:
        """Return None: it is part of the offset."""
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        """Return the machine's name for the zone."""
        return None if dt is None else dt.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, dt: datetime) -> datetime:
        """Convert from UTC; sets `fold` in an hour that occurs twice."""
        return datetime.fromtimestamp(dt.replace(tzinfo=UTC).timestamp()).replace(tzinfo=self)


_LOCAL_ZONE = _LocalZone()


def zone_of(job: CronJob) -> tzinfo:
    """Return the time zone of a job; raises `SettingsError` if there is no such zone."""
    if not job.timezone:
        return _LOCAL_ZONE
    try:
        return ZoneInfo(job.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SettingsError(f"[[cron.jobs]] {job.id}: unknown time zone {job.timezone!r}") from error


def next_time(job: CronJob, after: datetime) -> datetime:
    """Return when a job is due next; raises `SettingsError` for an invalid schedule."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only needed with jobs

    try:
        # In the second pass of an hour that occurs twice, CronSim may return times of the first.
        times = (due for due in CronSim(job.schedule, after) if due.timestamp() > after.timestamp())
        return next(times)
    except (CronSimError, StopIteration) as error:
        raise SettingsError(
            f"[[cron.jobs]] {job.id}: invalid schedule {job.schedule!r}",
            hint="use five fields: minute hour day month weekday",
        ) from error


def check_jobs(jobs: Iterable[CronJob]) -> None:
    """Raise `SettingsError` if a job has an invalid or duplicate id, schedule or time zone."""
    ids: set[str] = set()
    for job in jobs:
        if not job.id or job.id in ids:
            raise SettingsError(f"[[cron.jobs]]: empty or duplicate id {job.id!r}")
        if job.id in (".", ".."):
            raise SettingsError(f"[[cron.jobs]]: the id {job.id!r} cannot be used in a URL")
        ids.add(job.id)
        next_time(job, datetime.now(zone_of(job)))


class Cron:
    """The scheduled jobs of one daemon."""

    def __init__(
        self,
        jobs: Iterable[CronJob],
        start_run: StartRun,
        *,
        states: Mapping[str, JobState] | None = None,
        save: SaveStates = lambda _: None,
        shared: SharedJobs | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Load `jobs`. Their states are `shared`, or else begin as `states` and go to `save`."""
        self._start_run = start_run
        self._save = save
        self._shared = shared
        self._clock = clock
        self._states = dict(states or {})
        self._jobs: dict[str, CronJob] = {}
        self._due: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._last_time = clock()
        self.task = BackgroundTask("cron", self._run_due_jobs, interval=self._seconds_to_wait)
        self.replace(jobs)

    def replace(self, jobs: Iterable[CronJob]) -> None:
        """Replace all jobs; raises `SettingsError` and changes nothing if one is invalid."""
        new_jobs = tuple(jobs)
        check_jobs(new_jobs)
        # An unchanged job keeps its due time: it may be due right now.
        unchanged = {name: due for name, due in self._due.items() if self._jobs[name] in new_jobs}
        self._jobs = {job.id: job for job in new_jobs}
        enabled = (job for job in new_jobs if job.enabled)
        self._due = {job.id: unchanged.get(job.id) or self._next(job) for job in enabled}
        self.task.wake()

    # --- public API

    def statuses(self) -> list[JobStatus]:
        """Return the status of all jobs, in the order of the settings."""
        return [self._status(job) for job in self._jobs.values()]

    async def refresh(self) -> None:
        """Load the states that other daemons have changed."""
        if self._shared is not None:
            self._states = dict(await self._shared.load())

    async def pause(self, name: str) -> None:
        """Skip the runs of a job until it is resumed. Raises `NotFoundError`."""
        await self._update(self._job(name), paused=True)

    async def resume(self, name: str) -> None:
        """Resume a paused job from its next due time on. Raises `NotFoundError`."""
        job = self._job(name)
        if job.enabled:
            self._due[name] = self._next(job)
        await self._update(job, paused=False)
        self.task.wake()

    async def run(self, name: str) -> str:
        """Start a run of a job now, paused or not; return the id of its session.

        Raises `NotFoundError`, or `SessionBusyError` if the job is running.
        """
        job = self._job(name)
        if name in self._running:
            raise SessionBusyError(f"job {name!r} is running", hint="wait until it has finished")
        return await asyncio.shield(self._begin_run(job))

    # --- internal

    def _seconds_to_wait(self) -> float:
        waits = (due.timestamp() - self._clock() for due in self._due.values())
        return max(min([*waits, _MAX_SLEEP]), 0)

    async def _run_due_jobs(self) -> None:
        """Start the runs that are due; they are ordinary turns, which a stop of the task does not end."""
        now = self._clock()
        if now < self._last_time - _MAX_SLEEP:  # the clock was set back
            self._due = {name: self._next(self._jobs[name]) for name in self._due}
        self._last_time = now
        for name, due in list(self._due.items()):
            if due.timestamp() <= now:
                job = self._jobs[name]
                self._due[name] = self._next(job)
                if name not in self._running:
                    self._begin_run(job, due)

    def _begin_run(self, job: CronJob, due: datetime | None = None) -> asyncio.Future[str]:
        """Start a run without waiting for it; the future holds the id of its session.

        A scheduled run (`due`) is skipped if the job is paused or another daemon claims it.
        """
        session_future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        session_future.add_done_callback(lambda done: done.cancelled() or done.exception())
        run = self._running[job.id] = asyncio.create_task(self._run_job(job, session_future, due))
        run.add_done_callback(lambda _: self._running.pop(job.id))  # after its end is recorded
        return session_future

    async def _claim(self, job: CronJob, due: datetime) -> bool:
        if self._shared is not None:
            state = await self._shared.claim(job, due)
            if state is None:
                return False
            self._states[job.id] = state
        return not self._state(job.id).paused

    async def _run_job(self, job: CronJob, session_future: asyncio.Future[str], due: datetime | None) -> None:
        error: Exception | None = None
        try:
            if due is not None and not await self._claim(job, due):
                return
            now = self._now(job)
            session, work = await self._start_run(job, now)
            started_at = timestamp(now.timestamp())
            # Clear the last result: if this process dies, it must not pass for that of this run.
            await self._try_update(
                job, last_run_at=started_at, last_session_id=session, last_status=None, last_error_snippet=None
            )
            session_future.set_result(session)
            await work
        except Exception as exception:  # other jobs must still run
            error = exception
            if not session_future.done():
                session_future.set_exception(exception)
        finally:
            session_future.cancel()  # has no effect if the session is known
        if not isinstance(error, RunCancelledError):
            await self._record_end(job, error)

    async def _record_end(self, job: CronJob, error: Exception | None) -> None:
        failures = 0 if error is None else self._state(job.id).consecutive_failures + 1
        await self._try_update(
            job,
            last_status="success" if error is None else "error",
            last_error_snippet=None if error is None else str(error)[:SNIPPET_CHARACTERS],
            consecutive_failures=failures,
        )

    def _job(self, name: str) -> CronJob:
        if name not in self._jobs:
            raise NotFoundError(f"no job named {name!r}")
        return self._jobs[name]

    def _state(self, name: str) -> JobState:
        return self._states.get(name, JobState())

    async def _update(self, job: CronJob, **changes: object) -> None:
        if self._shared is not None:
            self._states[job.id] = await self._shared.update(job.id, **changes)
            return
        self._states[job.id] = replace(self._state(job.id), **changes)
        # A pause survives while its job is temporarily removed from the settings.
        saved = {k: v for k, v in self._states.items() if k in self._jobs or v.paused}
        self._save(saved)

    async def _try_update(self, job: CronJob, **changes: object) -> None:
        """Update a job's state; if it cannot be saved now, the next change saves it."""
        with suppress(EverlogError, OSError):
            await self._update(job, **changes)

    def _now(self, job: CronJob) -> datetime:
        return datetime.fromtimestamp(self._clock(), zone_of(job))

    def _next(self, job: CronJob) -> datetime:
        return next_time(job, self._now(job))

    def _status(self, job: CronJob) -> JobStatus:
        state = self._state(job.id)
        due = self._due.get(job.id)
        return JobStatus(
            id=job.id,
            schedule=job.schedule,
            enabled=job.enabled,
            running=job.id in self._running,
            next_run_at=None if due is None or state.paused else timestamp(due.timestamp()),
            **msgspec.structs.asdict(state),
        )
