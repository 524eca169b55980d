"""Writing a session as Cersei's files: foreign lines unchanged, the rest as an append writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from everlog.interop.formats.cersei.blocks import NAME, rebuild_content
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.interop.formats.preserved_lines import RawLine, is_ended, read_preserved_line
from everlog.interop.formats.session_export import IMPLIED, SessionExport
from everlog.log.parts import split_at_boundary
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata

if TYPE_CHECKING:
    from everlog.interop.formats.foreign_format import ForeignFormat

PART_BYTES = 50_000_000

_encode = msgspec.json.Encoder().encode


class CerseiExport(SessionExport):
    """A session as a transcript in parts."""

    MOVES_SUMMARIES = True
    HOLDS_REMOVALS = True

    def __init__(self, format: ForeignFormat, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self._session_id = ""
        self._is_bare = False
        super().__init__(format, metadata, records)
        if self._is_bare:
            self.left_out = self.removed
        prefix, _, stem = (metadata.key or "").partition(f"{NAME}:")  # named like its original file
        self._session_id = self._session_id or (not prefix and stem) or metadata.id

    @property
    def session_id(self) -> str:
        """The id of the session, which is the name of its file."""
        return self._session_id

    def original_line(self, record: AnyRecord, preserved: dict[str, Any] | None) -> RawLine | None:
        """Return the preserved line, or the entry with the content of its record."""
        if preserved is not None and "of" in preserved:
            return IMPLIED  # by the first message of its entry, or by a tombstone
        line = read_preserved_line(record, NAME)
        entry = record.data if isinstance(record, Event) else (preserved or {}).get("entry")
        if isinstance(record, Event) and not record.kind.startswith(f"{NAME}."):
            return None
        if line is not None:
            entry = parse_object(line.data)[0]
        elif isinstance(entry, dict):
            entry = _restore_entry(record, entry, (preserved or {}).get("shape", "blocks"))
            line = RawLine(_encode(entry), is_ended(preserved))
        self._session_id = self._session_id or text_of(entry or {}, "session_id")
        self._is_bare = self._is_bare or (isinstance(record, Message) and "type" not in (entry or {"type": ""}))
        return line

    def files(self) -> dict[str, bytes]:
        """Return the parts."""
        lines = bytes(self.content).split(b"\n")
        is_ended = lines[-1] == b""
        groups = split_at_boundary(lines[:-1] if is_ended else lines, 0, PART_BYTES)
        parts = [b"".join(line + b"\n" for line in group) for group in groups]
        parts[-1] = parts[-1] if is_ended else parts[-1][:-1]
        stem = re.sub(r"[/\\\0]", "_", self.session_id)
        numbers = ("", *(f"_part{number}" for number in range(2, len(parts) + 1)))
        return {f"{stem}{number}.jsonl": part for number, part in zip(numbers, parts, strict=True)}


def _restore_entry(record: AnyRecord, entry: dict[str, Any], shape: str) -> dict[str, Any]:
    if isinstance(record, Compaction):
        return {**entry, "summary": record.summary}
    if not isinstance(record, Message):
        return entry
    content = rebuild_content(record, shape)
    if "type" not in entry:
        return {**entry, "content": content}
    message = entry.get("message")
    return {**entry, "message": {**(message if isinstance(message, dict) else {}), "content": content}}
