"""The state that the steps of a turn share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from everlog.agent.worker_threads import run_to_completion
from everlog.aio import AsyncSession
from everlog.model import Message
from everlog.ports import Lease
from everlog.wire.events import MessageStored, RunEvent, Sink

if TYPE_CHECKING:
    from everlog.agent.agent import Agent


class TurnState:
    """The agent, session and lease of a turn, and the messages stored so far."""

    def __init__(
        self,
        agent: Agent,
        session: AsyncSession,
        lease: Lease,
        run_id: str,
        *,
        history: list[Message] | None,
        emit: Sink,
    ) -> None:
        self.agent = agent
        self.session = session
        self.lease = lease
        self.run_id = run_id
        self.history = history  # replaces the session's own history
        self.stored: list[Message] = []
        self._sink = emit

    def emit(self, event: RunEvent) -> None:
        """Emit an event to the agent's sink and to the turn's."""
        event = replace(event, run_id=self.run_id)
        self.agent.emit(event)
        if self._sink is not self.agent.emit:
            self._sink(event)

    async def append(self, message: Message) -> Message:
        """Store and report a message, even if the turn is being cancelled; durable on return."""
        stored = await run_to_completion(self._append(message))
        await self.notify_hooks("on_message", stored)
        return stored

    async def _append(self, message: Message) -> Message:
        stored = await self.session.append(message, lease=self.lease)
        self.note_stored(stored)
        return stored

    async def close_calls(self) -> bool:
        """Append an error result for every open tool call; return whether there was any."""
        closed = await self.session.close_calls(lease=self.lease)
        for result in closed:
            self.note_stored(result)
            await self.notify_hooks("on_message", result)
        return bool(closed)

    def note_stored(self, stored: Message) -> None:
        """Add a stored message to the turn, and emit it."""
        self.stored.append(stored)
        if self.history is not None:
            self.history.append(stored)
        message = replace(stored, line=b"")
        self.emit(MessageStored(session_id=self.session.id, seq=stored.seq, message=message))

    async def notify_hooks(self, method: str, *arguments: object) -> None:
        """Call an observer method of the agent's hooks."""
        await self.agent.hooks.notify(method, self.session.sync, self.emit, *arguments)
