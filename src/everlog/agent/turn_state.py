"""What the parts of a turn stand on together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from everlog.agent.worker_threads import to_its_end
from everlog.aio import AsyncSession
from everlog.model import Message
from everlog.ports import Lease
from everlog.wire.events import MessageStored, RunEvent, Sink

if TYPE_CHECKING:
    from everlog.agent.agent import Agent


class Ground:
    """One agent in one session under one lease, and what was stored so far."""

    def __init__(
        self,
        agent: Agent,
        session: AsyncSession,
        lease: Lease,
        run_id: str,
        *,
        given: list[Message] | None,
        emit: Sink,
    ) -> None:
        self.agent = agent
        self.session = session
        self.lease = lease
        self.run_id = run_id
        self.given = given  # a history that takes the place of the session's own
        self.stored: list[Message] = []
        self._watcher = emit

    def emit(self, event: RunEvent) -> None:
        """Tell those who watch the agent and those who watch this turn."""
        event = replace(event, run_id=self.run_id)
        self.agent.emit(event)
        if self._watcher is not self.agent.emit:
            self._watcher(event)

    async def append(self, message: Message) -> Message:
        """Store a message, and tell so, also if a stop comes meanwhile."""
        stored = await to_its_end(self._keep(message))
        await self.tell("on_message", stored)
        return stored

    async def _keep(self, message: Message) -> Message:
        stored = await self.session.append(message, lease=self.lease)
        self.heard(stored)
        return stored

    async def close_calls(self) -> bool:
        """Give every call that has no result one that says so; whether there was any."""
        closed = await self.session.close_calls(lease=self.lease)
        for result in closed:
            self.heard(result)
            await self.tell("on_message", result)
        return bool(closed)

    def heard(self, stored: Message) -> None:
        """Take note of a message that is stored."""
        self.stored.append(stored)
        if self.given is not None:
            self.given.append(stored)
        shown = replace(stored, line=b"")
        self.emit(MessageStored(session_id=self.session.id, seq=stored.seq, message=shown))

    async def tell(self, what: str, *facts: object) -> None:
        """Tell the agent's hooks."""
        await self.agent.hooks.tell(what, self.session.sync, self.emit, *facts)
