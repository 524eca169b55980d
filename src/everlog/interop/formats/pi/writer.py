"""Writing sessions as pi's files.

Entries that came from pi are written as they were. New ones are chained to the leaf as entries of
version 3; for that, a file of version 1, whose entries have no ids, is upgraded to version 3 as pi
itself would do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlog.interop.formats.format_types import ExportedFiles, derive_id
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.interop.formats.pi.entries import EDIT_KEY, NAME, encode_json, restore_entry, shows_edits
from everlog.interop.formats.pi.new_entries import VERSION, compaction_fields, encode_block, entry_head, message_entry
from everlog.interop.formats.pi.reader import title_from
from everlog.interop.formats.writer import (
    FileBuilder,
    Losses,
    RawLine,
    has_newline,
    is_from_format,
    read_preserved,
    read_preserved_line,
    removed_seqs,
)
from everlog.model import (
    PROGRAM,
    AnyRecord,
    Compaction,
    Event,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Rewind,
    Tombstone,
)

_BLOCK_NAMES: dict[type, str] = {Image: "image at an address", File: "file", OtherBlock: "block of another kind"}
_NEW_TYPES = (Message, Compaction, Tombstone, Rewind)


def write(metadata: Metadata, records: Sequence[AnyRecord]) -> ExportedFiles:
    """Write a session as pi's file."""
    return _Writer(metadata, records).write()


class _Writer:
    def __init__(self, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self.metadata, self.records = metadata, records
        self.losses, self.file = Losses(), FileBuilder()
        removed = removed_seqs(records, NAME)
        tombstones = (record for record in records if isinstance(record, Tombstone))
        self.deleted = {seq for tombstone in tombstones for seq in tombstone.deletes if seq in removed}
        self.used_ids: set[str] = set()
        self.ids: dict[int, str] = {}  # seq → id of its entry
        self.branch: list[int] = []  # seqs of the messages on the path to the leaf
        self.compactions: list[Compaction] = []
        self.leaf: str | None = None
        self.header: dict[str, Any] = {}
        self.has_edits = False  # whether a version that knows edits wrote to the file
        self.name = self.first_text = ""  # the title that pi shows is one of these
        self.answer: dict[str, str] = {}  # provider and model of the last one
        self.calls: dict[str, str] = {}  # id of a tool call → its name
        self.entry_ids: list[str] = []  # in file order, as version 1 numbers them
        is_from_pi = is_from_format(records, NAME)
        found = ((record.seq, _original_entry(record)) for record in records if is_from_pi)
        self.originals = {seq: original for seq, original in found if original is not None}
        for original in self.originals.values():
            value = original if isinstance(original, dict) else {}
            if value.get("type") == "session" and not self.header:
                self.header = value
            self.has_edits = self.has_edits or shows_edits(value)
            if text_of(value, "id"):
                self.used_ids.add(value["id"])
        self.derived = {record.seq for record in records if self.originals and _is_derived(record)}
        has_new_entries = any(
            isinstance(record, _NEW_TYPES) and record.seq not in self.originals and record.seq not in self.derived
            for record in records
        )
        # Version 1 has no ids: no entry can be chained to another.
        is_version_1 = not isinstance(self.header.get("version"), int) or self.header["version"] < 2
        self.is_upgraded = bool(self.header) and has_new_entries and is_version_1

    def write(self) -> ExportedFiles:
        if not self.header:
            self._write_header()
        for record in self.records:
            if isinstance(record, Message):
                self._note_texts(record)
            if record.seq in self.originals:
                self._write_original(record)
            elif record.seq in self.derived:
                continue  # implied by the other entries
            elif record.seq in self.deleted:
                self.losses.add("deleted message")
            elif isinstance(record, Message):
                self._write_message(record)
            elif isinstance(record, Compaction):
                self._write_compaction(record)
            elif isinstance(record, Tombstone):
                self._write_context_edits(record)
            elif isinstance(record, Rewind):
                self._go_back(record)
            else:
                self.losses.count_record(record)
        title = self.metadata.title
        if title and title != (self.name or self.first_text):
            timestamp = self.metadata.last_message_at or self.metadata.created_at
            self._write_entry("session_info", f"name {title}", timestamp, name=title)
        self.losses.count_metadata(self.metadata)
        started = text_of(self.header, "timestamp").replace(":", "-").replace(".", "-")
        path = f"{started}_{text_of(self.header, 'id')}.jsonl".replace("/", "-").replace("\0", "-")
        return ExportedFiles({path: self.file.content()}, self.losses.describe())

    def _note_texts(self, message: Message) -> None:
        """Note what other entries repeat."""
        self.calls |= {call.id: call.name for call in message.tool_calls}
        if not self.first_text and message.role == "user" and message.sender is None:
            self.first_text = title_from(message)

    def _write_header(self) -> None:
        cwds = (record.cwd for record in self.records if isinstance(record, Message) and record.cwd)
        cwd = self.metadata.extra.get("cwd")
        self.header = {
            "type": "session",
            "version": VERSION,
            "id": self.metadata.id,
            "timestamp": self.metadata.created_at,
            "cwd": cwd if isinstance(cwd, str) else next(cwds, ""),
        }
        self.entry_ids.append(self.metadata.id)
        self.file.add_line(encode_json(self.header))

    # --- entries from pi

    def _write_original(self, record: AnyRecord) -> None:
        original = self.originals[record.seq]
        if isinstance(original, RawLine):
            self.file.add_line(original.data, ended=original.ended)
            return
        raw = read_preserved_line(record, NAME)
        if original.get("type") == "session_info":
            self.name = text_of(original, "name").strip()
        message = original.get("message")
        if isinstance(message, dict) and message.get("role") == "assistant":
            self.answer = {key: text_of(message, key) for key in ("provider", "model", "api")}
        if self.is_upgraded:
            original = self._upgrade_entry(record, original)
            raw = None
        if raw is not None:
            self.file.add_line(raw.data, ended=raw.ended)
        else:
            self.file.add_line(encode_json(original), ended=has_newline(record, NAME))
        entry_id = text_of(original, "id")
        self.entry_ids.append(entry_id)
        if entry_id and original.get("type") != "session":
            self.leaf = entry_id
            if isinstance(record, Message):
                self._note_message(record, entry_id)
            elif isinstance(record, Compaction):
                self.compactions.append(record)

    def _upgrade_entry(self, record: AnyRecord, original: dict[str, Any]) -> dict[str, Any]:
        if original.get("type") == "session":
            return {**original, "version": VERSION}
        entry_id = text_of(original, "id") or self._new_id(record.id or f"{record.seq}")
        entry = {"type": original.get("type"), "id": entry_id, "parentId": self.leaf, **original}
        index = entry.pop("firstKeptEntryIndex", None)
        if type(index) is int and 0 <= index < len(self.entry_ids):
            entry["firstKeptEntryId"] = self.entry_ids[index]
        message = entry.get("message")
        if isinstance(message, dict) and message.get("role") == "hookMessage":
            entry["message"] = {**message, "role": "custom"}
        return entry

    # --- new entries

    def _new_id(self, seed: str) -> str:
        number = 0
        while True:
            entry_id = derive_id(self.metadata.id, f"{seed} {number}")[:8]
            if entry_id not in self.used_ids:
                self.used_ids.add(entry_id)
                return entry_id
            number += 1

    def _write_entry(self, kind: str, seed: str, timestamp: str, **fields: Any) -> str:
        entry_id = self._new_id(seed)
        head = entry_head(kind, entry_id, self.leaf, timestamp)
        self.file.add_line(encode_json({**head, **fields}))
        self.leaf = entry_id
        self.entry_ids.append(entry_id)
        return entry_id

    def _write_message(self, message: Message) -> None:
        for block in message.content:
            if encode_block(block) is None:
                self.losses.add(_BLOCK_NAMES[type(block)])
        if message.cwd and message.cwd != self.header.get("cwd"):
            self.losses.add("working directory of a message")
        if message.sender not in (None, PROGRAM, self.metadata.sender):
            self.losses.add("sender of a message")
        kind, fields = message_entry(message, self.calls, self.answer)
        self._note_message(
            message, self._write_entry(kind, message.id or f"{message.seq}", message.timestamp, **fields)
        )

    def _note_message(self, message: Message, entry_id: str) -> None:
        self.ids[message.seq] = entry_id
        self.branch.append(message.seq)

    def _go_back(self, record: Rewind) -> None:
        """Continue from an earlier entry; rewound entries stay as an abandoned branch."""
        to_seq = record.to_seq
        self.branch = [seq for seq in self.branch if seq <= to_seq]
        self.leaf = self.ids[self.branch[-1]] if self.branch else None
        kept = (record for record in self.compactions if to_seq >= record.first_kept_seq - 1)
        self.compactions = list(kept)
        if self.compactions and self.compactions[-1].seq > to_seq:
            self._write_compaction(self.compactions.pop(), f"again {record.seq}")

    def _write_compaction(self, record: Compaction, seed_suffix: str = "") -> None:
        kept = [seq for seq in self.branch if seq >= record.first_kept_seq]
        self.compactions.append(record)
        seed = f"{record.id or record.seq}{seed_suffix}"
        fields = compaction_fields(record, self.ids[kept[0]] if kept else "")
        self._write_entry("compaction", seed, record.timestamp, **fields)

    def _write_context_edits(self, record: Tombstone) -> None:
        """Leave deleted messages of pi's own entries, on which others depend, out of the context."""
        for seq in record.deletes:
            if seq in self.deleted and seq in self.ids:
                if not self.has_edits:
                    self.losses.add("deletion that pi before 0.87 ignores")
                fields = {"targetId": self.ids[seq], "replacement": None}
                self._write_entry("context_edit", f"{record.id or record.seq} {seq}", record.timestamp, **fields)


def _is_derived(record: AnyRecord) -> bool:
    """Return whether a record was made from other entries than its own."""
    if isinstance(record, Tombstone):
        return b'"derived"' in record.line
    return isinstance(record, Message) and EDIT_KEY in (read_preserved(record, NAME) or {})


def _original_entry(record: AnyRecord) -> dict[str, Any] | RawLine | None:
    """Return the entry that a record came from, or the bytes of a line that has none."""
    raw = read_preserved_line(record, NAME)
    if isinstance(record, Event):
        if not record.kind.startswith(f"{NAME}."):
            return None
        is_raw = record.kind in (f"{NAME}.damaged", f"{NAME}.blank")
        return raw if is_raw else record.data
    if raw is not None:
        return parse_object(raw.data)[0] or raw
    preserved = read_preserved(record, NAME)
    if preserved is None or not isinstance(preserved.get("entry"), dict):
        return None
    if isinstance(record, Message):
        return restore_entry(record, preserved)
    if isinstance(record, Compaction):
        return {**preserved["entry"], "summary": record.summary}
    return dict(preserved["entry"])
