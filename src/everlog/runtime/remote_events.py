"""Events for records that other processes append to a session.

Runs of this process emit their own events. Other processes append to the same log without notifying
this one, so a follower of a session polls the log. Events already reported are skipped by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from everlog.agent.turn_state import stored_event
from everlog.aio import AsyncStore
from everlog.errors import NotFoundError
from everlog.model import TURN_END, Compaction, Entry, Event, Message, Meta, Rewind, Tombstone
from everlog.runtime.session_edits import change_event
from everlog.session import Session
from everlog.wire.events import CompactEnd, Error, MessageStored, RunEvent, SessionChanged, SessionRenamed

MAX_RECORDS = 200  # per poll


class RemoteEvents:
    """The new records of one session after a seq, as events, for one follower.

    Without a seq it begins with the records that are appended after the first poll.
    """

    def __init__(self, session: Session, seq: int = -1) -> None:
        self.session = session
        self.seq = seq  # the last one that was read
        self.is_deleted = False
        self._reported: set[object] = set()  # keys of events that this process emitted

    def note_reported(self, event: RunEvent) -> None:
        """Note an event that its run emitted itself; call it before its record can be read."""
        if (key := event_key(event)) is not None:
            self._reported.add(key)

    def has_seen(self, seq: int) -> bool:
        """Return whether a record was read here, or reported by its run."""
        return seq <= self.seq or seq in self._reported

    async def poll(self, store: AsyncStore, is_busy: Callable[[], bool], through: int = 0) -> list[RunEvent]:
        """Return the events of what other processes did since the last poll, of the deletion once.

        Nothing is returned while `is_busy`: some records may be our own, and not emitted yet. With
        `through`, records after that seq are left for the next poll.
        """
        if self.is_deleted or is_busy():
            return []
        try:
            entries = await store.call(self.read)
        except NotFoundError:
            self.is_deleted = True
            return [] if self.seq < 0 else [SessionChanged(session_id=self.session.id, change="deleted")]
        if is_busy():
            return []
        return list(self.new_events(e for e in entries if not through or e.seq is None or e.seq <= through))

    def read(self) -> list[Entry]:
        """Return the records appended since the last read; raises `NotFoundError` if deleted."""
        last = self.session.metadata.through.seq
        if self.seq < 0:
            self.seq = last
        if last <= self.seq:
            return []
        return list(self.session.entries(after=self.seq, limit=MAX_RECORDS))

    def new_events(self, entries: Iterable[Entry]) -> Iterator[RunEvent]:
        """Yield the events of the records that were not reported yet."""
        for entry in entries:
            event = event_of(self.session.id, entry)
            if event is not None and (key := event_key(event)) not in self._reported:
                yield event
            elif event is not None:
                self._reported.discard(key)
            if entry.seq is not None:
                self.seq = max(self.seq, entry.seq)
        self._reported = {k for k in self._reported if not isinstance(k, int) or k > self.seq}


def event_key(event: RunEvent) -> object:
    """Return the key that ties an event to its record: seq, ended run or new title; or None."""
    match event:
        case MessageStored() | CompactEnd() | SessionChanged():
            return event.seq
        case SessionRenamed():
            return event.name
        case Error():
            return event.run_id or None
    return None


def event_of(session: str, entry: Entry) -> RunEvent | None:
    """Return the event that the writer of a record would have emitted, or None."""
    if isinstance(entry, Message):
        return stored_event(session, entry)
    if isinstance(entry, Tombstone | Rewind):
        return change_event(entry, session)
    if isinstance(entry, Compaction):
        return CompactEnd(session_id=session, seq=entry.seq, tokens_freed=0, summariser="")
    if isinstance(entry, Meta) and isinstance(name := entry.set.get("name"), str):
        return SessionRenamed(session_id=session, name=name)
    if isinstance(entry, Event) and entry.kind == TURN_END and entry.data.get("error"):
        code = "RunCancelledError" if entry.data.get("stop") == "cancelled" else ""
        run, text = str(entry.data.get("runId", "")), str(entry.data["error"])
        return Error(session_id=session, run_id=run, message=text, code=code)
    return None
