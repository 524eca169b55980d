"""The client side of the event stream `/ws`: subscriptions and decoded events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from everlog.errors import NotFoundError, ProviderUnavailableError, StoreFailedError
from everlog.wire.error_table import decode_error_event
from everlog.wire.events import Error, RunEvent, decode_event
from everlog.wire.requests import Subscribe

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

OPEN_SECONDS = 10.0
MAX_EVENT_BYTES = 1 << 26  # bytes of one event


def connect(address: str, token: str) -> Connection:
    """Open a WebSocket. Raises StoreFailedError if the daemon does not accept it."""
    from websockets.exceptions import WebSocketException  # noqa: PLC0415 - 60 ms, seldom needed
    from websockets.sync import client  # noqa: PLC0415

    try:
        return client.connect(
            f"ws{address.removeprefix('http')}/ws",
            additional_headers={"Authorization": f"Bearer {token}"},
            open_timeout=OPEN_SECONDS,
            max_size=MAX_EVENT_BYTES,
            proxy=None,
        )
    except (WebSocketException, OSError, TimeoutError) as error:
        message = f"cannot open a WebSocket to the daemon at {address}: {error}"
        raise StoreFailedError(message) from error


def subscribe(socket: Connection, session_id: str, after: int | None) -> str:
    """Subscribe to a session. No event after the return is missed.

    Returns the id of the run in progress, or an empty string.
    """
    request = Subscribe(session_id=session_id, after=after)
    with _map_disconnect():
        socket.send(msgspec.json.encode(request).decode())
    for payload in _receive(socket):
        if payload.get("type") == "subscribed":
            return str(payload.get("runId") or "")
        if payload.get("type") == "error":
            error = msgspec.convert(payload, Error)
            raise decode_error_event(error, NotFoundError, status=404)
    return ""  # unreachable: _receive ends only by an exception


def read_events(socket: Connection) -> Iterator[RunEvent]:
    """Yield events as they arrive, skipping kinds unknown to this version."""
    for payload in _receive(socket):
        event = decode_event(payload)
        if event is not None:
            yield event


def _receive(socket: Connection) -> Iterator[dict[str, Any]]:
    while True:
        with _map_disconnect():
            data = socket.recv()
        payload = msgspec.json.decode(data)
        if isinstance(payload, dict):
            yield payload


@contextmanager
def _map_disconnect() -> Iterator[None]:
    """Raise ProviderUnavailableError when the connection closes, at any time from its start."""
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

    try:
        yield
    except ConnectionClosed as error:
        reason = error.rcvd.reason if error.rcvd else str(error)
        raise ProviderUnavailableError(
            f"the daemon closed the connection: {reason}", hint="reconnect with the last seq that you received"
        ) from error
