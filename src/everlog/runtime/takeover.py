"""Takeover of unfinished sessions of dead processes: those whose turn lease nobody holds.

A killed process sends no notice. With files its locks end with it, with a database its leases
expire by the server's clock; either way someone must look. Every runtime does so periodically, at
randomised intervals. The one that gets the lease repairs the session and continues its queue; the
others see that the lease is taken, and skip the session.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from everlog.aio import AsyncStore
from everlog.errors import EverlogError
from everlog.ports import Filter, shared_between_machines
from everlog.runtime.queue import Queue
from everlog.runtime.run import RecoveredSession

INTERVAL = 5.0  # seconds between two checks of a store whose leases do not expire
CHECKS_PER_LEASE = 10  # per duration of an expiring lease, to find expired ones soon
MAX_SESSIONS = 500  # taken over at a time


class Takeover:
    """Background task that takes over unowned sessions while the runtime runs."""

    def __init__(
        self,
        store: AsyncStore,
        queue: Queue,
        *,
        on_takeover: Callable[[RecoveredSession], None],
        on_failure: Callable[[EverlogError], None],
    ) -> None:
        self._store = store
        self._queue = queue
        self._on_takeover = on_takeover
        self._on_failure = on_failure
        self._sharing = shared_between_machines(store.sync.port)
        self._interval = INTERVAL
        if self._sharing is not None:
            self._interval = self._sharing.lease_seconds / CHECKS_PER_LEASE
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task; call it in a running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def run_once(self) -> None:
        """Take over all sessions that are unowned now."""
        sessions = await self._store.call(self._unowned_sessions)
        for recovered in await self._queue.take_over(sessions):
            self._on_takeover(recovered)

    def _unowned_sessions(self) -> list[str]:
        if self._sharing is not None:
            return self._sharing.unowned(MAX_SESSIONS)
        page = self._store.sync.port.list(Filter(unfinished=True), limit=MAX_SESSIONS)
        return [row.id for row in page]

    async def _run(self) -> None:
        while True:
            # Randomised: runtimes that check at the same moment find the same sessions.
            await asyncio.sleep(self._interval * random.uniform(0.75, 1.25))
            try:
                await self.run_once()
            except EverlogError as error:  # the store may be available at the next check
                self._on_failure(error)
            except Exception as error:  # a bug: the next check may succeed
                self._on_failure(EverlogError(f"{type(error).__name__}: {error}"))
