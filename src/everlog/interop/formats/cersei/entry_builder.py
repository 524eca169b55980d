"""Encoding of our records as lines of an existing Cersei transcript, and of new sessions.

A Cersei summary replaces everything before it. So the messages that a compaction keeps are deleted
and repeated after the summary: no reader sees them twice. An entry is deleted as a whole, with all
its messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from everlog.errors import ConflictError, UnsupportedError
from everlog.interop.formats.cersei.blocks import write_message
from everlog.interop.formats.cersei.entries import member_id, message_entry, summary_entry, tombstone_entry
from everlog.interop.formats.file_names import is_stem
from everlog.interop.formats.format_types import FileEdit, MirrorLog, NewSession, TailState, derive_id
from everlog.interop.formats.losses import IMPORT_HINT, REFUSAL, Losses
from everlog.log.fold import fold
from everlog.model import AnyRecord, Compaction, Event, Message, Meta, OtherBlock, Rewind, Tombstone

TOTAL_BYTES = 200_000_000

_ACCEPTED_KEYS = frozenset(("key", "model", "source", "cwd", "chat", "current", "generations"))
_DEFAULTS = {"agent": "main", "sender": "user"}
_KNOWN_OTHER_TYPES = ("redacted_thinking", "document")  # Cersei's blocks without a type of ours
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")
_encoder = msgspec.json.Encoder()


def encode_record(state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses = REFUSAL) -> FileEdit:
    """Return the edit that appends a record."""
    if isinstance(record, Event):
        return FileEdit()
    if isinstance(record, Meta):
        return encode_metadata(state, log, record.set)
    if isinstance(record, Message):
        _check_blocks(record, losses)
    if not state.get("bare"):
        encoder = _RecordEncoder(state, log, record, losses)
        return FileEdit(lines=tuple(_encoder.encode(entry) for entry in encoder.entries()))
    if isinstance(record, Message):
        return FileEdit(lines=(_encoder.encode(write_message(record)),))
    losses.refuse(f"record {record.record_type}", f"a file of bare messages cannot store a {record.record_type}")
    return FileEdit()


def _check_blocks(message: Message, losses: Losses) -> None:
    for block in message.content:
        if isinstance(block, OtherBlock) and block.type not in _KNOWN_OTHER_TYPES:
            losses.refuse("", f"Cersei transcripts cannot store a block of type {block.type!r}")


class _RecordEncoder:
    def __init__(self, state: TailState, log: MirrorLog, record: AnyRecord, losses: Losses) -> None:
        self.state, self.log, self.record, self.losses = state, log, record, losses
        self.session_id: str = state.get("session") or log.transcript.session_id
        self.user_uuid: str | None = state.get("user")
        self.position = record.id or f"line {state.get('lines', 0)}"

    def entries(self) -> Iterator[dict[str, Any]]:
        record = self.record
        if isinstance(record, Message):
            uuid = record.id if _UUID.match(record.id) else self._derive_uuid("message")
            yield self._message_entry(record, uuid)
        elif isinstance(record, Compaction):
            yield from self._compaction_entries(record)
        elif isinstance(record, Tombstone):
            yield from self._tombstone_entries(record)
        elif isinstance(record, Rewind):
            yield from self._rewind_entries(record)
        else:
            problem = f"Cersei transcripts cannot store a record of type {record.record_type!r}"
            self.losses.refuse(f"record {record.record_type}", problem)

    def _derive_uuid(self, purpose: str) -> str:
        """Return a uuid derived from the record, so that a retry yields the same one."""
        return str(UUID(derive_id(self.session_id, f"{self.position} {purpose}"), version=4))

    def _message_entry(self, message: Message, uuid: str) -> dict[str, Any]:
        cwd = self.state.get("cwd", "")
        entry = message_entry(message, uuid, self.user_uuid, self.session_id, cwd)
        if message.role != "assistant":
            self.user_uuid = uuid
        return entry

    def _repeat(self, messages: Iterable[Message]) -> Iterator[dict[str, Any]]:
        for message in messages:
            # Its usage is counted with the original; here it would say how large this context is.
            message = replace(message, usage=None)
            yield self._message_entry(message, self._derive_uuid(f"again {self.log.foreign_id(message)}"))

    def _compaction_entries(self, record: Compaction) -> Iterator[dict[str, Any]]:
        if not record.summary:
            self.losses.refuse("empty summary", "Cersei ignores an empty summary")
            return
        first_kept = record.first_kept_seq
        groups, live_seqs = self._group_by_entry(first_kept)
        kept_messages: list[Message] = []
        not_kept: list[Message] = []  # that share an entry with a kept message
        for group in groups:
            live_messages = [message for message in group if message.seq in live_seqs]
            if live_messages and live_messages[-1].seq >= first_kept:
                yield tombstone_entry(self.log.foreign_id(group[0]), record.timestamp)
                kept_messages += (message for message in live_messages if message.seq >= first_kept)
                not_kept += (message for message in live_messages if message.seq < first_kept)
        yield from self._repeat(not_kept)
        uuid = record.id if _UUID.match(record.id) else self._derive_uuid("summary")
        count = max(self.state.get("messages", 0) - len(kept_messages), 0)
        yield summary_entry(uuid, record.timestamp, self.session_id, record.summary, count)
        yield from self._repeat(kept_messages)

    def _tombstone_entries(self, record: Tombstone) -> Iterator[dict[str, Any]]:
        if record.restores:
            self.losses.refuse("message that was restored", "Cersei cannot restore deleted messages")
        if record.deletes:
            groups, live_seqs = self._group_by_entry(min(record.deletes))
            yield from self._delete_entries(groups, live_seqs, set(record.deletes))

    def _rewind_entries(self, record: Rewind) -> Iterator[dict[str, Any]]:
        first_removed = record.to_seq + 1
        groups, live_seqs = self._group_by_entry(first_removed)
        yield from self._delete_entries(groups, live_seqs, {seq for seq in live_seqs if seq >= first_removed})
        for marker in self.log.records_from(first_removed):
            if isinstance(marker, Compaction) and marker.first_kept_seq > first_removed:
                yield tombstone_entry(self.log.foreign_id(marker), record.timestamp)

    def _delete_entries(
        self, groups: Sequence[Sequence[Message]], live_seqs: set[int], seqs: set[int]
    ) -> Iterator[dict[str, Any]]:
        for group in groups:
            if seqs.isdisjoint(message.seq for message in group):
                continue
            if any(message.seq in live_seqs and message.seq not in seqs for message in group):
                loss, hint = "removal of only some messages of an entry", f"delete all, or {IMPORT_HINT}"
                self.losses.refuse(loss, "this would delete only some of the messages in one Cersei entry", hint=hint)
                continue
            yield tombstone_entry(self.log.foreign_id(group[0]), self.record.timestamp)

    def _group_by_entry(self, first_seq: int) -> tuple[list[list[Message]], set[int]]:
        """Return the messages from a seq on, grouped by entry, and the seqs of the live ones.

        An entry may start before that seq: its messages are adjacent.
        """
        start = max(first_seq - self.state.get("widest", 1) + 1, 1)
        records = self.log.records_from(start)
        groups: list[list[Message]] = []
        for record in records:
            if not isinstance(record, Message):
                continue
            last = groups[-1] if groups else []
            if last and self.log.foreign_id(record) == member_id(self.log.foreign_id(last[0]), len(last)):
                last.append(record)
            else:
                groups.append([record])
        live_seqs = {message.seq for message in fold(records).messages}
        return [group for group in groups if group[-1].seq >= first_seq], live_seqs


# --- metadata, new sessions -------------------------------------------------------------------


def encode_metadata(state: TailState, log: MirrorLog, changes: Mapping[str, Any]) -> FileEdit:
    """Raise UnsupportedError for any change: the format cannot store metadata."""
    for key in changes:
        raise UnsupportedError(f"Cersei transcripts cannot store {key!r}", hint=IMPORT_HINT)
    return FileEdit()


def name_fields(name: str) -> dict[str, str]:
    """Return the id of a session that a caller names: the name of its file."""
    if not is_stem(name):
        raise UnsupportedError(f"not usable as a file name: {name[:60]!r}", hint="choose another")
    return {"key": name}


def build_session(metadata: Mapping[str, Any], now: str, is_taken: Callable[[str], bool]) -> NewSession:
    """Return a new session with an empty file; its id is the key, if that is possible."""
    for key, value in metadata.items():
        if key not in _ACCEPTED_KEYS and value not in (None, "", (), [], {}, _DEFAULTS.get(key)):
            raise UnsupportedError(f"Cersei transcripts cannot store {key!r}", hint=IMPORT_HINT)
    key_id = metadata.get("key")
    if isinstance(key_id, str) and is_stem(key_id):
        if is_taken(key_id):
            raise ConflictError(f"session {key_id!r} already exists")
        return NewSession(key_id, key_id, FileEdit())
    stem = str(uuid4())
    while is_taken(stem):
        stem = str(uuid4())
    return NewSession(stem, stem, FileEdit())
