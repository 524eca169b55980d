"""Writing a session as PicoClaw's two files: the original ones, with what was added since."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.format_types import FileEdit, Line, TailState, TranscriptInfo
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.picoclaw.go_json import encode_go_json
from everlog.interop.formats.picoclaw.lines import MAX_READABLE_BYTES, NAME, count_lines, encode_message_line
from everlog.interop.formats.picoclaw.meta_file import ENDING, encode_meta, file_stem, skip_count
from everlog.interop.formats.picoclaw.reader import META_EVENT, PicoClawReader
from everlog.interop.formats.preserved_lines import RawLine, is_ended, read_preserved_line
from everlog.interop.formats.session_export import IMPLIED, SessionExport
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata

if TYPE_CHECKING:
    from everlog.interop.formats.foreign_format import ForeignFormat


class PicoClawExport(SessionExport):
    """A session as a transcript and its metadata file."""

    def __init__(self, format: ForeignFormat, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        metas = [record for record in records if isinstance(record, Event) and record.kind == META_EVENT]
        self._meta_event = metas[-1] if metas else None
        self._old_meta: dict[str, Any] = self._meta_event.data if self._meta_event else {}
        self._old_lines = self._skip = 0  # lines of the old file so far; how many of the first ones are written
        key = text_of(self._old_meta, "key") or (metadata.key or metadata.id).removeprefix(f"{NAME}:")
        self._stem = file_stem(key)
        if len(self._stem.encode("utf-8", "replace")) > 255 - len(ENDING):
            raise FormatError("the session's key is too long for a file name", hint="give it a shorter key")
        imported = (name.removeprefix(f"{NAME}:") for name in metadata.names if name.startswith(f"{NAME}:"))
        # A message of theirs has no id but what its line says.
        self._reread = PicoClawReader(TranscriptInfo(next(imported, self._stem)), whole=True)
        aliases = tuple(alias for alias in metadata.aliases if alias != key and not alias.startswith(f"{NAME}:"))
        super().__init__(format, replace(metadata, key=key, aliases=aliases), records)

    @property
    def session_id(self) -> str:
        """The name of the files."""
        return self._stem

    def original_line(self, record: AnyRecord, preserved: dict[str, Any] | None) -> RawLine | None:
        """Return the preserved line, or one in PicoClaw's own form."""
        event = record if isinstance(record, Event) and record.kind.startswith(f"{NAME}.") else None
        if event and (event.kind == META_EVENT or f"{event.data.get('path')}".endswith(".meta.json")):
            return IMPLIED
        if isinstance(record, Compaction) and preserved is not None:
            return IMPLIED
        line = read_preserved_line(record, NAME)
        if line is None and event:
            line = RawLine(encode_go_json(event.data), is_ended(preserved))
        own = encode_message_line(record) if isinstance(record, Message) and line is None else b""
        items = list(self._reread.feed((Line(0, own if line is None else line.data),))) if line or own else []
        is_theirs = self._meta_event is not None and record.seq < self._meta_event.seq
        if own and (is_theirs or [item.id for item in items] == [record.id]):
            line = RawLine(own, is_ended(preserved))
        return line

    # --- writing

    def restore(self, record: AnyRecord, line: RawLine) -> None:
        """Write the line that a record came from."""
        if record is self._meta_event:
            meta = read_preserved_line(record, NAME)
            self.meta_bytes = encode_go_json(self._old_meta, 2) if meta is None else meta.data
            if self.removed:
                count = count_lines(bytes(self.content))
                self.meta_bytes = encode_meta(self._old_meta, skip=self._skip, count=count)
        super().restore(record, line)
        self._old_lines += count_lines(line.data)
        if self._old_lines <= skip_count(self._old_meta) and record.seq not in self.left_out:
            self._skip += count_lines(line.data)

    def add_line(self, data: bytes, *, ended: bool = True) -> None:
        """Add a line."""
        self.losses.add("line too long for PicoClaw to read back", len(data) > MAX_READABLE_BYTES)
        super().add_line(data, ended=ended)

    def read_again(self) -> TailState:
        """Read all lines with a reader that goes on, so that no new line needs an earlier one again."""
        self._reader = PicoClawReader(self.transcript, whole=True)
        self.note_ids(self._read(self.lines()))
        return self._reader.state

    def follow(self, state: TailState, lines: Sequence[Line]) -> list[Message]:
        """Read new lines, and return the messages in them."""
        messages = self._read(lines)
        self._state = self._reader.state
        return messages

    def _read(self, lines: Iterable[Line]) -> list[Message]:
        return [item for item in self._reader.feed(lines) if isinstance(item, Message)]

    def closing_edit(self) -> FileEdit:
        """Return the edit that sets the aliases and the scope, or makes the metadata file."""
        changes: dict[str, Any] = {}
        if aliases := set(self.metadata.aliases) - set(self._old_meta.get("aliases") or ()):
            changes["aliases"] = [*(self._old_meta.get("aliases") or ()), *sorted(aliases)]
        if self.metadata.scope is not None and self.metadata.scope != self._old_meta.get("scope"):
            changes["scope"] = self.metadata.scope
        return (
            self.format.encode_metadata(self.state, self, changes) if changes or self.meta_bytes is None else FileEdit()
        )

    def files(self) -> dict[str, bytes]:
        """Return the transcript and the metadata file."""
        return {f"{self._stem}.jsonl": bytes(self.content), f"{self._stem}{ENDING}": self.meta_bytes or b""}
