"""Background updates of the search index: no turn waits for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from everlog.aio import AsyncStore
from everlog.errors import EverlogError, RunCancelledError

PAUSE_SECONDS = 1.0  # between two rounds, since many turns may end together


class IndexWorker:
    """Background task that updates the index at the start and after turns."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Start the task; call it in a running event loop."""
        self._stopped = False
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Request an update, since a session has new messages."""
        self._wakeup.set()

    async def stop(self) -> None:
        """Stop the task, even within a long round; the next round continues from there."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            # A search meets the same problem with the index and reports it.
            try:
                await self._store.call(self._store.sync.port.catch_up, self._check_stopped)
            except EverlogError:
                pass
            except Exception as error:  # a bug: the next round may succeed
                context = {"message": "the search index could not be updated", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            await self._wakeup.wait()
            self._wakeup.clear()
            await asyncio.sleep(PAUSE_SECONDS)

    def _check_stopped(self, done: int, total: int) -> None:
        if self._stopped:
            raise RunCancelledError("the daemon is stopping")
