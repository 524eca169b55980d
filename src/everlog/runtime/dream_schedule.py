"""Scheduled dreams: memory consolidation at fixed times, as of a cron job."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import datetime

from everlog.errors import SettingsError
from everlog.runtime.background_task import BackgroundTask
from everlog.runtime.cron import next_time, zone_of
from everlog.settings import CronJob

MAX_WAIT = 600.0  # seconds between two looks at the clock and the settings: both may change


class DreamSchedule:
    """Calls `work` at the times of a cron schedule, which may change; an empty one means never."""

    def __init__(
        self, schedule: Callable[[], str], work: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.time
    ) -> None:
        self._schedule = schedule
        self._work = work
        self._clock = clock
        self._due: float | None = None
        self.task = BackgroundTask("dreams", self._dream_if_due, interval=self._seconds)

    def _seconds(self) -> float:
        now = self._clock()
        seconds = seconds_until(self._schedule(), now)
        self._due = None if seconds is None else now + seconds
        return MAX_WAIT if seconds is None else min(seconds, MAX_WAIT)

    async def _dream_if_due(self) -> None:
        if self._due is not None and self._due <= self._clock():
            await self._work()


def seconds_until(schedule: str, now: float | None = None) -> float | None:
    """Return the seconds until a schedule is due, None if empty; raises `SettingsError`."""
    if not schedule:
        return None
    job = CronJob(id="dream", schedule=schedule, prompt="-")
    date = datetime.fromtimestamp(time.time() if now is None else now, zone_of(job))
    try:
        return max((next_time(job, date) - date).total_seconds(), 0.0)
    except SettingsError as error:
        raise SettingsError(f"[memory] dream_schedule: invalid schedule {schedule!r}", hint=error.hint) from error
