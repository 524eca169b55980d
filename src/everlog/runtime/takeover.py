"""Takeover of unfinished sessions of dead processes: those whose turn lease nobody holds.

A killed process sends no notice. With files its locks end with it, with a database its leases
expire by the server's clock; either way someone must look. Every runtime does so when it starts and
periodically, at randomised intervals. The one that gets the lease repairs the session and continues
its queue; the others see that the lease is taken, and skip the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from everlog.aio import AsyncStore
from everlog.errors import EverlogError, NotFoundError
from everlog.ports import Filter, SharedBetweenMachines
from everlog.runtime.background_task import BackgroundTask, RetryBackoff
from everlog.runtime.queue import Queue
from everlog.runtime.run import RecoveredSession
from everlog.wire.events import Sink, Status

INTERVAL = 5.0  # seconds between two checks of a store whose leases do not expire
CHECKS_PER_LEASE = 10  # per duration of an expiring lease, to find expired ones soon
MAX_SESSIONS = 500  # taken over at a time


class Takeover:
    """Takes over unowned sessions, when the runtime starts and while it runs."""

    def __init__(self, store: AsyncStore, queue: Queue, emit: Sink) -> None:
        self._store = store
        self._queue = queue
        self._emit = emit
        self._sharing = store.sync.port.capability(SharedBetweenMachines)
        self.backoff = RetryBackoff()
        self.recovered: deque[RecoveredSession] = deque(maxlen=1000)  # the most recent ones
        self.recovered_count = 0
        # Called with each session taken over after the start, and with the error if that fails.
        self.on_takeover: Callable[[RecoveredSession], None] = lambda _: None
        self.on_failure: Callable[[EverlogError], None] = lambda _: None
        self.task = BackgroundTask(
            "takeover",
            self.run_once,
            interval=INTERVAL if self._sharing is None else self._sharing.lease_seconds / CHECKS_PER_LEASE,
            jitter=0.25,  # runtimes that check at the same moment find the same sessions
            on_failure=self._report,
        )

    async def recover_all(self) -> list[RecoveredSession]:
        """Take over all sessions that a crash left unfinished."""
        recovered: list[RecoveredSession] = []
        cursor = None
        while True:
            page = await self._store.list(unfinished=True, limit=MAX_SESSIONS, cursor=cursor)
            recovered += await self._take_over(row.id for row in page)
            cursor = page.next
            if cursor is None:
                return recovered

    async def run_once(self) -> None:
        """Take over all sessions that are unowned now."""
        for recovered in await self._take_over(await self._store.call(self._unowned_sessions)):
            self.on_takeover(recovered)

    def _unowned_sessions(self) -> list[str]:
        if self._sharing is not None:
            return self._sharing.unowned(MAX_SESSIONS)
        page = self._store.sync.port.list(Filter(unfinished=True), limit=MAX_SESSIONS)
        return [row.id for row in page]

    async def _take_over(self, sessions: Iterable[str]) -> list[RecoveredSession]:
        """Repair and continue those of the sessions that no process works on.

        A session that could not be repaired is skipped for a while, so as not to block its lease.
        """
        due = (s for s in sessions if not self._queue.works_on(s) and self.backoff.is_due(s))
        results = [await self._recover(session) for session in due]
        recovered = [result for result in results if result is not None]
        self.recovered.extend(recovered)
        self.recovered_count += len(recovered)
        return recovered

    async def _recover(self, session_id: str) -> RecoveredSession | None:
        try:
            session = await self._store.session(session_id)
            unfinished = (await session.metadata()).unfinished
            recovered = await self._queue.take_over(session) if unfinished else None
        except NotFoundError:
            self.backoff.forget(session_id)
        except Exception as error:  # continue with the other sessions
            if self.backoff.record_failure(session_id, str(error)):
                self._emit(Status(session_id=session_id, message=f"could not repair the session: {error}"))
        else:
            if recovered is not None or not unfinished:
                self.backoff.forget(session_id)
            return recovered
        return None

    def _report(self, error: Exception) -> None:
        self.on_failure(error if isinstance(error, EverlogError) else EverlogError(f"{type(error).__name__}: {error}"))
