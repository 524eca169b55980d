"""Frames on the socket: whatever comes, the next one who asks is answered."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everlog.daemon.crabtalk.frames import Connection, FrameServer, Limits, listen
from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb
from everlog.errors import StoreFailedError
from tests.daemon.crabtalk_client import Crab, connected
from tests.examples import examples

PONG = pb.ServerMessage(pong=pb.Pong())


class Echo:
    """Answers Ping; holds Sends until it is let go; fills the reader with Streams."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.held = 0
        self.ended = 0

    async def __call__(self, message: pb.ClientMessage, connection: Connection) -> None:
        kind = message.WhichOneof("msg")
        if kind == "send":
            self.held += 1
            try:
                await self.go.wait()
            finally:
                self.ended += 1
        elif kind == "stream":
            try:
                while True:
                    chunk = pb.StreamChunk(content="x" * 10_000)
                    await connection.send(pb.ServerMessage(stream=pb.StreamEvent(chunk=chunk)))
            finally:
                self.ended += 1
        elif kind == "compact":
            summary = pb.CompactResponse(summary="x" * message.compact.session)
            await connection.send(pb.ServerMessage(compact=summary))
            return
        await connection.send(PONG)


@asynccontextmanager
async def serving(path: Path, **limits: Any) -> AsyncIterator[tuple[FrameServer, Echo]]:
    echo = Echo()
    server = FrameServer(path, echo, Limits(**limits))
    await server.start()
    try:
        yield server, echo
    finally:
        await server.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(timed())


async def until(condition: Any) -> None:
    """Wait for something that happens elsewhere in this loop."""
    while not condition():
        await asyncio.sleep(0.005)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "everlog.sock"


# --- the socket


def test_only_the_owner_may_connect_under_any_umask(path: Path) -> None:
    async def main() -> None:
        before = os.umask(0)
        try:
            async with serving(path):
                found = os.lstat(path)
                assert stat.S_ISSOCK(found.st_mode)
                assert stat.S_IMODE(found.st_mode) == 0o600
                assert stat.S_IMODE(os.lstat(path.parent).st_mode) == 0o700
                assert os.listdir(path.parent) == [path.name]
        finally:
            os.umask(before)
        assert os.listdir(path.parent) == []

    run(main())


def test_the_socket_of_a_dead_daemon_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def main() -> None:
        async with serving(path), connected(path) as crab:
            assert await crab.ping()

    run(main())


def test_the_socket_of_a_living_daemon_is_not_touched(path: Path) -> None:
    async def main() -> None:
        async with serving(path):
            with pytest.raises(StoreFailedError, match="another daemon"):
                await FrameServer(path, Echo()).start()
            async with connected(path) as crab:
                assert await crab.ping()

    run(main())


@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling", "fifo"])
def test_nothing_but_a_socket_is_replaced(path: Path, kind: str) -> None:
    path.parent.mkdir()
    other = path.parent / "other"
    match kind:
        case "file":
            path.write_text("mine")
        case "directory":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "dangling":
            path.symlink_to(other)
        case "link":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(other))
            path.symlink_to(other)
    before = os.lstat(path)
    with pytest.raises(StoreFailedError, match="not a socket"):
        listen(path)
    assert os.lstat(path) == before


def test_a_path_that_is_too_long_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreFailedError, match="cannot listen"):
        listen(tmp_path / ("long" * 40) / "s")


def test_closing_leaves_the_socket_of_whoever_came_after(path: Path) -> None:
    async def main() -> None:
        async with serving(path):
            path.unlink()
            other = listen(path)
        assert path.exists()
        other.close()

    run(main())


# --- frames


def test_a_frame_that_is_too_long_is_refused_unread_and_ends_the_connection(path: Path) -> None:
    async def main() -> None:
        async with serving(path), connected(path) as crab:
            await crab.write(struct.pack(">I", 16 * 1024 * 1024 + 1))
            reply = await crab.heard()
            assert reply.error.code == 400
            assert "16777217" in reply.error.message
            assert await crab.hung_up()
            async with connected(path) as other:
                assert await other.ping()

    run(main())


def test_the_largest_frame_is_taken(path: Path) -> None:
    async def main() -> None:
        async with serving(path), connected(path) as crab:
            start = pb.ClientMessage(ping=pb.Ping()).SerializeToString()
            # An unknown field of bytes fills the rest.
            rest = 16 * 1024 * 1024 - len(start) - 3 - 4
            filling = b"\xfa\x7f" + _varint(rest) + b"x" * rest
            payload = start + filling
            payload += b"\xf2\x01\x00" * ((16 * 1024 * 1024 - len(payload)) // 3)
            assert 16 * 1024 * 1024 - 3 < len(payload) <= 16 * 1024 * 1024
            await crab.write(struct.pack(">I", len(payload)) + payload)
            assert await crab.heard() == PONG

    run(main())


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def test_garbage_is_refused_and_the_connection_goes_on(path: Path) -> None:
    async def main() -> None:
        async with serving(path), connected(path) as crab:
            await crab.write(struct.pack(">I", 3) + b"\xff\xff\xff")
            assert (await crab.heard()).error.code == 400
            assert await crab.ping()

    run(main())


def test_a_frame_in_single_bytes_is_read(path: Path) -> None:
    async def main() -> None:
        async with serving(path), connected(path) as crab:
            payload = pb.ClientMessage(ping=pb.Ping()).SerializeToString()
            for byte in struct.pack(">I", len(payload)) + payload:
                await crab.write(bytes([byte]))
                await asyncio.sleep(0)
            assert await crab.heard() == PONG

    run(main())


@pytest.mark.parametrize("half", [b"\0", b"\0\0\0", b"\0\0\0\x05", b"\0\0\0\x05\xf2\x01"])
def test_half_a_frame_is_not_waited_for(path: Path, half: bytes) -> None:
    async def main() -> None:
        async with serving(path, frame_seconds=0.05), connected(path) as crab:
            await crab.write(half)
            reply = await crab.heard()
            assert (reply.error.code, "in time" in reply.error.message) == (400, True)
            assert await crab.hung_up()

    run(main())


@pytest.mark.parametrize("half", [b"", b"\0", b"\0\0\0\x05\xf2"])
def test_who_leaves_within_a_frame_leaves_nothing_behind(path: Path, half: bytes) -> None:
    async def main() -> None:
        async with serving(path) as (server, _):
            async with connected(path) as crab:
                await crab.write(half)
                await until(lambda: server.connections == 1)
            await until(lambda: server.connections == 0)

    run(main())


def test_who_only_ends_their_sending_is_still_answered(path: Path) -> None:
    async def main() -> None:
        async with serving(path) as (_, echo), connected(path) as crab:
            await crab.ask(pb.ClientMessage(send=pb.SendMsg()))
            crab.writer.write_eof()
            await until(lambda: echo.held == 1)
            echo.go.set()
            assert await crab.heard() == PONG
            assert await crab.hung_up()

    run(main())


def test_a_reply_that_is_too_long_is_an_error_instead(path: Path) -> None:
    async def main() -> None:
        async with serving(path, frame_bytes=1000), connected(path) as crab:
            small = await crab.call(compact=pb.CompactMsg(session=900))
            assert len(small.compact.summary) == 900
            assert (await crab.refusal(compact=pb.CompactMsg(session=1000))).code == 500
            assert await crab.ping()

    run(main())


# --- many at once


def test_requests_of_one_connection_are_under_way_side_by_side(path: Path) -> None:
    async def main() -> None:
        async with serving(path, requests=3) as (_, echo), connected(path) as crab:
            await crab.ask(pb.ClientMessage(send=pb.SendMsg()))
            await crab.ask(pb.ClientMessage(send=pb.SendMsg()))
            assert await crab.ping()  # overtakes them
            assert echo.held == 2
            echo.go.set()
            assert [await crab.heard(), await crab.heard()] == [PONG, PONG]

    run(main())


def test_no_more_than_so_many_requests_of_a_connection_are_under_way(path: Path) -> None:
    async def main() -> None:
        async with serving(path, requests=3) as (_, echo), connected(path) as crab:
            for _ in range(5):
                await crab.ask(pb.ClientMessage(send=pb.SendMsg()))
            await until(lambda: echo.held == 3)
            async with connected(path) as other:
                assert await other.ping()
            assert echo.held == 3
            echo.go.set()
            for _ in range(5):
                assert await crab.heard() == PONG

    run(main())


def test_a_reader_who_stalls_is_disconnected(path: Path) -> None:
    async def main() -> None:
        async with serving(path, stall_seconds=0.1) as (server, echo), connected(path) as crab:
            crab.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's
            await crab.ask(pb.ClientMessage(stream=pb.StreamMsg()))
            await crab.ask(pb.ClientMessage(send=pb.SendMsg()))
            await until(lambda: server.connections == 1)
            await until(lambda: server.connections == 0 and echo.ended == 2)
            async with connected(path) as other:
                assert await other.ping()

    run(main())


def test_who_goes_away_ends_what_only_they_waited_for(path: Path) -> None:
    async def main() -> None:
        async with serving(path) as (server, echo):
            async with connected(path) as crab:
                await crab.ask(pb.ClientMessage(stream=pb.StreamMsg()))
                await crab.heard()
            await until(lambda: echo.ended == 1 and server.connections == 0)

    run(main())


def test_there_is_no_place_for_one_more_than_may_connect(path: Path) -> None:
    async def main() -> None:
        async with serving(path, connections=2) as (server, _):
            async with connected(path) as one, connected(path) as two:
                assert await one.ping() and await two.ping()
                async with connected(path) as three:
                    assert (await three.heard()).error.message == "too many connections"
                    assert await three.hung_up()
                assert await one.ping()
            await until(lambda: server.connections == 0)
            async with connected(path) as four:
                assert await four.ping()

    run(main())


def test_closing_hands_out_what_is_ready_and_hangs_up(path: Path) -> None:
    async def main() -> None:
        async with serving(path) as (server, echo), connected(path) as crab:
            await crab.ask(pb.ClientMessage(send=pb.SendMsg()))
            await until(lambda: echo.held == 1)
            closing = asyncio.create_task(server.close())
            echo.go.set()
            assert await crab.heard() == PONG
            assert await crab.hung_up()
            await closing
            assert not path.exists()

    run(main())


# --- anything


FRAMES = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=100).map(lambda data: struct.pack(">I", len(data)) + data),
    st.sampled_from([field.number for field in pb.DESCRIPTOR.message_types_by_name["ClientMessage"].fields]).map(
        lambda number: _framed(_varint(number << 3 | 2) + b"\0")
    ),
    st.just(struct.pack(">I", 2**32 - 1)),
)


def _framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=st.lists(FRAMES, max_size=8))
def test_whatever_is_sent_the_next_one_is_answered(path: Path, sent: list[bytes]) -> None:
    async def main() -> None:
        async with serving(path) as (server, echo):
            echo.go.set()
            async with connected(path) as crab:
                try:
                    await crab.write(b"".join(sent))
                    crab.writer.write_eof()
                    if not any(b"\x12\x00" in one for one in sent):  # a Stream has no end here
                        assert await crab.hung_up()
                except ConnectionError:
                    pass
            async with connected(path) as other:
                assert await _alive(other)
            await until(lambda: server.connections == 0)

    run(main())


async def _alive(crab: Crab) -> bool:
    return await crab.ping()
