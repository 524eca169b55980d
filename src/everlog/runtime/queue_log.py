"""The queue as a log holds it: what waits, and what came of what another process answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from everlog.agent.turn import Answer
from everlog.agent.turn_lease import is_lost
from everlog.aio import AsyncSession
from everlog.errors import (
    ConflictError,
    EverlogError,
    ProviderError,
    RunCancelledError,
    SessionBusyError,
)
from everlog.log.line_codec import from_object, to_object
from everlog.model import (
    QUEUED,
    TURN_END,
    TURN_INTERRUPTED,
    WITHDRAWN,
    Event,
    Message,
    Metadata,
    Usage,
)
from everlog.ports import Lease
from everlog.session import R, Session

ATTEMPTS = 100  # at a record of the queue while others write to the session
KEPT = "the message is kept, and will be answered later, after the next start at the latest"


class How(msgspec.Struct, frozen=True):
    """What one turn may do, where that differs from its agent's ways."""

    max_steps: int | None = None
    allowed: tuple[str, ...] | None = None
    reads_only: bool = False


def queued(message: Message, how: How, event_id: str) -> Event:
    """The event that holds a message until its turn."""
    data: dict[str, Any] = {
        "id": message.id,
        "runId": message.run_id,
        "message": to_object(message),
    }
    if how != How():
        data["how"] = msgspec.to_builtins(how)
    return Event(kind=QUEUED, data=data, id=event_id)


async def compared(
    session: AsyncSession, made: Callable[[Metadata], R | None], lease: Lease | None = None
) -> R | None:
    """Append what is made of the queue as it stands, if anything; nothing comes in between.

    So no two processes take the last place, and no message is both withdrawn and answered.
    """
    for _ in range(ATTEMPTS):
        known = await session.metadata()
        record = made(known)
        if record is None:
            return None
        try:
            return await session.append(record, expected_seq=known.through.seq, lease=lease)
        except ConflictError:
            if lease is not None and is_lost(lease):
                raise
            continue
    raise SessionBusyError("others write to this session all the time", session=session.id)


def find(session: Session, message_id: str) -> tuple[Message, How] | None:
    """A waiting message, in the event that holds it; newest first, since it was added lately."""
    for entry in session.store.port.tail(session.id):
        if isinstance(entry, Event) and entry.kind == QUEUED and entry.data.get("id") == message_id:
            try:
                message = from_object(entry.data["message"])
                how = msgspec.convert(entry.data.get("how", {}), How)
            except (KeyError, TypeError, ValueError, EverlogError):
                return None
            if isinstance(message, Message) and message.id == message_id:
                return message, how
            return None
    return None


def from_log(session: Session, run_id: str, message_id: str) -> Answer | EverlogError:
    """What came of a message that this process has not answered itself."""
    since: list[Message | Event] = []
    for entry in session.store.port.tail(session.id):
        if isinstance(entry, Message | Event):
            since.append(entry)
        if isinstance(entry, Message) and entry.id == message_id:
            break
        if isinstance(entry, Event) and entry.data.get("id") == message_id:
            if entry.kind == WITHDRAWN:
                return RunCancelledError("it was withdrawn", session=session.id, run=run_id)
            if entry.kind == QUEUED:
                return SessionBusyError(KEPT, session=session.id)
    said: list[Message] = []
    for entry in reversed(since):
        if isinstance(entry, Message):
            said.append(entry)
        elif entry.kind in (TURN_END, TURN_INTERRUPTED) and entry.data.get("runId") == run_id:
            return _answer(session.id, run_id, said, entry)
    return RunCancelledError("its turn did not end", session=session.id, run=run_id)


def _answer(session: str, run_id: str, said: list[Message], end: Event) -> Answer | EverlogError:
    stop = str(end.data.get("stop", ""))
    if end.kind == TURN_INTERRUPTED or stop == "cancelled":
        return RunCancelledError("the turn was stopped", session=session, run=run_id)
    if "error" in end.data:
        return ProviderError(str(end.data["error"]), session=session, run=run_id)
    reply = next((one for one in reversed(said) if one.role == "assistant"), None)
    if reply is None:  # not written by us, or damaged since
        return ProviderError("its turn ended without an answer", session=session, run=run_id)
    return Answer(
        run_id=run_id,
        session_id=session,
        reply=reply,
        messages=tuple(said),
        usage=msgspec.convert(end.data.get("usage", {}), Usage),
        duration_ms=int(end.data.get("durationMs", 0)),
        tool_calls=int(end.data.get("toolCalls", 0)),
        stop=stop,
    )
