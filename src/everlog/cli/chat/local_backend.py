"""The backend in this process: a runtime over the home.

Unlike the daemon's runtime it is not started: it runs no cron jobs and resumes no other session.
What a crash left in a session is repaired when a message is sent to it.

While no turn of the session runs here, it polls every second for records that other processes
append, and emits them as the daemon would.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from everlog.aio import AsyncSession
from everlog.cli.chat.backend import Backend, StreamItem
from everlog.context.build import Context
from everlog.errors import EverlogError
from everlog.runtime.remote_events import RemoteEvents
from everlog.runtime.runtime import Runtime
from everlog.wire.events import MessageComplete, RunEvent
from everlog.wire.responses import AcceptedMessage

if TYPE_CHECKING:
    from everlog.agent.compactor import Outcome

POLL_SECONDS = 1.0  # between two polls for records of other processes
CLOSE_SECONDS = 3.0  # for titles and notes to finish when the program exits


class LocalBackend(Backend):
    """A runtime in this process as a backend; its turns end with the program."""

    description = "in this process"
    survives_exit = False

    def __init__(self, runtime: Runtime) -> None:
        self.store = runtime.store
        self.events: asyncio.Queue[StreamItem] = asyncio.Queue()
        self.continued: set[str] = set()
        self._runtime = runtime
        self._remote_events: RemoteEvents | None = None  # of the followed session, until deleted
        # Events of the runtime, each with the seq up to which other processes wrote before it.
        self._incoming: asyncio.Queue[tuple[RunEvent, int]] = asyncio.Queue()
        self._forwarder: asyncio.Task[None] | None = None
        self._edit_lock = asyncio.Lock()  # held while this process records outside of turns
        runtime.listeners.append(self._on_event)

    async def follow(self, session: str) -> str:
        """Follow this session only; return its turn that runs here, or ""."""
        handle = await self.store.session(session)
        self._remote_events = RemoteEvents(handle.sync, (await handle.metadata()).through.seq)
        if self._forwarder is None:
            self._forwarder = asyncio.create_task(self._forward_events())
        # No await since the assignment above, so no event of this turn is missed.
        run = self._runtime.current(handle.id)
        return "" if run is None or run.is_ending else run.id

    async def create(self, *, agent: str, sender: str, model: str = "", title: str | None = None) -> AsyncSession:
        """Create a session, if its model can be used."""
        return await self._runtime.create(agent=agent, sender=sender, model=model, title=title, check=True)

    async def discard(self, session: str) -> None:
        """Delete a session that was made for a turn which its provider refused."""
        await self._runtime.edits.delete(await self.store.session(session))

    async def use_model(self, session: str, model: str) -> None:
        """Change the session's model, if it can be used."""
        await self.store.call(self.store.sync.provider, model)
        handle = await self.store.session(session)
        await self._runtime.edits.update(handle, model=model, continue_here=session in self.continued)

    async def submit(self, session: str, text: str) -> AcceptedMessage:
        handle = await self.store.session(session)
        agreed = session in self.continued
        run = await self._runtime.submit(handle, text, cwd=os.getcwd(), continue_here=agreed)
        return AcceptedMessage(run_id=run.id, position=run.position)

    async def cancel(self, session: str, run_id: str = "") -> bool:
        return await self._runtime.cancel(session, run_id)

    async def compact(self, session: str, focus: str) -> Outcome:
        async with self._edit_lock:
            handle = await self.store.session(session)
            return await self._runtime.compact(handle, focus=focus, continue_here=session in self.continued)

    async def context(self, session: str) -> Context:
        return await self._runtime.context(await self.store.session(session))

    async def rename(self, session: str, title: str) -> None:
        async with self._edit_lock:
            handle = await self.store.session(session)
            await self._runtime.edits.update(handle, title=title, continue_here=session in self.continued)

    async def rewind(self, session: str, to_seq: int) -> None:
        async with self._edit_lock:
            handle = await self.store.session(session)
            await self._runtime.edits.rewind(handle, to_seq, continue_here=session in self.continued)

    def sessions_stopped_on_exit(self) -> list[str]:
        runtime = self._runtime
        return [session for session in runtime.open_sessions() if runtime.current(session)]

    async def close(self) -> None:
        """Stop all turns, start no more, and let work that follows an answer finish."""
        if self._forwarder is not None:
            self._forwarder.cancel()
            await asyncio.wait({self._forwarder})
        await self._runtime.queue.drain(0)
        await self._runtime.drain(CLOSE_SECONDS)
        await self.store.close()

    # --- events

    def _on_event(self, event: RunEvent) -> None:
        remote = self._remote_events
        if remote is None or event.session_id != remote.session.id:
            return
        # If another process answered a message that was queued here, the records that it wrote
        # are read and emitted before this event.
        through = 0
        if isinstance(event, MessageComplete) and not remote.has_seen(event.seq):
            through = event.seq
        remote.note_reported(event)
        self._incoming.put_nowait((event, through))

    async def _forward_events(self) -> None:
        """Forward events into `events`, in order."""
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    event, through = await self._incoming.get()
            except TimeoutError:
                await self._poll()
                continue
            if through:
                await self._poll(through)
            self.events.put_nowait(event)

    async def _poll(self, through: int = 0) -> None:
        """Emit what other processes appended; with `through`, only up to that seq."""
        remote = self._remote_events
        if remote is None:
            return

        def is_busy() -> bool:
            turn = not through and self._runtime.is_busy(remote.session.id)
            return turn or self._edit_lock.locked() or remote is not self._remote_events

        with suppress(EverlogError):  # the next message reports it, unless the next poll succeeds
            for event in await remote.poll(self.store, is_busy, through):
                self.events.put_nowait(event)
