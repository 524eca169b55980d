"""CrabTalk's frames on a Unix socket: the listener, its connections, and their limits.

    frame   u32 big-endian length · one protobuf message of that many bytes, 16 MiB at most

Requests of one connection run concurrently, and their replies go through one writer. No client can
block another: one that does not read is disconnected, and so is one that sends a partial frame.
This module does not interpret messages.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from everlog.daemon.crabtalk.proto.crabtalk_pb2 import ClientMessage, ErrorMsg, ServerMessage
from everlog.errors import StoreFailedError
from everlog.stores.file.disk import map_error

HEADER_BYTES = 4
BACKLOG = 128
GRACE_SECONDS = 1.0  # for pending replies when the socket is closed


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients."""

    frame_bytes: int = 16 * 1024 * 1024
    connections: int = 256
    requests: int = 64  # running at once per connection; further ones wait unread
    replies: int = 256  # queued per connection
    frame_seconds: float = 30.0  # for the remainder of a frame to arrive
    stall_seconds: float = 30.0  # for a client to read a reply


_LIMITS = Limits()


def error_reply(code: int, text: str) -> ServerMessage:
    """Return an error as a reply."""
    return ServerMessage(error=ErrorMsg(code=code, message=valid_text(text)))


def valid_text(text: str) -> str:
    """Return the text with lone surrogates replaced, which protobuf would refuse."""
    return text.encode("utf-8", "replace").decode()


# Handles one request by sending replies to the connection. It must not raise.
RequestHandler = Callable[[ClientMessage, "Connection"], Coroutine[Any, Any, None]]


class Connection:
    """A client's connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: RequestHandler, limits: Limits
    ) -> None:
        self.order = asyncio.Lock()  # held for steps that must run in the order of the requests
        self.is_reading = True
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._limits = limits
        self._replies: asyncio.Queue[bytes | None] = asyncio.Queue(limits.replies)
        self._request_slots = asyncio.Semaphore(limits.requests)
        self._requests: set[asyncio.Task[None]] = set()

    async def send(self, message: ServerMessage) -> None:
        """Queue a reply for the writer; waits while the queue is full."""
        data = message.SerializeToString()
        if len(data) > self._limits.frame_bytes:
            text = f"the reply of {len(data)} bytes exceeds the maximum frame size"
            data = error_reply(500, text).SerializeToString()
        await self._replies.put(len(data).to_bytes(HEADER_BYTES, "big") + data)

    async def serve(self) -> None:
        """Read requests until the client stops sending, and answer them all."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write())
                async with asyncio.TaskGroup() as requests:
                    await self._read(requests)
                    self.is_reading = False
                # A client that only stopped sending gets all replies; if it is gone, a write fails.
                await self._replies.put(None)
        except* OSError:  # disconnected or stalled: the group has cancelled the requests
            pass
        finally:
            await self._close()

    async def reject(self, text: str) -> None:
        """Send the reason for a refusal and close the connection."""
        self.is_reading = False
        await self.send(error_reply(500, text))
        await self._replies.put(None)
        try:
            await self._write()
        except OSError:
            pass
        finally:
            await self._close()

    async def drain(self) -> None:
        """Wait a moment for running requests and queued replies."""
        if self._requests:
            await asyncio.wait(self._requests, timeout=GRACE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._replies.join()

    async def _read(self, requests: asyncio.TaskGroup) -> None:
        while True:
            try:
                frame = await self._read_frame()
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except (_FrameTooLongError, TimeoutError) as error:
                text = str(error) or "the rest of the frame did not arrive in time"
                await self.send(error_reply(400, text))
                for task in self._requests:  # the start of the next frame is unknown
                    task.cancel()
                return
            message = ClientMessage()
            try:
                message.ParseFromString(frame)
            except DecodeError:
                await self.send(error_reply(400, "the frame is not a ClientMessage"))
                continue
            await self._request_slots.acquire()
            task = requests.create_task(self._handler(message, self))
            self._requests.add(task)
            task.add_done_callback(self._on_request_done)

    def _on_request_done(self, task: asyncio.Task[None]) -> None:
        self._requests.discard(task)
        self._request_slots.release()

    async def _read_frame(self) -> bytes:
        """Read the next frame. Waits for its start without a timeout.

        Raises IncompleteReadError at the end of the stream.
        """
        head = await self._reader.read(HEADER_BYTES)
        async with asyncio.timeout(self._limits.frame_seconds):
            head += await self._reader.readexactly(HEADER_BYTES - len(head))
            length = int.from_bytes(head, "big")
            if length > self._limits.frame_bytes:
                raise _FrameTooLongError(f"the frame of {length} bytes exceeds the limit of {self._limits.frame_bytes}")
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

    async def _close(self) -> None:
        self._writer.close()
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._writer.wait_closed()
        except OSError:
            self._writer.transport.abort()


class _FrameTooLongError(Exception):
    """A frame is longer than allowed."""


class FrameServer:
    """The listening socket and its connections."""

    def __init__(self, path: Path, handler: RequestHandler, limits: Limits = _LIMITS) -> None:
        self.path = path
        self._handler = handler
        self._limits = limits
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._server: asyncio.Server | None = None
        self._socket_identity = (0, 0)  # device and inode

    async def start(self) -> None:
        """Listen. Raises StoreFailedError if another daemon does or the path is taken."""
        bound = listen(self.path)
        self._socket_identity = _file_identity(self.path)
        self._server = await asyncio.start_unix_server(self._on_connect, sock=bound)

    async def close(self) -> None:
        """Stop listening, send pending replies and close all connections. Runs continue."""
        if self._server is None:
            return
        self._server.close()
        with suppress(OSError):  # leave another daemon's socket alone
            if _file_identity(self.path) == self._socket_identity:
                self.path.unlink()
        await asyncio.gather(*(connection.drain() for connection in self._connections.values()))
        while open_now := list(self._connections):  # one may have just connected
            for task in open_now:
                task.cancel()
            await asyncio.gather(*open_now, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    @property
    def connections(self) -> int:
        """The number of connections that may still send requests."""
        return sum(connection.is_reading for connection in self._connections.values())

    def _on_connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, self._handler, self._limits)
        full = self.connections >= self._limits.connections
        serving = connection.reject("too many connections") if full else connection.serve()
        task = asyncio.get_running_loop().create_task(serving)
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)


def listen(path: Path) -> socket.socket:
    """Return a listening socket at the path that only its owner can ever connect to.

    It is created in a private directory and then moved to the path, replacing the socket of a dead
    daemon. The umask is not used for this: other threads create files.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_path_is_free(path)
        with tempfile.TemporaryDirectory(prefix=".s", dir=path.parent) as directory:
            # Short, as the path of a socket is limited to 107 bytes.
            temporary = os.path.join(directory, "s")
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                bound.bind(temporary)
                os.chmod(temporary, 0o600)
                bound.listen(BACKLOG)
                bound.setblocking(False)
                os.rename(temporary, path)
            except BaseException:
                bound.close()
                raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise map_error(error, f"listening on {path}") from error
        is_too_long = len(os.fsencode(path)) >= 100  # the limit is 103 or 107 bytes, by system
        hint = "choose a shorter home, or set [daemon] socket = false" if is_too_long else ""
        raise StoreFailedError(f"cannot listen on {path}: {error}", hint=hint) from error
    return bound


def _check_path_is_free(path: Path) -> None:
    """Raise StoreFailedError unless the path is free or has the socket of a dead daemon."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise StoreFailedError(f"{path} is not a socket", hint="move or delete it")
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


def _file_identity(path: Path) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
