"""Writing a whole session as files of a format: what an append does, from an empty file on.

Lines that came from such a file go back as they were. Every other record is encoded by
`encode_record`, as if it were appended: a record has the same line, whoever writes it. In the end
all lines are read back and compared with the records, so that what is missing is named as a loss.

    messages that were removed   are left out, unless the format has a place for the removal
    results                      directly follow their call
    summaries                    precede the first message that they keep, if the format says that a
                                 summary replaces everything before it
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from everlog.errors import UnsupportedError
from everlog.interop.formats.format_types import (
    ExportedFiles,
    FileEdit,
    HiddenMessages,
    Line,
    ListingScan,
    Summary,
    TailState,
    TranscriptInfo,
    split_lines,
)
from everlog.interop.formats.losses import Losses, compare_messages, compare_metadata, compare_summaries
from everlog.interop.formats.preserved_lines import RawLine, is_derived, read_preserved
from everlog.log.fold import fold
from everlog.log.markers import Markers
from everlog.log.tool_pairs import pair_results
from everlog.model import AnyRecord, Compaction, Event, Message, Metadata, Rewind, Tombstone

if TYPE_CHECKING:
    from everlog.interop.formats.foreign_format import ForeignFormat

IMPLIED = RawLine(b"")  # of a record that the lines of other records imply


class SessionExport(ABC):
    """A session on its way into files: a `MirrorLog` of the records that are written so far."""

    MOVES_SUMMARIES: ClassVar[bool] = False  # a summary replaces everything before it
    HOLDS_REMOVALS: ClassVar[bool] = False  # tombstones and rewinds are written

    def __init__(self, format: ForeignFormat, metadata: Metadata, records: Sequence[AnyRecord]) -> None:
        self.format = format
        self.metadata = metadata
        self.records = records
        self.losses = Losses()
        lines = ((record.seq, self.original_line(record, read_preserved(record, format.NAME))) for record in records)
        # seq → the line that a record came from
        self.originals = {seq: line for seq, line in lines if line is not None}
        if self.originals:
            self.originals |= {record.seq: IMPLIED for record in records if is_derived(record)}
        own = [record for record in records if record.seq not in self.originals or not isinstance(record, Tombstone)]
        self.markers = Markers.of(own)
        live = {message.seq for message in fold(own).messages}
        messages = (record.seq for record in records if isinstance(record, Message))
        self.removed = {seq for seq in messages if seq not in live}  # by us, not by the file
        self.left_out = set() if self.HOLDS_REMOVALS else self.removed
        self.content = bytearray()
        self.meta_bytes: bytes | None = None  # of the metadata line or file
        self._state: TailState | None = None  # after all lines; None: they must be read
        self._written: list[AnyRecord] = []  # by seq
        self._messages: list[Message | None] = []  # in the order of the file; None: of no record
        self._file_ids: dict[int, str] = {}  # seq → id in the file

    @abstractmethod
    def original_line(self, record: AnyRecord, preserved: dict[str, Any] | None) -> RawLine | None:
        """Return the line that a record came from, IMPLIED, or None for a record of ours.

        `preserved` is what it stores under the format's name.
        """

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The id of the session in its program."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """Return the files."""

    # --- the log, as `encode_record` sees it

    @property
    def transcript(self) -> TranscriptInfo:
        """What the format needs besides the session's lines."""
        return TranscriptInfo(self.session_id, self.meta_bytes, self.read_file, self.session_id, read_lines=self.lines)

    def read_file(self, path: str) -> bytes | None:
        """Return a file in the session's own folder."""
        return None

    def lines(self) -> Iterable[Line]:
        """Return the lines so far, without the metadata line."""
        return split_lines(self.content)

    def record(self, seq: int) -> AnyRecord:
        """Return a record by its seq."""
        return self._written[bisect_left(self._written, seq, key=_seq_of)]

    def records_from(self, seq: int) -> Sequence[AnyRecord]:
        """Return the records from a seq on."""
        return self._written[bisect_left(self._written, seq, key=_seq_of) :]

    def _is_written(self, seq: int) -> bool:
        return any(record.seq == seq for record in self.records_from(seq)[:1])

    def foreign_id(self, record: AnyRecord) -> str:
        """Return the id that a record has in the file."""
        return self._file_ids.get(record.seq, record.id)

    # --- writing

    def write(self) -> ExportedFiles:
        """Return the files, and what they cannot hold."""
        for record in self._ordered():
            if record.seq in self.originals:
                self.restore(record, self.originals[record.seq])
            elif isinstance(record, Message) and record.seq in self.left_out:
                self.losses.add("message that is hidden or was rewound")
            else:
                self.append(record)
        self.apply(self.closing_edit())
        title, facts = (self.metadata.title or "").strip(), self._read_facts()
        if title and title != facts.title:
            with suppress(UnsupportedError):  # it is named as a loss
                self.apply(self.format.encode_metadata(self.state, self, {"name": title}))
                facts = self._read_facts()
        compare_metadata(self.metadata, facts, self.format.NAME, self.losses)
        self.losses.add("creation time", bool(self.metadata.created_at) and not (facts.created or self.originals))
        self._compare_content()
        return ExportedFiles(self.files(), self.losses.describe())

    def _ordered(self) -> Iterator[AnyRecord]:
        """Yield the records in the order of their lines."""
        records = _move_summaries(self.records) if self.MOVES_SUMMARIES else self.records
        own = [
            record
            for record in records
            if isinstance(record, Message) and record.seq not in self.originals and record.seq not in self.left_out
        ]
        results: dict[int, list[int]] = {}  # index of a message → those of its results
        for result, caller in sorted(pair_results(own).caller.items()):
            results.setdefault(caller, []).append(result)
        apart = {
            own[caller].seq: [own[index] for index in indexes]
            for caller, indexes in results.items()
            if indexes != list(range(caller + 1, caller + 1 + len(indexes)))
        }
        moved = {message.seq for messages in apart.values() for message in messages}
        for record in records:
            if record.seq not in moved:
                yield record
                yield from apart.get(record.seq, ())

    def restore(self, record: AnyRecord, line: RawLine) -> None:
        """Write the line that a record came from."""
        if isinstance(record, Message) and record.seq in self.left_out:
            self.losses.add("message that is hidden or was rewound")
            return
        if line is not IMPLIED:
            self.add_line(line.data, ended=line.ended)
            self._state = None
        self.note(record)

    def add_line(self, data: bytes, *, ended: bool = True) -> None:
        """Add a line; it never continues one without a newline."""
        if self.content and not self.content.endswith(b"\n"):
            self.content += b"\n"
        self.content += data + b"\n" * ended

    def note(self, record: AnyRecord) -> None:
        """Note that a record is in the file now."""
        insort(self._written, record, key=_seq_of)
        if isinstance(record, Message):
            self._messages.append(record)

    def append(self, record: AnyRecord) -> None:
        """Write a record of ours."""
        if isinstance(record, Event):
            self.losses.add(f"event {record.kind}")
        elif isinstance(record, Tombstone):
            seqs = tuple(seq for seq in record.deletes if seq in self.removed and self._is_written(seq))
            if self.HOLDS_REMOVALS and seqs:
                self._encode(replace(record, deletes=seqs, restores=()))
                self.removed.difference_update(seqs)
        elif isinstance(record, Rewind):
            if self.HOLDS_REMOVALS:
                self._encode(record)
        elif isinstance(record, Compaction):
            if self.HOLDS_REMOVALS or self.markers.is_standing(record):
                self._encode(record)
        elif isinstance(record, Message):
            self._encode(record)

    def _encode(self, record: AnyRecord) -> None:
        cwd = self.metadata.extra.get("cwd")
        is_first = isinstance(record, Message) and not self._messages and not record.cwd
        located = replace(record, cwd=cwd) if is_first and isinstance(cwd, str) else record
        edit = self.format.encode_record(self.state, self, located, self.losses)
        read = self.apply(edit)
        if isinstance(record, Message) and read:
            self._messages.pop()  # what precedes it was added for it
            self._file_ids[record.seq] = read[-1].id
        if edit.lines or edit.files:
            self.note(record)

    def apply(self, edit: FileEdit) -> list[Message]:
        """Apply an edit, and return the messages in its lines."""
        start = len(self.content)
        state = self.state if edit.lines else None
        for line in edit.lines:
            self.add_line(line)
        for data in edit.files.values():
            self.meta_bytes = data
        if state is None:
            return []
        new_lines = [Line(start + line.start, line.data) for line in split_lines(self.content[start:])]
        messages = self.follow(state, new_lines)
        self._messages += [None] * len(messages)
        return messages

    def closing_edit(self) -> FileEdit:
        """Return the edit that follows the last record."""
        return FileEdit()

    # --- reading back

    @property
    def state(self) -> TailState:
        """The reader's state after all lines."""
        if self._state is None:
            self._state = self.read_again()
        return self._state

    def read_again(self) -> TailState:
        """Read all lines, note the ids of the messages in them, and return the state after them."""
        read = self.format.read_all(self.lines(), self.transcript)
        self.note_ids([item for item in read.items if isinstance(item, Message)])
        return read.state

    def note_ids(self, messages: Sequence[Message]) -> None:
        """Note the ids that records have in the file, from all messages in it."""
        self._file_ids |= {record.seq: message.id for record, message in self._pair(messages)}

    def follow(self, state: TailState, lines: Sequence[Line]) -> list[Message]:
        """Read new lines and return the messages in them."""
        read = self.format.read_tail(state, lines, self.transcript)
        if read is not None:
            self._state = read.state
            return [item for item in read.items if isinstance(item, Message)]
        whole = self.format.read_all(self.lines(), self.transcript)
        self._state = whole.state
        return [item for item in whole.items if isinstance(item, Message)][len(self._messages) :]

    def _pair(self, messages: Sequence[Message]) -> Iterator[tuple[Message, Message]]:
        """Yield the records of messages with what was read of them."""
        if len(messages) == len(self._messages):
            yield from ((record, read) for record, read in zip(self._messages, messages, strict=True) if record)
            return
        by_id = {message.id: message for message in messages}  # the file repeats some
        for record in self._messages:
            if record is not None and (read := by_id.get(self.foreign_id(record))) is not None:
                yield record, read

    def _read_facts(self) -> ListingScan:
        return self.format.scan_listing(ListingScan(), self.lines(), self.transcript)

    def _compare_content(self) -> None:
        """Read all lines, and count what is missing in them."""
        items = self.format.read_all(self.lines(), self.transcript).items
        hidden = {hidden_id for item in items if isinstance(item, HiddenMessages) for hidden_id in item.ids}
        is_live = Markers.of(self.records).is_live
        for record, read in self._pair([item for item in items if isinstance(item, Message)]):
            if record.seq not in self.originals:
                compare_messages(record, read, self.metadata, self.losses)
            self.losses.add("live message that the file hides", read.id in hidden and is_live(record.seq))
        summaries = {item.text: item for item in items if isinstance(item, Summary)}
        for compaction in self._written:
            if isinstance(compaction, Compaction) and compaction.seq not in self.originals:
                read_summary = summaries.get(compaction.summary)
                if read_summary is not None:
                    compare_summaries(compaction, read_summary, self.losses)


def _seq_of(record: AnyRecord) -> int:
    return record.seq


def _move_summaries(records: Sequence[AnyRecord]) -> list[AnyRecord]:
    """Return the records with each compaction directly before the first message that it keeps."""

    def place(item: tuple[int, AnyRecord]) -> tuple[int, int]:
        index, record = item
        is_moved = isinstance(record, Compaction) and record.first_kept_seq < record.seq
        return (record.first_kept_seq, -1) if is_moved and isinstance(record, Compaction) else (record.seq, index)

    return [record for _, record in sorted(enumerate(records), key=place)]
