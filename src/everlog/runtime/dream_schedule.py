"""Scheduled dreams: memory consolidation at fixed times, as of a cron job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

from everlog.errors import SettingsError
from everlog.runtime.cron import next_time, zone_of
from everlog.settings import CronJob

MAX_WAIT = 600.0  # seconds between two looks at the clock and the settings: both may change


class DreamSchedule:
    """Background task that calls `work` at the times of a cron schedule."""

    def __init__(
        self,
        schedule: Callable[[], str],
        work: Callable[[], Awaitable[None]],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._wait = wait
        self._schedule = schedule  # the current one; empty: never
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; call it in a running event loop."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            seconds = seconds_until(self._schedule())
            await self._wait(MAX_WAIT if seconds is None else min(seconds, MAX_WAIT))
            if seconds is not None and seconds <= MAX_WAIT:
                await self._work()


def seconds_until(schedule: str) -> float | None:
    """Return the seconds until a schedule is due, None if empty; raises `SettingsError`."""
    if not schedule:
        return None
    job = CronJob(id="dream", schedule=schedule, prompt="-")
    now = datetime.now(zone_of(job))
    try:
        return max((next_time(job, now) - now).total_seconds(), 0.0)
    except SettingsError as error:
        raise SettingsError(f"[memory] dream_schedule: invalid schedule {schedule!r}", hint=error.hint) from error
