"""The state that the steps of a turn share."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from everlog.agent.hooks import Hooks
from everlog.agent.worker_threads import run_to_completion
from everlog.aio import AsyncSession
from everlog.model import Message, Usage
from everlog.ports import Lease
from everlog.wire.events import MessageStored, RunEvent, Sink


@dataclass(slots=True, kw_only=True)
class TurnState:
    """The session and lease of a turn, the messages stored and the tokens used so far."""

    session: AsyncSession
    lease: Lease
    run_id: str
    hooks: Hooks
    sink: Sink
    history: list[Message] | None  # replaces the session's own
    stored: list[Message] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)  # of model calls and of subagents

    def emit(self, event: RunEvent) -> None:
        """Emit an event of this run."""
        self.sink(replace(event, run_id=self.run_id))

    def add_usage(self, usage: Usage | None) -> None:
        """Add the usage of a model call or a subagent to that of the turn."""
        if usage is not None:
            total, added = msgspec.structs.asdict(self.usage), msgspec.structs.asdict(usage)
            self.usage = Usage(**{key: total[key] + added[key] for key in total})

    async def append(self, message: Message) -> Message:
        """Store and report a message, even if the turn is being cancelled; durable on return."""
        stored = await run_to_completion(self._append(message))
        await self.notify_hooks("on_message", stored)
        return stored

    async def _append(self, message: Message) -> Message:
        stored = await self.session.append(message, lease=self.lease)
        self.note_stored(stored)
        return stored

    async def close_calls(self) -> None:
        """Append an error result for every open tool call."""
        for result in await self.session.close_calls(lease=self.lease):
            self.note_stored(result)
            await self.notify_hooks("on_message", result)

    def note_stored(self, stored: Message) -> None:
        """Add a stored message to the turn, and emit it."""
        self.stored.append(stored)
        if self.history is not None:
            self.history.append(stored)
        self.emit(stored_event(self.session.id, stored))

    async def notify_hooks(self, method: str, *arguments: object) -> None:
        """Call an observer method of the agent's hooks."""
        await self.hooks.notify(method, self.session.sync, self.emit, *arguments)


def stored_event(session: str, stored: Message) -> MessageStored:
    """Return the event that reports a stored message."""
    return MessageStored(session_id=session, seq=stored.seq, message=replace(stored, line=b""))
