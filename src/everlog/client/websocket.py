"""The daemon's WebSocket: events as they happen, decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from everlog.client.error_decoding import failure
from everlog.errors import EverlogError, ProviderUnavailableError, StoreFailedError
from everlog.model import Message, blocks
from everlog.wire import events
from everlog.wire.events import RunEvent

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

_KINDS: dict[str, type[RunEvent]] = {
    str(kind.__struct_config__.tag): kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, RunEvent) and kind is not RunEvent
}
OPEN_SECONDS = 10.0
LARGEST = 1 << 26  # bytes of one event


def connect(address: str, token: str) -> Connection:
    """An open WebSocket. StoreFailedError if the daemon does not take it."""
    from websockets.exceptions import WebSocketException  # noqa: PLC0415 - 60 ms, seldom needed
    from websockets.sync import client  # noqa: PLC0415

    try:
        return client.connect(
            f"ws{address.removeprefix('http')}/ws",
            additional_headers={"Authorization": f"Bearer {token}"},
            open_timeout=OPEN_SECONDS,
            max_size=LARGEST,
            proxy=None,
        )
    except (WebSocketException, OSError, TimeoutError) as error:
        raise StoreFailedError(f"the daemon at {address} takes no WebSocket: {error}") from error


def subscribe(socket: Connection, session_id: str, after: int | None) -> str:
    """Follow a session; when this returns, nothing that happens in it is missed.

    Returns the run that is under way in the daemon, or nothing.
    """
    asked: dict[str, Any] = {"type": "subscribe", "sessionId": session_id}
    if after is not None:
        asked["after"] = after
    with _ends_told():
        socket.send(msgspec.json.encode(asked).decode())
    for said in _received(socket):
        if said.get("type") == "subscribed":
            return str(said.get("runId") or "")
        if said.get("type") == "error":
            raise _refused(said)
    return ""  # what is received has no end


def told(socket: Connection) -> Iterator[RunEvent]:
    """Events as they come; those that this version does not know are skipped."""
    for said in _received(socket):
        event = decode(said)
        if event is not None:
            yield event


def decode(said: dict[str, Any]) -> RunEvent | None:
    """An event from its JSON object; None for one that this version does not know."""
    kind = _KINDS.get(str(said.get("type")))
    if kind is None:
        return None
    try:
        if kind is events.MessageStored:
            return _stored(said)
        return msgspec.convert(said, kind)
    except (msgspec.ValidationError, KeyError, TypeError):
        return None


def _stored(said: dict[str, Any]) -> RunEvent:
    """A message may hold blocks of a kind that the typed decoder refuses."""
    message = said["message"]
    empty = msgspec.convert({**message, "content": ()}, Message)
    whole = replace(empty, content=blocks(message["content"]))
    event = msgspec.convert({**said, "message": msgspec.to_builtins(empty)}, events.MessageStored)
    return replace(event, message=whole)


def _received(socket: Connection) -> Iterator[dict[str, Any]]:
    while True:
        with _ends_told():
            data = socket.recv()
        said = msgspec.json.decode(data)
        if isinstance(said, dict):
            yield said


@contextmanager
def _ends_told() -> Iterator[None]:
    """The end of a connection, as our error; it may come at any moment, also before the first."""
    from websockets.exceptions import ConnectionClosed  # noqa: PLC0415

    try:
        yield
    except ConnectionClosed as error:
        reason = error.rcvd.reason if error.rcvd else str(error)
        raise ProviderUnavailableError(
            f"the daemon ended the connection: {reason}",
            hint="connect again, with the last seq that you have",
        ) from error


def _refused(said: dict[str, Any]) -> EverlogError:
    body = {"error": said.get("message", ""), "code": said.get("code", "")}
    return failure(404, msgspec.json.encode(body))
