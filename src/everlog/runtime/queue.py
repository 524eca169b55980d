"""The queue: one turn at a time per session, whoever asks; others wait in order.

A message is taken when it is durable. If nothing runs, it is appended at once and its turn
begins. Otherwise it is recorded as a `queued` event that holds it; whoever has the lease goes on
with the oldest of those, by appending the message under the same id. So `queued` events without
their message are the queue, after a restart and for every other process as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from uuid import uuid4

from msgspec.structs import replace

from everlog.agent.turn import Answer, failed, new_run_id, repair
from everlog.agent.turn_lease import give_back, is_lost, loss
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
from everlog.runtime.queue_log import KEPT, How, compared, find, from_log, queued
from everlog.runtime.retry_backoff import Setbacks
from everlog.runtime.run import Recovered, Run
from everlog.wire.events import Error, MessageComplete, Queued, RunEvent, Sink, Status

FIRST_LOOK, LAST_LOOK = 0.02, 0.5  # seconds between two tries for a lease that another process has


# Answers a stored message under a lease.
Answering = Callable[[AsyncSession, Message, Lease, Sink, How], Awaitable[Answer]]


class _Line:
    """The runs of one session in this process."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # taking a message, or seeing that none is left
        self.runs: dict[str, Run] = {}  # by message, those that wait or run
        self.current: Run | None = None
        self.turn: asyncio.Task[Answer] | None = None
        self.worker: asyncio.Task[None] | None = None


class Queue:
    """All sessions' queues, as far as this process works on them."""

    def __init__(
        self, store: AsyncStore, answering: Answering, *, waiting: int, emit: Sink
    ) -> None:
        self.store = store
        self.waiting = waiting
        self._answering = answering
        self._emit = emit
        self.setbacks = Setbacks()
        self._lines: dict[str, _Line] = {}
        self._workers: set[asyncio.Task[None]] = set()  # also those that only give their lease back
        self._closed = False

    # --- asking

    def current(self, session: str) -> Run | None:
        """The turn of a session that is running in this process."""
        line = self._lines.get(session)
        return line.current if line is not None else None

    def is_at_work(self, session: str) -> bool:
        """Whether this process runs a turn of a session, or is about to."""
        line = self._lines.get(session)
        return line is not None and (line.current is not None or line.lock.locked())

    @property
    def running(self) -> int:
        """How many turns are running."""
        return sum(line.current is not None for line in self._lines.values())

    @property
    def held(self) -> int:
        """How many messages wait."""
        return sum(
            sum(not run.done and run is not line.current for run in line.runs.values())
            for line in self._lines.values()
        )

    # --- taking messages

    async def submit(self, session: AsyncSession, message: Message, how: How = How()) -> Run:  # noqa: B008 - frozen
        """Take a message: durable when this returns. QueueFullError if too many wait already.

        Once begun it goes on, also if whoever asks goes away.
        """
        taking = asyncio.ensure_future(self._submit(session, message, how))
        taking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(taking)

    async def _submit(self, session: AsyncSession, message: Message, how: How) -> Run:
        run_id = new_run_id()
        message = replace(message, id=message.id or str(uuid4()), run_id=run_id)
        async with self._line(session.id) as line:
            if self._closed:
                raise SessionBusyError("the daemon is about to stop", hint="send it again later")
            lease = await self._lease_at_once(session, line)
            try:
                stored = None
                if lease is not None:
                    await repair(session, lease, self._emit)
                    stored = await compared(
                        session, lambda known: None if known.waiting else message, lease
                    )
                if lease is not None and stored is not None:
                    run = Run(run_id, session.id, message.id, 0, how)
                    line.runs[message.id] = line.current = run
                    self._work(line, session, lease, (run, stored))
                    return run
                position = await self._record(session, message, how)
            except BaseException as error:
                if lease is not None and isinstance(error, QueueFullError):
                    self._work(line, session, lease, None)  # nobody else works on what waits
                elif lease is not None:
                    await give_back(self.store, lease)
                raise
            run = Run(run_id, session.id, message.id, position, how)
            line.runs[message.id] = run
            if line.worker is None:
                self._work(line, session, lease, None)
            self._emit(Queued(session_id=session.id, run_id=run_id, position=position))
            return run

    @asynccontextmanager
    async def _line(self, session: str) -> AsyncIterator[_Line]:
        """The line of a session, locked; another one if it was dropped while we waited.

        It is dropped afterwards if it has nothing to do.
        """
        while True:
            line = self._lines.setdefault(session, _Line())
            async with line.lock:
                if self._lines.get(session) is line:
                    try:
                        yield line
                    finally:
                        self._forget(session, line)
                    return

    async def _lease_at_once(self, session: AsyncSession, line: _Line) -> Lease | None:
        if line.worker is not None:
            return None
        try:
            return await session.lease()
        except SessionBusyError:  # another process runs a turn
            return None

    async def _record(self, session: AsyncSession, message: Message, how: How) -> int:
        """Record a message as waiting and return its place."""
        event = queued(message, how, str(uuid4()))
        place = 0

        def made(known: Metadata) -> Event:
            nonlocal place
            place = len(known.waiting) + 1
            if place > self.waiting:
                raise QueueFullError(
                    f"{len(known.waiting)} messages wait for this session already",
                    hint="wait for an answer, then send it again",
                    session=session.id,
                )
            return event

        await compared(session, made)
        return place

    # --- working

    def _work(
        self,
        line: _Line,
        session: AsyncSession,
        lease: Lease | None,
        first: tuple[Run, Message] | None,
    ) -> None:
        line.worker = task = asyncio.create_task(self._worker(line, session, lease, first))
        self._workers.add(task)
        task.add_done_callback(self._workers.discard)

    async def _worker(
        self,
        line: _Line,
        session: AsyncSession,
        lease: Lease | None,
        first: tuple[Run, Message] | None,
    ) -> None:
        settle: Callable[[], None] | None = None
        try:
            while True:
                if lease is None or is_lost(lease):
                    if settle is not None:
                        settle()
                        settle = None
                    lease = await self._lease_in_time(session)
                    await repair(session, lease, self._emit)  # who had it may have been killed
                elif first is not None:
                    settle = await self._answer(line, session, lease, *first)
                    first = None
                    continue
                async with line.lock:
                    line.current = None
                    entry = await self._oldest(session)
                    if entry is None or self._closed:
                        # Whoever gets the answer may want the lease at once.
                        given, lease = lease, None
                        await give_back(self.store, given)
                        await self._settle_others(line, session)
                        self._forget(session.id, line, worker=True)
                    else:
                        run, message = entry
                        line.current = run = line.runs.setdefault(run.message_id, run)
                    if settle is not None:
                        settle()
                        settle = None
                    if line.current is None or lease is None:
                        return
                try:
                    first = await self._begin(line, session, lease, run, message)
                except ConflictError:
                    if not is_lost(lease):
                        raise
                    line.current = None
        except EverlogError as error:  # the store cannot be used: what waits is still recorded
            self._fail(line, session.id, error)
        # A mistake of ours, or the end of the loop, must not leave anybody waiting.
        except (Exception, asyncio.CancelledError) as error:
            self._fail(line, session.id, EverlogError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            if lease is not None:
                await give_back(self.store, lease)
            if settle is not None:
                settle()
            if line.worker is asyncio.current_task():
                line.worker = line.current = None

    async def _begin(
        self, line: _Line, session: AsyncSession, lease: Lease, run: Run, message: Message
    ) -> tuple[Run, Message] | None:
        """Store a message whose turn has come; None if it was withdrawn by another process."""
        await repair(session, lease, self._emit)
        stored = await compared(
            session, lambda known: message if message.id in known.waiting else None, lease
        )
        if stored is not None:
            return run, stored
        line.runs.pop(run.message_id, None)
        run.settle(RunCancelledError("it was withdrawn", session=session.id, run=run.id))
        return None

    async def _lease_in_time(self, session: AsyncSession) -> Lease:
        wait = FIRST_LOOK
        while True:
            try:
                return await session.lease()
            except SessionBusyError:
                if self._closed:
                    raise SessionBusyError(KEPT, session=session.id) from None
                await asyncio.sleep(wait)
                wait = min(wait * 1.5, LAST_LOOK)

    async def _answer(
        self, line: _Line, session: AsyncSession, lease: Lease, run: Run, stored: Message
    ) -> Callable[[], None]:
        """Run one turn to its end and return what tells so to whoever waits.

        Nothing that goes wrong with a turn stops the queue.
        """

        def emit(event: RunEvent) -> None:
            run.ending |= isinstance(event, MessageComplete | Error)
            self._emit(event)

        answering = self._answering(session, stored, lease, emit, run.how)
        line.turn = turn = asyncio.ensure_future(answering)
        if run.stopping:
            turn.cancel()
        with ExitStack() as ending:
            if isinstance(lease, ExpiringLease):
                stop = partial(_stop, asyncio.get_running_loop(), turn)
                ending.callback(lease.on_lost(stop))
            try:
                await asyncio.wait([turn])
            except asyncio.CancelledError:  # the loop ends
                turn.cancel()
                await asyncio.wait([turn])
                raise
        result: Answer | EverlogError
        if is_lost(lease):
            result = loss(session.id)
        elif turn.cancelled():
            result = RunCancelledError("the turn was stopped", session=session.id, run=run.id)
        elif (error := turn.exception()) is None:
            result = turn.result()
        elif isinstance(error, EverlogError):
            result = error
        else:  # a provider that breaks its word
            result = ProviderError(f"{type(error).__name__}: {error}")
        line.turn = line.current = None
        line.runs.pop(run.message_id, None)
        try:
            if isinstance(result, EverlogError) and not is_lost(lease):
                await self._see_ended(session, lease, run, result)
        except BaseException:
            run.settle(result)
            raise
        return lambda: run.settle(result)

    async def _see_ended(
        self, session: AsyncSession, lease: Lease, run: Run, error: EverlogError
    ) -> None:
        """Record the end of a turn that could not begin, such as for lack of a model."""
        if (await session.metadata()).run != run.id:
            return
        await session.close_calls(lease=lease)
        stop = "cancelled" if isinstance(error, RunCancelledError) else "error"
        text = str(error)[:500]
        await session.end_turn(duration_ms=0, run_id=run.id, stop=stop, error=text, lease=lease)
        self._emit(replace(failed(session.id, error), run_id=run.id))

    async def _oldest(self, session: AsyncSession) -> tuple[Run, Message] | None:
        """The message that has waited longest, out of the log."""
        while waiting := (await session.metadata()).waiting:
            found = await session.store.call(find, session.sync, waiting[0])
            if found is not None:
                message, how = found
                return Run(message.run_id or "", session.id, message.id, 0, how), message
            # Not written by us: nobody can ever say what it was.
            await session.append(Event(kind=WITHDRAWN, data={"id": waiting[0]}))
            text = f"the queued message {waiting[0]} cannot be read and was withdrawn"
            self._emit(Status(session_id=session.id, message=text))
        return None

    async def _settle_others(self, line: _Line, session: AsyncSession) -> None:
        """Give the answers of those messages that another process has answered."""
        for run in [one for one in line.runs.values() if not one.done]:
            found = await session.store.call(from_log, session.sync, run.id, run.message_id)
            run.settle(found)
            line.runs.pop(run.message_id, None)
            if isinstance(found, Answer):
                self._emit(
                    MessageComplete(
                        session_id=session.id,
                        run_id=run.id,
                        seq=found.reply.seq,
                        content=found.reply.text,
                        model=found.reply.model or "",
                        usage=found.usage,
                        duration_ms=found.duration_ms,
                    )
                )

    def _fail(self, line: _Line, session: str, error: EverlogError) -> None:
        """Tell all who wait; what they have sent stays recorded, so it is not to be sent again."""
        left = [run for run in line.runs.values() if not run.done]
        line.runs.clear()
        self._forget(session, line, worker=True)
        kept = error.message if error.message == KEPT else f"{error.message}; {KEPT}"
        waits = type(error)(kept, hint=error.hint, **error.facts)
        told = [(run, error if run is line.current else waits) for run in left]
        for run, problem in told:
            run.settle(problem)
        for run, problem in told:
            self._emit(replace(failed(session, problem), run_id=run.id))

    def _forget(self, session: str, line: _Line, *, worker: bool = False) -> None:
        """Drop a line that has nothing to do; a session that rests costs nothing."""
        if worker:
            line.worker = None
        if line.worker is None and not line.runs and self._lines.get(session) is line:
            del self._lines[session]

    # --- stopping

    async def cancel(self, session: AsyncSession, run_id: str = "") -> bool:
        """Stop a run, waiting or under way; without an id, the one under way. False if none is.

        Returns when the session is ready for another turn.
        """
        line = self._lines.get(session.id)
        if line is None:
            return False
        async with line.lock:  # no message begins or ends to wait meanwhile
            current = line.current
            if current is None or run_id not in ("", current.id):
                return await self._withdraw(line, session, run_id)
            current.stopping = True
            if line.turn is not None:
                line.turn.cancel()
        await current.ended()
        return True

    async def _withdraw(self, line: _Line, session: AsyncSession, run_id: str) -> bool:
        waits = (one for one in line.runs.values() if one.id == run_id and not one.done)
        run = next(waits, None)
        if run is None:
            return False
        name = run.message_id
        gone = Event(kind=WITHDRAWN, data={"id": name})
        if await compared(session, lambda known: gone if name in known.waiting else None) is None:
            return False  # another process has begun it
        line.runs.pop(name, None)
        error = RunCancelledError("it was withdrawn", session=session.id, run=run.id)
        run.settle(error)
        self._emit(replace(failed(session.id, error), run_id=run.id))
        return True

    async def at_rest(self, session: str) -> None:
        """Wait until a turn that has told its answer has also given its lease back."""
        line = self._lines.get(session)
        if line is None:
            return
        if line.current is not None and line.current.ending:
            await line.current.ended()
        async with line.lock:  # between two turns: now another runs, or none
            pass

    async def drain(self, seconds: float) -> None:
        """Take no more messages; let the turns under way end, and stop those that do not in time.

        What waits is recorded and goes on at the next start.
        """
        self._closed = True
        for name in list(self._lines):  # a message that is being taken is one of them
            async with self._line(name):
                pass
        if not self._workers:
            return
        _, late = await asyncio.wait(set(self._workers), timeout=seconds)
        for line in list(self._lines.values()):
            if line.current is not None:
                line.current.stopping = True
            if line.turn is not None:
                line.turn.cancel()
        if late:
            await asyncio.wait(late)

    async def recover(self) -> list[Recovered]:
        """Repair what a crash left unfinished, and go on with what waits."""
        found: list[Recovered] = []
        cursor = None
        while True:
            page = await self.store.list(unfinished=True, limit=500, cursor=cursor)
            found += await self.rescue([row.id for row in page])
            cursor = page.next
            if cursor is None:
                return found

    async def rescue(self, sessions: Iterable[str]) -> list[Recovered]:
        """The same for some sessions; those that somebody works on are left alone.

        So is, for a while, one that could not be repaired: its lease would be taken all the time.
        """
        due = (one for one in sessions if one not in self._lines and self.setbacks.is_due(one))
        found = [await self._recover(one) for one in due]
        return [one for one in found if one is not None]

    async def _recover(self, name: str) -> Recovered | None:
        async with self._line(name) as line:
            lease = None
            try:
                session = await self.store.session(name)
                if not (await session.metadata()).unfinished:
                    self.setbacks.forget(name)
                    return None
                lease = await self._lease_at_once(session, line)
                if lease is None:  # another process is at work on it
                    return None
                before = await session.metadata()
                await repair(session, lease, self._emit)
            except Exception as error:  # the other sessions can do without this one
                if lease is not None:
                    await give_back(self.store, lease)
                if isinstance(error, NotFoundError):
                    self.setbacks.forget(name)
                elif self.setbacks.add(name, str(error)):
                    self._emit(Status(session_id=name, message=f"not repaired: {error}"))
                return None
            self.setbacks.forget(name)
            if before.waiting and not self._closed:
                self._work(line, session, lease, None)
            else:
                await give_back(self.store, lease)
            if not before.unfinished:
                return None
            return Recovered(name, before.run, len(before.waiting))


def _stop(loop: asyncio.AbstractEventLoop, turn: asyncio.Future[Answer]) -> None:
    """Stop a turn from another thread."""
    with suppress(RuntimeError):  # the loop has ended meanwhile
        loop.call_soon_threadsafe(turn.cancel)
