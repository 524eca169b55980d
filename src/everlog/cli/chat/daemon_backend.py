"""A partner in another process: the daemon of the root, over its HTTP and its WebSocket.

Every call looks for the daemon anew, so one that was started again is found, on whatever port.
Events come by a thread that reads the WebSocket; it says once that the daemon has gone and once
that it is back, and then asks for the messages that were stored meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from everlog.aio import AsyncSession, AsyncStore
from everlog.cli.chat.backend import Away, Back, Told
from everlog.client import Client, websocket
from everlog.context.build import Context
from everlog.errors import EverlogError, NotFoundError
from everlog.log.backward_read import LeftOut
from everlog.log.line_codec import from_object
from everlog.model import Message
from everlog.wire.events import MessageStored
from everlog.wire.responses import Accepted, Compacted

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

T = TypeVar("T")

LOOK_SECONDS = 0.5  # between two looks for a daemon that has gone


class Remote:
    """Turns run in the daemon, and go on when this program ends."""

    stays = True

    def __init__(self, root: Path, address: str, store: AsyncStore) -> None:
        self.store = store
        self.events: asyncio.Queue[Told] = asyncio.Queue()
        self.place = f"through the daemon at {address}"
        self._root = root
        self._following: _Following | None = None

    async def follow(self, session: str) -> str:
        """Hear of this session only; when this returns, nothing that happens in it is missed."""
        metadata = await (await self.store.session(session)).metadata()
        following = _Following(self._root, session, metadata.through.seq, self.events)
        run = await following.begun()
        if self._following is not None:  # only now: what cannot be followed changes nothing
            self._following.end()
        self._following = following
        return run

    async def create(self, *, agent: str, sender: str, model: str) -> AsyncSession:
        """Make a session for a model. Whether it can be used, the daemon knows: it has the keys."""
        facts = {"agent": agent, "sender": sender, "model": model}
        made = await self._call(lambda client: client.create(check=True, **facts))
        return await self.store.session(made.id)

    async def use_model(self, session: str, model: str) -> None:
        """Let another model answer, if the daemon can use it."""
        await self._call(lambda client: client.update(session, check=True, model=model))

    async def submit(self, session: str, text: str) -> Accepted:
        """Say something."""
        return await self._call(lambda client: client.submit(session, text, cwd=os.getcwd()))

    async def cancel(self, session: str, run_id: str = "") -> bool:
        """Stop a turn."""
        return await self._call(lambda client: client.cancel(session, run_id))

    async def compact(self, session: str, focus: str) -> Compacted:
        """Summarise the older part."""
        return await self._call(lambda client: client.compact(session, focus=focus))

    async def context(self, session: str) -> Context:
        """What the model would be sent."""
        sent = await self._call(lambda client: client.context(session))
        messages = (from_object({"recordType": "message", **one}) for one in sent.messages)
        return Context(
            messages=tuple(one for one in messages if isinstance(one, Message)),
            tokens=sent.tokens,
            window=sent.window,
            left_out=tuple(LeftOut(one.seq, one.why) for one in sent.left_out),
            stale=tuple(sent.stale),
        )

    async def rename(self, session: str, title: str) -> None:
        """Give the session a title."""
        await self._call(lambda client: client.update(session, name=title))

    async def rewind(self, session: str, to_seq: int) -> None:
        """Go back to a message."""
        await self._call(lambda client: client.rewind(session, to_seq))

    def ending(self) -> list[str]:
        """None: they go on in the daemon."""
        return []

    async def close(self) -> None:
        """Leave the daemon to itself."""
        if self._following is not None:
            self._following.end()
        await self.store.close()

    async def _call(self, verb: Callable[[Client], T]) -> T:
        def ask() -> T:
            with Client.of(self._root) as client:
                return verb(client)

        return await in_thread(ask)


async def running(root: Path) -> str:
    """The address of the daemon of a root; NotFoundError if none runs."""

    def ask() -> str:
        with Client.of(root) as client:
            return client.address

    return await in_thread(ask)


async def in_thread(work: Callable[[], T]) -> T:
    """Do something that blocks in a thread that nobody waits for at the end of the program."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():  # whoever waited may have gone
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]  # there is no error: it is a T

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as problem:  # whatever it is, it is raised where the work is awaited
            error = problem
        _call_soon(loop, settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await done


def _call_soon(
    loop: asyncio.AbstractEventLoop, what: Callable[..., object], *given: object
) -> None:
    try:
        loop.call_soon_threadsafe(what, *given)
    except RuntimeError:
        pass  # the loop is closed: the program ends


class _Following:
    """The thread that reads the events of one session."""

    def __init__(self, root: Path, session: str, seq: int, events: asyncio.Queue[Told]) -> None:
        self._root = root
        self._session = session
        self._seq = seq  # the last one of its log that is known here
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._begun: asyncio.Future[str] = self._loop.create_future()
        self._ended = threading.Event()
        self._socket: Connection | None = None
        threading.Thread(target=self._run, daemon=True).start()

    async def begun(self) -> str:
        """Wait until the daemon tells events; the run under way. Its error if it does not."""
        return await self._begun

    def end(self) -> None:
        """Tell no more of them."""
        self._ended.set()
        if self._socket is not None:  # saying good-bye may take a while
            threading.Thread(target=self._socket.close, daemon=True).start()

    def _run(self) -> None:
        is_first, is_away = True, False
        while not self._ended.is_set():
            try:
                with Client.of(self._root) as client, client.connect() as socket:
                    self._socket = socket
                    after = None if is_first else self._seq
                    run = websocket.subscribe(socket, self._session, after)
                    if is_first:
                        _call_soon(self._loop, self._settle, run)
                    elif is_away:
                        self._tell(Back(run))
                    is_first = is_away = False
                    for event in websocket.told(socket):
                        if isinstance(event, MessageStored):
                            self._seq = max(self._seq, event.seq)
                        self._tell(event)
            except EverlogError as error:
                if is_first:
                    _call_soon(self._loop, self._settle, error)
                    return
                if not is_away:
                    is_away = True
                    self._tell(Away(error.message))
                if isinstance(error, NotFoundError) and "status" in error.facts:
                    return  # the daemon is there, the session is not: it was deleted
            self._ended.wait(LOOK_SECONDS)

    def _tell(self, told: Told) -> None:
        if not self._ended.is_set():
            _call_soon(self._loop, self._events.put_nowait, told)

    def _settle(self, begun: str | EverlogError) -> None:
        if self._begun.done():
            return
        if isinstance(begun, str):
            self._begun.set_result(begun)
        else:
            self._begun.set_exception(begun)
