"""What other processes append to a session, as events: what its appender would have told.

Runs of this process tell about themselves. Others append to the same log and tell nobody here, so
whoever follows a session looks now and then. What was told already is left out by its mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from everlog.model import TURN_END, Compaction, Entry, Event, Message, Meta, Rewind, Tombstone
from everlog.runtime.session_edits import change_by
from everlog.session import Session
from everlog.wire.events import (
    CompactEnd,
    Error,
    MessageStored,
    RunEvent,
    SessionChanged,
    SessionRenamed,
)

MOST = 200  # records that are told at a time


class News:
    """What is new in one session, for one who follows it from a seq on."""

    def __init__(self, session: Session, seq: int) -> None:
        self.session = session
        self.seq = seq  # the last one that was looked at
        self._told: set[object] = set()  # marks of what was told without looking

    def hear(self, event: RunEvent) -> None:
        """Something was told by whoever did it; called before its record can be looked at."""
        if (mark := mark_of(event)) is not None:
            self._told.add(mark)

    def has(self, seq: int) -> bool:
        """Whether a record was looked at, or told without."""
        return seq <= self.seq or seq in self._told

    def read(self) -> list[Entry]:
        """What was appended since the last look, by whomever; NotFoundError if the session has gone."""
        if self.session.metadata.through.seq <= self.seq:
            return []
        return list(self.session.entries(after=self.seq, limit=MOST))

    def tell(self, entries: Iterable[Entry]) -> Iterator[RunEvent]:
        """What was read, but for what was told: an event each, where it has one."""
        for entry in entries:
            event = event_of(self.session.id, entry)
            if event is not None and (mark := mark_of(event)) not in self._told:
                yield event
            elif event is not None:
                self._told.discard(mark)
            if entry.seq is not None:
                self.seq = max(self.seq, entry.seq)
        self._told = {mark for mark in self._told if not isinstance(mark, int) or mark > self.seq}


def mark_of(event: RunEvent) -> object:
    """What tells that an event is about a record: its seq, the run that ended, or the new title."""
    match event:
        case MessageStored() | CompactEnd() | SessionChanged():
            return event.seq
        case SessionRenamed():
            return event.name
        case Error():
            return event.run_id or None
    return None


def event_of(session: str, entry: Entry) -> RunEvent | None:
    """A record as its appender would have told of it."""
    if isinstance(entry, Message):
        return MessageStored(session_id=session, seq=entry.seq, message=replace(entry, line=b""))
    if isinstance(entry, Tombstone | Rewind):
        return change_by(entry, session)
    if isinstance(entry, Compaction):
        return CompactEnd(session_id=session, seq=entry.seq, tokens_freed=0, summariser="")
    if isinstance(entry, Meta) and isinstance(name := entry.set.get("name"), str):
        return SessionRenamed(session_id=session, name=name)
    if isinstance(entry, Event) and entry.kind == TURN_END and entry.data.get("error"):
        code = "RunCancelledError" if entry.data.get("stop") == "cancelled" else ""
        run, text = str(entry.data.get("runId", "")), str(entry.data["error"])
        return Error(session_id=session, run_id=run, message=text, code=code)
    return None
