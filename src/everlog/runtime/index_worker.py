"""Background updates of the search index: no turn waits for them."""

from __future__ import annotations

from contextlib import suppress

from everlog.aio import AsyncStore
from everlog.errors import EverlogError, RunCancelledError
from everlog.runtime.background_task import BackgroundTask
from everlog.wire.events import Error, MessageComplete, RunEvent

PAUSE_SECONDS = 1.0  # before a round, since many turns may end together


class IndexWorker:
    """Updates the index at the start and after turns."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self.task = BackgroundTask("search index", self._update, debounce=PAUSE_SECONDS)
        self.task.wake()

    def on_event(self, event: RunEvent) -> None:
        """Update the index soon after the end of a turn."""
        if isinstance(event, MessageComplete | Error):
            self.task.wake()

    async def _update(self) -> None:
        with suppress(EverlogError):  # a search meets the same problem with the index and reports it
            await self._store.call(self._store.sync.port.catch_up, self._check_stopped)

    def _check_stopped(self, done: int, total: int) -> None:
        if self.task.is_stopped:  # even within a long round; the next one continues from there
            raise RunCancelledError("the daemon is stopping")
