"""Writing a session as CrabTalk's file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from everlog.interop.formats.crabtalk.head_line import META_DEFAULTS, find_head, format_time
from everlog.interop.formats.crabtalk.lines import NAME, encode_json, write_message
from everlog.interop.formats.crabtalk.names import file_name, parse_name
from everlog.interop.formats.crabtalk.reader import META_EVENT
from everlog.interop.formats.format_types import Line, TranscriptInfo, derive_id
from everlog.interop.formats.jsonl import text_of
from everlog.interop.formats.preserved_lines import RawLine, is_ended, read_preserved_line
from everlog.interop.formats.session_export import IMPLIED, SessionExport
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata

if TYPE_CHECKING:
    from everlog.interop.formats.foreign_format import ForeignFormat


class CrabTalkExport(SessionExport):
    """A session as one file, which begins with the metadata line."""

    MOVES_SUMMARIES = True

    def __init__(self, format: ForeignFormat, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        events = [record for record in records if isinstance(record, Event) and record.kind == META_EVENT]
        # The newest is written in the place of the first.
        self._first_meta: Event | None = next(iter(events), None)
        self._last_meta: Event | None = next(reversed(events), None)
        self._meta = _build_meta(metadata, self._last_meta)
        self._agent, self._sender = text_of(self._meta, "agent"), text_of(self._meta, "created_by")
        chat = metadata.chat if metadata.chat is not None else 1
        name = file_name(self._agent, self._sender, chat, "").removesuffix(".jsonl")
        prefix, _, stem = (metadata.key or "").partition(f"{NAME}:")
        self._imported_stem = "" if prefix else stem
        self._session_id = self._imported_stem or name
        self._path = file_name(self._agent, self._sender, chat, text_of(self._meta, "title"))
        # A message of theirs has no id but the number of its line.
        blank = sum(f"{record.data.get('text')}".count("\n") for record in records if isinstance(record, Event))
        self._line_ids = {derive_id(self._session_id, number) for number in range(len(records) + blank + 2)}
        super().__init__(format, metadata, records)
        if self._last_meta is None:
            self.add_line(encode_json(self._meta))

    @property
    def session_id(self) -> str:
        """The name of the file, without a title."""
        return self._session_id

    @property
    def transcript(self) -> TranscriptInfo:
        """The metadata line, and what the name says."""
        return super().transcript._replace(meta_bytes=find_head(super().lines()).meta_bytes)

    def lines(self) -> Iterable[Line]:
        """Return the lines behind the metadata line."""
        return islice(super().lines(), len(find_head(super().lines()).lines), None)

    def original_line(self, record: AnyRecord, preserved: dict[str, Any] | None) -> RawLine | None:
        """Return the preserved line, or one in CrabTalk's own form."""
        if record is self._first_meta and self._last_meta is not None:
            if self._meta != self._last_meta.data:
                return RawLine(encode_json(self._meta))
            record = self._last_meta
        elif isinstance(record, Event) and record.kind == META_EVENT:
            return IMPLIED
        line = read_preserved_line(record, NAME)
        if line is not None:
            return line
        if isinstance(record, Event) and record.kind.startswith(f"{NAME}."):
            return RawLine(encode_json(record.data), is_ended(preserved))
        if isinstance(record, Message) and record.id in self._line_ids:
            return RawLine(encode_json(write_message(record)), is_ended(preserved))
        if isinstance(record, Compaction) and record.id in self._line_ids:
            return RawLine(encode_json({"compact": record.summary}), is_ended(preserved))
        return None

    def files(self) -> dict[str, bytes]:
        """Return the file."""
        is_unchanged = self._last_meta is not None and self._meta == self._last_meta.data
        if is_unchanged and self._imported_stem:
            name = parse_name(self._imported_stem, self._agent, self._sender)
            if name.chat is None:  # the imported name had no number
                return {f"{self._imported_stem}.jsonl": bytes(self.content)}
        return {self._path: bytes(self.content)}


def _build_meta(metadata: Metadata, event: Event | None) -> dict[str, Any]:
    """Return the metadata line: the original one, with the changes since."""
    if event is None:
        created, title = format_time(metadata.created_at), metadata.title or ""
        values = (metadata.agent, metadata.sender, created, title, metadata.uptime_secs)
        return dict(zip(META_DEFAULTS, values, strict=True))
    meta = dict(event.data)
    if metadata.title and metadata.title != meta.get("title"):
        meta["title"] = metadata.title
    if metadata.uptime_secs:  # of the turns since the import
        uptime = meta.get("uptime_secs")
        meta["uptime_secs"] = metadata.uptime_secs + (uptime if isinstance(uptime, int) else 0)
    return meta
