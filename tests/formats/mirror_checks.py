"""A session in a foreign file and in records of ours, as a store keeps both; without the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    ConversationItem,
    HiddenMessages,
    InMemorySource,
    Line,
    ListingScan,
    Summary,
    TailState,
    TranscriptInfo,
)
from everlog.log.fold import View, fold
from everlog.model import AnyRecord, Compaction, Message, Metadata, Tombstone


class Mirror:
    """What `follow` and `whole` said of a file so far; also what `extend` is given."""

    def __init__(self, dialect: ForeignFormat, name: str) -> None:
        self.dialect = dialect
        self.transcript = TranscriptInfo(name)
        self.metadata = Metadata(id=name, created_at="2026-01-01T00:00:00.000Z")
        self.lines: list[bytes] = []
        self.notes: TailState = {}
        self.records: list[AnyRecord] = []
        self.wholes = 0  # how often the whole file had to be read
        self._seqs: dict[str, int] = {}
        self._left: set[int] = set()  # what the newest derived item hides

    # --- what the file says

    def grow(self, lines: Sequence[bytes]) -> list[ConversationItem]:
        """Someone added lines."""
        before = dict(self.notes)
        followed = self.dialect.read_tail(self.notes, self._new(lines), self.transcript)
        assert self.notes == before
        self.lines += lines
        if followed is None:
            self.wholes += 1
            followed = self.dialect.read_all(placed(self.lines), self.transcript)
        self.notes = followed.state
        for item in followed.items:
            self._merge(item)
        return list(followed.items)

    def _new(self, lines: Sequence[bytes]) -> list[Line]:
        start = sum(len(one) + 1 for one in self.lines)
        return [line._replace(start=line.start + start) for line in placed(lines)]

    def _merge(self, item: ConversationItem) -> None:
        if item.id in self._seqs:
            return
        self._seqs[item.id] = seq = len(self.records) + 1
        record: AnyRecord
        if isinstance(item, Message):
            assert not item.line
            record = replace(item, seq=seq)
        elif isinstance(item, Summary):
            kept = seq + 1 if item.first_kept is None else self._seqs[item.first_kept]
            record = Compaction(
                seq=seq,
                id=item.id,
                first_kept_seq=kept,
                summary=item.text,
                tokens_before=item.tokens_before,
                timestamp=item.timestamp,
            )
        else:
            record = self._tombstone(item, seq)
        self.records.append(record)

    def _tombstone(self, item: HiddenMessages, seq: int) -> Tombstone:
        hidden = {self._seqs[one] for one in item.ids if one in self._seqs}
        shown: set[int] = set()
        if not item.extra:
            shown, self._left = self._left - hidden, hidden
        deletes, restores = tuple(sorted(hidden)), tuple(sorted(shown))
        return Tombstone(seq=seq, id=item.id, deletes=deletes, restores=restores)

    # --- a log

    def record(self, seq: int) -> AnyRecord:
        """One record."""
        return self.records[seq - 1]

    def records_from(self, seq: int) -> Sequence[AnyRecord]:
        """Those from a number on."""
        assert seq > 0
        return self.records[seq - 1 :]

    def foreign_id(self, record: AnyRecord) -> str:
        """Here every record is called as in the file."""
        return record.id

    def append(self, record: AnyRecord) -> list[ConversationItem]:
        """Add a record of ours to the file; what the file says then."""
        added = self.dialect.encode_record(self.notes, self, record)
        wholes = self.wholes
        items = self.grow(added.lines)
        assert self.wholes == wholes
        return items

    # --- what is to be seen

    @property
    def source(self) -> InMemorySource:
        """The file."""
        path = f"{self.transcript.session_id}.jsonl"
        return InMemorySource(self.transcript.session_id, {path: b"".join(one + b"\n" for one in self.lines)})

    @property
    def view(self) -> View:
        """What is shown."""
        return fold(self.records)

    @property
    def texts(self) -> list[str]:
        """The texts of the messages that are shown."""
        return [one.text for one in self.view.messages]

    @property
    def context(self) -> list[str]:
        """The summary and what it keeps."""
        return context(self.view)


def context(view: View) -> list[str]:
    """The summary that stands, and the texts of what it keeps."""
    made = view.compaction
    if made is None:
        return [one.text for one in view.messages]
    kept = [one.text for one in view.messages if one.seq >= made.first_kept_seq]
    return [made.summary, *kept]


def placed(lines: Iterable[bytes]) -> list[Line]:
    """Lines with their offsets."""
    made, start = [], 0
    for one in lines:
        made.append(Line(start, one))
        start += len(one) + 1
    return made


def cut(lines: Sequence[bytes], places: Iterable[int]) -> list[list[bytes]]:
    """Lines in several pieces; every place is taken as one in them."""
    ends = sorted({one % (len(lines) + 1) for one in places} | {0, len(lines)})
    return [list(lines[a:b]) for a, b in pairwise(ends)]


def glanced(dialect: ForeignFormat, pieces: Iterable[Sequence[bytes]]) -> ListingScan:
    """What a listing shows of a file that grew piece by piece."""
    seen = ListingScan()
    for piece in pieces:
        seen = dialect.scan_listing(seen, placed(piece), TranscriptInfo(""))
    return seen


def plain(messages: Iterable[object]) -> list[object]:
    """Messages by all that they say; where they stand and what is kept of a line are no matter."""
    return [replace(one, seq=0, line=b"") for one in messages if isinstance(one, Message)]
