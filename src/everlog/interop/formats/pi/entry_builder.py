"""Encoding of our records as entries at the tip of a pi session, and of new sessions.

Ids of entries are full UUIDs, as pi's are when its short ids run out: they are unique without
knowing all other entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from everlog.errors import UnsupportedError
from everlog.interop.formats.format_types import FileEdit, MirrorLog, NewSession, TailState, derive_id
from everlog.interop.formats.losses import IMPORT_HINT, REFUSAL, Losses
from everlog.interop.formats.pi.entries import encode_json
from everlog.interop.formats.pi.new_entries import (
    FIRST_KEPT_KEY,
    LINK_TYPE,
    REWIND_TYPE,
    VERSION,
    NewEntry,
    compaction_fields,
    encode_block,
    entry_head,
    message_entry,
)
from everlog.log.fold import fold
from everlog.log.markers import Markers
from everlog.model import AnyRecord, Compaction, Event, Message, Meta, Rewind, Tombstone

_UUID_LENGTH = 36  # characters
_ACCEPTED_KEYS = frozenset(("id", "cwd", "name", "model", "source", "chat", "current", "generations"))
_DEFAULTS = {"agent": "main", "sender": "user"}


# --- existing sessions -------------------------------------------------------------------------


def encode_record(state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses = REFUSAL) -> FileEdit:
    """Return the edit that adds the entries for a record."""
    if isinstance(record, Event):
        return FileEdit()
    if isinstance(record, Meta):
        return encode_metadata(state, log, record.set)
    if isinstance(record, Rewind) and losses is not REFUSAL:
        state = {**state, "tip": _rewind_tip(log, record)}
    return _chain_entries(state, log, record.id, record.timestamp, _encode_entries(state, log, record, losses))


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Return the edit that sets a title; UnsupportedError for anything else."""
    for key, value in changes.items():
        if key != "name" or not isinstance(value, str) or not value:
            problem = f"pi's sessions cannot hold {key!r}: {value!r}"
            raise UnsupportedError(problem, hint=IMPORT_HINT)
    metadata = log.metadata
    timestamp = metadata.last_message_at or metadata.created_at
    entries: Iterator[NewEntry] = (("session_info", {"name": changes[key]}) for key in changes)
    return _chain_entries(state, log, "", timestamp, entries)


def _chain_entries(
    state: TailState, log: MirrorLog, record_id: str, timestamp: str, entries: Iterator[NewEntry]
) -> FileEdit:
    """Encode entries, each the child of the previous one; the first has the record's id."""
    parent, seed = _parent_of_next(state), record_id or f"line {state.get('lines', 0)}"
    lines: list[bytes] = []
    for number, (kind, fields) in enumerate(entries):
        entry_id = record_id if len(record_id) == _UUID_LENGTH and not number else ""
        entry_id = entry_id or derive_id(log.transcript.session_id, f"{seed} {number}")
        lines.append(encode_json({**entry_head(kind, entry_id, parent, timestamp), **fields}))
        parent = entry_id
    # pi sends nothing that comes before a missing parent.
    links = [
        encode_json({**entry_head("custom", missing, substitute, timestamp), "customType": LINK_TYPE, "data": {}})
        for missing, substitute in state.get("gaps", ())
    ]
    return FileEdit(lines=(*links, *lines))


def _parent_of_next(state: TailState) -> str | None:
    """Return the id of the last entry; None if there is none yet."""
    tip: str | None = state.get("tip")
    # Without a header the entries are as in version 3, if they have ids.
    if state.get("version", VERSION if tip else None) != VERSION:
        hint = f"{IMPORT_HINT}; an export to pi has version {VERSION}"
        raise UnsupportedError(f"the file does not have version {VERSION}", hint=hint)
    if tip == "":
        raise UnsupportedError("the last entry has no id to continue from", hint=IMPORT_HINT)
    return tip


def _encode_entries(state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses) -> Iterator[NewEntry]:
    if isinstance(record, Message):
        for block in record.content:
            if encode_block(block) is None:
                losses.refuse("", f"pi's sessions cannot hold blocks of type {type(block).__name__}")
        yield message_entry(record, state.get("calls", {}), state)
    elif isinstance(record, Compaction):
        yield from _encode_compaction(log, record, losses)
    elif isinstance(record, Tombstone):
        yield from _encode_deletions(state, log, record, losses)
    elif isinstance(record, Rewind):
        hint = f"rewind in pi itself (/tree, /fork), or {IMPORT_HINT}"
        losses.refuse("", "pi's sessions cannot hold a rewind", hint=hint)
        yield from _encode_rewind(log, record, losses)
    else:
        losses.refuse(f"record {record.record_type}", f"pi's sessions cannot hold a {record.record_type}")


def _encode_rewind(log: MirrorLog, record: Rewind, losses: Losses) -> Iterator[NewEntry]:
    """Yield an entry without content on the earlier branch, and the summary that stands there."""
    yield "custom", {"customType": REWIND_TYPE, "data": {}}
    records = log.records_from(1)
    summary = Markers.of((*records, record)).summary()
    if summary is not None and summary.seq > record.to_seq:
        yield from _encode_compaction(log, summary, losses)


def _rewind_tip(log: MirrorLog, record: Rewind) -> str | None:
    """Return the id of the last live entry that a rewind keeps; None if it keeps none."""
    kept = [message for message in fold(log.records_from(1)).messages if message.seq <= record.to_seq]
    return log.foreign_id(kept[-1]).rpartition("@")[2] if kept else None


def _encode_deletions(state: TailState, log: MirrorLog, record: Tombstone, losses: Losses) -> Iterator[NewEntry]:
    if record.restores:
        losses.refuse("message that was restored", "pi cannot restore messages that were left out")
    if not state.get("edits"):
        losses.refuse(
            "deletion that pi before 0.87 ignores",
            "nothing in this file is from pi 0.87 or newer, and older versions would send a deleted message again",
            hint=f"continue the session once in pi 0.87 or newer, or {IMPORT_HINT}",
        )
    for seq in record.deletes:
        if isinstance(message := log.record(seq), Message):
            # The id of a new text contains that of the message.
            yield "context_edit", {"targetId": log.foreign_id(message).partition("@")[0], "replacement": None}


def _encode_compaction(log: MirrorLog, record: Compaction, losses: Losses) -> Iterator[NewEntry]:
    if not record.summary:
        losses.refuse("empty summary", "pi ignores an empty summary")
        return
    kept = fold(log.records_from(max(record.first_kept_seq, 1))).messages
    first_kept_id = log.foreign_id(kept[0]) if kept else ""
    fields = compaction_fields(record, first_kept_id.rpartition("@")[2])
    if first_kept_id:
        fields["details"][FIRST_KEPT_KEY] = first_kept_id
    yield "compaction", fields


# --- new sessions ------------------------------------------------------------------------------


def name_fields(name: str) -> dict[str, str]:
    """Return the id of a session that a caller names, which ends the name of its file."""
    return {"id": derive_id("session", name)}


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Return a new session: its header, and its title if it has one."""
    for key, value in metadata.items():
        if key not in _ACCEPTED_KEYS and value not in (None, "", (), [], {}, _DEFAULTS.get(key)):
            raise UnsupportedError(f"pi's sessions cannot hold {key!r}", hint=IMPORT_HINT)
    session_id = stem = ""
    while not stem or is_taken(stem):
        session_id = metadata.get("id") or str(uuid4())
        stem = f"{re.sub('[:.]', '-', now)}_{session_id}"
    header = {"type": "session", "version": VERSION, "id": session_id, "timestamp": now}
    lines = [encode_json(header | {"cwd": metadata.get("cwd") or "/"})]
    if metadata.get("name"):
        title = entry_head("session_info", str(uuid4()), None, now) | {"name": metadata["name"]}
        lines.append(encode_json(title))
    return NewSession(stem, stem, FileEdit(lines=tuple(lines)))
