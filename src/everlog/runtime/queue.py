"""The queue: one turn at a time per session; other messages wait in order.

Each session has a queue of its own, in `session_queue`. Those that have something to do are kept
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from everlog.aio import AsyncSession
from everlog.errors import SessionBusyError
from everlog.model import Message
from everlog.runtime.queue_log import DEFAULT_OPTIONS, TurnOptions
from everlog.runtime.run import Answerer, RecoveredSession, Run
from everlog.runtime.session_queue import SessionQueue, Workers
from everlog.wire.events import Sink


class Queue:
    """The queues of all sessions that this process works on."""

    def __init__(self, answerer: Answerer, *, max_waiting: int, emit: Sink) -> None:
        self.workers = Workers(answerer, emit, max_waiting)
        self._queues = self.workers.queues

    def works_on(self, session: str) -> bool:
        """Return whether this process has runs of a session."""
        return session in self._queues

    def current(self, session: str) -> Run | None:
        """Return the run of a session whose turn is running in this process, if any."""
        queue = self._queues.get(session)
        return queue.current if queue is not None else None

    def is_busy(self, session: str) -> bool:
        """Return whether this process runs a turn of a session, or is about to."""
        queue = self._queues.get(session)
        return queue is not None and (queue.current is not None or queue.lock.locked())

    @property
    def running(self) -> int:
        """The number of running turns."""
        return sum(queue.current is not None for queue in self._queues.values())

    @property
    def waiting(self) -> int:
        """The number of waiting messages."""
        return sum(queue.waiting for queue in self._queues.values())

    async def submit(self, session: AsyncSession, message: Message, options: TurnOptions = DEFAULT_OPTIONS) -> Run:
        """Accept a message and start or queue its turn; the message is durable on return.

        Cancelling the caller does not stop it. Raises `QueueFullError` if too many messages wait,
        and `SessionBusyError` while the queue is being drained.
        """
        work = asyncio.ensure_future(self._submit(session, message, options))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(work)

    async def _submit(self, session: AsyncSession, message: Message, options: TurnOptions) -> Run:
        async with self._locked(session) as queue:
            if self.workers.is_closed:
                raise SessionBusyError("the daemon is shutting down", hint="send it again later")
            return await queue.submit(message, options)

    async def take_over(self, session: AsyncSession) -> RecoveredSession | None:
        """Repair a session that a dead process left unfinished, and answer what waits.

        Returns None if there was nothing to do, or another process works on the session.
        """
        async with self._locked(session) as queue:
            before = await queue.take_over()
        if before is None or not before.unfinished:
            return None
        return RecoveredSession(session.id, before.run, len(before.waiting))

    @asynccontextmanager
    async def _locked(self, session: AsyncSession) -> AsyncIterator[SessionQueue]:
        """Lock the queue of a session for a block, and drop it afterwards if it is idle.

        A queue that was dropped while we waited for its lock is replaced by a new one.
        """
        while True:
            queue = self._queues.setdefault(session.id, SessionQueue(session, self.workers))
            async with queue.lock:
                if self._queues.get(session.id) is queue:
                    try:
                        yield queue
                    finally:
                        queue.drop_if_idle()
                    return

    async def cancel(self, session: str, run_id: str = "") -> bool:
        """Cancel a waiting or running run; without an id, the running one. False if there is none.

        Returns when the session is ready for another turn.
        """
        queue = self._queues.get(session)
        if queue is None:
            return False
        async with queue.lock:  # no message starts or stops waiting meanwhile
            current = queue.current
            if current is None or run_id not in ("", current.id):
                return await queue.withdraw(run_id)
            queue.stop_turn()
        await current.wait()
        return True

    async def wait_for_release(self, session: str) -> None:
        """Wait until a turn that has emitted its answer has also released its lease.

        Call it before an operation that needs the lease. Does not wait for a running turn.
        """
        queue = self._queues.get(session)
        if queue is None:
            return
        if (ending := queue.ending_run()) is not None:
            await ending.wait()
        async with queue.lock:  # between two turns
            pass

    async def drain(self, seconds: float) -> None:
        """Accept no more messages; wait for running turns, and cancel them after `seconds`.

        Waiting messages are recorded and continue after the next start.
        """
        self.workers.is_closed = True
        for queue in list(self._queues.values()):  # a message that is being accepted counts too
            async with queue.lock:
                queue.drop_if_idle()
        if not self.workers.tasks:
            return
        _, unfinished = await asyncio.wait(set(self.workers.tasks), timeout=seconds)
        for queue in list(self._queues.values()):
            queue.stop_turn()
        if unfinished:
            await asyncio.wait(unfinished)
