"""Writer of sessions as Cersei's files: foreign lines unchanged, the rest as Cersei writes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everlog.interop.formats.cersei.blocks import NAME, STOP_REASONS, rebuild_content, write_message
from everlog.interop.formats.cersei.entries import message_entry, summary_entry, tombstone_entry
from everlog.interop.formats.cersei.reader import title_from
from everlog.interop.formats.format_types import ExportedFiles, derive_id
from everlog.interop.formats.jsonl import as_bytes, parse_object, text_of
from everlog.interop.formats.writer import (
    FileBuilder,
    Losses,
    has_newline,
    is_from_format,
    read_preserved,
    read_preserved_line,
    removed_seqs,
    reposition_compactions,
)
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata, Rewind, Tombstone, ToolCall

PART_BYTES = 50_000_000

_encoder = msgspec.json.Encoder()


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Return a session as Cersei's files."""
    return _Writer(metadata, records).write()


class _Writer:
    def __init__(self, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self.metadata, self.records = metadata, records
        self.losses = Losses()
        self.removed_seqs = removed_seqs(records, NAME)
        # An imported session is named like its original file.
        key_parts = (metadata.key or "").partition(f"{NAME}:")
        self.session_id = key_parts[2] if not key_parts[0] and key_parts[2] else metadata.id
        self.cwd, self.is_bare = "", False
        self.uuids: dict[int, str] = {}  # seq → uuid of its entry
        self.members: dict[str, list[int]] = {}  # uuid → seqs
        self._survey()
        for seq, uuid in self.uuids.items():
            self.members.setdefault(uuid, []).append(seq)
        self.parts = [FileBuilder()]
        self.part_size = 0  # of the last part
        self.user_uuid: str | None = None  # of the user entry being answered
        self.message_count = 0

    def _survey(self) -> None:
        """Collect properties of the original file, and the uuids of all messages."""
        has_session_id = False
        is_native_file = is_from_format(self.records, NAME)
        for record in self.records:
            preserved = read_preserved(record, NAME) or {} if is_native_file else {}
            entry = _preserved_entry(record, preserved)
            if text_of(entry, "session_id") and not has_session_id:
                self.session_id, has_session_id = entry["session_id"], True
            self.cwd = text_of(entry, "cwd") or self.cwd
            if isinstance(record, Message):
                self.is_bare = self.is_bare or bool(entry and "type" not in entry)
                uuid = text_of(preserved, "of") or text_of(entry, "uuid") or record.id
                self.uuids[record.seq] = uuid or derive_id(self.metadata.id, record.seq)
        if not has_session_id and isinstance(self.metadata.extra.get("cwd"), str):
            self.cwd = self.metadata.extra["cwd"]

    def write(self) -> ExportedFiles:
        self._count_losses()
        for record in reposition_compactions(self.records):
            self._add_record(record)
        name = re.sub(r"[/\\\0]", "_", self.session_id)
        files = {
            f"{name}.jsonl" if not number else f"{name}_part{number + 1}.jsonl": part.content()
            for number, part in enumerate(self.parts)
        }
        return ExportedFiles(files, self.losses.describe())

    def _count_losses(self) -> None:
        """Count facts of the session for which no line has a place."""
        typed = (record for record in self.records if isinstance(record, Message) and record.role == "user")
        shown = next(filter(None, (title_from(message) for message in typed if message.sender is None)), "")
        self.losses.add("title", bool(self.metadata.title) and self.metadata.title != shown)
        self.losses.count_metadata(self.metadata)

    def _add_record(self, record: AnyRecord) -> None:
        preserved = read_preserved(record, NAME)
        raw_line = read_preserved_line(record, NAME)
        ended = has_newline(record, NAME)
        if preserved is not None and "of" in preserved:
            return  # written with the first message of its entry
        if isinstance(record, Message) and self.is_bare and record.seq in self.removed_seqs:
            self.losses.add("message that is hidden or was rewound")
        elif raw_line is not None:
            self._add_line(raw_line.data, ended=raw_line.ended)
            if isinstance(record, Message):
                self._count_message(record, self.uuids[record.seq])
        elif preserved is not None and "entry" in preserved:
            entry = _preserved_entry(record, preserved)
            self._add_line(_encoder.encode(entry), ended=ended)
            if isinstance(record, Message):
                self._count_message(record, self.uuids[record.seq])
        elif isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            self._add_line(_encoder.encode(record.data), ended=ended)
        elif isinstance(record, Message):
            self._add_message(record)
        elif self.is_bare:
            self.losses.count_record(record)
        elif isinstance(record, Compaction):
            self.losses.add("list of the files of a summary", bool(record.read_files or record.modified_files))
            uuid = record.id or derive_id(self.metadata.id, record.seq)
            timestamp, text = record.timestamp, record.summary
            self._add_line(_encoder.encode(summary_entry(uuid, timestamp, self.session_id, text, self.message_count)))
        elif isinstance(record, Tombstone | Rewind):
            self._add_tombstones(record)
        else:
            self.losses.count_record(record)

    def _add_line(self, data: bytes, *, ended: bool = True) -> None:
        if self.part_size and self.part_size + len(data) + 1 > PART_BYTES:
            self.parts.append(FileBuilder())
            self.part_size = 0
        self.parts[-1].add_line(data, ended=ended)
        self.part_size += len(data) + 1

    def _count_message(self, message: Message, uuid: str) -> None:
        self.message_count += 1
        if message.role != "assistant":
            self.user_uuid = uuid

    def _add_message(self, message: Message) -> None:
        self.losses.count_blocks(message, (ToolCall,))
        usage = message.usage
        if usage is not None:
            self.losses.add("cached tokens of a message", bool(usage.cache_read_tokens or usage.cache_write_tokens))
        self.losses.add("sender of a message", message.sender not in (None, self.metadata.sender))
        self.losses.add("stop reason of a message", message.stop_reason not in (None, "", *STOP_REASONS))
        if self.is_bare:
            self.losses.add("time of a message")
            self.losses.add("working directory of a message", bool(message.cwd))
            self._add_line(_encoder.encode(write_message(message)))
            return
        uuid = self.uuids[message.seq]
        entry = message_entry(message, uuid, self.user_uuid, self.session_id, self.cwd)
        self._add_line(_encoder.encode(entry))
        self._count_message(message, uuid)

    def _add_tombstones(self, record: Tombstone | Rewind) -> None:
        """Add tombstones for messages that a marker of ours removed and nothing restored."""
        if isinstance(record, Tombstone):
            seqs = [seq for seq in record.deletes if seq in self.removed_seqs]
        else:
            seqs = [seq for seq in sorted(self.removed_seqs) if record.to_seq < seq < record.seq]
        for uuid in dict.fromkeys(self.uuids[seq] for seq in seqs):
            member_seqs = self.members[uuid]
            if not self.removed_seqs.issuperset(member_seqs):
                self.losses.add("hidden message in an entry with visible messages")
                continue
            self.removed_seqs.difference_update(member_seqs)
            self._add_line(_encoder.encode(tombstone_entry(uuid, record.timestamp)))


def _preserved_entry(record: AnyRecord, preserved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the original entry of a record; empty if it is not preserved."""
    if isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
        return record.data
    line = as_bytes(preserved, "line")
    if line is not None:
        return parse_object(line)[0] or {}
    entry = preserved.get("entry")
    if not isinstance(entry, dict):
        return {}
    if isinstance(record, Compaction):
        return {**entry, "summary": record.summary}
    if isinstance(record, Message):
        content = rebuild_content(record, preserved.get("shape", "blocks"))
        if "type" not in entry:
            return {**entry, "content": content}
        message = entry.get("message")
        return {**entry, "message": {**(message if isinstance(message, dict) else {}), "content": content}}
    return entry
