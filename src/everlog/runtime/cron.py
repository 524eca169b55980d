"""Cron: prompts that are sent at certain times.

Each run is a session of its own, tagged with its job. A run that is due while the last one still
goes on is left out, and so is one that was missed while nothing ran: runs never pile up. What a
job has come to, and whether it is paused, is kept across restarts. Where several daemons have the
same jobs on one store, each run that is due is one daemon's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.structs import replace

from everlog.errors import (
    EverlogError,
    NotFoundError,
    RunCancelledError,
    SessionBusyError,
    SettingsError,
)
from everlog.ids import timestamp
from everlog.settings import CronJob

SNIPPET = 200  # characters of an error that are kept
_LONGEST_SLEEP = 60.0  # seconds: a clock that is set, or a machine that slept, is noticed by then


class JobStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A job and how it has fared."""

    id: str
    schedule: str
    enabled: bool
    paused: bool = False
    running: bool = False
    last_run_at: str | None = None
    last_status: str | None = None  # "success" or "error"; None: it runs, or was broken off
    last_error_snippet: str | None = None
    last_session_id: str | None = None
    consecutive_failures: int = 0
    next_run_at: str | None = None


class Fared(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What is kept of a job across restarts."""

    paused: bool = False
    last_run_at: str | None = None
    last_status: str | None = None
    last_error_snippet: str | None = None
    last_session_id: str | None = None
    consecutive_failures: int = 0


# Starts a run of a job at a time of its own zone: the session, and what to wait for.
Start = Callable[[CronJob, datetime], Awaitable[tuple[str, Awaitable[object]]]]
Save = Callable[[Mapping[str, Fared]], None]


class Shared(Protocol):
    """What is kept of jobs where several daemons have them."""

    async def load(self) -> Mapping[str, Fared]:
        """What is known of all jobs."""
        ...

    async def take(self, job: CronJob, due: datetime) -> Fared | None:
        """Be the one that runs a job for a time, or None; what is known of it."""
        ...

    async def change(self, job: str, **changes: object) -> Fared:
        """Change what is known of a job, and return it."""
        ...


class _Machine(tzinfo):
    """The machine's own time zone with its summer time, which a fixed offset would not know."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        """By the machine's rules for that day."""
        return None if when is None else when.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, when: datetime | None) -> timedelta | None:
        """Part of the offset."""
        return None

    def tzname(self, when: datetime | None) -> str | None:
        """As the machine calls it."""
        return None if when is None else when.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, when: datetime) -> datetime:
        """The hour that comes twice is told apart."""
        return datetime.fromtimestamp(when.replace(tzinfo=UTC).timestamp()).replace(tzinfo=self)


_MACHINE = _Machine()


def zone_of(job: CronJob) -> tzinfo:
    """The time zone that a job's schedule is in."""
    if not job.timezone:
        return _MACHINE
    try:
        return ZoneInfo(job.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise SettingsError(
            f"[[cron.jobs]] {job.id}: there is no time zone {job.timezone!r}"
        ) from error


def next_time(job: CronJob, after: datetime) -> datetime:
    """When a job is due next."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only who has jobs needs it

    try:
        # Of an hour that the clock goes through twice it may give the first one in the second.
        times = (due for due in CronSim(job.schedule, after) if due.timestamp() > after.timestamp())
        return next(times)
    except (CronSimError, StopIteration) as error:
        raise SettingsError(
            f"[[cron.jobs]] {job.id}: not a schedule: {job.schedule!r}",
            hint="five fields: minute hour day month weekday",
        ) from error


def check(jobs: Iterable[CronJob]) -> None:
    """Refuse jobs that could never run as they are meant."""
    seen: set[str] = set()
    for job in jobs:
        if not job.id or job.id in seen:
            raise SettingsError(f"[[cron.jobs]]: the id {job.id!r} is empty or there twice")
        if job.id in (".", ".."):
            raise SettingsError(f"[[cron.jobs]]: {job.id!r} is no id: no address can name it")
        seen.add(job.id)
        next_time(job, datetime.now(zone_of(job)))


class Cron:
    """The jobs of one daemon."""

    def __init__(
        self,
        jobs: Iterable[CronJob],
        start: Start,
        *,
        fared: Mapping[str, Fared] | None = None,
        save: Save = lambda _: None,
        shared: Shared | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """What jobs have come to is `shared` with others, or `fared`, which `save` keeps."""
        self._start = start
        self._save = save
        self._shared = shared
        self._clock = clock
        self._fared = dict(fared or {})
        self._jobs: dict[str, CronJob] = {}
        self._due: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self.replace(jobs)

    def replace(self, jobs: Iterable[CronJob]) -> None:
        """Go by other jobs from now on; SettingsError, and nothing changes, if one is wrong."""
        given = tuple(jobs)
        check(given)
        # One that is as it was may be due this very moment.
        kept = {name: due for name, due in self._due.items() if self._jobs[name] in given}
        self._jobs = {job.id: job for job in given}
        self._due = {job.id: kept.get(job.id) or self._next(job) for job in given if job.enabled}
        self._changed.set()

    def begin(self) -> None:
        """Run jobs as they become due."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._watch())

    async def end(self) -> None:
        """Begin no more runs; those under way are turns like any other."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])
            self._loop = None

    # --- the face

    def statuses(self) -> list[JobStatus]:
        """All jobs, in the order of the settings."""
        return [self._status(job) for job in self._jobs.values()]

    async def refresh(self) -> None:
        """Learn what jobs have come to elsewhere."""
        if self._shared is not None:
            self._fared = dict(await self._shared.load())

    async def pause(self, name: str) -> None:
        """Leave a job out until it is resumed."""
        await self._keep(self._job(name), paused=True)

    async def resume(self, name: str) -> None:
        """Run a job again, from its next time on."""
        job = self._job(name)
        if job.enabled:
            self._due[name] = self._next(job)
        await self._keep(job, paused=False)
        self._changed.set()

    async def run(self, name: str) -> str:
        """Run a job now, paused or not; the session that it runs in."""
        job = self._job(name)
        if name in self._running:
            raise SessionBusyError(f"job {name!r} is running", hint="wait for its end")
        return await asyncio.shield(self._begin(job))

    # --- inside

    async def _watch(self) -> None:
        seen = self._clock()
        while True:
            now = self._clock()
            if now < seen - _LONGEST_SLEEP:  # it was set back: what was far away may be near
                self._due = {name: self._next(self._jobs[name]) for name in self._due}
            seen = now
            for name, due in list(self._due.items()):
                if due.timestamp() <= now:
                    job = self._jobs[name]
                    self._due[name] = self._next(job)
                    if name not in self._running:
                        self._begin(job, due)
            waits = [due.timestamp() - self._clock() for due in self._due.values()]
            self._changed.clear()
            try:
                async with asyncio.timeout(max(min([*waits, _LONGEST_SLEEP]), 0)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _begin(self, job: CronJob, due: datetime | None = None) -> asyncio.Future[str]:
        """Begin a run; the session that it runs in, once it has one. No job waits for another's.

        One that is `due` is left out if the job is paused, or the run is another daemon's.
        """
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        started.add_done_callback(lambda done: done.cancelled() or done.exception())
        run = self._running[job.id] = asyncio.create_task(self._follow(job, started, due))
        run.add_done_callback(lambda _: self._running.pop(job.id))  # behind the word of its end
        return started

    async def _is_ours(self, job: CronJob, due: datetime) -> bool:
        if self._shared is not None:
            known = await self._shared.take(job, due)
            if known is None:
                return False
            self._fared[job.id] = known
        return not self._kept(job.id).paused

    async def _follow(
        self, job: CronJob, started: asyncio.Future[str], due: datetime | None
    ) -> None:
        error: Exception | None = None
        try:
            if due is not None and not await self._is_ours(job, due):
                return
            now = self._now(job)
            session, work = await self._start(job, now)
            ran = timestamp(now.timestamp())
            # How the one before ended is not how this one does, should nobody be there to say it.
            await self._note(
                job,
                last_run_at=ran,
                last_session_id=session,
                last_status=None,
                last_error_snippet=None,
            )
            started.set_result(session)
            await work
        except Exception as raised:  # the other jobs must run all the same
            error = raised
            if not started.done():
                started.set_exception(raised)
        finally:
            started.cancel()  # unless it is known
        if not isinstance(error, RunCancelledError):
            await self._ended(job, error)

    async def _ended(self, job: CronJob, error: Exception | None) -> None:
        failures = 0 if error is None else self._kept(job.id).consecutive_failures + 1
        await self._note(
            job,
            last_status="success" if error is None else "error",
            last_error_snippet=None if error is None else str(error)[:SNIPPET],
            consecutive_failures=failures,
        )

    def _job(self, name: str) -> CronJob:
        if name not in self._jobs:
            raise NotFoundError(f"there is no job {name!r}")
        return self._jobs[name]

    def _kept(self, name: str) -> Fared:
        return self._fared.get(name, Fared())

    async def _keep(self, job: CronJob, **changes: object) -> None:
        if self._shared is not None:
            self._fared[job.id] = await self._shared.change(job.id, **changes)
            return
        self._fared[job.id] = replace(self._kept(job.id), **changes)
        # A pause outlives that its job is taken out of the settings for a while.
        kept = {k: v for k, v in self._fared.items() if k in self._jobs or v.paused}
        self._save(kept)

    async def _note(self, job: CronJob, **changes: object) -> None:
        """Likewise; what cannot be saved now is saved with the next change."""
        with suppress(EverlogError, OSError):
            await self._keep(job, **changes)

    def _now(self, job: CronJob) -> datetime:
        return datetime.fromtimestamp(self._clock(), zone_of(job))

    def _next(self, job: CronJob) -> datetime:
        return next_time(job, self._now(job))

    def _status(self, job: CronJob) -> JobStatus:
        kept = self._kept(job.id)
        due = self._due.get(job.id)
        return JobStatus(
            id=job.id,
            schedule=job.schedule,
            enabled=job.enabled,
            running=job.id in self._running,
            next_run_at=None if due is None or kept.paused else timestamp(due.timestamp()),
            **msgspec.structs.asdict(kept),
        )
