"""A connection, with the bounds that uvicorn's does not have: on heads, time and number.

Before a request's head is complete nobody knows whose it is, so everybody is bound by these. When
there are too many connections, the one that has gone longest without a request goes: whoever
merely opens them keeps nobody out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everlog.daemon.error_responses import JSON, SECURITY
from everlog.wire.responses import Problem

HEAD_BYTES = 1 << 16  # of the request line and the headers
HEAD_SECONDS = 30.0
CONNECTIONS = 1_000


class Connection(HttpToolsProtocol):
    """One client's connection, until it becomes a WebSocket."""

    def __init__(self, *args: Any, idle: dict[Connection, None], **how: Any) -> None:
        super().__init__(*args, **how)
        self._idle = idle  # of all connections those that nothing is done for, oldest first
        self._in_head = True
        self._head = 0  # bytes of it that have come
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the event loop."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > CONNECTIONS:
            oldest = next(iter(self._idle))  # perhaps this one
            oldest._stop_waiting()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head += len(data)
            if self._head > HEAD_BYTES:
                self._stop_waiting()
                self.send_400_response("The head of the request is too large.")
            else:
                self._wait()

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._in_head, self._head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser, which answers 400 to what is raised here."""
        self._in_head = False
        self._stop_waiting()
        if not self.url.startswith((b"/", b"*")):
            raise ValueError("a target with a host of its own, which nobody would check")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Called when an answer was sent; perhaps before all of its request has come."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._wait()

    def handle_websocket_upgrade(self) -> None:
        """Called for a request that wants to be a WebSocket."""
        super().handle_websocket_upgrade()
        made: Any = self.transport.get_protocol()
        if not made.handshake_initiated:  # no request to the other parser, which then says nothing
            self.send_400_response("Invalid WebSocket request received.")

    def send_400_response(self, msg: str) -> None:
        """Called for what is no request; the answer to it is as that to any other."""
        body = msgspec.json.encode(Problem(error=msg))
        head = [
            b"HTTP/1.1 400 Bad Request",
            b"content-type: " + JSON.encode(),
            b"content-length: %d" % len(body),
            b"connection: close",
            *(b"%s: %s" % row for row in SECURITY),
        ]
        self.transport.write(b"\r\n".join([*head, b"", body]))
        self.transport.close()

    def _wait(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        if self._timer is None and not busy:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)
            self._idle[self] = None

    def _stop_waiting(self) -> None:
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
