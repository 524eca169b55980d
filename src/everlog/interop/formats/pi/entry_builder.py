"""Records of ours as entries at the tip of a pi session.

Their ids are whole UUIDs, as pi's are when its short ones run out: that no other entry has one is
certain without knowing them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everlog.errors import UnsupportedError
from everlog.interop.formats.format_types import made_id
from everlog.interop.formats.live_format import Added, Log, Notes
from everlog.interop.formats.pi.entries import compact
from everlog.interop.formats.pi.new_entries import (
    FIRST_KEPT,
    block_of,
    compaction_of,
    head_of,
    said_of,
)
from everlog.interop.formats.pi.tail_reader import IMPORT, VERSION
from everlog.log.fold import fold
from everlog.model import AnyRecord, Compaction, Event, Message, Meta, Tombstone

_UUID = 36  # characters
_Fresh = Iterator[tuple[str, dict[str, Any]]]  # type and fields of entries


def extend(notes: Notes, log: Log, record: AnyRecord) -> Added:
    """The entries for a record."""
    if isinstance(record, Event):
        return Added()
    if isinstance(record, Meta):
        return change(notes, log, record.set)
    return _chained(notes, log, record.id, record.timestamp, _entries(log, record))


def change(notes: Notes, log: Log, changes: Mapping[str, Any]) -> Added:
    """A title; nothing else has a place."""
    for key, value in changes.items():
        if key != "name" or not isinstance(value, str) or not value:
            raise UnsupportedError(
                f"a session of pi's has no place for {key!r}: {value!r}", hint=IMPORT
            )
    known = log.metadata
    when = known.last_message_at or known.created_at
    named: _Fresh = (("session_info", {"name": changes[key]}) for key in changes)
    return _chained(notes, log, "", when, named)


def _chained(notes: Notes, log: Log, name: str, when: str, fresh: _Fresh) -> Added:
    """Entries, each the child of the one before; the first of a record has its id."""
    parent, place = _tip(notes), name or f"line {notes.get('lines', 0)}"
    lines: list[bytes] = []
    for number, (kind, fields) in enumerate(fresh):
        own = name if len(name) == _UUID and not number else ""
        own = own or made_id(log.where.name, f"{place} {number}")
        lines.append(compact({**head_of(kind, own, parent, when), **fields}))
        parent = own
    return Added(lines=tuple(lines))


def _tip(notes: Notes) -> str | None:
    """The entry to go on from; None if there is none yet."""
    if notes.get("version") != VERSION:
        hint = f"{IMPORT}; exported as pi it is of version {VERSION}"
        raise UnsupportedError(f"this file is not of version {VERSION}", hint=hint)
    tip: str | None = notes.get("tip")
    if tip == "":
        raise UnsupportedError("the last entry has no id to go on from", hint=IMPORT)
    return tip


def _entries(log: Log, record: AnyRecord) -> _Fresh:
    if isinstance(record, Message):
        for block in record.content:
            if block_of(block) is None:
                what = f"a block like this ({type(block).__name__})"
                raise UnsupportedError(f"a session of pi's has no place for {what}", hint=IMPORT)
        yield "message", {"message": said_of(record)}
    elif isinstance(record, Compaction):
        yield "compaction", _compaction(log, record)
    elif isinstance(record, Tombstone):
        if record.restores:
            raise UnsupportedError("pi does not show again what was left out", hint=IMPORT)
        for seq in record.deletes:
            if isinstance(message := log.record(seq), Message):
                yield "context_edit", {"targetId": log.theirs(message), "replacement": None}
    else:
        hint = f"go back in pi itself (/tree, /fork), or {IMPORT}"
        what = f"a {record.record_type}"
        raise UnsupportedError(f"a session of pi's has no place for {what}", hint=hint)


def _compaction(log: Log, record: Compaction) -> dict[str, Any]:
    if not record.summary:
        raise UnsupportedError("an empty summary is none to pi", hint=IMPORT)
    kept = fold(log.since(max(record.first_kept_seq, 1))).messages
    first = log.theirs(kept[0]) if kept else ""
    made = compaction_of(record, first)
    if first:
        made["details"][FIRST_KEPT] = first
    return made
