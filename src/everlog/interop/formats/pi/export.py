"""Writing a session as pi's file.

Entries that came from pi are written as they were, and new ones are chained to the leaf. For that,
a file of version 1, whose entries have no ids, is upgraded to version 3 as pi itself would do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everlog.interop.formats.format_types import derive_id
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.interop.formats.pi.entries import EDIT_KEY, NAME, encode_json, restore_entry
from everlog.interop.formats.pi.new_entries import VERSION
from everlog.interop.formats.preserved_lines import RawLine, is_ended, read_preserved_line
from everlog.interop.formats.session_export import IMPLIED, SessionExport
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata, Rewind, Tombstone

if TYPE_CHECKING:
    from everlog.interop.formats.foreign_format import ForeignFormat

_ENTRY_TYPES = (Message, Compaction, Tombstone, Rewind)  # of records that become entries


class PiExport(SessionExport):
    """A session as one file: a header, and a tree of entries."""

    HOLDS_REMOVALS = True

    def __init__(self, format: ForeignFormat, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self._header: dict[str, Any] = {}
        super().__init__(format, metadata, records)
        deleted = {seq for record in records if isinstance(record, Tombstone) for seq in record.deletes}
        # A version that does not know deletions would send them; rewound ones are on another branch.
        self.left_out = {seq for seq in deleted & self.removed if seq not in self.originals}
        self._leaf: str | None = None
        self._entry_ids: list[str] = []  # in file order, as version 1 numbers them
        version = self._header.get("version")
        is_version_1 = bool(self._header) and (not isinstance(version, int) or version < 2)
        # Version 1 has no ids: no entry can be chained to another.
        self._is_upgraded = is_version_1 and any(
            record.seq not in self.originals and isinstance(record, _ENTRY_TYPES) for record in records
        )
        if not self._header:
            self._header = _make_header(metadata, records)
            self.add_line(encode_json(self._header))

    @property
    def session_id(self) -> str:
        """The id in the header."""
        return text_of(self._header, "id") or self.metadata.id

    def original_line(self, record: AnyRecord, preserved: dict[str, Any] | None) -> RawLine | None:
        """Return the preserved line, or the entry that a record came from."""
        if isinstance(record, Message) and EDIT_KEY in (preserved or {}):
            return IMPLIED
        line, entry = read_preserved_line(record, NAME), (preserved or {}).get("entry")
        if isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            if record.data.get("type") == "session" and not self._header:
                self._header = record.data
            return line or RawLine(encode_json(record.data), is_ended(preserved))
        if line is not None or not isinstance(entry, dict):
            return line
        if isinstance(record, Message):
            entry = restore_entry(record, preserved or {})
        elif isinstance(record, Compaction):
            entry = {**entry, "summary": record.summary}
        return RawLine(encode_json(entry), is_ended(preserved))

    def restore(self, record: AnyRecord, line: RawLine) -> None:
        """Write the entry that a record came from, in version 3 if others follow."""
        if self._is_upgraded and line is not IMPLIED and (entry := parse_object(line.data)[0]) is not None:
            line = RawLine(encode_json(self._upgrade_entry(record, entry)))
        super().restore(record, line)

    def _upgrade_entry(self, record: AnyRecord, original: dict[str, Any]) -> dict[str, Any]:
        if original.get("type") == "session":
            self._entry_ids.append(text_of(original, "id"))
            return {**original, "version": VERSION}
        entry_id = text_of(original, "id") or derive_id(self.session_id, record.id or record.seq)
        entry = {"type": original.get("type"), "id": entry_id, "parentId": self._leaf, **original}
        index = entry.pop("firstKeptEntryIndex", None)
        if type(index) is int and 0 <= index < len(self._entry_ids):
            entry["firstKeptEntryId"] = self._entry_ids[index]
        message = entry.get("message")
        if isinstance(message, dict) and message.get("role") == "hookMessage":
            entry["message"] = {**message, "role": "custom"}
        self._entry_ids.append(entry_id)
        self._leaf = entry_id
        return entry

    def files(self) -> dict[str, bytes]:
        """Return the file, named as pi would."""
        started = text_of(self._header, "timestamp").replace(":", "-").replace(".", "-")
        path = f"{started}_{text_of(self._header, 'id')}.jsonl".replace("/", "-").replace("\0", "-")
        return {path: bytes(self.content)}


def _make_header(metadata: Metadata, records: Sequence[AnyRecord]) -> dict[str, Any]:
    cwds = (record.cwd for record in records if isinstance(record, Message) and record.cwd)
    cwd = metadata.extra.get("cwd")
    return {
        "type": "session",
        "version": VERSION,
        "id": metadata.id,
        "timestamp": metadata.created_at,
        "cwd": cwd if isinstance(cwd, str) else next(cwds, ""),
    }
