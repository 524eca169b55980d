"""The plan of an append to a foreign session: its changes in the file, the companion and the mirror."""

from __future__ import annotations

from collections.abc import Sequence

from everlog.interop.foreign.companion import MessageNote, make_note
from everlog.interop.foreign.origin_marks import id_in_file
from everlog.interop.formats.format_types import TailState
from everlog.model import AnyRecord, Compaction, Event, Message


class AppendPlan:
    """The changes that an append makes, in the files and in the mirror."""

    def __init__(self, records: Sequence[AnyRecord], state: TailState) -> None:
        self.records = list(records)
        self.state = state  # the format's, after all lines
        self.old_files: dict[str, bytes | None] = {}  # what `files` was made from
        self.lines: list[tuple[bytes, ...]] = []  # of each record
        self.files: dict[str, bytes] = {}
        self.head: bytes | None = None
        self.stem: str | None = None
        self.mirrored: list[AnyRecord] = []
        self.caller_indexes: list[int] = []  # of the caller's records in `mirrored`
        self.read: list[AnyRecord | None] = []  # what is read of each record's lines in its place

    def file_id(self, number: int) -> str:
        """Return the id that a record has in the file."""
        record = self.mirrored[self.caller_indexes[number]]
        return id_in_file(record) or record.id

    def notes(self) -> list[tuple[Message, MessageNote]]:
        """Return what the lines of the messages do not say."""
        pairs = zip(self.records, self.read, strict=True)
        found = (
            (record, make_note(record, read, self.file_id(number)))
            for number, (record, read) in enumerate(pairs)
            if isinstance(record, Message) and isinstance(read, Message)
        )
        return [(record, note) for record, note in found if note is not None]

    def events(self, last_message: str) -> list[tuple[Event, str]]:
        """Return the events, each with the id of the message before it."""
        events: list[tuple[Event, str]] = []
        for number, record in enumerate(self.records):
            if isinstance(record, Event):
                events.append((record, last_message))
            elif isinstance(record, Message | Compaction):
                last_message = self.file_id(number)
        return events

    def set_events(self, events: Sequence[Event]) -> None:
        """Replace the events by those that are in the companion, which have ids."""
        numbers = [number for number, record in enumerate(self.records) if isinstance(record, Event)]
        for number, event in zip(numbers, events, strict=True):
            self.records[number] = self.mirrored[self.caller_indexes[number]] = event
