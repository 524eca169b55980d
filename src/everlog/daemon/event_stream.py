"""The event stream `/ws`.

A client sends `send_message`, `cancel`, `subscribe` and `unsubscribe`; the daemon sends it the
events of `everlog.wire.events` for every session that it follows, and, after `watch`, changes to
the listing. Everything for a client goes through one queue, its subscription to the feed, and is
written by one task: order is kept, and a client that does not read delays nobody. Such a client is
dropped (1013) and reconnects with its last seq; what it missed is replayed from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec
from litestar import WebSocket, websocket
from litestar.exceptions import WebSocketDisconnect
from msgspec import UNSET

from everlog.agent.turn_state import stored_event
from everlog.aio import AsyncSession
from everlog.daemon.api.session_lookup import INVALID_SESSION_ID, SESSION_NOT_FOUND, open_session
from everlog.daemon.error_responses import INTERNAL
from everlog.daemon.json_log import log_event
from everlog.daemon.listing_events import ListingWatcher
from everlog.daemon.request_guard import TOKEN_CHECK
from everlog.daemon.request_limits import RateLimiter, find_json_problem
from everlog.errors import EverlogError, InvalidIdError, NotFoundError, QueueFullError
from everlog.model import Message
from everlog.runtime.feed import Notice
from everlog.runtime.runtime import Runtime
from everlog.session import Session
from everlog.wire.events import Error, MessageStored, RunEvent, Subscribed, Unsubscribed
from everlog.wire.requests import (
    STREAM_REQUESTS,
    Cancel,
    SendMessage,
    SessionRequest,
    StreamRequest,
    Subscribe,
    Unsubscribe,
)

MAX_SUBSCRIPTIONS = 1_000  # of one client
REPLAY_PAGE = 200  # messages read from the log at a time
SEND_SECONDS = 30.0  # for one event; after that the client counts as disconnected
TOO_SLOW = (1013, "too slow: subscribe again with after")
GOING_AWAY = (1001, "the daemon is stopping")
TOKEN_CHANGED = (1008, "the token has changed: connect with the new one")


class _TokenChangedError(Exception):
    """The token changed since the client connected."""


class _InvalidMessageError(Exception):
    """A client's message is malformed."""


class _ReplayNotice(Notice):
    """The response to a subscription, after which stored messages are replayed."""

    def __init__(self, event: Subscribed, session: Session, after: int) -> None:
        super().__init__(event)
        self.session = session
        self.after = after
        self.last = event.seq


class EventStream:
    """All clients of `/ws`."""

    def __init__(self, runtime: Runtime, limiter: RateLimiter, watcher: ListingWatcher) -> None:
        self.runtime = runtime
        self.limiter = limiter
        self.watcher = watcher
        self._clients: dict[StreamClient, None] = {}
        self._stopping = False

        @websocket("/ws")
        async def handler(socket: WebSocket[Any, Any, Any]) -> None:
            await self._serve(socket)

        self.handler = handler

    def stop(self) -> None:
        """Disconnect all clients; queued events are still sent."""
        self._stopping = True
        for client in tuple(self._clients):
            client.stop()

    async def _serve(self, socket: WebSocket[Any, Any, Any]) -> None:
        client = StreamClient(self, socket)
        self._clients[client] = None
        log_event("ws_connect", clients=len(self._clients))
        try:
            if self._stopping:
                client.stop()
            await client.run()
        finally:
            del self._clients[client]
            log_event("ws_disconnect", clients=len(self._clients))


class StreamClient:
    """A client, served by a task that reads and a task that writes."""

    def __init__(self, stream: EventStream, socket: WebSocket[Any, Any, Any]) -> None:
        self._runtime = stream.runtime
        self._limiter = stream.limiter
        self._watcher = stream.watcher
        self._socket = socket
        self._is_token_valid: Callable[[], bool] = socket.scope["state"].get(TOKEN_CHECK, lambda: True)
        self._subscription = stream.runtime.feed.subscribe()
        self._replayed_seqs: dict[str, int] = {}  # session → last seq replayed
        self._handlers: dict[type[SessionRequest], Callable[[Any, AsyncSession], Awaitable[None]]] = {
            SendMessage: self._send_message,
            Cancel: self._cancel,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
        }

    async def run(self) -> None:
        """Serve the client until either side disconnects. Runs that it started continue."""
        await self._socket.accept()
        tasks = {asyncio.create_task(self._read()), asyncio.create_task(self._write())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except _TokenChangedError:
            await self._close(*TOKEN_CHANGED)
        except (WebSocketDisconnect, TimeoutError, ConnectionError):
            pass  # the client has disconnected
        finally:
            self._subscription.close()
            self._watcher.unwatch(self._subscription)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Disconnect the client after sending its queued events."""
        self._subscription.close()

    # --- events to the client

    async def _write(self) -> None:
        async for notice in self._subscription:
            event = notice.event
            replayed = self._replayed_seqs.get(event.session_id, 0)
            if isinstance(event, MessageStored) and event.seq <= replayed:
                continue  # already replayed from the log
            await self._send(notice)
            if isinstance(notice, _ReplayNotice):
                await self._replay(notice)
        await self._close(*(TOO_SLOW if self._subscription.dropped else GOING_AWAY))

    async def _replay(self, request: _ReplayNotice) -> None:
        """Send the stored messages; new events wait in the queue meanwhile."""
        replayed = self._replayed_seqs.get(request.session.id, 0)
        after, last = request.after, max(replayed, min(request.after, request.last))
        while True:
            page = await self._runtime.store.call(_read_messages, request.session, after)
            for message in page:
                await self._send(Notice(stored_event(request.session.id, message)))
                after = message.seq
                last = max(last, after)
            if len(page) < REPLAY_PAGE:
                break
        self._replayed_seqs[request.session.id] = last

    async def _send(self, notice: Notice) -> None:
        self._check_token()
        async with asyncio.timeout(SEND_SECONDS):
            await self._socket.send_text(notice.wire.decode())

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                await self._socket.close(code, reason)

    def _check_token(self) -> None:
        """Raise if the token has changed; checked for every message in either direction."""
        if not self._is_token_valid():
            raise _TokenChangedError

    def _emit(self, event: RunEvent) -> None:
        self._subscription.offer(Notice(event))

    # --- messages from the client

    async def _read(self) -> None:
        while True:
            message: Any = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            self._check_token()
            if self._limiter.acquire():
                self._emit(Error(session_id="", message="Too many messages. Please retry later."))
                continue
            data = message.get("text") or message.get("bytes") or ""
            await self._handle(data.encode() if isinstance(data, str) else data)

    async def _handle(self, data: bytes) -> None:
        session_id = ""
        try:
            request = _parse_message(data)
            if not isinstance(request, SessionRequest):
                self._watcher.watch(self._subscription)
                return
            session_id = request.session_id[:100]  # echoed to the client
            session = await open_session(self._runtime, request.session_id)
            await self._handlers[type(request)](request, session)
        except _InvalidMessageError as error:
            self._emit(Error(session_id="", message=str(error)))
        except EverlogError as error:
            self._emit(_error_event(session_id, error))
        except Exception as error:
            log_event("request_failed", level="error", path="/ws", problem=repr(error)[:1000])
            self._emit(Error(session_id=session_id, message=INTERNAL))

    async def _send_message(self, request: SendMessage, session: AsyncSession) -> None:
        if session.id not in self._subscription.sessions:
            # Report what other processes append from here on.
            self._watcher.follow(session.id, (await session.metadata()).through.seq)
        self._follow(session)  # before submitting, so that no event of the run is missed
        await self._runtime.submit(
            session, request.content, id=request.id, cwd=request.cwd, continue_here=request.continue_here
        )

    async def _cancel(self, request: Cancel, session: AsyncSession) -> None:
        if not await self._runtime.cancel(session.id, request.run_id):
            raise NotFoundError("run not found", session=session.id, run=request.run_id)

    async def _subscribe(self, request: Subscribe, session: AsyncSession) -> None:
        metadata = await session.metadata()
        # No await from here on: every later event of the session is queued after this one.
        self._follow(session)
        self._watcher.follow(session.id, metadata.through.seq)
        run = self._runtime.current(session.id)
        run_id = UNSET if run is None or run.is_ending else run.id  # not one whose end was emitted
        event = Subscribed(session_id=session.id, run_id=run_id, seq=metadata.through.seq)
        if request.after is None:
            self._emit(event)
        else:
            self._subscription.offer(_ReplayNotice(event, session.sync, request.after))

    async def _unsubscribe(self, request: Unsubscribe, session: AsyncSession) -> None:
        self._subscription.unfollow(session.id)
        self._replayed_seqs.pop(session.id, None)
        self._emit(Unsubscribed(session_id=session.id))

    def _follow(self, session: AsyncSession) -> None:
        if session.id not in self._subscription.sessions:
            if len(self._subscription.sessions) >= MAX_SUBSCRIPTIONS:
                raise QueueFullError("too many subscriptions", hint="unsubscribe from some sessions")
            self._subscription.follow(session.id)


def _parse_message(data: bytes) -> StreamRequest:
    try:
        if find_json_problem(data):
            raise ValueError
        payload = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        raise _InvalidMessageError("Invalid JSON payload") from None
    if not isinstance(payload, dict) or not isinstance(payload.get("type"), str):
        raise _InvalidMessageError("Invalid message payload")
    message_type = STREAM_REQUESTS.get(payload["type"])
    if message_type is None:
        raise _InvalidMessageError("Unsupported message type")
    try:
        return msgspec.convert(payload, message_type)
    except msgspec.ValidationError:
        raise _InvalidMessageError(f"Invalid {payload['type']} payload") from None


def _error_event(session_id: str, error: EverlogError) -> Error:
    message = error.message
    if isinstance(error, InvalidIdError):
        message = INVALID_SESSION_ID
    elif isinstance(error, NotFoundError) and "run" not in error.facts:
        message = SESSION_NOT_FOUND
    elif type(error) is QueueFullError and "session" in error.facts:
        message = "Session queue is full. Please retry later."
    code = type(error).__name__
    return Error(session_id=session_id, message=message, code=code, hint=error.hint)


def _read_messages(session: Session, after: int) -> list[Message]:
    """Read the next messages of a log, including deleted and rewound ones."""
    messages = (entry for entry in session.entries(after=after) if isinstance(entry, Message))
    return list(islice(messages, REPLAY_PAGE))
