"""Adopting into companions what only the mirrors of earlier versions have: events, and ids of messages."""

from __future__ import annotations

from msgspec.structs import replace

from everlog.interop.foreign.companion import (
    Companion,
    MessageNote,
    content_digest,
    event_id,
    fields_of,
    note_records,
    place_event,
)
from everlog.interop.foreign.origin_marks import id_in_file, is_own, strip_mark
from everlog.interop.import_target import TOO_LARGE
from everlog.model import REREAD, USAGE, Compaction, Damaged, Event, Message
from everlog.ports import Store
from everlog.ports.listing import MAX_PAGE

FROM_FILES = (USAGE, REREAD, TOO_LARGE)  # events of a mirror that its file accounts for


def adopt_mirrors(mirrors: Store, companions: Store) -> None:
    """Adopt what all mirrors of a directory have. After a crash in between it is done again, without harm."""
    for row in mirrors.list(limit=MAX_PAGE):
        if row.metadata.key:
            key, source = row.metadata.key, row.metadata.source or ""
            alias = f"{source}/{key.rpartition('/')[2]}"
            _adopt(mirrors, row.id, Companion(companions, key, source, alias))


def _adopt(mirrors: Store, mirror: str, companion: Companion) -> None:
    known = {entry.event.id for entry in companion.read(0)}
    last_message = ""
    records: list[Event] = []
    for entry in mirrors.read(mirror):
        if isinstance(entry, Damaged):
            continue
        record, record_id = strip_mark(entry), event_id(mirror, entry)
        if isinstance(record, Event):
            if record.kind not in FROM_FILES and record_id not in known:
                records.append(place_event(replace(record, id=record_id, seq=0, line=b""), last_message))
        elif isinstance(record, Message | Compaction):
            file_id = id_in_file(entry) or entry.id
            noted_id = f"note {record_id}"
            if isinstance(record, Message) and is_own(entry) and noted_id not in known:
                note = MessageNote(file_id, content_digest(record), fields_of(record))
                records += note_records(record, note, last_message, noted_id)
            last_message = file_id
    if records:
        companion.write(records)
