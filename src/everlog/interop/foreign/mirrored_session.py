"""A session in a foreign file, its companion and its mirror: an append goes to all of them.

To the file, durably, in its own format, and to the companion what the file has no place for; then to
the mirror, which catches up from both if the append is interrupted. A crash may come

    after the note of a message that begins a turn      its line is missing: nothing happened
    after the line                                      the note tells which message the line is
    after the events in the companion                   the mirror takes them up

Everything here happens under the session's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec.structs import replace

from everlog.errors import EverlogError, UnsupportedError
from everlog.interop.directory_walk import METADATA_ENDING
from everlog.interop.foreign.abandoned_branch import rejoin_records
from everlog.interop.foreign.append_plan import AppendPlan
from everlog.interop.foreign.foreign_files import OldFiles
from everlog.interop.foreign.lost_lines import FileChangedError, LineContext
from everlog.interop.foreign.mirror_follower import MirrorFollower
from everlog.interop.foreign.origin_marks import has_same_content, id_in_file, merge_record, strip_mark
from everlog.interop.foreign.session_log_view import SessionLogView
from everlog.interop.foreign.transcript_files import START_POSITION, AppendedLines
from everlog.interop.foreign.turn_lines import LostRecord, TurnLines
from everlog.interop.formats.format_types import FileEdit, Line
from everlog.model import MARKERS, TURN_END, AnyRecord, Damaged, Event, Message, Meta
from everlog.stores import rules
from everlog.stores.file.log_tail import Report
from everlog.stores.rules import RETRY_WINDOW, AppendCall

MAX_ATTEMPTS = 4  # to append after the lines of a program that is writing at the same time


class Mirror(MirrorFollower):
    """A foreign session that is followed and written to."""

    def catch_up(self) -> None:
        """Bring the mirror up to date; write again what a rewrite took from the running turn."""
        super().catch_up()
        for turn in self.turns:
            if turn and turn.rewrites != self.rewrites:
                restore_lines(self, turn)
        if (hidden := self.take_hidden()) and self.format.HAS_BRANCHES:
            rejoin_records(self, hidden)

    def append(self, call: AppendCall, report: Report) -> list[AnyRecord]:
        """Append records to the file, as far as its format can hold them, and to the mirror."""
        plans_left = writes_left = MAX_ATTEMPTS
        survivors: dict[int, AnyRecord] = {}  # of a write that was partly lost, by index
        while True:
            stored = self._find_retried(call) | survivors
            indexes = [index for index in range(len(call.prepared)) if index not in stored]
            if not indexes:
                break
            if not survivors:
                rules.check_conditions(self.name, call, self._last_seq, len(stored), self._newest_marker)
            plan = self._make_plan([call.prepared[index].record for index in indexes])
            plans_left -= 1
            if plans_left > 0 and self.files.signature() != self._signature:
                self.catch_up()  # its program has just written: our lines must follow those
                continue
            try:
                stored |= dict(zip(indexes, self._write(plan, report), strict=True))
                break
            except FileChangedError as error:
                self._signature = ()
                writes_left -= 1
                found = self._mirror_survivors(plan, error)
                survivors |= {indexes[number]: record for number, record in found.items()}
                if not writes_left and len(stored.keys() | survivors.keys()) < len(call.prepared):
                    raise
        return [stored[index] for index in range(len(call.prepared))]

    def _mirror_survivors(self, plan: AppendPlan, error: FileChangedError) -> dict[int, AnyRecord]:
        """Update the mirror after a rewrite; return what of a plan is in the file, by index."""
        lines = [(number, line) for number, record_lines in enumerate(plan.lines) for line in record_lines]
        lost = {number for index, (number, _) in enumerate(lines) if index in error.lost}
        kept = {number for index, (number, _) in enumerate(lines) if index not in error.lost}
        records = {number: plan.mirrored[plan.caller_indexes[number]] for number in kept | lost}
        if lost and (kept & lost or self.is_referred_to([records[number] for number in lost])):
            # Planned anew, these would be children of their own children.
            self.append_verbatim([lines[index][1] for index in sorted(error.lost)])
            kept |= lost
        file_ids = {number: id_in_file(records[number]) or records[number].id for number in kept}
        # A line without an id of its own is known by its number, which may be another line's now.
        self._follow(
            native_records={
                file_id: records[number]
                for number, file_id in file_ids.items()
                if any(file_id.encode() in line for line in plan.lines[number])
            }
        )
        found = {number: self.find_stored(records[number]) for number in sorted(kept)}
        self._note_turn([(found[number].seq, plan.lines[number]) for number in found], error.context)
        return found

    def find_stored(self, record: AnyRecord) -> AnyRecord:
        """Return a record of ours as it was read from the file."""
        seq = self._ids.get(record.id)
        if seq is not None:
            return strip_mark(self.record(seq))
        newest = islice(self._store.tail(self.session), RETRY_WINDOW)
        entries = (entry for entry in newest if not isinstance(entry, Damaged) and has_same_content(record, entry))
        return strip_mark(next(entries, None) or replace(record, seq=self._last_seq))

    def is_referred_to(self, records: Sequence[AnyRecord]) -> bool:
        """Return whether lines in the file name one of these records."""
        content = self.files.content()
        return any((id_in_file(record) or record.id).encode() in content for record in records)

    def append_verbatim(self, lines: Sequence[bytes]) -> None:
        """Append lines to the file as they are."""
        for _ in range(MAX_ATTEMPTS):
            try:
                self.files.append(lines, {})
                return
            except FileChangedError as error:
                lines, last_error = [lines[index] for index in sorted(error.lost)], error
                if not lines:
                    return
        raise last_error

    def append_again(self, records: Sequence[AnyRecord]) -> list[tuple[bytes, ...]]:
        """Append records of the mirror to the file, at its end as it is now; return their lines."""
        plan = self._make_plan(records)
        lines = [line for record_lines in plan.lines for line in record_lines]
        self.files.append(lines, plan.files, self._checkpoint.position, plan.old_files)
        return plan.lines

    def follow_again(self) -> None:
        """Bring the mirror up to date with what was just written."""
        self._signature = ()
        super().catch_up()

    def _note_turn(self, records: Sequence[tuple[int, tuple[bytes, ...]]], context: LineContext) -> None:
        if self.turns and self.turns[-1].is_open:
            for seq, lines in records:
                if lines:
                    self.turns[-1].add(seq, lines, context, self.rewrites)

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

    def _make_plan(self, records: Sequence[AnyRecord], lines: Sequence[tuple[bytes, ...]] = ()) -> AppendPlan:
        """Plan an append; `lines` are those of each record, if they are in the file already."""
        plan = AppendPlan(records, self._checkpoint.state)
        torn = b"" if lines or self._is_at_end() else self.files.torn_line(self._checkpoint.position)

        def read_lines() -> Iterator[Line]:
            """Yield the lines of the file, and after them those of the plan."""
            yield from self.files.new_lines(START_POSITION)
            if torn:
                yield Line(0, torn)
            if not lines:
                yield from (Line(0, line) for record_lines in plan.lines for line in record_lines)

        transcript = self.files.info(self.name)._replace(read_lines=read_lines)
        plan.old_files = {METADATA_ENDING: transcript.meta_bytes}
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
                        hint="import the session (everlog import) and continue it there",
                    )
                plan.state = followed.state
                read_records = list(self._records(followed.items, len(plan.mirrored)))
            merged = merge_record(record, read_records)
            plan.caller_indexes.append(len(plan.mirrored) + merged.position)
            plan.mirrored += merged.records
            plan.read.append(merged.read)
            plan.lines.append(edit.lines)
            plan.files |= edit.files
        return plan

    def _is_at_end(self) -> bool:
        """Return whether the mirror has all bytes of the file, without looking at the file again."""
        position = self._checkpoint.position
        if self.format.METADATA_LOCATION == "head" or len(self._signature) < position.part:
            return False  # the offset of the lines is not known here
        return self._signature[position.part - 1][1] == position.end

    def _edit_for(self, plan: AppendPlan, log: SessionLogView, record: AnyRecord) -> FileEdit:
        if isinstance(record, Meta):
            edit = self.format.encode_metadata(plan.state, log, record.set)
            plan.head, plan.stem = edit.head or plan.head, edit.stem or plan.stem
            return edit
        located = record if self._last_seq else _with_cwd(record)
        return self.format.encode_record(plan.state, log, located)

    def _write(self, plan: AppendPlan, report: Report) -> list[AnyRecord]:
        last_message, notes = self.last_message(), plan.notes()
        if beginning := [(message, note) for message, note in notes if message.run_id]:
            self.companion.announce(beginning, last_message)
        appended: AppendedLines | None = None
        lines = [line for record_lines in plan.lines for line in record_lines]
        if lines:
            appended = self.files.append(lines, plan.files, self._checkpoint.position, plan.old_files)
            if not appended.has_files and any(map(_is_outside_lines, plan.records, plan.lines)):
                raise FileChangedError(self.files.path, (), appended.context)
        elif plan.files:
            self.files.rewrite(FileEdit(files=plan.files), plan.old_files)
        if plan.head is not None or plan.stem is not None:
            self.files.rewrite(FileEdit(head=plan.head, stem=plan.stem))
        is_last_edit = appended is not None and plan.head is None and plan.stem is None
        self._signature = appended.signature if appended is not None and is_last_edit else self.files.signature()
        self.companion.note([(message, note) for message, note in notes if not message.run_id], last_message)
        try:
            if events := plan.events(last_message):
                plan.set_events(self.companion.append(events))
            self._checkpoint = replace(self._checkpoint, companion=self.companion.last_seq())
            self.unsaved_seconds += sum(map(_turn_seconds, plan.records))
            stored = self._mirror_plan(plan, appended, report)
        except BaseException:
            self._reset()  # what is in the file and not in the mirror is read from there
            raise
        if appended is not None:
            seqs = [record.seq for record in stored]
            self._note_turn(list(zip(seqs, plan.lines, strict=True)), appended.context)
        return stored

    def _mirror_plan(self, plan: AppendPlan, appended: AppendedLines | None, report: Report) -> list[AnyRecord]:
        """Append to the mirror what was written to the file."""
        last_seq = self._last_seq
        try:
            if appended is not None and not appended.is_contiguous:
                return self._mirror_after_race(plan, appended)
            position = appended.end if appended is not None else self._checkpoint.position
            checkpoint = replace(self._checkpoint, position=position, state=plan.state, stamps=self._signature)
            stored = self._append_to_mirror(plan.mirrored, checkpoint)
        except EverlogError as error:
            # The records are durable in the file and the companion: an error would make the caller
            # append them twice.
            report(f"the mirror of {self.name} is out of date: {error.message}")
            self._reset()
            numbered = enumerate(plan.mirrored, last_seq + 1)
            stored = [replace(record, seq=seq) for seq, record in numbered]
        return [strip_mark(stored[number]) for number in plan.caller_indexes]

    def _mirror_after_race(self, plan: AppendPlan, appended: AppendedLines) -> list[AnyRecord]:
        """Update the mirror if another program's lines precede ours in the file, in that order."""
        self._signature = ()
        self._follow(until=appended)
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
        self.edit(lambda: self.format.encode_metadata(self._checkpoint.state, self.log(), changes))

    def edit(self, make_edit: Callable[[], FileEdit]) -> None:
        """Make an edit and apply it; make it anew if its program has changed the files meanwhile."""
        for attempts_left in range(MAX_ATTEMPTS, 0, -1):
            meta_bytes = self.files.info(self.name).meta_bytes
            try:
                self.apply(make_edit(), {METADATA_ENDING: meta_bytes})
                return
            except FileChangedError:
                self.follow_again()
                if attempts_left == 1:
                    raise

    def apply(self, edit: FileEdit, old_files: OldFiles | None = None) -> None:
        """Apply an edit to the files and catch up; `old_files` are what it was made from."""
        if edit.lines:
            try:
                self.files.append(edit.lines, {})
            except FileChangedError as error:
                if len(error.lost) == len(edit.lines):
                    raise
                if error.lost:
                    self.append_verbatim([edit.lines[index] for index in sorted(error.lost)])
        self.files.rewrite(edit, old_files)
        self._signature = ()
        self.catch_up()

    def log(self) -> SessionLogView:
        """Return the session as a format sees it."""
        return SessionLogView(self, self.files.info(self.name))


def restore_lines(mirror: Mirror, turn: TurnLines) -> None:
    """Write again what a rewrite took from a running turn, and report what it took from another."""
    for _ in range(MAX_ATTEMPTS):
        lost = turn.find_lost(mirror.files.content(), drops_oldest=mirror.format.IS_REWRITTEN)
        if lost and not turn.is_open:
            mirror.files.report(f"its program removed {len(lost)} records of ours; the mirror keeps them")
            for item in lost:
                turn.replace(item.seq, ())
        elif lost:
            try:
                _write_again(mirror, turn, lost)
                continue
            except FileChangedError:
                mirror.follow_again()
                continue
            except EverlogError as error:
                mirror.files.report(f"{len(lost)} records of ours could not be written again: {error.message}")
        turn.rewrites = mirror.rewrites
        return


def _write_again(mirror: Mirror, turn: TurnLines, lost: Sequence[LostRecord]) -> None:
    records = [strip_mark(mirror.record(item.seq)) for item in lost]
    is_whole = all(isinstance(record, Message) for record in records) and not any(item.is_partial for item in lost)
    if is_whole and not mirror.is_referred_to(records):
        for item, lines in zip(lost, mirror.append_again(records), strict=True):
            turn.replace(item.seq, lines)
    else:
        mirror.append_verbatim([line for item in lost for line in item.lines])
    mirror.follow_again()


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


def _is_outside_lines(record: AnyRecord, lines: Sequence[bytes]) -> bool:
    """Return whether a record of a plan is only in the files beside the transcript."""
    return not lines and not isinstance(record, Event)


def _turn_seconds(record: AnyRecord) -> float:
    if not isinstance(record, Event) or record.kind != TURN_END:
        return 0.0
    duration = record.data.get("durationMs")
    return duration / 1000 if isinstance(duration, int | float) else 0.0
