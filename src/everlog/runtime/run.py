"""A run: an accepted message, until the end of the turn that answers it, and who answers it."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from everlog.agent.answer import Answer
from everlog.aio import AsyncSession
from everlog.model import Message
from everlog.ports import Lease
from everlog.runtime.queue_log import TurnOptions
from everlog.wire.events import Sink


class Answerer(Protocol):
    """Answers messages: all that a queue knows of agents."""

    async def answer(
        self, session: AsyncSession, message: Message, lease: Lease, *, emit: Sink, options: TurnOptions
    ) -> Answer:
        """Run the turn that answers a stored message, under a lease that the caller holds."""
        ...


class Run:
    """An accepted message and the turn that answers it."""

    def __init__(self, run_id: str, session_id: str, message_id: str, position: int, options: TurnOptions) -> None:
        self.id = run_id
        self.session_id = session_id
        self.message_id = message_id
        self.position = position  # 0: started at once; 1: next in the queue
        self.options = options
        self.is_stopping = False
        self.is_ending = False  # its end was emitted; its lease is about to be released
        self._result: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        # Mark an error as retrieved: nobody has to await the run, and errors are emitted as events.
        self._result.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def is_done(self) -> bool:
        """Return whether the run has ended."""
        return self._result.done()

    async def answer(self) -> Answer:
        """Wait for the answer, or raise the run's error; cancelling the wait stops no run."""
        return await asyncio.shield(self._result)

    async def wait(self) -> None:
        """Wait for the end of the run, whatever its outcome."""
        await asyncio.wait([self._result])

    def settle(self, answer: Answer | BaseException) -> None:
        """Set the outcome, unless it is set already; called by the queue."""
        if self._result.done():
            return
        if isinstance(answer, BaseException):
            self._result.set_exception(answer)
        else:
            self._result.set_result(answer)


class RecoveredSession(msgspec.Struct, frozen=True, rename="camel"):
    """A session that a crash left unfinished, and that was repaired."""

    session_id: str
    interrupted: str | None  # the run that the crash ended
    waiting: int  # messages that are processed now
