"""Encoding of our records as entries at the tip of a pi session.

Their ids are full UUIDs, as pi's are when its short ids run out: they are unique without knowing
all other entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from everlog.errors import UnsupportedError
from everlog.interop.formats.format_types import derive_id
from everlog.interop.formats.live_format import FileEdit, MirrorLog, TailState
from everlog.interop.formats.pi.entries import encode_json
from everlog.interop.formats.pi.new_entries import (
    FIRST_KEPT_KEY,
    compaction_fields,
    encode_block,
    encode_message,
    entry_head,
)
from everlog.interop.formats.pi.tail_reader import IMPORT_HINT, VERSION
from everlog.log.fold import fold
from everlog.model import AnyRecord, Compaction, Event, Message, Meta, Tombstone

_UUID_LENGTH = 36  # characters
_NewEntries = Iterator[tuple[str, dict[str, Any]]]  # type and fields of entries


def encode_record(state: TailState, log: MirrorLog, record: AnyRecord) -> FileEdit:
    """Return the edit that adds the entries for a record."""
    if isinstance(record, Event):
        return FileEdit()
    if isinstance(record, Meta):
        return encode_metadata(state, log, record.set)
    return _chain_entries(state, log, record.id, record.timestamp, _encode_entries(log, record))


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Return the edit that sets a title; UnsupportedError for anything else."""
    for key, value in changes.items():
        if key != "name" or not isinstance(value, str) or not value:
            problem = f"pi's sessions cannot hold {key!r}: {value!r}"
            raise UnsupportedError(problem, hint=IMPORT_HINT)
    metadata = log.metadata
    timestamp = metadata.last_message_at or metadata.created_at
    entries: _NewEntries = (("session_info", {"name": changes[key]}) for key in changes)
    return _chain_entries(state, log, "", timestamp, entries)


def _chain_entries(state: TailState, log: MirrorLog, record_id: str, timestamp: str, entries: _NewEntries) -> FileEdit:
    """Encode entries, each the child of the previous one; the first has the record's id."""
    parent, seed = _parent_of_next(state), record_id or f"line {state.get('lines', 0)}"
    lines: list[bytes] = []
    for number, (kind, fields) in enumerate(entries):
        entry_id = record_id if len(record_id) == _UUID_LENGTH and not number else ""
        entry_id = entry_id or derive_id(log.transcript.session_id, f"{seed} {number}")
        lines.append(encode_json({**entry_head(kind, entry_id, parent, timestamp), **fields}))
        parent = entry_id
    return FileEdit(lines=tuple(lines))


def _parent_of_next(state: TailState) -> str | None:
    """Return the id of the last entry; None if there is none yet."""
    if state.get("version") != VERSION:
        hint = f"{IMPORT_HINT}; an export to pi has version {VERSION}"
        raise UnsupportedError(f"the file does not have version {VERSION}", hint=hint)
    tip: str | None = state.get("tip")
    if tip == "":
        raise UnsupportedError("the last entry has no id to continue from", hint=IMPORT_HINT)
    return tip


def _encode_entries(log: MirrorLog, record: AnyRecord) -> _NewEntries:
    if isinstance(record, Message):
        for block in record.content:
            if encode_block(block) is None:
                problem = f"pi's sessions cannot hold blocks of type {type(block).__name__}"
                raise UnsupportedError(problem, hint=IMPORT_HINT)
        yield "message", {"message": encode_message(record)}
    elif isinstance(record, Compaction):
        yield "compaction", _encode_compaction(log, record)
    elif isinstance(record, Tombstone):
        if record.restores:
            raise UnsupportedError("pi cannot restore messages that were left out", hint=IMPORT_HINT)
        for seq in record.deletes:
            if isinstance(message := log.record(seq), Message):
                yield "context_edit", {"targetId": log.foreign_id(message), "replacement": None}
    else:
        hint = f"rewind in pi itself (/tree, /fork), or {IMPORT_HINT}"
        raise UnsupportedError(f"pi's sessions cannot hold a {record.record_type}", hint=hint)


def _encode_compaction(log: MirrorLog, record: Compaction) -> dict[str, Any]:
    if not record.summary:
        raise UnsupportedError("pi ignores an empty summary", hint=IMPORT_HINT)
    kept = fold(log.records_from(max(record.first_kept_seq, 1))).messages
    first_kept_id = log.foreign_id(kept[0]) if kept else ""
    fields = compaction_fields(record, first_kept_id)
    if first_kept_id:
        fields["details"][FIRST_KEPT_KEY] = first_kept_id
    return fields
