"""Takes over what other processes left: sessions that are unfinished and whose turn nobody has.

A process that is killed says nothing. On files its locks end with it, on a database its leases end
by the server's clock; either way somebody must look. Every runtime does, again and again, at times
of its own. Whoever gets the lease repairs the session and goes on with its queue; the others see
that it is taken, and leave it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from everlog.aio import AsyncStore
from everlog.errors import EverlogError
from everlog.ports import Filter, sharing_of
from everlog.runtime.queue import Queue
from everlog.runtime.run import Recovered

EVERY = 5.0  # seconds between two looks at a store without a clock of its own
LOOKS = 10  # in the time that a lease of a database lasts: what is over is found soon
MOST = 500  # sessions that are taken over at a time


class Rescue:
    """Looks while the runtime runs."""

    def __init__(
        self,
        store: AsyncStore,
        queue: Queue,
        *,
        found: Callable[[Recovered], None],
        failed: Callable[[EverlogError], None],
    ) -> None:
        self._store = store
        self._queue = queue
        self._found = found
        self._failed = failed
        self._sharing = sharing_of(store.sync.port)
        self._every = EVERY if self._sharing is None else self._sharing.lease_seconds / LOOKS
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start; to be called in a running loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Take over nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def look(self) -> None:
        """Take over what is there now."""
        for one in await self._queue.rescue(await self._store.call(self._adrift)):
            self._found(one)

    def _adrift(self) -> list[str]:
        if self._sharing is not None:
            return self._sharing.unowned(MOST)
        return [one.id for one in self._store.sync.port.list(Filter(unfinished=True), limit=MOST)]

    async def _run(self) -> None:
        while True:
            # Not all at once: those who look at the same moment find the same sessions.
            await asyncio.sleep(self._every * random.uniform(0.75, 1.25))
            try:
                await self.look()
            except EverlogError as error:  # the next look may find the store well again
                self._failed(error)
            except Exception as error:  # a mistake somewhere: once is not for ever
                self._failed(EverlogError(f"{type(error).__name__}: {error}"))
