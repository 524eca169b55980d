"""CrabTalk's frames on a Unix socket: who may connect, and bytes to messages and back.

    frame   u32 big-endian length · one protobuf message of so many bytes, 16 MiB at most

Requests of one connection are under way side by side, and their replies leave through one writer.
Nobody who connects can hold up anything else: one who does not read is disconnected, and one who
sends half a frame is not waited for. Nothing here knows what a message means.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from everlog.daemon.crabtalk.proto.crabtalk_pb2 import ClientMessage, ErrorMsg, ServerMessage
from everlog.errors import StoreFailedError

HEADER = 4
BACKLOG = 128
GRACE_SECONDS = 1.0  # for replies that are ready when the socket is closed


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What those who connect may use."""

    frame_bytes: int = 16 * 1024 * 1024
    connections: int = 256
    under_way: int = 64  # requests of one connection; further ones are not read yet
    waiting: int = 256  # replies of one connection
    frame_seconds: float = 30.0  # for a frame that has begun to come
    stall_seconds: float = 30.0  # for a reader to take what it is sent


_LIMITS = Limits()


def refused(code: int, text: str) -> ServerMessage:
    """An error as a reply."""
    return ServerMessage(error=ErrorMsg(code=code, message=sound(text)))


def sound(text: str) -> str:
    """The text as protobuf takes it: what is no Unicode is replaced."""
    return text.encode("utf-8", "replace").decode()


# Answers one request by sending to the connection. It must not raise.
Answer = Callable[[ClientMessage, "Connection"], Awaitable[None]]


class Connection:
    """One who has connected."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Answer,
        limits: Limits,
    ) -> None:
        self.order = asyncio.Lock()  # for what must happen in the order of the requests
        self.reading = True
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._limits = limits
        self._replies: asyncio.Queue[bytes | None] = asyncio.Queue(limits.waiting)
        self._free = asyncio.Semaphore(limits.under_way)
        self._requests: set[asyncio.Task[None]] = set()

    async def send(self, message: ServerMessage) -> None:
        """Hand a reply to the writer; waits while too many are waiting already."""
        data = message.SerializeToString()
        if len(data) > self._limits.frame_bytes:
            text = f"the reply of {len(data)} bytes is larger than a frame may be"
            data = refused(500, text).SerializeToString()
        await self._replies.put(len(data).to_bytes(HEADER, "big") + data)

    async def serve(self) -> None:
        """Read requests until there are no more, and answer them all."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._write())
                async with asyncio.TaskGroup() as requests:
                    await self._read(requests)
                    self.reading = False
                # Who has only ended their sending gets the rest; who has gone lets a write fail.
                await self._replies.put(None)
        except* OSError:  # gone, or stalled: the group has ended the requests
            pass
        finally:
            await self._hang_up()

    async def turn_away(self, text: str) -> None:
        """Say why there is no place for this one, and hang up."""
        self.reading = False
        await self.send(refused(500, text))
        await self._replies.put(None)
        try:
            await self._write()
        except OSError:
            pass
        finally:
            await self._hang_up()

    async def finish(self) -> None:
        """Let what is nearly answered reach the reader."""
        if self._requests:
            await asyncio.wait(self._requests, timeout=GRACE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._replies.join()

    async def _read(self, requests: asyncio.TaskGroup) -> None:
        while True:
            try:
                frame = await self._frame()
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except (_TooLong, TimeoutError) as error:
                text = str(error) or "the rest of a frame did not come in time"
                await self.send(refused(400, text))
                for task in self._requests:  # where the next frame begins is not known
                    task.cancel()
                return
            message = ClientMessage()
            try:
                message.ParseFromString(frame)
            except DecodeError:
                await self.send(refused(400, "a frame that is no ClientMessage"))
                continue
            await self._free.acquire()
            task = requests.create_task(self._request(message))
            self._requests.add(task)
            task.add_done_callback(self._ended)

    async def _request(self, message: ClientMessage) -> None:
        await self._answer(message, self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        self._free.release()

    async def _frame(self) -> bytes:
        """The next frame, however long it takes to begin; IncompleteReadError at the end."""
        head = await self._reader.read(HEADER)
        async with asyncio.timeout(self._limits.frame_seconds):
            head += await self._reader.readexactly(HEADER - len(head))
            length = int.from_bytes(head, "big")
            if length > self._limits.frame_bytes:
                raise _TooLong(
                    f"a frame of {length} bytes: {self._limits.frame_bytes} are the most"
                )
            return await self._reader.readexactly(length)

    async def _write(self) -> None:
        frame: bytes | None = b""
        while frame is not None:
            frame = await self._replies.get()
            if frame is not None:
                self._writer.write(frame)
                async with asyncio.timeout(self._limits.stall_seconds):
                    await self._writer.drain()
            self._replies.task_done()

    async def _hang_up(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._writer.wait_closed()
        except OSError:
            self._writer.transport.abort()


class _TooLong(Exception):
    """A frame announces more bytes than it may have."""


class FrameServer:
    """The socket and everybody connected to it."""

    def __init__(self, path: Path, answer: Answer, limits: Limits = _LIMITS) -> None:
        self.path = path
        self._answer = answer
        self._limits = limits
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._server: asyncio.Server | None = None
        self._file = (0, 0)  # device and inode of our socket

    async def start(self) -> None:
        """Listen. StoreFailedError if another daemon does, or something else lies in the way."""
        bound = listen(self.path)
        self._file = _identity(self.path)
        self._server = await asyncio.start_unix_server(self._connected, sock=bound)

    async def close(self) -> None:
        """Let nobody in any more, hand out what is ready, and hang up. No run is stopped."""
        if self._server is None:
            return
        self._server.close()
        with suppress(OSError):  # another daemon's socket stays
            if _identity(self.path) == self._file:
                self.path.unlink()
        await asyncio.gather(*(one.finish() for one in self._connections.values()))
        while open_now := list(self._connections):  # one may just have been let in
            for task in open_now:
                task.cancel()
            await asyncio.gather(*open_now, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    @property
    def connections(self) -> int:
        """How many may still send requests."""
        return sum(connection.reading for connection in self._connections.values())

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, self._answer, self._limits)
        full = self.connections >= self._limits.connections
        serving = connection.turn_away("too many connections") if full else connection.serve()
        task = asyncio.get_running_loop().create_task(serving)
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)


def listen(path: Path) -> socket.socket:
    """A listening socket at the path that from its first moment only its owner can connect to.

    It is made in a directory that nobody else can enter and moved to its place, over what a
    daemon that died has left there. The process's umask is left alone: other threads make files.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_place(path)
        with tempfile.TemporaryDirectory(prefix=".s", dir=path.parent) as room:
            # Not longer than the path itself: 107 bytes is all that a socket's name may have.
            made = os.path.join(room, "s")
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                bound.bind(made)
                os.chmod(made, 0o600)
                bound.listen(BACKLOG)
                bound.setblocking(False)
                os.rename(made, path)
            except BaseException:
                bound.close()
                raise
    except OSError as error:
        hint = "choose a shorter root, or set [daemon] socket = false" if _is_long(path) else ""
        raise StoreFailedError(f"cannot listen on {path}: {error}", hint=hint) from error
    return bound


def _is_long(path: Path) -> bool:
    return len(os.fsencode(path)) >= 100  # systems differ: 103 or 107 bytes are the most


def _check_place(path: Path) -> None:
    """Nothing, or the socket of a daemon that died, may lie there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StoreFailedError(f"{path} is not a socket", hint="move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return
            raise
    raise StoreFailedError(f"another daemon listens on {path}", hint="stop it first")


def _identity(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
