"""The queue: one turn at a time per session; other messages wait in order.

A message is accepted once it is durable. If no turn runs, it is appended at once and its turn
begins. Otherwise a `queued` event with the message is appended; the holder of the lease continues
with the oldest of these by appending its message under the same id. So the queue consists of the
`queued` events without their message, after a restart and for every other process too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from uuid import uuid4

from msgspec.structs import replace

from everlog.agent.answer import Answer
from everlog.agent.turn import error_event, new_run_id, repair
from everlog.agent.turn_lease import is_lost, lost_lease_error, release_lease
from everlog.aio import AsyncSession, AsyncStore
from everlog.errors import (
    ConflictError,
    EverlogError,
    NotFoundError,
    ProviderError,
    QueueFullError,
    RunCancelledError,
    SessionBusyError,
)
from everlog.model import WITHDRAWN, Event, Message, Metadata
from everlog.ports import ExpiringLease, Lease
from everlog.runtime.queue_log import (
    DEFAULT_OPTIONS,
    MESSAGE_KEPT,
    TurnOptions,
    compare_and_append,
    find_queued,
    find_stored,
    find_submission,
    queued_event,
    read_outcome,
)
from everlog.runtime.retry_backoff import RetryBackoff
from everlog.runtime.run import RecoveredSession, Run
from everlog.wire.events import Error, MessageComplete, Queued, RunEvent, Sink, Status

MIN_POLL, MAX_POLL = 0.02, 0.5  # seconds between attempts to get a lease from another process


# Answers a stored message under a lease.
AnswerMessage = Callable[[AsyncSession, Message, Lease, Sink, TurnOptions], Awaitable[Answer]]


class _SessionQueue:
    """The runs of one session in this process."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # to accept a message, or to find that none waits
        self.runs: dict[str, Run] = {}  # by message id; waiting or running
        self.current: Run | None = None
        self.turn: asyncio.Task[Answer] | None = None
        self.worker: asyncio.Task[None] | None = None


class Queue:
    """The queues of all sessions that this process works on."""

    def __init__(self, store: AsyncStore, answer_message: AnswerMessage, *, max_waiting: int, emit: Sink) -> None:
        self.store = store
        self.max_waiting = max_waiting
        self._answer_message = answer_message
        self._emit = emit
        self.backoff = RetryBackoff()
        self._queues: dict[str, _SessionQueue] = {}
        self._workers: set[asyncio.Task[None]] = set()  # some only release their lease
        self._closed = False

    # --- state

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
        return sum(
            sum(not run.is_done and run is not queue.current for run in queue.runs.values())
            for queue in self._queues.values()
        )

    # --- accepting messages

    async def submit(self, session: AsyncSession, message: Message, options: TurnOptions = DEFAULT_OPTIONS) -> Run:
        """Accept a message and start or queue its turn; the message is durable on return.

        Cancelling the caller does not stop it. Raises `QueueFullError` if too many messages wait,
        and `SessionBusyError` while the queue is being drained.
        """
        work = asyncio.ensure_future(self._submit(session, message, options))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(work)

    async def _submit(self, session: AsyncSession, message: Message, options: TurnOptions) -> Run:
        run_id, caller_id = new_run_id(), message.id
        message = replace(message, id=caller_id or str(uuid4()), run_id=run_id)
        async with self._locked_queue(session.id) as queue:
            if self._closed:
                raise SessionBusyError("the daemon is shutting down", hint="send it again later")
            if caller_id and (earlier := await self._earlier_run(queue, session, message, options)):
                return earlier
            lease = await self._try_lease(session, queue)
            try:
                stored = None
                if lease is not None:
                    await repair(session, lease, self._emit)
                    stored = await compare_and_append(
                        session, lambda metadata: None if metadata.waiting else message, lease
                    )
                if lease is not None and stored is not None:
                    run = Run(run_id, session.id, message.id, 0, options)
                    queue.runs[message.id] = queue.current = run
                    self._start_worker(queue, session, lease, (run, stored))
                    return run
                position = await self._append_queued(session, message, options)
            except BaseException as error:
                if lease is not None and isinstance(error, QueueFullError):
                    self._start_worker(queue, session, lease, None)  # for those that wait
                elif lease is not None:
                    await release_lease(self.store, lease)
                raise
            run = Run(run_id, session.id, message.id, position, options)
            queue.runs[message.id] = run
            if queue.worker is None:
                self._start_worker(queue, session, lease, None)
            self._emit(Queued(session_id=session.id, run_id=run_id, position=position))
            return run

    async def _earlier_run(
        self, queue: _SessionQueue, session: AsyncSession, message: Message, options: TurnOptions
    ) -> Run | None:
        """Return the run of a message that was delivered before, if it was; it runs only once."""
        earlier = await self.store.call(find_submission, session.sync, message.id)
        if earlier is None:
            return None
        if earlier.content != message.content:
            raise ConflictError("another message was submitted with this id", session=session.id, id=message.id)
        if (run := queue.runs.get(message.id)) is not None:
            return run
        run = Run(earlier.run_id or "", session.id, message.id, 0, options)
        metadata = await session.metadata()
        if message.id in metadata.waiting or metadata.run == run.id:
            queue.runs[message.id] = run  # another process works on it, or left it
            if queue.worker is None:
                self._start_worker(queue, session, None, None)
        else:
            run.settle(await self.store.call(read_outcome, session.sync, run.id, message.id))
        return run

    @asynccontextmanager
    async def _locked_queue(self, session: str) -> AsyncIterator[_SessionQueue]:
        """Lock the queue of a session for a block, and drop it afterwards if it is idle.

        A queue that was dropped while we waited for its lock is replaced by a new one.
        """
        while True:
            queue = self._queues.setdefault(session, _SessionQueue())
            async with queue.lock:
                if self._queues.get(session) is queue:
                    try:
                        yield queue
                    finally:
                        self._drop_if_idle(session, queue)
                    return

    async def _try_lease(self, session: AsyncSession, queue: _SessionQueue) -> Lease | None:
        if queue.worker is not None:
            return None
        try:
            return await session.lease()
        except SessionBusyError:  # another process runs a turn
            return None

    async def _append_queued(self, session: AsyncSession, message: Message, options: TurnOptions) -> int:
        """Append a message as waiting and return its position; raises `QueueFullError`."""
        event = queued_event(message, options, str(uuid4()))
        position = 0

        def make_event(metadata: Metadata) -> Event:
            nonlocal position
            position = len(metadata.waiting) + 1
            if position > self.max_waiting:
                raise QueueFullError(
                    f"the queue is full: {len(metadata.waiting)} messages wait for this session",
                    hint="wait for an answer, then send the message again",
                    session=session.id,
                )
            return event

        await compare_and_append(session, make_event)
        return position

    # --- workers

    def _start_worker(
        self, queue: _SessionQueue, session: AsyncSession, lease: Lease | None, first: tuple[Run, Message] | None
    ) -> None:
        queue.worker = task = asyncio.create_task(self._worker(queue, session, lease, first))
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    async def _worker(
        self, queue: _SessionQueue, session: AsyncSession, lease: Lease | None, first: tuple[Run, Message] | None
    ) -> None:
        settle: Callable[[], None] | None = None
        try:
            while True:
                if lease is None or is_lost(lease):
                    if settle is not None:
                        settle()
                        settle = None
                    lease = await self._wait_for_lease(session)
                    await repair(session, lease, self._emit)  # its last holder may have been killed
                elif first is not None:
                    settle = await self._run_turn(queue, session, lease, *first)
                    first = None
                    continue
                async with queue.lock:
                    queue.current = None
                    entry = await self._next_waiting(session)
                    if entry is None or self._closed:
                        # Before the answer arrives: the caller may want the lease at once.
                        old_lease, lease = lease, None
                        await release_lease(self.store, old_lease)
                        await self._settle_remote(queue, session)
                        self._drop_if_idle(session.id, queue, worker=True)
                    else:
                        run, message = entry
                        queue.current = run = queue.runs.setdefault(run.message_id, run)
                    if settle is not None:
                        settle()
                        settle = None
                    if queue.current is None or lease is None:
                        return
                try:
                    first = await self._append_waiting(queue, session, lease, run, message)
                except ConflictError:
                    if not is_lost(lease):
                        raise
                    queue.current = None
        except EverlogError as error:  # the store failed: waiting messages are still recorded
            self._fail(queue, session.id, error)
        # A bug, or the end of the event loop, must not leave callers waiting.
        except (Exception, asyncio.CancelledError) as error:
            self._fail(queue, session.id, EverlogError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            if lease is not None:
                await release_lease(self.store, lease)
            if settle is not None:
                settle()
            if queue.worker is asyncio.current_task():
                queue.worker = queue.current = None

    async def _append_waiting(
        self, queue: _SessionQueue, session: AsyncSession, lease: Lease, run: Run, message: Message
    ) -> tuple[Run, Message] | None:
        """Append a message whose turn has come; return None if another process took it away.

        It may have been withdrawn there, or delivered there too, under the same id.
        """
        await repair(session, lease, self._emit)
        outcome: Answer | EverlogError = RunCancelledError("the message was withdrawn", session=session.id, run=run.id)
        try:
            stored = await compare_and_append(
                session, lambda metadata: message if message.id in metadata.waiting else None, lease
            )
            if stored is not None:
                return run, stored
        except ConflictError as error:
            if "id" not in error.facts:
                raise
            await session.append(Event(kind=WITHDRAWN, data={"id": message.id}), lease=lease)
            earlier = await self.store.call(find_stored, session.sync, message.id)
            if earlier is not None and earlier.run_id:
                outcome = await self.store.call(read_outcome, session.sync, earlier.run_id, message.id)
        queue.runs.pop(run.message_id, None)
        run.settle(outcome)
        return None

    async def _wait_for_lease(self, session: AsyncSession) -> Lease:
        wait = MIN_POLL
        while True:
            try:
                return await session.lease()
            except SessionBusyError:
                if self._closed:
                    raise SessionBusyError(MESSAGE_KEPT, session=session.id) from None
                await asyncio.sleep(wait)
                wait = min(wait * 1.5, MAX_POLL)

    async def _run_turn(
        self, queue: _SessionQueue, session: AsyncSession, lease: Lease, run: Run, stored: Message
    ) -> Callable[[], None]:
        """Run one turn to its end; return the function that settles its run.

        A failure of the turn never stops the queue.
        """

        def emit(event: RunEvent) -> None:
            run.is_ending |= isinstance(event, MessageComplete | Error)
            self._emit(event)

        work = self._answer_message(session, stored, lease, emit, run.options)
        queue.turn = turn = asyncio.ensure_future(work)
        if run.is_stopping:
            turn.cancel()
        with ExitStack() as cleanup:
            if isinstance(lease, ExpiringLease):
                stop = partial(_stop, asyncio.get_running_loop(), turn)
                cleanup.callback(lease.on_lost(stop))
            try:
                await asyncio.wait([turn])
            except asyncio.CancelledError:  # the event loop is closing
                turn.cancel()
                await asyncio.wait([turn])
                raise
        result: Answer | EverlogError
        if is_lost(lease):
            result = lost_lease_error(session.id)
        elif turn.cancelled():
            result = RunCancelledError("the turn was cancelled", session=session.id, run=run.id)
        elif (error := turn.exception()) is None:
            result = turn.result()
        elif isinstance(error, EverlogError):
            result = error
        else:  # a provider that violates its contract
            result = ProviderError(f"{type(error).__name__}: {error}")
        queue.turn = queue.current = None
        queue.runs.pop(run.message_id, None)
        try:
            if isinstance(result, EverlogError) and not is_lost(lease):
                await self._record_failed_start(session, lease, run, result)
        except BaseException:
            run.settle(result)
            raise
        return lambda: run.settle(result)

    async def _record_failed_start(self, session: AsyncSession, lease: Lease, run: Run, error: EverlogError) -> None:
        """Record the end of a turn that could not begin, for example for lack of a model."""
        if (await session.metadata()).run != run.id:
            return
        await session.close_calls(lease=lease)
        stop = "cancelled" if isinstance(error, RunCancelledError) else "error"
        text = str(error)[:500]
        await session.end_turn(duration_ms=0, run_id=run.id, stop=stop, error=text, lease=lease)
        self._emit(replace(error_event(session.id, error), run_id=run.id))

    async def _next_waiting(self, session: AsyncSession) -> tuple[Run, Message] | None:
        """Read the message that has waited longest from the log; None if none waits."""
        while waiting := (await session.metadata()).waiting:
            queued = await session.store.call(find_queued, session.sync, waiting[0])
            if queued is not None:
                message, options = queued
                return Run(message.run_id or "", session.id, message.id, 0, options), message
            # Not written by everlog: it cannot be read, now or later.
            await session.append(Event(kind=WITHDRAWN, data={"id": waiting[0]}))
            text = f"the queued message {waiting[0]} cannot be read and was withdrawn"
            self._emit(Status(session_id=session.id, message=text))
        return None

    async def _settle_remote(self, queue: _SessionQueue, session: AsyncSession) -> None:
        """Settle the runs whose messages another process has answered."""
        for run in [r for r in queue.runs.values() if not r.is_done]:
            outcome = await session.store.call(read_outcome, session.sync, run.id, run.message_id)
            run.settle(outcome)
            queue.runs.pop(run.message_id, None)
            if isinstance(outcome, Answer):
                self._emit(
                    MessageComplete(
                        session_id=session.id,
                        run_id=run.id,
                        seq=outcome.reply.seq,
                        content=outcome.reply.text,
                        model=outcome.reply.model or "",
                        usage=outcome.usage,
                        duration_ms=outcome.duration_ms,
                    )
                )

    def _fail(self, queue: _SessionQueue, session: str, error: EverlogError) -> None:
        """Fail all runs; the error of waiting ones says that their messages stay recorded."""
        pending = [run for run in queue.runs.values() if not run.is_done]
        queue.runs.clear()
        self._drop_if_idle(session, queue, worker=True)
        text = error.message
        message = text if text == MESSAGE_KEPT else f"{text}; {MESSAGE_KEPT}"
        waiting_error = type(error)(message, hint=error.hint, **error.facts)
        outcomes = [(run, error if run is queue.current else waiting_error) for run in pending]
        for run, problem in outcomes:
            run.settle(problem)
        for run, problem in outcomes:
            self._emit(replace(error_event(session, problem), run_id=run.id))

    def _drop_if_idle(self, session: str, queue: _SessionQueue, *, worker: bool = False) -> None:
        """Drop the queue of a session without runs, so that an idle session costs nothing."""
        if worker:
            queue.worker = None
        if queue.worker is None and not queue.runs and self._queues.get(session) is queue:
            del self._queues[session]

    # --- stopping

    async def cancel(self, session: AsyncSession, run_id: str = "") -> bool:
        """Cancel a waiting or running run; without an id, the running one. False if there is none.

        Returns when the session is ready for another turn.
        """
        queue = self._queues.get(session.id)
        if queue is None:
            return False
        async with queue.lock:  # no message starts or stops waiting meanwhile
            current = queue.current
            if current is None or run_id not in ("", current.id):
                return await self._withdraw(queue, session, run_id)
            current.is_stopping = True
            if queue.turn is not None:
                queue.turn.cancel()
        await current.wait()
        return True

    async def _withdraw(self, queue: _SessionQueue, session: AsyncSession, run_id: str) -> bool:
        matches = (r for r in queue.runs.values() if r.id == run_id and not r.is_done)
        run = next(matches, None)
        if run is None:
            return False
        message_id = run.message_id
        event = Event(kind=WITHDRAWN, data={"id": message_id})

        def make_event(metadata: Metadata) -> Event | None:
            return event if message_id in metadata.waiting else None

        if await compare_and_append(session, make_event) is None:
            return False  # another process has begun its turn
        queue.runs.pop(message_id, None)
        error = RunCancelledError("the message was withdrawn", session=session.id, run=run.id)
        run.settle(error)
        self._emit(replace(error_event(session.id, error), run_id=run.id))
        return True

    async def wait_for_release(self, session: str) -> None:
        """Wait until a turn that has emitted its answer has also released its lease."""
        queue = self._queues.get(session)
        if queue is None:
            return
        if queue.current is not None and queue.current.is_ending:
            await queue.current.wait()
        async with queue.lock:  # between two turns
            pass

    async def drain(self, seconds: float) -> None:
        """Accept no more messages; wait for running turns, and cancel them after `seconds`.

        Waiting messages are recorded and continue after the next start.
        """
        self._closed = True
        for name in list(self._queues):  # a message that is being accepted counts too
            async with self._locked_queue(name):
                pass
        if not self._workers:
            return
        _, unfinished = await asyncio.wait(set(self._workers), timeout=seconds)
        for queue in list(self._queues.values()):
            if queue.current is not None:
                queue.current.is_stopping = True
            if queue.turn is not None:
                queue.turn.cancel()
        if unfinished:
            await asyncio.wait(unfinished)

    async def recover(self) -> list[RecoveredSession]:
        """Repair all sessions that a crash left unfinished, and continue with waiting messages."""
        recovered: list[RecoveredSession] = []
        cursor = None
        while True:
            page = await self.store.list(unfinished=True, limit=500, cursor=cursor)
            recovered += await self.take_over([row.id for row in page])
            cursor = page.next
            if cursor is None:
                return recovered

    async def take_over(self, sessions: Iterable[str]) -> list[RecoveredSession]:
        """Repair and continue those of the sessions that no process works on.

        A session that could not be repaired is skipped for a while, so as not to block its lease.
        """
        due = (s for s in sessions if s not in self._queues and self.backoff.is_due(s))
        results = [await self._recover(session) for session in due]
        return [result for result in results if result is not None]

    async def _recover(self, session_id: str) -> RecoveredSession | None:
        async with self._locked_queue(session_id) as queue:
            lease = None
            try:
                session = await self.store.session(session_id)
                if not (await session.metadata()).unfinished:
                    self.backoff.forget(session_id)
                    return None
                lease = await self._try_lease(session, queue)
                if lease is None:  # another process works on it
                    return None
                before = await session.metadata()
                await repair(session, lease, self._emit)
            except Exception as error:  # continue with the other sessions
                if lease is not None:
                    await release_lease(self.store, lease)
                if isinstance(error, NotFoundError):
                    self.backoff.forget(session_id)
                elif self.backoff.record_failure(session_id, str(error)):
                    text = f"could not repair the session: {error}"
                    self._emit(Status(session_id=session_id, message=text))
                return None
            self.backoff.forget(session_id)
            if before.waiting and not self._closed:
                self._start_worker(queue, session, lease, None)
            else:
                await release_lease(self.store, lease)
            if not before.unfinished:
                return None
            return RecoveredSession(session_id, before.run, len(before.waiting))


def _stop(loop: asyncio.AbstractEventLoop, turn: asyncio.Future[Answer]) -> None:
    """Cancel a turn from another thread."""
    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(turn.cancel)
