"""The client side of the event stream `/ws`: subscriptions and decoded events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from everlog.client.error_decoding import decode_error
from everlog.errors import EverlogError, ProviderUnavailableError, StoreFailedError
from everlog.model import Message, blocks
from everlog.wire import events
from everlog.wire.events import RunEvent

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

_EVENT_TYPES: dict[str, type[RunEvent]] = {
    str(event_type.__struct_config__.tag): event_type
    for event_type in vars(events).values()
    if isinstance(event_type, type) and issubclass(event_type, RunEvent) and event_type is not RunEvent
}
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
    request: dict[str, Any] = {"type": "subscribe", "sessionId": session_id}
    if after is not None:
        request["after"] = after
    with _map_disconnect():
        socket.send(msgspec.json.encode(request).decode())
    for payload in _receive(socket):
        if payload.get("type") == "subscribed":
            return str(payload.get("runId") or "")
        if payload.get("type") == "error":
            raise _subscribe_error(payload)
    return ""  # unreachable: _receive ends only by an exception


def read_events(socket: Connection) -> Iterator[RunEvent]:
    """Yield events as they arrive, skipping kinds unknown to this version."""
    for payload in _receive(socket):
        event = decode_event(payload)
        if event is not None:
            yield event


def decode_event(payload: dict[str, Any]) -> RunEvent | None:
    """Decode an event from its JSON object; None if this version does not know its kind."""
    event_type = _EVENT_TYPES.get(str(payload.get("type")))
    if event_type is None:
        return None
    try:
        if event_type is events.MessageStored:
            return _decode_stored_message(payload)
        return msgspec.convert(payload, event_type)
    except (msgspec.ValidationError, KeyError, TypeError):
        return None


def _decode_stored_message(payload: dict[str, Any]) -> RunEvent:
    """Decode a `message` event, whose blocks may be of kinds the typed decoder refuses."""
    message = payload["message"]
    without_content = msgspec.convert({**message, "content": ()}, Message)
    complete = replace(without_content, content=blocks(message["content"]))
    event = msgspec.convert({**payload, "message": msgspec.to_builtins(without_content)}, events.MessageStored)
    return replace(event, message=complete)


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


def _subscribe_error(payload: dict[str, Any]) -> EverlogError:
    body = {"error": payload.get("message", ""), "code": payload.get("code", "")}
    return decode_error(404, msgspec.json.encode(body))
