"""`/ws`: sessions as they happen.

A client says `send_message`, `cancel`, `subscribe` and `unsubscribe`; the daemon tells it the
events of `everlog.wire.events` for every session that it follows, and, after `watch`, when the
listing changes. Everything that goes to a client goes through one queue, its subscription to the
feed, and is written by one task: order is kept, and a
client that does not read holds up nobody. It is dropped (1013) and comes back with the last seq
that it has; what it missed is read from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect
from msgspec import UNSET
from msgspec.structs import replace

from everlog.aio import AsyncSession
from everlog.daemon.api.requests import NO_ID, NO_SESSION, Said, Seq
from everlog.daemon.error_responses import INTERNAL
from everlog.daemon.json_log import note
from everlog.daemon.listing_events import Board
from everlog.daemon.request_guard import TICKET
from everlog.daemon.request_limits import Bucket, text_problem
from everlog.errors import EverlogError, InvalidIdError, NotFoundError, QueueFullError
from everlog.model import Message
from everlog.runtime.feed import Notice
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.events import Error, MessageStored, RunEvent

SUBSCRIPTIONS = 1_000  # of one client
REPLAYED = 200  # messages that are read from the log at a time
SEND_SECONDS = 30.0  # for one event; then the client has gone, whatever TCP thinks
TOO_SLOW = (1013, "too slow: subscribe again with after")
GOING_AWAY = (1001, "the daemon is stopping")
NO_LONGER = (1008, "the token has changed: connect with the new one")


class Subscribed(RunEvent, frozen=True, kw_only=True):
    """The client gets the session's events from here on; with the run that is under way, if any."""

    seq: int  # the last one of its log


class Unsubscribed(RunEvent, frozen=True, kw_only=True):
    """The client gets no more of them."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    session_id: str


class _SendMessage(_Asked, frozen=True, kw_only=True):
    content: Said
    cwd: str | None = None


class _Cancel(_Asked, frozen=True, kw_only=True):
    run_id: str


class _Subscribe(_Asked, frozen=True, kw_only=True):
    after: Seq | None = None  # also what the log has behind this seq


class _Unsubscribe(_Asked, frozen=True, kw_only=True):
    pass


_KINDS: dict[str, type[_Asked]] = {
    "send_message": _SendMessage,
    "cancel": _Cancel,
    "subscribe": _Subscribe,
    "unsubscribe": _Unsubscribe,
}


class _Stranger(Exception):
    """The client was let in by a token that is none any more."""


class _Invalid(Exception):
    """A client's message that is none."""


class _Replay(Notice):
    """The answer to a subscription, behind which the stored messages go."""

    def __init__(self, event: Subscribed, session: Session, after: int) -> None:
        super().__init__(event)
        self.session = session
        self.after = after
        self.last = event.seq


class Live:
    """All clients of `/ws`."""

    def __init__(self, runtime: Runtime, bucket: Bucket, board: Board) -> None:
        self.runtime = runtime
        self.bucket = bucket
        self.board = board
        self._clients: dict[Client, None] = {}
        self._stopping = False

        @websocket("/ws")
        async def handler(socket: WebSocket[Any, Any, Any]) -> None:
            await self._serve(socket)

        self.handler = handler

    def stop(self) -> None:
        """Send everybody away; what waits for them is still sent."""
        self._stopping = True
        for client in tuple(self._clients):
            client.stop()

    async def _serve(self, socket: WebSocket[Any, Any, Any]) -> None:
        client = Client(self, socket)
        self._clients[client] = None
        note("ws_connect", clients=len(self._clients))
        try:
            if self._stopping:
                client.stop()
            await client.run()
        finally:
            del self._clients[client]
            note("ws_disconnect", clients=len(self._clients))


class Client:
    """One client: a task that reads what it says, one that writes what it is told."""

    def __init__(self, live: Live, socket: WebSocket[Any, Any, Any]) -> None:
        self._runtime = live.runtime
        self._bucket = live.bucket
        self._board = live.board
        self._socket = socket
        self._is_known: Callable[[], bool] = socket.scope["state"].get(TICKET, lambda: True)
        self._told = live.runtime.feed.subscribe()
        self._replayed: dict[str, int] = {}  # session → the last seq that came from its log
        self._verbs: dict[type[_Asked], Callable[[Any, AsyncSession], Awaitable[None]]] = {
            _SendMessage: self._send_message,
            _Cancel: self._cancel,
            _Subscribe: self._subscribe,
            _Unsubscribe: self._unsubscribe,
        }

    async def run(self) -> None:
        """Serve the client until one side ends it. Runs that it began go on."""
        await self._socket.accept()
        tasks = {asyncio.create_task(self._read()), asyncio.create_task(self._write())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except _Stranger:
            await self._close(*NO_LONGER)
        except (WebSocketDisconnect, TimeoutError, ConnectionError):
            pass  # the client has gone
        finally:
            self._told.close()
            self._board.forget(self._told)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Send the client away."""
        self._told.close()

    # --- what it is told

    async def _write(self) -> None:
        async for notice in self._told:
            event = notice.event
            known = self._replayed.get(event.session_id, 0)
            if isinstance(event, MessageStored) and event.seq <= known:
                continue  # it came from the log already
            await self._send(notice)
            if isinstance(notice, _Replay):
                await self._replay(notice)
        await self._close(*(TOO_SLOW if self._told.dropped else GOING_AWAY))

    async def _replay(self, asked: _Replay) -> None:
        """Send what the log has; the live events wait in the queue meanwhile."""
        known = self._replayed.get(asked.session.id, 0)
        after, last = asked.after, max(known, min(asked.after, asked.last))
        while True:
            page = await self._runtime.store.call(_stored, asked.session, after)
            for message in page:
                shown = replace(message, line=b"")  # as the turn tells it
                event = MessageStored(session_id=asked.session.id, seq=message.seq, message=shown)
                await self._send(Notice(event))
                after = message.seq
                last = max(last, after)
            if len(page) < REPLAYED:
                break
        self._replayed[asked.session.id] = last

    async def _send(self, notice: Notice) -> None:
        self._check()
        async with asyncio.timeout(SEND_SECONDS):
            await self._socket.send_text(notice.wire.decode())

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                await self._socket.close(code, reason)

    def _check(self) -> None:
        """Every message, in either direction, is for who would be let in now."""
        if not self._is_known():
            raise _Stranger

    def _tell(self, event: RunEvent) -> None:
        self._told.offer(Notice(event))

    # --- what it says

    async def _read(self) -> None:
        while True:
            message: Any = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._check()
            if self._bucket.take():
                self._tell(Error(session_id="", message="Too many messages. Please retry later."))
                continue
            data = message.get("text") or message.get("bytes") or ""
            await self._obey(data.encode() if isinstance(data, str) else data)

    async def _obey(self, data: bytes) -> None:
        session_id = ""
        try:
            asked = _parse(data)
            if asked is None:
                self._board.watch(self._told)
                return
            session_id = asked.session_id[:100]  # it goes back to the client
            session = await self._runtime.store.session(asked.session_id)
            await self._verbs[type(asked)](asked, session)
        except _Invalid as error:
            self._tell(Error(session_id="", message=str(error)))
        except EverlogError as error:
            self._tell(_error(session_id, error))
        except Exception as error:
            note("request_failed", level="error", path="/ws", problem=repr(error)[:1000])
            self._tell(Error(session_id=session_id, message=INTERNAL))

    async def _send_message(self, asked: _SendMessage, session: AsyncSession) -> None:
        if session.id not in self._told.sessions:
            # What another process appends meanwhile is told from here on.
            self._board.follow(session.id, (await session.metadata()).through.seq)
        self._follow(session)  # first: it is told of its own run from the start
        await self._runtime.submit(session, asked.content, cwd=asked.cwd)

    async def _cancel(self, asked: _Cancel, session: AsyncSession) -> None:
        if not await self._runtime.cancel(session.id, asked.run_id):
            raise NotFoundError("there is no such run", session=session.id, run=asked.run_id)

    async def _subscribe(self, asked: _Subscribe, session: AsyncSession) -> None:
        metadata = await session.metadata()
        # No await from here on: every event of the session comes behind this one in the queue.
        self._follow(session)
        self._board.follow(session.id, metadata.through.seq)
        run = self._runtime.current(session.id)
        under_way = UNSET if run is None or run.ending else run.id  # not one that told its end
        event = Subscribed(session_id=session.id, run_id=under_way, seq=metadata.through.seq)
        if asked.after is None:
            self._tell(event)
        else:
            self._told.offer(_Replay(event, session.sync, asked.after))

    async def _unsubscribe(self, asked: _Unsubscribe, session: AsyncSession) -> None:
        self._told.leave(session.id)
        self._replayed.pop(session.id, None)
        self._tell(Unsubscribed(session_id=session.id))

    def _follow(self, session: AsyncSession) -> None:
        if session.id not in self._told.sessions:
            if len(self._told.sessions) >= SUBSCRIPTIONS:
                raise QueueFullError("too many subscriptions", hint="unsubscribe from some")
            self._told.follow(session.id)


def _parse(data: bytes) -> _Asked | None:
    """What a client says; None: it wants to know of the listing, which has no session."""
    try:
        if text_problem(data):
            raise ValueError
        said = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        raise _Invalid("Invalid JSON payload") from None
    if not isinstance(said, dict) or not isinstance(said.get("type"), str):
        raise _Invalid("Invalid message payload")
    if said["type"] == "watch":
        return None
    kind = _KINDS.get(said["type"])
    if kind is None:
        raise _Invalid("Unsupported message type")
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError:
        raise _Invalid(f"Invalid {said['type']} payload") from None


def _error(session_id: str, error: EverlogError) -> Error:
    message = error.message
    if isinstance(error, InvalidIdError):
        message = NO_ID
    elif isinstance(error, NotFoundError) and "run" not in error.facts:
        message = NO_SESSION
    elif type(error) is QueueFullError and "session" in error.facts:
        message = "Session queue is full. Please retry later."
    code = type(error).__name__
    return Error(session_id=session_id, message=message, code=code, hint=error.hint)


def _stored(session: Session, after: int) -> list[Message]:
    """The next messages of a log, whatever became of them later."""
    found: list[Message] = []
    for entry in session.entries(after=after):
        if isinstance(entry, Message):
            found.append(entry)
            if len(found) == REPLAYED:
                break
    return found
