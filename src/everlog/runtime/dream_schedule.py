"""When memories are put in order although nobody talks: at certain times, as a cron job would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

from everlog.errors import SettingsError
from everlog.runtime.cron import next_time, zone_of
from everlog.settings import CronJob

LONGEST = 600.0  # seconds between two looks at the clock: it may be set, settings may change


class Nights:
    """Calls something at the times of a schedule."""

    def __init__(
        self,
        schedule: Callable[[], str],
        work: Callable[[], Awaitable[None]],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._wait = wait
        self._schedule = schedule  # as it is at the moment; empty: never
        self._work = work
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start; to be called in a running loop."""
        self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            left = seconds_until(self._schedule())
            await self._wait(LONGEST if left is None else min(left, LONGEST))
            if left is not None and left <= LONGEST:
                await self._work()


def seconds_until(schedule: str) -> float | None:
    """How long it is until a schedule is due; None for one that never is."""
    if not schedule:
        return None
    job = CronJob(id="dream", schedule=schedule, prompt="-")
    now = datetime.now(zone_of(job))
    try:
        return max((next_time(job, now) - now).total_seconds(), 0.0)
    except SettingsError as error:
        raise SettingsError(
            f"[memory] dream_schedule: not a schedule: {schedule!r}", hint=error.hint
        ) from error
