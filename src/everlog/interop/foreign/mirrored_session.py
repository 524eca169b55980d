"""A session in the file of another program and in a store of ours: what we append goes to both.

Into the file first, durably, in its own format; then into the mirror, which is read from the file
again if that was cut short. Everything here happens under the session's lock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from everlog.errors import EverlogError, UnsupportedError
from everlog.interop.foreign.mirror_follower import Following
from everlog.interop.foreign.origin_marks import id_in_file, is_alike, merged, without_place
from everlog.interop.foreign.transcript_files import Landed
from everlog.interop.formats.format_types import Line
from everlog.interop.formats.live_format import Added, Notes, Where
from everlog.log import append_rules
from everlog.log.append_rules import REMEMBERED, Prepared
from everlog.model import MARKERS, TURN_END, AnyRecord, Event, Message, Meta, Metadata
from everlog.stores.file.log_tail import Report

TRIES = 4  # to write behind a program that is writing too


class _Plan:
    """What is to be done for some records, in the file and in the mirror."""

    def __init__(self, records: Sequence[AnyRecord], notes: Notes) -> None:
        self.records = records
        self.notes = notes  # when all lines are there
        self.lines: list[tuple[bytes, ...]] = []  # of each record
        self.files: dict[str, bytes] = {}
        self.head: bytes | None = None
        self.stem: str | None = None
        self.mirrored: list[AnyRecord] = []
        self.given: list[int] = []  # where those of the caller are among them


class Mirror(Following):
    """A session that is followed and written to."""

    def append(
        self,
        prepared: Sequence[Prepared],
        expected_seq: int | None,
        no_marker_after: int | None,
        report: Report,
    ) -> list[AnyRecord]:
        """Add records of ours: to the file where they have a place in it, and to the mirror."""
        for left in range(TRIES, 0, -1):
            there = self._retried(prepared)
            new = [one.record for number, one in enumerate(prepared) if number not in there]
            if not new:
                break
            if expected_seq is not None:
                append_rules.check_expected_seq(self.name, self._head, expected_seq, len(there))
            if no_marker_after is not None:
                append_rules.check_no_marker_after(
                    self.name, self._newest_marker(no_marker_after), no_marker_after
                )
            plan = self._planned(new)
            if left == 1 or self.files.signature() == self._signature:
                break
            self.level()  # its program wrote just now: ours is to come behind that
        fresh = self._write(plan, report) if new else []
        return [there[n] if n in there else fresh.pop(0) for n in range(len(prepared))]

    def _retried(self, prepared: Sequence[Prepared]) -> dict[int, AnyRecord]:
        there: dict[int, AnyRecord] = {}
        for number, one in enumerate(prepared):
            seq = self._ids.get(one.record.id) if one.retriable else None
            if seq is not None and seq > self._head - REMEMBERED:
                stored = without_place(self.record(seq))
                if not is_alike(one.record, stored):  # read from the file, it may have less
                    stored = append_rules.checked_retry(self.name, one.record, stored, seq)
                there[number] = stored
        return there

    def _newest_marker(self, no_marker_after: int) -> int:
        if self._marker or no_marker_after >= self._head - REMEMBERED:
            return self._marker
        for entry in self._port.tail(self.session):
            if (entry.seq or 0) <= no_marker_after:
                break
            if isinstance(entry, MARKERS):
                return entry.seq
        return 0

    def _planned(
        self, records: Sequence[AnyRecord], lines: Sequence[tuple[bytes, ...]] = ()
    ) -> _Plan:
        """What is to be done for some records; `lines`: of each, if they are in the file by now."""
        plan = _Plan(records, self._place.notes)
        where = self.files.where(self.name)
        if not lines and (torn := self.files.torn(self._place.trail)):
            # It will be ended, and counts as a line.
            counted = self.dialect.follow(plan.notes, [Line(0, torn)], where)
            plan.notes = plan.notes if counted is None else counted.notes
        for number, record in enumerate(records):
            made: Sequence[AnyRecord] = ()
            added = Added()
            if not isinstance(record, Event):
                if lines:
                    added = Added(lines=lines[number])
                else:
                    added = self._added(plan, LiveLog(self, where, plan.mirrored), record)
                where = where._replace(beside=added.files.get(".meta.json", where.beside))
                rows = [Line(0, line) for line in added.lines]
                followed = self.dialect.follow(plan.notes, rows, where)
                if followed is None:
                    raise UnsupportedError(
                        f"{self.dialect.NAME} session {self.name} cannot be continued here",
                        hint="import it (everlog sessions import) and go on in a store of ours",
                    )
                plan.notes = followed.notes
                made = list(self._records(followed.items, len(plan.mirrored)))
            ours, place = merged(record, made)
            plan.given.append(len(plan.mirrored) + place)
            plan.mirrored += ours
            plan.lines.append(added.lines)
            plan.files |= added.files
        return plan

    def _added(self, plan: _Plan, log: LiveLog, record: AnyRecord) -> Added:
        if isinstance(record, Meta):
            added = self.dialect.change(plan.notes, log, record.set)
            plan.head, plan.stem = added.head or plan.head, added.stem or plan.stem
            return added
        own = record if self._head else _at_home(record)
        return self.dialect.extend(plan.notes, log, own)

    def _write(self, plan: _Plan, report: Report) -> list[AnyRecord]:
        landed: Landed | None = None
        lines = [line for own in plan.lines for line in own]
        if lines:
            landed = self.files.append(lines, plan.files, self._place.trail)
        elif plan.files:
            self.files.replace(Added(files=plan.files))
        if plan.head is not None or plan.stem is not None:
            self.files.replace(Added(head=plan.head, stem=plan.stem))
        self._signature = self.files.signature() if landed is None else self.files.ended(landed)
        self.seconds += sum(map(_seconds, plan.records))
        head = self._head
        try:
            if landed is not None and not landed.alone:
                return self._keep_late(plan, landed)
            trail = landed.trail if landed is not None else self._place.trail
            stored = self._add(plan.mirrored, replace(self._place, trail=trail, notes=plan.notes))
        except EverlogError as error:
            if all(isinstance(one, Event) for one in plan.records):
                raise
            # It is in the file, durably: to say anything else would make it be said twice.
            report(f"the mirror of {self.name} is behind: {error.message}")
            self._forget()
            stored = [replace(one, seq=head + n) for n, one in enumerate(plan.mirrored, 1)]
        return [without_place(stored[number]) for number in plan.given]

    def _keep_late(self, plan: _Plan, landed: Landed) -> list[AnyRecord]:
        """The same where other lines came in between: what they say comes first here too."""
        self._signature = ()
        self._follow(landed)
        try:
            again = self._planned(plan.records, plan.lines)
        except UnsupportedError:  # one of both is a branch now; which one, the whole file tells
            ours = {id_in_file(one) or one.id: one for one in plan.mirrored}
            self._follow(ours=ours)
            self._add([one for one in plan.records if isinstance(one, Event)], self._place)
            seqs = (self._ids.get(plan.mirrored[n].id, self._head) for n in plan.given)
            return [without_place(self.record(seq)) for seq in seqs]
        place = replace(self._place, trail=landed.trail, notes=again.notes)
        stored = self._add(again.mirrored, place)
        return [without_place(stored[number]) for number in again.given]

    def change(self, changes: dict[str, Any]) -> None:
        """Change metadata where the file keeps it."""
        log = LiveLog(self, self.files.where(self.name))
        self.put(self.dialect.change(self._place.notes, log, changes))

    def put(self, added: Added) -> None:
        """Do in the files what a dialect asks for."""
        if added.lines:
            self.files.append(added.lines, {})
        self.files.replace(added)
        self._signature = ()
        self.level()

    def log(self) -> LiveLog:
        """The session for those who add to it."""
        return LiveLog(self, self.files.where(self.name))


class LiveLog:
    """A session as a dialect sees it that adds to it."""

    def __init__(self, mirror: Mirror, where: Where, coming: Sequence[AnyRecord] = ()) -> None:
        """`coming`: records that will stand behind those that are there."""
        self._mirror = mirror
        self._where = where
        numbered = enumerate(coming, mirror.head + 1)
        self._coming = [replace(one, seq=seq) for seq, one in numbered]

    @property
    def where(self) -> Where:
        """The surroundings of its lines."""
        return self._where

    @property
    def metadata(self) -> Metadata:
        """What is known of it."""
        return replace(self._mirror.metadata, id=self._mirror.name)

    def record(self, seq: int) -> AnyRecord:
        """One record by its number."""
        if seq > self._mirror.head:
            return self._coming[seq - self._mirror.head - 1]
        return self._mirror.record(seq)

    def since(self, seq: int) -> Sequence[AnyRecord]:
        """The records from a number on, in order."""
        return [*self._mirror.since(seq), *(one for one in self._coming if one.seq >= seq)]

    def theirs(self, record: AnyRecord) -> str:
        """The id of a record in the file."""
        return id_in_file(record) or record.id


def working_directory() -> str:
    """Where we are; the root if that was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _at_home(record: AnyRecord) -> AnyRecord:
    """A first record, which says where a session is at home."""
    if isinstance(record, Message) and not record.cwd:
        return replace(record, cwd=working_directory())
    return record


def _seconds(record: AnyRecord) -> float:
    if not isinstance(record, Event) or record.kind != TURN_END:
        return 0.0
    duration = record.data.get("durationMs")
    return duration / 1000 if isinstance(duration, int | float) else 0.0
