"""Takes what was said into the search index, in the background: no turn waits for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from everlog.aio import AsyncStore
from everlog.errors import EverlogError, RunCancelledError

PAUSE = 1.0  # seconds between two rounds: many turns end together


class TakingIn:
    """Catches up once at the start and after turns."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def begin(self) -> None:
        """Start; to be called in a running loop."""
        self._stopped = False
        self._task = asyncio.create_task(self._run())

    def told(self) -> None:
        """Something was said."""
        self._due.set()

    async def end(self) -> None:
        """Stop, also in the middle of a long round; the next one goes on from there."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            # Whatever is wrong with the index, a search runs into it as well, and says so.
            try:
                await self._store.call(self._store.sync.port.catch_up, self._go_on)
            except EverlogError:
                pass
            except Exception as error:  # a mistake somewhere: the next round may do without it
                told = {"message": "what was said is not taken in", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)
            await self._due.wait()
            self._due.clear()
            await asyncio.sleep(PAUSE)

    def _go_on(self, done: int, total: int) -> None:
        if self._stopped:
            raise RunCancelledError("the daemon is stopping")
