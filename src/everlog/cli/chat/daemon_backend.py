"""The backend in another process: the daemon of the home, over HTTP and its event stream.

Every call looks up the daemon's address again, so a restarted daemon is found on any port. A thread
reads the event stream; it reports a lost connection once and its return once, and then requests the
messages that were stored meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import asdict

from everlog.agent.worker_threads import call_in_loop, run_in_thread
from everlog.aio import AsyncSession, AsyncStore
from everlog.cli.chat.backend import Backend, Disconnected, Reconnected, StreamItem
from everlog.client import Client, websocket
from everlog.context.build import Context
from everlog.errors import EverlogError, NotFoundError
from everlog.log.backward_read import LeftOut
from everlog.log.line_codec import from_object
from everlog.model import Message
from everlog.wire.events import MessageStored
from everlog.wire.responses import AcceptedMessage

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

    from everlog.agent.compactor import Outcome

T = TypeVar("T")

RETRY_SECONDS = 0.5  # between attempts to reconnect


class DaemonBackend(Backend):
    """The daemon as a backend; its turns continue when this program exits."""

    survives_exit = True

    def __init__(self, home: Path, address: str, store: AsyncStore) -> None:
        self.store = store
        self.events: asyncio.Queue[StreamItem] = asyncio.Queue()
        self.continued: set[str] = set()
        self.description = f"through the daemon at {address}"
        self._home = home
        self._reader: _EventReader | None = None

    async def follow(self, session: str) -> str:
        """Follow this session only; no event after the return is missed."""
        metadata = await (await self.store.session(session)).metadata()
        reader = _EventReader(self._home, session, metadata.through.seq, self.events)
        run = await reader.wait_started()
        if self._reader is not None:  # only now, so that a failure changes nothing
            self._reader.stop()
        self._reader = reader
        return run

    async def create(self, *, agent: str, sender: str, model: str = "", title: str | None = None) -> AsyncSession:
        """Create a session, whose model the daemon checks because it has the API keys."""
        created = await self._call(
            lambda client: client.create(check=True, agent=agent, sender=sender, model=model or None, title=title)
        )
        return await self.store.session(created.id)

    async def discard(self, session: str) -> None:
        """Delete a session that was made for a turn which its provider refused."""
        await self._call(lambda client: client.delete(session))

    async def use_model(self, session: str, model: str) -> None:
        """Change the session's model, if the daemon can use it."""
        agreed = session in self.continued
        await self._call(lambda client: client.update(session, check=True, model=model, continue_here=agreed))

    async def submit(self, session: str, text: str) -> AcceptedMessage:
        agreed = session in self.continued
        return await self._call(lambda client: client.submit(session, text, cwd=os.getcwd(), continue_here=agreed))

    async def cancel(self, session: str, run_id: str = "") -> bool:
        return await self._call(lambda client: client.cancel(session, run_id))

    async def compact(self, session: str, focus: str) -> Outcome:
        from everlog.agent.compactor import Outcome

        agreed = session in self.continued
        reply = await self._call(lambda client: client.compact(session, focus=focus, continue_here=agreed))
        record = None if reply.record is None else from_object(reply.record)
        return Outcome(**(asdict(reply) | {"record": record}))

    async def context(self, session: str) -> Context:
        reply = await self._call(lambda client: client.context(session))
        messages = (from_object({"recordType": "message", **item}) for item in reply.messages)
        return Context(
            messages=tuple(item for item in messages if isinstance(item, Message)),
            tokens=reply.tokens,
            window=reply.window,
            left_out=tuple(LeftOut(item.seq, item.why) for item in reply.left_out),
            stale=tuple(reply.stale),
            excess=reply.excess,
        )

    async def rename(self, session: str, title: str) -> None:
        agreed = session in self.continued
        await self._call(lambda client: client.update(session, title=title, continue_here=agreed))

    async def rewind(self, session: str, to_seq: int) -> None:
        agreed = session in self.continued
        await self._call(lambda client: client.rewind(session, to_seq, continue_here=agreed))

    def sessions_stopped_on_exit(self) -> list[str]:
        """Return no session: turns continue in the daemon."""
        return []

    async def close(self) -> None:
        """Stop following, and close the store; the daemon keeps running."""
        if self._reader is not None:
            self._reader.stop()
        await self.store.close()

    async def _call(self, request: Callable[[Client], T]) -> T:
        def ask() -> T:
            with Client.of(self._home) as client:
                return request(client)

        return await run_in_thread(ask)


async def find_daemon(home: Path) -> str:
    """Return the address of the daemon of a home; NotFoundError if none is running."""

    def ask() -> str:
        with Client.of(home) as client:
            return client.address

    return await run_in_thread(ask)


class _EventReader:
    """A thread that reads the events of one session."""

    def __init__(self, home: Path, session: str, seq: int, events: asyncio.Queue[StreamItem]) -> None:
        self._home = home
        self._session = session
        self._seq = seq  # the last stored message that was received
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[str] = self._loop.create_future()
        self._stopped = threading.Event()
        self._socket: Connection | None = None
        threading.Thread(target=self._run, daemon=True).start()

    async def wait_started(self) -> str:
        """Wait for the subscription and return the running turn; raises if it fails."""
        return await self._started

    def stop(self) -> None:
        """Stop reading and emitting events."""
        self._stopped.set()
        if self._socket is not None:  # the closing handshake may take a while
            threading.Thread(target=self._socket.close, daemon=True).start()

    def _run(self) -> None:
        is_first, is_disconnected = True, False
        while not self._stopped.is_set():
            try:
                with Client.of(self._home) as client, client.connect() as socket:
                    self._socket = socket
                    after = None if is_first else self._seq
                    run = websocket.subscribe(socket, self._session, after)
                    if is_first:
                        call_in_loop(self._loop, self._settle, run)
                    elif is_disconnected:
                        self._emit(Reconnected(run))
                    is_first = is_disconnected = False
                    for event in websocket.read_events(socket):
                        if isinstance(event, MessageStored):
                            self._seq = max(self._seq, event.seq)
                        self._emit(event)
            except EverlogError as error:
                if is_first:
                    call_in_loop(self._loop, self._settle, error)
                    return
                if not is_disconnected:
                    is_disconnected = True
                    self._emit(Disconnected(error.message))
                if isinstance(error, NotFoundError) and "status" in error.facts:
                    return  # the daemon answered: the session was deleted
            self._stopped.wait(RETRY_SECONDS)

    def _emit(self, item: StreamItem) -> None:
        if not self._stopped.is_set():
            call_in_loop(self._loop, self._events.put_nowait, item)

    def _settle(self, result: str | EverlogError) -> None:
        if self._started.done():
            return
        if isinstance(result, str):
            self._started.set_result(result)
        else:
            self._started.set_exception(result)
