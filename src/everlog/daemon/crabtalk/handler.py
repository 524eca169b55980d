"""Handlers for CrabTalk's messages: its clients use everlog's sessions.

    Send, Stream        select a session, submit a message, and reply or stream the events
    Sessions, Kill      the sessions opened over this socket, by numbers valid until it restarts
    Compact             compact a session
    ListConversations, GetConversationHistory, DeleteConversation
                        all sessions; `file_path` is an id or a name and never a path
    Ping                answered; every other message is refused by name

Runs belong to the runtime: a client that disconnects does not stop them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet, WeakValueDictionary

from everlog.agent.answer import Answer
from everlog.aio import AsyncSession
from everlog.daemon.api.session_lookup import open_session
from everlog.daemon.crabtalk.event_messages import MAX_U32, EventTranslator, day_label, split_model, token_usage
from everlog.daemon.crabtalk.frames import Connection, FrameServer, Limits, error_reply, valid_text
from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from everlog.daemon.json_log import log_event
from everlog.errors import ConflictError, EverlogError, FormatError, InvalidIdError, NotFoundError
from everlog.model import pair
from everlog.runtime.feed import Subscription
from everlog.runtime.run import Run
from everlog.runtime.runtime import Runtime
from everlog.wire.error_table import status_of

LIST_LIMIT = 1_000  # conversations in one reply
DEFAULT_SENDER = "user"  # for requests without a sender
_LIMITS = Limits()

MessageRequest = pb.SendMsg | pb.StreamMsg
T = TypeVar("T")


async def serve_socket(runtime: Runtime, path: Path, *, limits: Limits = _LIMITS) -> CrabTalkServer:
    """Start a server for CrabTalk's clients on a Unix socket."""
    server = CrabTalkServer(runtime, path, limits)
    await server.start()
    return server


class _Submission(NamedTuple):
    """A message that was submitted, with its run."""

    agent: str
    number: int  # of its session
    run: Run


class SessionNumbers:
    """The numbers of open sessions, from 1; none is reused."""

    def __init__(self) -> None:
        self._next = count(1)
        self._sessions: dict[int, str] = {}

    def open(self, session: str) -> int:
        """Return the number of a session, assigning one if it has none."""
        number = self._find(session) or next(self._next)
        self._sessions[number] = session
        return number

    def session(self, number: int) -> str:
        """Return the session with a number. Raises NotFoundError if none has it."""
        if number not in self._sessions:
            raise NotFoundError(f"no session {number} is open", hint="Sessions lists the open ones")
        return self._sessions[number]

    def close(self, session: str) -> None:
        """Remove the number of a session."""
        self._sessions.pop(self._find(session), None)

    def _find(self, session: str) -> int:
        return next((number for number, name in self._sessions.items() if name == session), 0)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(tuple(self._sessions.items()))


class CrabTalkServer(FrameServer):
    """A server that handles CrabTalk's messages."""

    def __init__(self, runtime: Runtime, path: Path, limits: Limits = _LIMITS) -> None:
        super().__init__(path, self._handle, limits)
        self.runtime = runtime
        self._numbers = SessionNumbers()
        # Identity → session of another identity that it resumed and continues to use.
        self._resumed: dict[tuple[str, str], str] = {}
        self._identity_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._runs: WeakSet[Run] = WeakSet()  # started over this socket

    async def _handle(self, message: pb.ClientMessage, connection: Connection) -> None:
        """Answer one request. Every error becomes a reply."""
        kind = message.WhichOneof("msg")
        try:
            if kind is None:
                raise FormatError("the message is empty or of an unknown kind")
            request = getattr(message, kind)
            if isinstance(request, pb.StreamMsg):
                await self._stream(request, connection)
            elif isinstance(request, pb.SendMsg):
                await self._send(request, connection)
            elif kind in _HANDLERS:
                await connection.send(await _HANDLERS[kind](self, request))
            else:
                raise FormatError(f"{type(request).__name__} ({kind}) is not supported")
        except EverlogError as error:
            await connection.send(error_reply(error_code(error), str(error)))
        except Exception as error:  # logged, and nothing of it is sent
            log_event("crab_request_failed", level="error", kind=kind, problem=repr(error)[:1000])
            await connection.send(error_reply(500, "internal error"))

    # --- messages

    async def _send(self, request: pb.SendMsg, connection: Connection) -> None:
        submission = await self._submit(request, connection)
        answer = await submission.run.answer()
        provider, model = split_model(answer.reply)
        reply = pb.SendResponse(
            agent=submission.agent,
            content=valid_text(answer.reply.text),
            session=submission.number,
            provider=provider,
            model=model,
            usage=token_usage(answer.usage),
        )
        await connection.send(pb.ServerMessage(response=reply))

    async def _stream(self, request: pb.StreamMsg, connection: Connection) -> None:
        async def send_event(event: pb.StreamEvent) -> None:
            await connection.send(pb.ServerMessage(stream=event))

        events = self.runtime.feed.subscribe()
        try:
            submission = await self._submit(request, connection, events)
            start = pb.StreamStart(agent=submission.agent, session=submission.number)
            await send_event(pb.StreamEvent(start=start))
            # The end of the run closes the events, also if the feed dropped the subscription.
            answer_task = asyncio.ensure_future(submission.run.answer())
            answer_task.add_done_callback(lambda _: events.close())
            answer_task.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                translator = EventTranslator()
                async for notice in events:
                    if notice.event.run_id == submission.run.id:
                        for event in translator.translate(notice.event):
                            await send_event(event)
                for event in translator.flush():
                    await send_event(event)
                await send_event(await self._end_event(submission.agent, answer_task))
            finally:
                answer_task.cancel()  # only the waiting: the run continues
        finally:
            events.close()

    async def _end_event(self, agent: str, answer_task: asyncio.Future[Answer]) -> pb.StreamEvent:
        end = pb.StreamEnd(agent=agent)
        try:
            answer = await answer_task
        except EverlogError as error:
            end.error = valid_text(str(error))
        else:
            end.provider, end.model = split_model(answer.reply)
            usage = token_usage(answer.usage)
            if usage is not None:
                end.usage.CopyFrom(usage)
        return pb.StreamEvent(end=end)

    async def _submit(
        self, request: MessageRequest, connection: Connection, events: Subscription | None = None
    ) -> _Submission:
        """Submit a message to the requested session, following its events from before the run."""
        # Requests run concurrently, but messages are submitted in the order of their arrival.
        async with connection.order:
            session = await self._select_session(request)
            number = self._numbers.open(session.id)
            agent = (await session.metadata()).agent
            if events is not None:
                events.follow(session.id)
            run = await self.runtime.submit(
                session, request.content, cwd=request.cwd or None, sender=request.sender or None
            )
            self._runs.add(run)
            return _Submission(agent, number, run)

    async def _select_session(self, request: MessageRequest) -> AsyncSession:
        """Return the session: by number, resumed by name, new, or the identity's current one."""
        if request.HasField("session"):
            return await self._open_session(request.session)
        store = self.runtime.store
        identity = (request.agent or self.runtime.router.default_agent, request.sender or DEFAULT_SENDER)
        lock = self._identity_locks.setdefault(identity, asyncio.Lock())
        async with lock:  # per identity, and never held during a turn
            if request.resume_file:
                session = await self._find_conversation(request.resume_file)
                thread = (await session.resume()).thread
                self._resumed.pop(identity, None)
                if thread != pair(*identity):
                    self._resumed[identity] = session.id
                return session
            if request.new_chat:
                self._resumed.pop(identity, None)
                return await self.runtime.create(agent=identity[0], sender=identity[1], check=True)
            if identity in self._resumed:
                with suppress(NotFoundError):
                    return await store.session(self._resumed[identity])
                self._resumed.pop(identity, None)
            current = await store.current(*identity)
            return current or await self.runtime.create(agent=identity[0], sender=identity[1], check=True)

    # --- open sessions

    async def _open_session(self, number: int) -> AsyncSession:
        """Return the session with a number; if it was deleted, its number is removed too."""
        session_id = self._numbers.session(number)
        try:
            return await self.runtime.store.session(session_id)
        except NotFoundError:
            self._forget(session_id)
            raise

    def _forget(self, session_id: str) -> None:
        self._numbers.close(session_id)
        self._resumed = {identity: resumed for identity, resumed in self._resumed.items() if resumed != session_id}

    async def _list_open_sessions(self, request: pb.Sessions) -> pb.ServerMessage:
        session_list = pb.SessionList()
        for number, session_id in self._numbers:
            try:
                metadata = await (await self._open_session(number)).metadata()
            except NotFoundError:
                continue
            session_list.sessions.add(
                id=number,
                agent=metadata.agent,
                created_by=metadata.sender,
                message_count=metadata.message_count,
                alive_secs=metadata.uptime_secs,
                active=self.runtime.current(session_id) is not None,
                title=valid_text(metadata.title or ""),
            )
        return pb.ServerMessage(sessions=session_list)

    async def _kill(self, request: pb.KillMsg) -> pb.ServerMessage:
        session_id = self._numbers.session(request.session)
        self._forget(session_id)
        # Cancel queued runs first, or one would start when the current turn stops.
        running = self.runtime.current(session_id)
        for run in [run for run in self._runs if run.session_id == session_id and not run.is_done]:
            if running is None or run.id != running.id:
                await self.runtime.cancel(session_id, run.id)
        await self.runtime.cancel(session_id)
        return pb.ServerMessage(pong=pb.Pong())

    async def _compact(self, request: pb.CompactMsg) -> pb.ServerMessage:
        session = await self._open_session(request.session)
        outcome = await self.runtime.compact(session)
        if not outcome.compacted or outcome.record is None:
            return error_reply(500, f"nothing was compacted: {outcome.reason}")
        return pb.ServerMessage(compact=pb.CompactResponse(summary=valid_text(outcome.record.summary)))

    # --- conversations

    async def _list_conversations(self, request: pb.ListConversationsMsg) -> pb.ServerMessage:
        page = await self.runtime.store.list(
            agent=request.agent or None, sender=request.sender or None, limit=LIST_LIMIT
        )
        now = datetime.now().astimezone()
        conversations = pb.ConversationList()
        for row in page:
            metadata = row.metadata
            conversations.conversations.add(
                agent=metadata.agent,
                sender=metadata.sender,
                seq=min(metadata.chat or 0, MAX_U32),
                title=valid_text(metadata.title or ""),
                file_path=metadata.id,
                message_count=metadata.message_count,
                alive_secs=metadata.uptime_secs,
                date=day_label(row.active, now),
            )
        return pb.ServerMessage(conversation_list=conversations)

    async def _history(self, request: pb.GetConversationHistoryMsg) -> pb.ServerMessage:
        session = await self._find_conversation(request.file_path)
        metadata = await session.metadata()
        live = await session.live()
        history = pb.ConversationHistory(title=valid_text(metadata.title or ""), agent=metadata.agent)
        if live.summary is not None:
            history.messages.add(role="user", content=valid_text(live.summary.summary))
        for message in live.messages:
            if message.role != "toolResult":
                history.messages.add(role=message.role, content=valid_text(message.text))
        return pb.ServerMessage(conversation_history=history)

    async def _delete(self, request: pb.DeleteConversationMsg) -> pb.ServerMessage:
        session = await self._find_conversation(request.file_path)
        await self.runtime.edits.delete(session)
        self._forget(session.id)
        return pb.ServerMessage(pong=pb.Pong())

    async def _ping(self, request: pb.Ping) -> pb.ServerMessage:
        return pb.ServerMessage(pong=pb.Pong())

    async def _find_conversation(self, name: str) -> AsyncSession:
        """Return a session by its id, key or alias, or by its title if that is unique.

        The name is never used as a path: the store looks sessions up by name.
        """
        store = self.runtime.store
        try:
            return await open_session(self.runtime, name)
        except InvalidIdError:
            if not name or "/" in name or "\\" in name or name.strip(".") == "":
                raise
        page = await store.list(title=name, limit=LIST_LIMIT)
        ids = [row.id for row in page if row.metadata.title == name]
        if len(ids) > 1:
            raise ConflictError(f"{len(ids)} conversations are called {name[:60]!r}", hint="use the id")
        if not ids:
            raise NotFoundError(f"no conversation {name[:60]!r}")
        return await store.session(ids[0])


def error_code(error: EverlogError) -> int:
    """Return CrabTalk's code for an error: 400, 404 or 500."""
    status = status_of(error)
    return status if status in (400, 404) else 500


_HANDLERS: dict[str, Callable[[CrabTalkServer, Any], Awaitable[pb.ServerMessage]]] = {
    "sessions": CrabTalkServer._list_open_sessions,
    "kill": CrabTalkServer._kill,
    "compact": CrabTalkServer._compact,
    "list_conversations": CrabTalkServer._list_conversations,
    "get_conversation_history": CrabTalkServer._history,
    "delete_conversation": CrabTalkServer._delete,
    "ping": CrabTalkServer._ping,
}
SUPPORTED_MESSAGES = frozenset({"send", "stream", *_HANDLERS})
