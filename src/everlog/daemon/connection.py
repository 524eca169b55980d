"""An HTTP connection with limits that uvicorn lacks: on the head's size, on time and on number.

Until a request's head is complete its sender is unknown, so these limits apply to everyone. When
there are too many connections, the one that has been idle longest is closed, so that a client
that only opens connections keeps nobody out.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from everlog.daemon.error_responses import JSON, SECURITY_HEADERS
from everlog.wire.responses import ErrorBody

HEAD_BYTES = 1 << 16  # of the request line and the headers together
HEAD_SECONDS = 30.0
MAX_CONNECTIONS = 1_000


class HttpConnection(HttpToolsProtocol):
    """A client's connection until it becomes a WebSocket."""

    def __init__(self, *args: Any, idle: dict[HttpConnection, None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._idle = idle  # shared: the connections without a request in progress, oldest first
        self._in_head = True
        self._head_bytes = 0  # received so far
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the idle timer, and close the longest idle connection if there are too many."""
        super().connection_made(transport)
        self._start_idle_timer()
        if len(self.connections) > MAX_CONNECTIONS:
            oldest = next(iter(self._idle))  # may be this one
            oldest._stop_idle_timer()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the idle timer."""
        self._stop_idle_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data, and refuse a head that is too large."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._stop_idle_timer()
                self.send_400_response("The request head is too large.")
            else:
                self._start_idle_timer()

    def on_message_begin(self) -> None:
        """Start counting the bytes of a request's head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Refuse a target with a host: the parser responds 400 if this raises."""
        self._in_head = False
        self._stop_idle_timer()
        if not self.url.startswith((b"/", b"*")):
            raise ValueError("a target with its own host, which the Host check would not see")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Restart the idle timer; perhaps before all of the request has arrived."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._start_idle_timer()

    def handle_websocket_upgrade(self) -> None:
        """Upgrade to a WebSocket, or respond 400 to an invalid request."""
        super().handle_websocket_upgrade()
        protocol: Any = self.transport.get_protocol()
        if not protocol.handshake_initiated:  # the WebSocket parser rejected it without a response
            self.send_400_response("Invalid WebSocket request received.")

    def send_400_response(self, msg: str) -> None:
        """Respond to an invalid request with a JSON error body, like to any other error."""
        body = msgspec.json.encode(ErrorBody(error=msg))
        head = [
            b"HTTP/1.1 400 Bad Request",
            b"content-type: " + JSON.encode(),
            b"content-length: %d" % len(body),
            b"connection: close",
            *(b"%s: %s" % row for row in SECURITY_HEADERS),
        ]
        self.transport.write(b"\r\n".join([*head, b"", body]))
        self.transport.close()

    def _start_idle_timer(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        if self._timer is None and not busy:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)
            self._idle[self] = None

    def _stop_idle_timer(self) -> None:
        self._idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
