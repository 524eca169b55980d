"""A foreign session in memory: its files, and the log of ours that follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    ConversationItem,
    FileEdit,
    ForeignSession,
    HiddenMessages,
    InMemorySource,
    Line,
    Summary,
    TailState,
    TranscriptInfo,
    split_lines,
)
from everlog.log.fold import View, fold
from everlog.model import AnyRecord, Compaction, Message, Metadata, Tombstone


def pieces(lines: Sequence[Line], cuts: Sequence[int]) -> list[Sequence[Line]]:
    """Lines cut at some places."""
    places = sorted({min(cut, len(lines)) for cut in cuts})
    return [lines[first:last] for first, last in zip([0, *places], [*places, len(lines)], strict=True)]


class Held:
    """What a store does with a dialect, without the disk."""

    def __init__(self, dialect: ForeignFormat, stem: str, data: bytes = b"", about: bytes | None = None) -> None:
        self.dialect = dialect
        self.stem = stem
        self.data = data
        self.about = about  # the second file
        self.notes: TailState = {}
        self.records: list[AnyRecord] = []
        self.items: list[ConversationItem] = []
        self._names: dict[int, str] = {}  # seq → id in the file
        self._hidden: set[int] = set()
        self._followed = 0  # lines
        self.metadata = Metadata(id="x", created_at="2026-01-01T00:00:00.000Z")
        self.level()

    # --- for the dialect

    @property
    def transcript(self) -> TranscriptInfo:
        """The session's surroundings."""
        beside = self.about
        if self.dialect.METADATA_LOCATION == "head":
            beside = self.data.partition(b"\n")[0]
        name = self.dialect.session_id_of(self.stem, beside)
        return TranscriptInfo(name, beside, read_lines=lambda: split_lines(self.data))

    def record(self, seq: int) -> AnyRecord:
        """One record."""
        return self.records[seq - 1]

    def records_from(self, seq: int) -> Sequence[AnyRecord]:
        """Records from a number on."""
        return self.records[max(seq - 1, 0) :]

    def foreign_id(self, record: AnyRecord) -> str:
        """Its id in the file."""
        return self._names[record.seq]

    # --- for the tests

    def level(self) -> None:
        """Follow the files from where they were followed to."""
        lines = list(split_lines(self.data))[self.dialect.METADATA_LOCATION == "head" :]
        self._follow(lines[self._followed :])
        self._followed = len(lines)

    def _follow(self, lines: Sequence[Line], own: AnyRecord | None = None) -> None:
        before = dict(self.notes)
        followed = self.dialect.read_tail(self.notes, lines, self.transcript)
        assert followed is not None and self.notes == before
        self.notes = followed.state
        self.items += followed.items
        kind = Message if isinstance(own, Message) else Compaction
        for item in followed.items:
            record = self._record(item)
            if own is not None and isinstance(record, kind):
                first = {"first_kept_seq": record.first_kept_seq} if isinstance(record, Compaction) else {}
                record, own = replace(own, seq=record.seq, **first), None
            self._names[record.seq] = item.id
            self.records.append(record)

    def _record(self, item: ConversationItem) -> AnyRecord:
        seq = len(self.records) + 1
        seqs = {name: place for place, name in self._names.items()}
        if isinstance(item, Summary):
            first = seq + 1 if item.first_kept is None else seqs[item.first_kept]
            return Compaction(seq=seq, first_kept_seq=first, summary=item.text)
        if isinstance(item, HiddenMessages):
            now = {seqs[one] for one in item.ids}
            back, self._hidden = self._hidden - now, now
            return Tombstone(seq=seq, deletes=tuple(sorted(now)), restores=tuple(sorted(back)))
        return replace(item, seq=seq)

    def append(self, record: AnyRecord) -> FileEdit:
        """Add a record of ours to the files and to the log."""
        added = self.dialect.encode_record(self.notes, self, record)
        assert added.head is None and added.stem is None
        lines = [Line(len(self.data), line) for line in added.lines]
        self.put(added)
        self._follow(lines, record)
        self._followed += len(lines)
        return added

    def put(self, added: FileEdit) -> None:
        """Do what is asked for, in the files."""
        self.data += b"".join(line + b"\n" for line in added.lines)
        if added.head is not None:
            self.data = added.head + b"\n" + self.data.partition(b"\n")[2]
        self.about = added.files.get(".meta.json", self.about)
        self.stem = added.stem or self.stem

    @property
    def view(self) -> View:
        """What the log shows."""
        return fold(self.records)

    @property
    def context(self) -> tuple[str | None, list[str]]:
        """The summary and the texts behind it."""
        view = self.view
        if view.compaction is None:
            return None, [one.text for one in view.messages]
        first = view.compaction.first_kept_seq
        return view.compaction.summary, [one.text for one in view.messages if one.seq >= first]

    @property
    def source(self) -> InMemorySource:
        """The files."""
        files = {f"{self.stem}.jsonl": self.data}
        if self.about is not None:
            files[f"{self.stem}.meta.json"] = self.about
        return InMemorySource(self.stem, files)

    def read(self) -> ForeignSession:
        """The session as a whole."""
        return self.dialect.read(self.source)


def spoken(items: Sequence[Any]) -> list[Any]:
    """What messages and summaries say."""
    return [
        (item.role, item.content, item.tool_call_id, item.tool_name) if isinstance(item, Message) else item.text
        for item in items
        if isinstance(item, Message | Summary)
    ]
