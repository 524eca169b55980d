"""Putting the records of a companion between the items of its file, for a mirror."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from everlog.interop.foreign.companion import CompanionEntry, MessageNote, content_digest
from everlog.interop.formats.format_types import ConversationItem, Summary
from everlog.model import QUEUED, TURN_END, TURN_INTERRUPTED, WITHDRAWN, AnyRecord, Event, Message


class CompanionMerge:
    """The records of a companion that a mirror does not have yet.

    They keep their order. Each goes behind the message that preceded it; if that is no longer in
    the file, behind the record before it.
    """

    def __init__(
        self,
        entries: Iterable[CompanionEntry],
        reached: int = 0,
        last_seq: int = 0,
        is_stored: Callable[[str], bool] = lambda file_id: False,
    ) -> None:
        """`reached` is the seq up to which the mirror has them, `last_seq` the end of the companion.

        It has reached the end when all are placed: the notes of messages that are still to come are
        not among them before.

        `is_stored` returns whether the mirror has a message of the file.
        """
        self.reached = reached
        self._last_seq = last_seq
        self.event_ids: set[str] = set()
        self._entries = deque(entries)
        self._is_stored = is_stored
        self._places: dict[str, int] = {}  # message → seq of the last entry behind it
        self._notes: dict[tuple[str, str], MessageNote] = {}  # by id in the file and digest
        self._noted_ids: set[str] = set()  # in the file
        self._matched: dict[str, MessageNote] = {}  # by id in the file
        self._begun: dict[str, list[MessageNote]] = {}  # by digest, of messages that began a turn
        self._ended_runs: set[object] = set()
        self._unmatched: dict[str, CompanionEntry] = {}  # notes of messages that began a turn, by id
        self._queued: set[object] = set()
        for entry in self._entries:
            self.event_ids.add(entry.event.id)
            if (note := entry.message) is None:  # a note is often written later than what follows its message
                self._places[entry.after] = entry.seq
            if note is not None:
                self._notes[note.file_id, note.digest] = note
                self._noted_ids.add(note.file_id)
                if entry.event.kind == WITHDRAWN:
                    self._begun.setdefault(note.digest, []).append(note)
                    self._unmatched[str(entry.event.data.get("id"))] = entry
            elif entry.event.kind in (TURN_END, TURN_INTERRUPTED):
                self._ended_runs.add(entry.event.data.get("runId"))
            elif entry.event.kind == QUEUED:
                self._queued.add(entry.event.data.get("id"))

    def place(self, items: Iterable[ConversationItem], *, is_end: bool) -> Iterator[ConversationItem]:
        """Yield items of the file with the events behind them; at its end, all that are left."""
        yield from self._take(self._stored_place())
        for item in items:
            if isinstance(item, Message) and self._notes:
                self._match(item)
            yield item
            if isinstance(item, Message | Summary) and item.id in self._places:
                yield from self._take(self._places[item.id])
        if is_end:
            yield from self._take(self._last_seq)
            yield from self._answered()
            self.reached = self._last_seq

    def find_message(self, message: Message, file_id: str) -> AnyRecord | None:
        """Return a message that was placed as it was appended here; None if nothing more is known of it."""
        note = self._matched.get(file_id)
        return None if note is None else note.merge(message, file_id)

    def _match(self, message: Message) -> None:
        """Find the note of a message in the file.

        A line without an id of its own is known by its number, which another program may have taken
        meanwhile: then the content tells, for a message that began a turn.
        """
        digest, file_id = content_digest(message), message.id
        note = self._notes.get((file_id, digest))
        if note is None and file_id not in self._noted_ids:
            note = next(iter(self._begun.get(digest, ())), None)
        if note is None:
            return
        self._matched[file_id] = note
        del self._notes[note.file_id, digest]
        self._begun[digest] = [other for other in self._begun.get(digest, ()) if other.file_id != note.file_id]
        self._unmatched.pop(str(note.fields.get("id", note.file_id)), None)

    def _stored_place(self) -> int:
        """Return the seq of the last event whose place the mirror has already."""
        events = (entry for entry in self._entries if entry.message is None)
        stored = takewhile(lambda entry: not entry.after or self._is_stored(entry.after), events)
        return max((entry.seq for entry in stored), default=0)

    def _take(self, seq: int) -> Iterator[Event]:
        """Yield the events up to a seq."""
        while self._entries and self._entries[0].seq <= seq:
            entry = self._entries.popleft()
            if entry.message is None and not entry.is_silent:
                yield entry.event

    def _answered(self) -> Iterator[Event]:
        """Yield the end of messages that left the queue for a turn, and are not in the file any more."""
        for message_id, entry in self._unmatched.items():
            note = entry.message
            is_answered = note is not None and note.fields.get("runId") in self._ended_runs
            if is_answered and message_id in self._queued:
                yield entry.event
        self._unmatched = {}
