"""The companion log of a foreign session: what the session's file has no place for.

A native log in the home, which is truth: it is synced before an append is acknowledged, and a mirror
that is made anew takes it up. It has two kinds of records, each with a note under `companion`:

    an event      as it was appended: a queued message and its fate, the end of a turn, an approval
    a note        of a message that was appended here: the id and the other fields that its line in
                  the file cannot hold. It is a `withdrawn` event if a turn begins with the message,
                  so that this log by itself tells whether anything waits in its queue

Each names the message of the file that precedes it (`after`). The note of a message that begins a
turn is written before its line, so that after a crash in between the line is known for that message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, NotFoundError
from everlog.interop.foreign.origin_marks import as_own
from everlog.interop.formats.format_types import derive_id, extra_field
from everlog.log.line_codec import from_object, to_object, with_keys, without_keys
from everlog.model import TURN_RESUMED, WITHDRAWN, AnyRecord, Damaged, Event, Message
from everlog.ports import Store

_KEY = "companion"
_NOTE = "message"  # kind of the note of a message that begins no turn
_POSITION_FIELDS = ("recordType", "schemaVersion", "seq", "crc", "content")


class MessageNote(msgspec.Struct, frozen=True):
    """The part of a message that its line in the file cannot hold."""

    file_id: str = msgspec.field(name="as")
    digest: str  # of its content
    fields: dict[str, Any]  # that differ from what is read from the file; None: it has no such field

    def merge(self, message: Message, file_id: str) -> AnyRecord:
        """Return the message as it was appended, from what was read of the file."""
        fields = {**to_object(without_keys(message)), **self.fields}
        return as_own(from_object({key: value for key, value in fields.items() if value is not None}), file_id)


class _Place(msgspec.Struct, frozen=True, omit_defaults=True):
    after: str = ""  # id of a message in the file
    message: MessageNote | None = None
    is_silent: bool = msgspec.field(default=False, name="silent")  # no record of the session


class CompanionEntry(NamedTuple):
    """A record of a companion."""

    seq: int
    event: Event  # without the note about its place
    after: str  # id in the file of the message before it
    message: MessageNote | None
    is_silent: bool  # it is no record of the session


class Companion:
    """The companion log of one session; there is none before the first record."""

    def __init__(self, store: Store, key: str, source: str, alias: str = "") -> None:
        """`alias` is the name by which it is found if its key changes."""
        self._store = store
        self._key = key
        self._fields = {"key": key, "source": source, **({"aliases": (alias,)} if alias else {})}
        self._session = ""
        self._unwritten: list[Event] = []  # notes that are written with the next event

    def last_seq(self) -> int:
        """Return the seq of the last record; 0 if there is none."""
        for _ in range(2):
            session = self._find()
            if not session:
                return 0
            with suppress(NotFoundError):
                return self._store.metadata(session).through.seq
            self._session = ""  # deleted by another process
        return 0

    def read(self, after: int) -> Iterator[CompanionEntry]:
        """Yield the records above a seq; damaged ones are left out, and named by `verify`."""
        session = self._find()
        for entry in self._store.read(session, after=after) if session else ():
            if isinstance(entry, Event) and not isinstance(entry, Damaged):
                place = _place_of(entry)
                yield CompanionEntry(entry.seq, _identified(entry), place.after, place.message, place.is_silent)

    def verify(self) -> list[Damaged]:
        """Return the damage in the log."""
        session = self._find()
        found = self._store.verify(session) if session else ()
        return [replace(damage, file=f"companion {session}/{damage.file}") for damage in found]

    def append(self, events: Sequence[tuple[Event, str]]) -> list[Event]:
        """Append events, each with the message before it. Durable on return.

        Returns them with their ids: one that has none is known by its seq.
        """
        return [_identified(event) for event in self.write([place_event(event, after) for event, after in events])]

    def announce(self, messages: Sequence[tuple[Message, MessageNote]], after: str) -> None:
        """Append notes of messages that begin a turn, before their lines are written. Durable on return."""
        self.write([record for message, note in messages for record in note_records(message, note, after)])

    def note(self, messages: Sequence[tuple[Message, MessageNote]], after: str) -> None:
        """Write notes of messages together with the next event."""
        self._unwritten += [record for message, note in messages for record in note_records(message, note, after)]

    def flush(self) -> None:
        """Write the notes that wait."""
        if self._unwritten:
            self.write(())

    def delete(self) -> None:
        """Delete the log."""
        self._unwritten = []
        if session := self._find():
            with suppress(NotFoundError):
                self._store.delete(session)
        self._session = ""

    def write(self, records: Sequence[Event]) -> list[Event]:
        """Append records that have their places, and the notes that wait. Durable on return."""
        session = self._find()
        if not session:
            session = self._session = self._store.create(self._fields, unless_held=True).id
        stored = self._store.append(session, [*self._unwritten, *records])
        written = stored[len(self._unwritten) :]
        self._unwritten = []
        return [event for event in written if isinstance(event, Event)]

    def _find(self) -> str:
        if not self._session:
            with suppress(NotFoundError):
                self._session = self._store.resolve(self._key)
        return self._session


def place_event(event: Event, after: str) -> Event:
    """Return an event with its place."""
    return _with_place(event, _Place(after))


def note_records(message: Message, note: MessageNote, after: str, record_id: str = "") -> list[Event]:
    """Return the records for the note of a message, the first one with this id."""
    if not message.run_id:
        return [_with_place(Event(kind=_NOTE, id=record_id), _Place(after, note))]
    left = Event(kind=WITHDRAWN, data={"id": message.id}, id=record_id)  # it leaves the queue
    begun = Event(kind=TURN_RESUMED, data={"runId": message.run_id})
    return [_with_place(left, _Place(after, note)), _with_place(begun, _Place(after, is_silent=True))]


def make_note(record: Message, read: Message, file_id: str) -> MessageNote | None:
    """Return the note of a message, given what is read of its line; None if the line says it all."""
    fields = fields_of(record)
    in_file = fields_of(read)
    differing = {key: fields.get(key) for key in fields | in_file if fields.get(key) != in_file.get(key)}
    return MessageNote(file_id, content_digest(record), differing) if differing else None


def content_digest(message: Message) -> str:
    """Return a digest of what every format keeps of a message."""
    calls = [(call.name, call.arguments) for call in message.tool_calls]
    return sha256(repr((message.role, message.text, calls)).encode("utf-8", "replace")).hexdigest()[:16]


def event_id(log: str, record: AnyRecord) -> str:
    """Return the id of a record in a log, or what stands for it if it has none."""
    return record.id or derive_id(log, record.seq)


def fields_of(record: Message) -> dict[str, Any]:
    """Return the fields of a message that are neither its content nor its place."""
    data = to_object(without_keys(record))
    return {key: value for key, value in data.items() if key not in _POSITION_FIELDS}


def _identified(event: Event) -> Event:
    """Return an event without its place, and with an id."""
    return replace(event, id=event_id(_KEY, event), seq=0, line=b"")


def _with_place(event: Event, place: _Place) -> Event:
    placed = with_keys(event, {_KEY: msgspec.to_builtins(place)})
    assert isinstance(placed, Event)
    return placed


def _place_of(event: Event) -> _Place:
    try:
        return msgspec.convert(extra_field(event, _KEY) or {}, _Place)
    except (msgspec.ValidationError, EverlogError):
        return _Place()  # of another version: the event counts, its place is unknown
