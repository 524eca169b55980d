"""The queue in the log: waiting messages, and the outcome of runs in other processes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeGuard

import msgspec

from everlog.agent.answer import Answer
from everlog.agent.turn_lease import is_lost
from everlog.aio import AsyncSession
from everlog.errors import ConflictError, EverlogError, ProviderError, RunCancelledError, SessionBusyError
from everlog.log.line_codec import from_object, to_object
from everlog.model import QUEUED, TURN_END, TURN_INTERRUPTED, WITHDRAWN, Entry, Event, Message, Metadata, Usage
from everlog.ports import Lease
from everlog.session import R, Session
from everlog.stores.rules import RETRY_WINDOW

ATTEMPTS = 100  # to append a record while other processes write to the session
MESSAGE_KEPT = "the message is stored and will be answered later, at the latest after a restart"


class TurnOptions(msgspec.Struct, frozen=True):
    """Limits of one turn, where they differ from its agent's."""

    max_steps: int | None = None
    allowed: tuple[str, ...] | None = None
    reads_only: bool = False


DEFAULT_OPTIONS = TurnOptions()


def queued_event(message: Message, options: TurnOptions, event_id: str) -> Event:
    """Return the event that holds a message while it waits."""
    data: dict[str, Any] = {"id": message.id, "runId": message.run_id, "message": to_object(message)}
    if options != DEFAULT_OPTIONS:
        data["how"] = msgspec.to_builtins(options)
    return Event(kind=QUEUED, data=data, id=event_id)


async def compare_and_append(
    session: AsyncSession, make_record: Callable[[Metadata], R | None], lease: Lease | None = None
) -> R | None:
    """Append the record made from the current metadata, if any, with nothing in between.

    So two processes never take the last place in the queue, and no message is both withdrawn and
    answered. Raises `SessionBusyError` if other processes append all the time, and `ConflictError`
    if another record has its id or the lease is lost.
    """
    for _ in range(ATTEMPTS):
        metadata = await session.metadata()
        record = make_record(metadata)
        if record is None:
            return None
        try:
            return await session.append(record, expected_seq=metadata.through.seq, lease=lease)
        except ConflictError as error:
            if "id" in error.facts or (lease is not None and is_lost(lease)):
                raise
    raise SessionBusyError("other processes keep writing to this session", session=session.id)


def withdrawn_error(session: str, run_id: str) -> RunCancelledError:
    """Return the error for a run whose message was withdrawn while it waited."""
    return RunCancelledError("the message was withdrawn", session=session, run=run_id)


def find_queued(session: Session, message_id: str) -> tuple[Message, TurnOptions] | None:
    """Return a waiting message and its options, or None if its event cannot be read."""
    for entry in session.store.port.tail(session.id):  # newest first: it was added recently
        if _is_queued(entry, message_id):
            return _decode_queued(entry.data, message_id)
    return None


def find_stored(session: Session, message_id: str) -> Message | None:
    """Return the stored message with an id, if it is recent."""
    recent = islice(session.store.port.tail(session.id), RETRY_WINDOW)
    return next((e for e in recent if isinstance(e, Message) and e.id == message_id), None)


def find_submission(session: Session, message_id: str) -> Message | None:
    """Return the message that was submitted with an id, stored or waiting, if it is recent."""
    for entry in islice(session.store.port.tail(session.id), RETRY_WINDOW):
        if isinstance(entry, Message) and entry.id == message_id:
            return entry
        if _is_queued(entry, message_id):
            queued = _decode_queued(entry.data, message_id)
            return queued[0] if queued else None
    return None


def _is_queued(entry: Entry, message_id: str) -> TypeGuard[Event]:
    return isinstance(entry, Event) and entry.kind == QUEUED and entry.data.get("id") == message_id


def _decode_queued(data: dict[str, Any], message_id: str) -> tuple[Message, TurnOptions] | None:
    try:
        message = from_object(data["message"])
        options = msgspec.convert(data.get("how", {}), TurnOptions)
    except (KeyError, TypeError, ValueError, EverlogError):
        return None
    return (message, options) if isinstance(message, Message) and message.id == message_id else None


def read_outcome(session: Session, run_id: str, message_id: str) -> Answer | EverlogError:
    """Return the outcome of a message that another process may have answered."""
    entries: list[Message | Event] = []
    for entry in session.store.port.tail(session.id):
        if isinstance(entry, Message | Event):
            entries.append(entry)
        if isinstance(entry, Message) and entry.id == message_id:
            break
        if isinstance(entry, Event) and entry.data.get("id") == message_id:
            if entry.kind == WITHDRAWN:
                return withdrawn_error(session.id, run_id)
            if entry.kind == QUEUED:
                return SessionBusyError(MESSAGE_KEPT, session=session.id)
    messages: list[Message] = []
    for entry in reversed(entries):
        if isinstance(entry, Message):
            messages.append(entry)
        elif entry.kind in (TURN_END, TURN_INTERRUPTED) and entry.data.get("runId") == run_id:
            return _outcome_of(session.id, run_id, messages, entry)
    return RunCancelledError("its turn has no recorded end", session=session.id, run=run_id)


def _outcome_of(session: str, run_id: str, messages: list[Message], end: Event) -> Answer | EverlogError:
    stop = str(end.data.get("stop", ""))
    if end.kind == TURN_INTERRUPTED or stop == "cancelled":
        return RunCancelledError("the turn was cancelled", session=session, run=run_id)
    if "error" in end.data:
        return ProviderError(str(end.data["error"]), session=session, run=run_id)
    reply = next((m for m in reversed(messages) if m.role == "assistant"), None)
    if reply is None:  # written by another program, or damaged
        return ProviderError("its turn ended without an answer", session=session, run=run_id)
    return Answer(
        run_id=run_id,
        session_id=session,
        reply=reply,
        messages=tuple(messages),
        usage=msgspec.convert(end.data.get("usage", {}), Usage),
        duration_ms=int(end.data.get("durationMs", 0)),
        tool_calls=int(end.data.get("toolCalls", 0)),
        stop=stop,
    )
