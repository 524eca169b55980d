"""Background updates of the search index: no turn waits for them."""

from __future__ import annotations

from contextlib import suppress

from everlog.aio import AsyncStore
from everlog.errors import EverlogError, RunCancelledError
from everlog.ports import Purgeable
from everlog.runtime.background_task import BackgroundTask
from everlog.wire.events import Error, MessageComplete, RunEvent

PAUSE_SECONDS = 1.0  # before a round, since many turns may end together


class IndexWorker:
    """Updates the index at the start and after turns; at the start it also purges deleted sessions."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store
        self._has_purged = False
        self.task = BackgroundTask("search index", self._update, debounce=PAUSE_SECONDS)
        self.task.wake()

    def on_event(self, event: RunEvent) -> None:
        """Update the index soon after the end of a turn."""
        if isinstance(event, MessageComplete | Error):
            self.task.wake()

    async def _update(self) -> None:
        if not self._has_purged:
            self._has_purged = True
            with suppress(EverlogError):  # what is left now is removed after the next start
                await self._store.call(self._purge)
        with suppress(EverlogError):  # a search meets the same problem with the index and reports it
            await self._store.call(self._store.sync.port.catch_up, self._check_stopped)

    def _purge(self) -> None:
        purgeable = self._store.sync.port.capability(Purgeable)
        if purgeable is not None:
            purgeable.purge()

    def _check_stopped(self, done: int, total: int) -> None:
        if self.task.is_stopped:  # even within a long round; the next one continues from there
            raise RunCancelledError("the daemon is stopping")
