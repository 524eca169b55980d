"""A run: a message that was taken, from then to the end of the turn that answers it."""

from __future__ import annotations

import asyncio

import msgspec

from everlog.agent.turn import Answer
from everlog.runtime.queue_log import How


class Run:
    """A message that was taken, and the turn that answers it."""

    def __init__(
        self, run_id: str, session_id: str, message_id: str, position: int, how: How
    ) -> None:
        self.id = run_id
        self.session_id = session_id
        self.message_id = message_id
        self.position = position  # 0: at once; 1: the next
        self.how = how
        self.stopping = False
        self.ending = False  # its end was told; what it holds is about to be given back
        self._done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        # Nobody need wait for an answer; one that is an error is told to those who watch.
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._done.done()

    async def answer(self) -> Answer:
        """What it came to; raises what went wrong. Going away does not stop it."""
        return await asyncio.shield(self._done)

    async def ended(self) -> None:
        """Wait for its end, whatever it came to."""
        await asyncio.wait([self._done])

    def settle(self, answer: Answer | BaseException) -> None:
        """Called by the queue."""
        if self._done.done():
            return
        if isinstance(answer, BaseException):
            self._done.set_exception(answer)
        else:
            self._done.set_result(answer)


class Recovered(msgspec.Struct, frozen=True, rename="camel"):
    """A session that a crash left unfinished."""

    session_id: str
    interrupted: str | None  # the run that was under way
    waiting: int  # messages that go on now
