"""A session in a foreign file and in its mirror: an append goes to both.

To the file first, durably, in its own format; then to the mirror, which catches up from the file if
the append is interrupted in between. Everything here happens under the session's lock.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from everlog.errors import EverlogError, UnsupportedError
from everlog.interop.directory_walk import METADATA_ENDING
from everlog.interop.foreign.mirror_follower import MirrorFollower
from everlog.interop.foreign.origin_marks import has_same_content, id_in_file, merge_record, strip_mark
from everlog.interop.foreign.transcript_files import START_POSITION, AppendedLines
from everlog.interop.formats.format_types import Line
from everlog.interop.formats.live_format import FileEdit, TailState, TranscriptInfo
from everlog.model import MARKERS, TURN_END, AnyRecord, Event, Message, Meta, Metadata
from everlog.stores import rules
from everlog.stores.file.log_tail import Report
from everlog.stores.rules import RETRY_WINDOW, AppendCall

MAX_ATTEMPTS = 4  # to append after the lines of a program that is writing at the same time


class _Plan:
    """The changes that an append makes, in the files and in the mirror."""

    def __init__(self, records: Sequence[AnyRecord], state: TailState) -> None:
        self.records = records
        self.state = state  # the format's, after all lines
        self.lines: list[tuple[bytes, ...]] = []  # of each record
        self.files: dict[str, bytes] = {}
        self.head: bytes | None = None
        self.stem: str | None = None
        self.mirrored: list[AnyRecord] = []
        self.caller_indexes: list[int] = []  # of the caller's records in `mirrored`


class Mirror(MirrorFollower):
    """A foreign session that is followed and written to."""

    def append(self, call: AppendCall, report: Report) -> list[AnyRecord]:
        """Append records to the file, as far as its format can hold them, and to the mirror."""
        for attempts_left in range(MAX_ATTEMPTS, 0, -1):
            stored = self._find_retried(call)
            new_records = [item.record for item in rules.without_retried(call, stored)]
            if not new_records:
                break
            rules.check_conditions(self.name, call, self._last_seq, len(stored), self._newest_marker)
            plan = self._make_plan(new_records)
            if attempts_left == 1 or self.files.signature() == self._signature:
                break
            self.catch_up()  # its program has just written: our lines must follow those
        return rules.in_order(stored, self._write(plan, report) if new_records else [])

    def _find_retried(self, call: AppendCall) -> dict[int, AnyRecord]:
        def read(seq: int) -> AnyRecord:
            return strip_mark(self.record(seq))

        # The file may hold less of a record than the caller gave.
        return rules.find_retried(self.name, call, self._last_seq, self._ids.get, read, is_same=has_same_content)

    def _newest_marker(self, no_marker_after: int) -> int:
        if self._marker_seq or no_marker_after >= self._last_seq - RETRY_WINDOW:
            return self._marker_seq
        for entry in self._store.tail(self.session):
            if (entry.seq or 0) <= no_marker_after:
                break
            if isinstance(entry, MARKERS):
                return entry.seq
        return 0

    def _make_plan(self, records: Sequence[AnyRecord], lines: Sequence[tuple[bytes, ...]] = ()) -> _Plan:
        """Plan an append; `lines` are those of each record, if they are in the file already."""
        plan = _Plan(records, self._checkpoint.state)
        torn = b"" if lines else self.files.torn_line(self._checkpoint.position)

        def read_lines() -> Iterator[Line]:
            """Yield the lines of the file, and after them those of the plan."""
            yield from self.files.new_lines(START_POSITION)
            if torn:
                yield Line(0, torn)
            if not lines:
                yield from (Line(0, line) for record_lines in plan.lines for line in record_lines)

        transcript = self.files.info(self.name)._replace(read_lines=read_lines)
        if torn:
            # The append will end it, and then it counts as a line.
            after_torn = self.format.read_tail(plan.state, [Line(0, torn)], transcript)
            plan.state = plan.state if after_torn is None else after_torn.state
        for number, record in enumerate(records):
            read_records: Sequence[AnyRecord] = ()
            edit = FileEdit()
            if not isinstance(record, Event):
                if lines:
                    edit = FileEdit(lines=lines[number])
                else:
                    log = SessionLogView(self, transcript, plan.mirrored)
                    edit = self._edit_for(plan, log, record)
                meta_bytes = edit.files.get(METADATA_ENDING, transcript.meta_bytes)
                transcript = transcript._replace(meta_bytes=meta_bytes)
                new_lines = [Line(0, line) for line in edit.lines]
                followed = self.format.read_tail(plan.state, new_lines, transcript)
                if followed is None:
                    raise UnsupportedError(
                        f"{self.format.NAME} session {self.name} cannot be continued here",
                        hint="import the session (everlog sessions import) and continue it there",
                    )
                plan.state = followed.state
                read_records = list(self._records(followed.items, len(plan.mirrored)))
            mirrored, index = merge_record(record, read_records)
            plan.caller_indexes.append(len(plan.mirrored) + index)
            plan.mirrored += mirrored
            plan.lines.append(edit.lines)
            plan.files |= edit.files
        return plan

    def _edit_for(self, plan: _Plan, log: SessionLogView, record: AnyRecord) -> FileEdit:
        if isinstance(record, Meta):
            edit = self.format.encode_metadata(plan.state, log, record.set)
            plan.head, plan.stem = edit.head or plan.head, edit.stem or plan.stem
            return edit
        located = record if self._last_seq else _with_cwd(record)
        return self.format.encode_record(plan.state, log, located)

    def _write(self, plan: _Plan, report: Report) -> list[AnyRecord]:
        appended: AppendedLines | None = None
        lines = [line for record_lines in plan.lines for line in record_lines]
        if lines:
            appended = self.files.append(lines, plan.files, self._checkpoint.position)
        elif plan.files:
            self.files.rewrite(FileEdit(files=plan.files))
        if plan.head is not None or plan.stem is not None:
            self.files.rewrite(FileEdit(head=plan.head, stem=plan.stem))
        files = self.files
        self._signature = files.signature_after(appended) if appended else files.signature()
        self.unsaved_seconds += sum(map(_turn_seconds, plan.records))
        last_seq = self._last_seq
        try:
            if appended is not None and not appended.is_contiguous:
                return self._mirror_after_race(plan, appended)
            position = appended.end if appended is not None else self._checkpoint.position
            checkpoint = replace(self._checkpoint, position=position, state=plan.state)
            stored = self._append_to_mirror(plan.mirrored, checkpoint)
        except EverlogError as error:
            if all(isinstance(record, Event) for record in plan.records):
                raise
            # The records are durable in the file: an error would make the caller append them twice.
            report(f"the mirror of {self.name} is out of date: {error.message}")
            self._reset()
            numbered = enumerate(plan.mirrored, last_seq + 1)
            stored = [replace(record, seq=seq) for seq, record in numbered]
        return [strip_mark(stored[number]) for number in plan.caller_indexes]

    def _mirror_after_race(self, plan: _Plan, appended: AppendedLines) -> list[AnyRecord]:
        """Update the mirror if another program's lines precede ours in the file, in that order."""
        self._signature = ()
        self._follow(appended)
        try:
            new_plan = self._make_plan(plan.records, plan.lines)
        except UnsupportedError:  # one of the two is a branch now: only the whole file tells which
            native_records = {id_in_file(record) or record.id: record for record in plan.mirrored}
            self._follow(native_records=native_records)
            events = [record for record in plan.records if isinstance(record, Event)]
            self._append_to_mirror(events, self._checkpoint)
            seqs = (self._ids.get(plan.mirrored[n].id, self._last_seq) for n in plan.caller_indexes)
            return [strip_mark(self.record(seq)) for seq in seqs]
        checkpoint = replace(self._checkpoint, position=appended.end, state=new_plan.state)
        stored = self._append_to_mirror(new_plan.mirrored, checkpoint)
        return [strip_mark(stored[number]) for number in new_plan.caller_indexes]

    def change_metadata(self, changes: dict[str, Any]) -> None:
        """Change metadata in the files. UnsupportedError for what the format cannot hold."""
        log = SessionLogView(self, self.files.info(self.name))
        self.apply(self.format.encode_metadata(self._checkpoint.state, log, changes))

    def apply(self, edit: FileEdit) -> None:
        """Apply an edit to the files and catch up."""
        if edit.lines:
            self.files.append(edit.lines, {})
        self.files.rewrite(edit)
        self._signature = ()
        self.catch_up()

    def log(self) -> SessionLogView:
        """Return the session as a format sees it."""
        return SessionLogView(self, self.files.info(self.name))


class SessionLogView:
    """The log of a session, as a format sees it when it encodes a record."""

    def __init__(self, mirror: Mirror, transcript: TranscriptInfo, pending: Sequence[AnyRecord] = ()) -> None:
        """`pending` are records that will follow those in the mirror."""
        self._mirror = mirror
        self._transcript = transcript
        numbered = enumerate(pending, mirror.last_seq + 1)
        self._pending = [replace(record, seq=seq) for seq, record in numbered]

    @property
    def transcript(self) -> TranscriptInfo:
        """What the format needs besides the session's lines."""
        return self._transcript

    @property
    def metadata(self) -> Metadata:
        """Metadata of the mirror, with the session's own id."""
        return replace(self._mirror.metadata, id=self._mirror.name)

    def record(self, seq: int) -> AnyRecord:
        """Return one record by its seq."""
        if seq > self._mirror.last_seq:
            return self._pending[seq - self._mirror.last_seq - 1]
        return self._mirror.record(seq)

    def records_from(self, seq: int) -> Sequence[AnyRecord]:
        """Return the records from a seq on, in order."""
        return [*self._mirror.records_from(seq), *(record for record in self._pending if record.seq >= seq)]

    def foreign_id(self, record: AnyRecord) -> str:
        """Return the id that a record has in the file."""
        return id_in_file(record) or record.id


def working_directory() -> str:
    """Return the current directory, or `/` if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _with_cwd(record: AnyRecord) -> AnyRecord:
    """Add the working directory to the first record of a session."""
    if isinstance(record, Message) and not record.cwd:
        return replace(record, cwd=working_directory())
    return record


def _turn_seconds(record: AnyRecord) -> float:
    if not isinstance(record, Event) or record.kind != TURN_END:
        return 0.0
    duration = record.data.get("durationMs")
    return duration / 1000 if isinstance(duration, int | float) else 0.0
