"""The queue of one session: its runs in this process, and the worker that answers them in order.

A message is accepted once it is durable. If no turn runs, it is appended at once and its turn
begins. Otherwise a `queued` event with the message is appended; the holder of the lease continues
with the oldest of these by appending its message under the same id. So the queue consists of the
`queued` events without their message, after a restart and for every other process too.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

from msgspec.structs import replace

from everlog.agent.answer import Answer
from everlog.agent.turn import error_event, new_run_id, repair
from everlog.agent.turn_lease import is_lost, lost_lease_error, release_lease
from everlog.agent.worker_threads import call_in_loop
from everlog.aio import AsyncSession
from everlog.errors import (
    ConflictError,
    EverlogError,
    ProviderError,
    QueueFullError,
    RunCancelledError,
    SessionBusyError,
)
from everlog.model import WITHDRAWN, Event, Message, Metadata
from everlog.ports import ExpiringLease, Lease
from everlog.runtime.queue_log import (
    MESSAGE_KEPT,
    TurnOptions,
    compare_and_append,
    find_queued,
    find_stored,
    find_submission,
    queued_event,
    read_outcome,
    withdrawn_error,
)
from everlog.runtime.run import Answerer, Run
from everlog.wire.events import Error, MessageComplete, Queued, RunEvent, Sink, Status

MIN_POLL, MAX_POLL = 0.02, 0.5  # seconds between attempts to get a lease from another process


@dataclass(slots=True)
class Workers:
    """What the queues of all sessions share."""

    answerer: Answerer
    emit: Sink
    max_waiting: int  # messages per session
    is_closed: bool = False
    queues: dict[str, SessionQueue] = field(default_factory=dict)  # by session; idle ones are dropped
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # some only release their lease


class SessionQueue:
    """The runs of one session in this process."""

    def __init__(self, session: AsyncSession, workers: Workers) -> None:
        self.session = session
        self.lock = asyncio.Lock()  # to accept a message, or to find that none waits
        self.runs: dict[str, Run] = {}  # by message id; waiting or running
        self.current: Run | None = None
        self._turn: asyncio.Task[Answer] | None = None
        self._ended: tuple[Run, Answer | EverlogError] | None = None  # its turn is over, its lease is held
        self._worker: asyncio.Task[None] | None = None
        self._workers = workers

    @property
    def waiting(self) -> int:
        """The number of waiting messages."""
        return sum(not run.is_done and run is not self.current for run in self.runs.values())

    # --- accepting messages; the caller holds the lock

    async def submit(self, message: Message, options: TurnOptions) -> Run:
        """Accept a message and start or queue its turn; the message is durable on return."""
        session, caller_id = self.session, message.id
        message = replace(message, id=caller_id or str(uuid4()), run_id=new_run_id())
        if caller_id and (earlier := await self._earlier_run(message, options)):
            return earlier
        lease = await self._try_lease()
        try:
            if lease is not None:
                await repair(session, lease, self._workers.emit)
                stored = await compare_and_append(
                    session, lambda metadata: None if metadata.waiting else message, lease
                )
                if stored is not None:
                    self.current = run = self._add_run(message, 0, options)
                    self._start_worker(lease, (run, stored))
                    return run
            position = await self._append_queued(message, options)
        except BaseException as error:
            if lease is not None and isinstance(error, QueueFullError):
                self._start_worker(lease)  # for those that wait
            elif lease is not None:
                await release_lease(session.store, lease)
            raise
        run = self._add_run(message, position, options)
        if self._worker is None:
            self._start_worker(lease)
        self._workers.emit(Queued(session_id=session.id, run_id=run.id, position=position))
        return run

    async def take_over(self) -> Metadata | None:
        """Repair the session of a dead process and continue with its waiting messages.

        Returns the metadata from before, or None if another process works on the session.
        """
        lease = await self._try_lease()
        if lease is None:
            return None
        try:
            before = await self.session.metadata()
            await repair(self.session, lease, self._workers.emit)
        except BaseException:
            await release_lease(self.session.store, lease)
            raise
        if before.waiting and not self._workers.is_closed:
            self._start_worker(lease)
        else:
            await release_lease(self.session.store, lease)
        return before

    def drop_if_idle(self) -> None:
        """Drop the queue if it has no runs, so that an idle session costs nothing."""
        queues, session = self._workers.queues, self.session.id
        if self._worker is None and not self.runs and queues.get(session) is self:
            del queues[session]

    def _add_run(self, message: Message, position: int, options: TurnOptions) -> Run:
        run = Run(message.run_id or "", self.session.id, message.id, position, options)
        self.runs[message.id] = run
        return run

    async def _earlier_run(self, message: Message, options: TurnOptions) -> Run | None:
        """Return the run of a message that was delivered before, if it was; it runs only once."""
        session = self.session
        earlier = await session.store.call(find_submission, session.sync, message.id)
        if earlier is None:
            return None
        if earlier.content != message.content:
            raise ConflictError("another message was submitted with this id", session=session.id, id=message.id)
        if (run := self.runs.get(message.id)) is not None:
            return run
        run = Run(earlier.run_id or "", session.id, message.id, 0, options)
        metadata = await session.metadata()
        if message.id in metadata.waiting or metadata.run == run.id:
            self.runs[message.id] = run  # another process works on it, or left it
            if self._worker is None:
                self._start_worker(None)
        else:
            run.settle(await self._read_outcome(run))
        return run

    async def _try_lease(self) -> Lease | None:
        if self._worker is not None:
            return None
        try:
            return await self.session.lease()
        except SessionBusyError:  # another process runs a turn
            return None

    async def _append_queued(self, message: Message, options: TurnOptions) -> int:
        """Append a message as waiting and return its position; raises `QueueFullError`."""
        event = queued_event(message, options, str(uuid4()))
        position = 0

        def make_event(metadata: Metadata) -> Event:
            nonlocal position
            position = len(metadata.waiting) + 1
            if position > self._workers.max_waiting:
                raise QueueFullError(
                    f"the queue is full: {len(metadata.waiting)} messages wait for this session",
                    hint="wait for an answer, then send the message again",
                    session=self.session.id,
                )
            return event

        await compare_and_append(self.session, make_event)
        return position

    # --- the worker

    def _start_worker(self, lease: Lease | None, first: tuple[Run, Message] | None = None) -> None:
        self._worker = task = asyncio.create_task(self._work(lease, first))
        self._workers.tasks.add(task)
        task.add_done_callback(self._workers.tasks.discard)

    async def _work(self, lease: Lease | None, first: tuple[Run, Message] | None) -> None:
        session, emit = self.session, self._workers.emit
        try:
            while True:
                if lease is None or is_lost(lease):
                    self._settle_ended()
                    lease = await self._wait_for_lease()
                    await repair(session, lease, emit)  # its last holder may have been killed
                elif first is not None:
                    await self._run_turn(lease, *first)
                    first = None
                    continue
                async with self.lock:
                    self.current = None
                    entry = await self._next_waiting()
                    if entry is None or self._workers.is_closed:
                        # Before the answer arrives: the caller may want the lease at once.
                        old_lease, lease = lease, None
                        await release_lease(session.store, old_lease)
                        for run in [run for run in self.runs.values() if not run.is_done]:
                            await self._settle_remote(run)
                        self._worker = None
                        self.drop_if_idle()
                    else:
                        run, message = entry
                        self.current = run = self.runs.setdefault(run.message_id, run)
                    self._settle_ended()
                    if self.current is None or lease is None:
                        return
                try:
                    first = await self._append_waiting(lease, run, message)
                except ConflictError:
                    if not is_lost(lease):
                        raise
                    self.current = None
        except EverlogError as error:  # the store failed: waiting messages are still recorded
            self._fail(error)
        # A bug, or the end of the event loop, must not leave callers waiting.
        except (Exception, asyncio.CancelledError) as error:
            self._fail(EverlogError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            if lease is not None:
                await release_lease(session.store, lease)
            self._settle_ended()
            if self._worker is asyncio.current_task():
                self._worker = self.current = None

    async def _append_waiting(self, lease: Lease, run: Run, message: Message) -> tuple[Run, Message] | None:
        """Append a message whose turn has come; return None if another process took it away.

        It may have been withdrawn there, or delivered there too, under the same id.
        """
        session = self.session
        await repair(session, lease, self._workers.emit)
        outcome: Answer | EverlogError = withdrawn_error(session.id, run.id)
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
            earlier = await session.store.call(find_stored, session.sync, message.id)
            if earlier is not None and earlier.run_id:
                outcome = await session.store.call(read_outcome, session.sync, earlier.run_id, message.id)
        self.runs.pop(run.message_id, None)
        run.settle(outcome)
        return None

    async def _wait_for_lease(self) -> Lease:
        wait = MIN_POLL
        while True:
            try:
                return await self.session.lease()
            except SessionBusyError:
                if self._workers.is_closed:
                    raise SessionBusyError(MESSAGE_KEPT, session=self.session.id) from None
                await asyncio.sleep(wait)
                wait = min(wait * 1.5, MAX_POLL)

    def ending_run(self) -> Run | None:
        """Return the run whose end was emitted and whose lease is not released yet, if there is one."""
        if self._ended is not None:  # its end is being recorded
            return self._ended[0]
        return self.current if self.current is not None and self.current.is_ending else None

    def _settle_ended(self) -> None:
        """Give the answer of the last turn to those who wait for it, once the session is free again."""
        if self._ended is not None:
            run, result = self._ended
            self._ended = None
            run.settle(result)

    async def _run_turn(self, lease: Lease, run: Run, stored: Message) -> None:
        """Run one turn to its end. A failure of the turn never stops the queue."""

        def emit(event: RunEvent) -> None:
            run.is_ending |= isinstance(event, MessageComplete | Error)
            self._workers.emit(event)

        work = self._workers.answerer.answer(self.session, stored, lease, emit=emit, options=run.options)
        self._turn = turn = asyncio.ensure_future(work)
        if run.is_stopping:
            turn.cancel()
        with ExitStack() as cleanup:
            if isinstance(lease, ExpiringLease):
                stop = partial(call_in_loop, asyncio.get_running_loop(), turn.cancel)
                cleanup.callback(lease.on_lost(stop))
            try:
                await asyncio.wait([turn])
            except asyncio.CancelledError:  # the event loop is closing
                turn.cancel()
                await asyncio.wait([turn])
                raise
        result: Answer | EverlogError
        if is_lost(lease):
            result = lost_lease_error(self.session.id)
        elif turn.cancelled():
            result = RunCancelledError("the turn was cancelled", session=self.session.id, run=run.id)
        elif (error := turn.exception()) is None:
            result = turn.result()
        elif isinstance(error, EverlogError):
            result = error
        else:  # a provider that violates its contract
            result = ProviderError(f"{type(error).__name__}: {error}")
        self._turn = self.current = None
        self.runs.pop(run.message_id, None)
        self._ended = run, result
        if isinstance(result, EverlogError) and not is_lost(lease):
            await self._record_failed_start(lease, run, result)

    async def _record_failed_start(self, lease: Lease, run: Run, error: EverlogError) -> None:
        """Record the end of a turn that could not begin, for example for lack of a model."""
        session = self.session
        if (await session.metadata()).run != run.id:
            return
        await session.close_calls(lease=lease)
        stop = "cancelled" if isinstance(error, RunCancelledError) else "error"
        text = str(error)[:500]
        await session.end_turn(duration_ms=0, run_id=run.id, stop=stop, error=text, lease=lease)
        self._emit_error(run, error)

    async def _next_waiting(self) -> tuple[Run, Message] | None:
        """Read the message that has waited longest from the log; None if none waits."""
        session = self.session
        while waiting := (await session.metadata()).waiting:
            queued = await session.store.call(find_queued, session.sync, waiting[0])
            if queued is not None:
                message, options = queued
                return Run(message.run_id or "", session.id, message.id, 0, options), message
            # Not written by everlog: it cannot be read, now or later.
            await session.append(Event(kind=WITHDRAWN, data={"id": waiting[0]}))
            text = f"the queued message {waiting[0]} cannot be read and was withdrawn"
            self._workers.emit(Status(session_id=session.id, message=text))
        return None

    async def _settle_remote(self, run: Run) -> None:
        """Settle a run whose message another process has answered."""
        outcome = await self._read_outcome(run)
        run.settle(outcome)
        self.runs.pop(run.message_id, None)
        if isinstance(outcome, Answer):
            self._workers.emit(outcome.event())

    async def _read_outcome(self, run: Run) -> Answer | EverlogError:
        return await self.session.store.call(read_outcome, self.session.sync, run.id, run.message_id)

    def _fail(self, error: EverlogError) -> None:
        """Fail all runs; the error of waiting ones says that their messages stay recorded."""
        pending = [run for run in self.runs.values() if not run.is_done]
        self.runs.clear()
        self._worker = None
        self.drop_if_idle()
        text = error.message
        message = text if text == MESSAGE_KEPT else f"{text}; {MESSAGE_KEPT}"
        waiting_error = type(error)(message, hint=error.hint, **error.facts)
        outcomes = [(run, error if run is self.current else waiting_error) for run in pending]
        for run, problem in outcomes:
            run.settle(problem)
        for run, problem in outcomes:
            self._emit_error(run, problem)

    def _emit_error(self, run: Run, error: EverlogError) -> None:
        self._workers.emit(replace(error_event(self.session.id, error), run_id=run.id))

    # --- stopping

    def stop_turn(self) -> None:
        """Cancel the running turn, also if it is only about to begin."""
        if self.current is not None:
            self.current.is_stopping = True
        if self._turn is not None:
            self._turn.cancel()

    async def withdraw(self, run_id: str) -> bool:
        """Withdraw a waiting message; False if it does not wait. The caller holds the lock."""
        run = next((run for run in self.runs.values() if run.id == run_id and not run.is_done), None)
        if run is None:
            return False
        message_id = run.message_id
        event = Event(kind=WITHDRAWN, data={"id": message_id})
        if not await compare_and_append(
            self.session, lambda metadata: event if message_id in metadata.waiting else None
        ):
            return False  # another process has begun its turn
        self.runs.pop(message_id, None)
        error = withdrawn_error(self.session.id, run.id)
        run.settle(error)
        self._emit_error(run, error)
        return True
