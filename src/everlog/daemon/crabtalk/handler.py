"""What CrabTalk's messages mean here: its clients talk to everlog's sessions.

    Send, Stream        choose a session, say something to its agent, answer or tell as it goes
    Sessions, Kill      the sessions that were opened here, by numbers that live with the daemon
    Compact             summarise, durably
    ListConversations, GetConversationHistory, DeleteConversation
                        all sessions; `file_path` is an id or a name and never a path
    Ping                is answered; every other message is refused by name

The engine does everything that lasts: a client that goes away stops no run.
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

from everlog.agent.turn import Answer
from everlog.aio import AsyncSession
from everlog.daemon.crabtalk.event_messages import U32, Told, day, split_model, token_usage
from everlog.daemon.crabtalk.frames import Connection, FrameServer, Limits, refused, sound
from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from everlog.daemon.json_log import note
from everlog.errors import ConflictError, EverlogError, FormatError, InvalidIdError, NotFoundError
from everlog.model import pair
from everlog.runtime.feed import Subscription
from everlog.runtime.run import Run
from everlog.runtime.runtime import Runtime

LISTED = 1_000  # conversations in one reply
NOBODY = "user"  # who it is that gives no sender
_CODES: tuple[tuple[type[EverlogError], int], ...] = (
    (InvalidIdError, 400),
    (FormatError, 400),
    (NotFoundError, 404),
)
_LIMITS = Limits()

Asked = pb.SendMsg | pb.StreamMsg
T = TypeVar("T")


async def serve_socket(runtime: Runtime, path: Path, *, limits: Limits = _LIMITS) -> CrabSocket:
    """Serve CrabTalk's clients on a Unix socket until it is closed."""
    made = CrabSocket(runtime, path, limits)
    await made.start()
    return made


class _Said(NamedTuple):
    """Something that was said and is going to be answered."""

    agent: str
    number: int  # of its session
    run: Run


class Numbers:
    """The numbers of open sessions: from 1, and none is given twice."""

    def __init__(self) -> None:
        self._next = count(1)
        self._sessions: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def open(self, session: str) -> int:
        """The number of a session, given now if it has none."""
        if session not in self._numbers:
            self._numbers[session] = number = next(self._next)
            self._sessions[number] = session
        return self._numbers[session]

    def session(self, number: int) -> str:
        """The session with a number, or NotFoundError."""
        if number not in self._sessions:
            raise NotFoundError(
                f"no session {number} is open", hint="Sessions lists those that are"
            )
        return self._sessions[number]

    def close(self, session: str) -> None:
        """Take a session's number away for good."""
        number = self._numbers.pop(session, None)
        if number is not None:
            del self._sessions[number]

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return iter(tuple(self._sessions.items()))


class CrabSocket:
    """Answers CrabTalk's messages."""

    def __init__(self, runtime: Runtime, path: Path, limits: Limits = _LIMITS) -> None:
        self.runtime = runtime
        self._numbers = Numbers()
        # Whom an identity follows after resuming a session that is a chat of somebody else's.
        self._followed: dict[tuple[str, str], str] = {}
        self._choosing: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._runs: WeakSet[Run] = WeakSet()  # that were begun here
        self._frames = FrameServer(path, self._answer, limits)

    async def start(self) -> None:
        """Listen."""
        await self._frames.start()

    async def close(self) -> None:
        """Hang up on everybody; runs go on."""
        await self._frames.close()

    async def _answer(self, message: pb.ClientMessage, connection: Connection) -> None:
        """Answer one request, whatever comes of it."""
        kind = message.WhichOneof("msg")
        try:
            if kind is None:
                raise FormatError("an empty message, or one that CrabTalk had not at that time")
            asked = getattr(message, kind)
            if isinstance(asked, pb.StreamMsg):
                await self._stream(asked, connection)
            elif isinstance(asked, pb.SendMsg):
                await self._send(asked, connection)
            elif kind in _REPLIES:
                await connection.send(await _REPLIES[kind](self, asked))
            else:
                raise FormatError(f"{type(asked).__name__} ({kind}) is not served here")
        except EverlogError as error:
            await connection.send(refused(code_of(error), str(error)))
        except Exception as error:  # nothing of it goes over the wire
            note("crab_request_failed", level="error", kind=kind, problem=repr(error)[:1000])
            await connection.send(refused(500, "internal error"))

    # --- talking

    async def _send(self, asked: pb.SendMsg, connection: Connection) -> None:
        said = await self._submit(asked, connection)
        answer = await said.run.answer()
        provider, model = split_model(answer.reply)
        reply = pb.SendResponse(
            agent=said.agent,
            content=sound(answer.reply.text),
            session=said.number,
            provider=provider,
            model=model,
            usage=token_usage(answer.usage),
        )
        await connection.send(pb.ServerMessage(response=reply))

    async def _stream(self, asked: pb.StreamMsg, connection: Connection) -> None:
        async def tell(event: pb.StreamEvent) -> None:
            await connection.send(pb.ServerMessage(stream=event))

        events = self.runtime.feed.subscribe()
        try:
            said = await self._submit(asked, connection, events)
            start = pb.StreamStart(agent=said.agent, session=said.number)
            await tell(pb.StreamEvent(start=start))
            # Its end is the end of the events, also if the feed has dropped us before.
            answering = asyncio.ensure_future(said.run.answer())
            answering.add_done_callback(lambda _: events.close())
            answering.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                told = Told()
                async for notice in events:
                    if notice.event.run_id == said.run.id:
                        for event in told.tell(notice.event):
                            await tell(event)
                for event in told.rest():
                    await tell(event)
                await tell(await self._end(said.agent, answering))
            finally:
                answering.cancel()  # only the waiting: the run goes on
        finally:
            events.close()

    async def _end(self, agent: str, answering: asyncio.Future[Answer]) -> pb.StreamEvent:
        end = pb.StreamEnd(agent=agent)
        try:
            answer = await answering
        except EverlogError as error:
            end.error = sound(str(error))
        else:
            end.provider, end.model = split_model(answer.reply)
            usage = token_usage(answer.usage)
            if usage is not None:
                end.usage.CopyFrom(usage)
        return pb.StreamEvent(end=end)

    async def _submit(
        self, asked: Asked, connection: Connection, events: Subscription | None = None
    ) -> _Said:
        """Say something in the session that is asked for, whose events are followed from before."""
        # Requests are under way side by side, but what is said is said in the order it came in.
        async with connection.order:
            session = await self._choose(asked)
            number = self._numbers.open(session.id)
            agent = (await session.metadata()).agent
            if events is not None:
                events.follow(session.id)
            run = await self.runtime.submit(
                session, asked.content, cwd=asked.cwd or None, sender=asked.sender or None
            )
            self._runs.add(run)
            return _Said(agent, number, run)

    async def _choose(self, asked: Asked) -> AsyncSession:
        """The session by its number, else the resumed, else a new one, else by identity."""
        if asked.HasField("session"):
            return await self._open(asked.session)
        store = self.runtime.store
        who = asked.agent or self.runtime.router.default_agent, asked.sender or NOBODY
        lock = self._choosing.setdefault(who, asyncio.Lock())
        async with lock:  # of this identity alone, and never while a turn runs
            if asked.resume_file:
                session = await self._named(asked.resume_file)
                thread = (await session.resume()).thread
                self._followed.pop(who, None)
                if thread != pair(*who):
                    self._followed[who] = session.id
                return session
            if asked.new_chat:
                self._followed.pop(who, None)
                return await self.runtime.create(agent=who[0], sender=who[1])
            if who in self._followed:
                with suppress(NotFoundError):
                    return await store.session(self._followed[who])
                self._followed.pop(who, None)
            found = await store.current(*who)
            return found or await self.runtime.create(agent=who[0], sender=who[1])

    # --- open sessions

    async def _open(self, number: int) -> AsyncSession:
        """The session with a number; if it was deleted elsewhere, its number goes as well."""
        session_id = self._numbers.session(number)
        try:
            return await self.runtime.store.session(session_id)
        except NotFoundError:
            self._forget(session_id)
            raise

    def _forget(self, session_id: str) -> None:
        self._numbers.close(session_id)
        self._followed = {who: one for who, one in self._followed.items() if one != session_id}

    async def _sessions(self, asked: pb.Sessions) -> pb.ServerMessage:
        listed = pb.SessionList()
        for number, session_id in self._numbers:
            try:
                known = await (await self._open(number)).metadata()
            except NotFoundError:
                continue
            listed.sessions.add(
                id=number,
                agent=known.agent,
                created_by=known.sender,
                message_count=known.message_count,
                alive_secs=known.uptime_secs,
                active=self.runtime.current(session_id) is not None,
                title=sound(known.name or ""),
            )
        return pb.ServerMessage(sessions=listed)

    async def _kill(self, asked: pb.KillMsg) -> pb.ServerMessage:
        session_id = self._numbers.session(asked.session)
        self._forget(session_id)
        # What waits goes first, or it would begin as soon as the turn before it is stopped.
        running = self.runtime.current(session_id)
        for run in [one for one in self._runs if one.session_id == session_id and not one.done]:
            if running is None or run.id != running.id:
                await self.runtime.cancel(session_id, run.id)
        await self.runtime.cancel(session_id)
        return pb.ServerMessage(pong=pb.Pong())

    async def _compact(self, asked: pb.CompactMsg) -> pb.ServerMessage:
        session = await self._open(asked.session)
        outcome = await self.runtime.compact(session)
        if not outcome.compacted or outcome.record is None:
            return refused(500, f"nothing was compacted: {outcome.reason}")
        return pb.ServerMessage(compact=pb.CompactResponse(summary=sound(outcome.record.summary)))

    # --- conversations

    async def _list(self, asked: pb.ListConversationsMsg) -> pb.ServerMessage:
        page = await self.runtime.store.list(
            agent=asked.agent or None, sender=asked.sender or None, limit=LISTED
        )
        now = datetime.now().astimezone()
        listed = pb.ConversationList()
        for row in page:
            known = row.metadata
            listed.conversations.add(
                agent=known.agent,
                sender=known.sender,
                seq=min(known.chat or 0, U32),
                title=sound(known.name or ""),
                file_path=known.id,
                message_count=known.message_count,
                alive_secs=known.uptime_secs,
                date=day(row.active, now),
            )
        return pb.ServerMessage(conversation_list=listed)

    async def _history(self, asked: pb.GetConversationHistoryMsg) -> pb.ServerMessage:
        session = await self._named(asked.file_path)
        known = await session.metadata()
        live = await session.live()
        history = pb.ConversationHistory(title=sound(known.name or ""), agent=known.agent)
        if live.summary is not None:
            history.messages.add(role="user", content=sound(live.summary.summary))
        for message in live.messages:
            if message.role != "toolResult":
                history.messages.add(role=message.role, content=sound(message.text))
        return pb.ServerMessage(conversation_history=history)

    async def _delete(self, asked: pb.DeleteConversationMsg) -> pb.ServerMessage:
        session = await self._named(asked.file_path)
        await self.runtime.changes.delete(session)
        self._forget(session.id)
        return pb.ServerMessage(pong=pb.Pong())

    async def _ping(self, asked: pb.Ping) -> pb.ServerMessage:
        return pb.ServerMessage(pong=pb.Pong())

    async def _named(self, name: str) -> AsyncSession:
        """A session by its id, key or alias, or by its title if no other has the same.

        Nothing that is given here is ever used as a path: the store knows its sessions by name.
        """
        store = self.runtime.store
        try:
            return await store.session(name)
        except InvalidIdError:
            if not name or "/" in name or "\\" in name or name.strip(".") == "":
                raise
        titled = await store.list(title=name, limit=LISTED)
        found = [row.id for row in titled if row.metadata.name == name]
        if len(found) > 1:
            raise ConflictError(
                f"{len(found)} conversations are called {name[:60]!r}", hint="give ids"
            )
        if not found:
            raise NotFoundError(f"there is no conversation {name[:60]!r}")
        return await store.session(found[0])


def code_of(error: EverlogError) -> int:
    """An error's number; CrabTalk has no more than 400, 404, 410 and 500."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 500)


_REPLIES: dict[str, Callable[[CrabSocket, Any], Awaitable[pb.ServerMessage]]] = {
    "sessions": CrabSocket._sessions,
    "kill": CrabSocket._kill,
    "compact": CrabSocket._compact,
    "list_conversations": CrabSocket._list,
    "get_conversation_history": CrabSocket._history,
    "delete_conversation": CrabSocket._delete,
    "ping": CrabSocket._ping,
}
SERVED = frozenset({"send", "stream", *_REPLIES})
