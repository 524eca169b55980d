"""A CrabTalk client as the protocol's description has it: length, payload, one at a time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from everlog.daemon.crabtalk.proto import crabtalk_pb2 as pb

SECONDS = 60.0  # for any answer: far more than any takes


class Crab:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def write(self, data: bytes) -> None:
        """Some bytes, whatever they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, message: pb.ClientMessage) -> None:
        """One frame, without waiting for its reply."""
        payload = message.SerializeToString()
        await self.write(struct.pack(">I", len(payload)) + payload)

    async def heard(self) -> pb.ServerMessage:
        """The next frame; IncompleteReadError when the other side has hung up."""
        async with asyncio.timeout(SECONDS):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            return pb.ServerMessage.FromString(await self.reader.readexactly(length))

    async def call(self, **message: object) -> pb.ServerMessage:
        """One request and its reply."""
        await self.ask(pb.ClientMessage(**message))  # type: ignore[arg-type]  # by its name
        return await self.heard()

    async def ping(self) -> bool:
        """Whether the other side answers."""
        return (await self.call(ping=pb.Ping())).HasField("pong")

    async def send(self, content: str, **how: object) -> pb.SendResponse:
        """Say something and get the answer."""
        reply = await self.call(send=pb.SendMsg(content=content, **how))  # type: ignore[arg-type]
        assert reply.WhichOneof("msg") == "response", reply
        return reply.response

    async def stream(self, content: str, **how: object) -> list[pb.StreamEvent]:
        """Say something and get everything that is told, from start to end."""
        message = pb.StreamMsg(content=content, **how)  # type: ignore[arg-type]
        await self.ask(pb.ClientMessage(stream=message))
        return await self.events()

    async def events(self) -> list[pb.StreamEvent]:
        """Everything that is told from here to the end."""
        events: list[pb.StreamEvent] = []
        while not events or events[-1].WhichOneof("event") != "end":
            reply = await self.heard()
            assert reply.WhichOneof("msg") == "stream", reply
            events.append(reply.stream)
        return events

    async def refusal(self, **message: object) -> pb.ErrorMsg:
        """The error that a request is answered with."""
        reply = await self.call(**message)
        assert reply.WhichOneof("msg") == "error", reply
        return reply.error

    async def hung_up(self) -> bool:
        """Whether the other side hangs up, whatever it says before."""
        try:
            while True:
                await self.heard()
        except (asyncio.IncompleteReadError, ConnectionError):
            return True


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Crab]:
    """A client of the socket at a path."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield Crab(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass
