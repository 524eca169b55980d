"""One foreign session and the session of ours that mirrors it.

    level     follow the file from where it was followed to; what it says goes into the mirror
    append    the same in the other direction: into the file, durably, then into the mirror

Everything here happens under the session's lock. Where the mirror is up to date to is written with
its last record, under `live`: the trail in the file, the dialect's notes, and how often the file
was found rewritten. What was made of a line under another id than ours says which, as `as`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from holdfast.dialects.following import Added, LiveDialect, Notes, Said, Where
from holdfast.dialects.form import Hidden, Line, Summary, kept, made_id
from holdfast.dialects.jsonl import keeping
from holdfast.errors import HoldfastError, LogDamaged, NotFound, StoreFull, Unsupported
from holdfast.importing import BATCH, Stored, in_time
from holdfast.live.files import START, Files, Landed, Signature, Trail
from holdfast.log import admit
from holdfast.log.admit import REMEMBERED, Prepared
from holdfast.log.lines import extended, from_object, to_object
from holdfast.model import (
    MARKERS,
    QUEUED,
    TURN_END,
    AnyRecord,
    Compaction,
    Damaged,
    Entry,
    Event,
    Message,
    Meta,
    Metadata,
    Rewind,
    Tombstone,
)
from holdfast.ports import Store
from holdfast.stores.tail import Report

LIVE = "live"
LINES = 400  # that are followed at once: memory does not grow with a file
TRIES = 4  # to write behind a program that is writing too
_MARK = b'"live":{'


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a mirror is up to date to."""

    trail: Trail = Trail()
    notes: Notes = {}
    generation: int = 0  # how often the file was found rewritten


class _DiskFull(Exception):
    def __init__(self, full: StoreFull) -> None:
        self.full = full


class _Unlimited:
    """A store of ours without limits: full is its disk, and nothing may stand for a record then."""

    def __init__(self, port: Store) -> None:
        self.read = port.read
        self._append = port.append

    def append(self, session: str, records: Sequence[AnyRecord], **named: Any) -> list[AnyRecord]:
        try:
            return self._append(session, records, **named)
        except StoreFull as error:
            raise _DiskFull(error) from error


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


class Mirror:
    """A session in its file and in a store of ours."""

    def __init__(
        self, name: str, files: Files, dialect: LiveDialect, port: Store, session: str
    ) -> None:
        self.name = name  # its id in its dialect
        self.files = files
        self.dialect = dialect
        self.session = session  # its id in the store of ours
        self._port = port
        self._place = Place()
        self._signature: Signature = ()
        self._head = 0
        self._marker = 0
        self._summary = ""  # the newest, as the file names it
        self._ids: dict[str, int] = {}  # of the newest records: ours, and those in the file
        self._loaded = False
        self._harmed = False  # damage was seen in the mirror
        self.seconds = 0.0  # of turns that the file was not told of

    # --- following

    def level(self) -> None:
        """Bring the mirror up to date with the file. LogDamaged if another one is needed."""
        self._look()
        if self._harmed:
            raise LogDamaged(f"the mirror of {self.name} is damaged", session=self.name)
        signature = self.files.signature()
        if signature != self._signature:
            self._follow()
            self._signature = signature

    def _follow(
        self, until: Landed | None = None, ours: Mapping[str, AnyRecord] | None = None
    ) -> None:
        """Take over what the file says behind the mirror's place, all or up to lines of ours.

        `ours` are records by their ids in the file: they are not read from there.
        """
        where = self.files.where(self.name)
        if not self.files.holds(self._place.trail):
            self._begin_again()
        grown = self.files.grown(self._place.trail, until)
        ours = ours or self._waiting()
        lines = iter(grown)
        # What stands beside a transcript speaks of all of it; without that, a few lines at a time.
        few = None if self.dialect.BESIDE == "file" else LINES
        while True:
            place, taken = self._place, list(islice(lines, few))
            followed = self.dialect.follow(place.notes, taken, where)
            if followed is None or any(map(self._withdraws, followed.items)):
                grown = self.files.grown(START, until)
                followed = self.dialect.whole(grown, where)
                new = replace(place, trail=grown.trail, notes=followed.notes)
                self._merge(followed.items, new, ours)
                return
            new = replace(place, trail=grown.trail, notes=followed.notes)
            if place.trail != START and len(followed.items) <= BATCH:
                self._add(list(self._records(followed.items, ours=ours)), new)
            else:  # some of a whole file may be there: its first reading may have been cut short
                self._merge(followed.items, new, ours)
            if few is None or len(taken) < few:
                return

    def _waiting(self) -> dict[str, AnyRecord]:
        """Messages that wait for their turn: one in the file was begun with by a process that died
        before it could say so here."""
        waiting = set(self._port.metadata(self.session).waiting)
        found: dict[str, AnyRecord] = {}
        for entry in self._port.tail(self.session) if waiting else ():
            name = entry.data.get("id") if isinstance(entry, Event) else None
            if isinstance(entry, Event) and entry.kind == QUEUED and name in waiting:
                waiting.remove(name)
                with suppress(KeyError, TypeError, HoldfastError):
                    found[name] = from_object(entry.data["message"])
            if not waiting:
                break
        return found

    def _withdraws(self, item: Said) -> bool:
        """Whether an item says what is hidden as a whole, or takes the summary back."""
        return isinstance(item, Hidden) and (not item.extra or self._summary in item.ids)

    def _look(self) -> None:
        """See what others have added to the mirror, or taken from it."""
        if self._loaded:
            new = self._port.read(self.session, after=max(self._head - 1, 0))
            if self._head and getattr(next(new, None), "seq", None) != self._head:
                self._forget()
            else:
                for entry in new:
                    self._note(entry)
        if not self._loaded:
            self._load()

    def _load(self) -> None:
        newest = list(islice(self._port.tail(self.session), REMEMBERED))
        found: Iterator[Entry] = iter(newest)
        if len(newest) == REMEMBERED and not any(map(_place, newest)):
            older = self._port.tail(self.session)
            found = iter([*newest, *islice((one for one in older if _place(one)), 1)])
        for entry in reversed(list(found)):
            self._note(entry)
        self._loaded = True

    def _note(self, entry: Entry) -> None:
        self._head = max(self._head, entry.seq or 0)
        if isinstance(entry, Damaged):
            self._harmed = True
            return
        for name in (entry.id, _as(entry)):
            if name:
                self._ids[name] = entry.seq
        if len(self._ids) > 4 * REMEMBERED:
            low = self._head - REMEMBERED
            self._ids = {name: seq for name, seq in self._ids.items() if seq > low}
        if isinstance(entry, MARKERS):
            self._marker = entry.seq
        if isinstance(entry, Compaction):
            self._summary = _as(entry) or entry.id
        self._place = _place(entry) or self._place

    def _begin_again(self) -> None:
        """The file is another one: what it said before leaves the view."""
        again = Place(generation=self._place.generation + 1)
        self._summary = ""
        if self._head:
            self._add([Rewind(to_seq=0)], again)
        self._place = again

    def _merge(self, items: Sequence[Said], place: Place, ours: Mapping[str, AnyRecord]) -> None:
        """Store what is not there yet, of a whole session."""
        if self._summary and self._summary not in {item.id for item in items}:
            self._begin_again()  # no record of ours takes a summary back
            place = replace(place, generation=self._place.generation)
        stored = Stored(cast("Store", _Unlimited(self._port)), self.session, _as)
        try:
            for item in in_time(self.name, [self._own(one, place.generation) for one in items]):
                own = ours.get(_as(item) or item.id) if isinstance(item, Message) else None
                stored.add(own if isinstance(own, Message) else item)
            stored.flush({LIVE: msgspec.to_builtins(place)})
        except _DiskFull as error:
            raise error.full from error
        self._place = place
        self._loaded = False
        self._look()

    def _own(self, item: Said, generation: int) -> Said:
        """An item of a file that was rewritten has another id than before."""
        if not generation:
            return item

        def named(one: str) -> str:
            return made_id(one, generation)

        if isinstance(item, Hidden):
            return replace(item, id=named(item.id), ids=tuple(map(named, item.ids)))
        if isinstance(item, Message):
            return keeping(replace(item, id=named(item.id)), LIVE, {"as": item.id})
        first = None if item.first_kept is None else named(item.first_kept)
        extra = {**item.extra, LIVE: {"as": item.id}}
        return replace(item, id=named(item.id), first_kept=first, extra=extra)

    def _records(
        self, items: Iterable[Said], ahead: int = 0, ours: Mapping[str, AnyRecord] | None = None
    ) -> Iterator[AnyRecord]:
        """The records of items; `ahead`: of others that go into the mirror before them."""
        made: dict[str, int] = {}
        head = self._head + ahead
        for item in items:
            own = self._own(item, self._place.generation)
            if isinstance(own, Summary):
                first = [own.first_kept] if own.first_kept is not None else []
                record = _compaction(own, [*self._seqs(first, made).values(), head + 2][0])
                yield extended(record, {LIVE: own.extra[LIVE]}) if LIVE in own.extra else record
            elif isinstance(own, Hidden):
                seqs = tuple(sorted(self._seqs(own.ids, made).values()))
                if not seqs:
                    continue
                yield Tombstone(id=own.id, deletes=seqs, timestamp=own.timestamp)
            elif own.id in made or own.id in self._ids:
                continue  # said twice under one id: the first counts
            else:
                yield (ours or {}).get(item.id, own)
            head += 1
            made[own.id] = head

    def _seqs(self, names: Sequence[str], made: Mapping[str, int]) -> dict[str, int]:
        """The records behind ids; some may have none.

        Ids are given in the order of the file, so none is older than the first one.
        """
        found = {one: seq for one in names if (seq := made.get(one, self._ids.get(one)))}
        wanted = set(names) - found.keys()
        if not wanted or names[0] in found:
            return found
        for entry in self._port.tail(self.session):
            if not isinstance(entry, Damaged):
                own = {entry.id, _as(entry)} & wanted
                found |= dict.fromkeys(own, entry.seq)
                wanted -= own
                if not wanted or names[0] in own:
                    break
        return found

    def _add(self, records: Sequence[AnyRecord], place: Place) -> list[AnyRecord]:
        """Put records into the mirror, the last one with where it is up to date to now."""
        stored: list[AnyRecord] = []
        if records:
            *before, last = records
            sealed = extended(last, {LIVE: msgspec.to_builtins(place) | _kept(last)})
            stored = self._port.append(self.session, [*before, sealed], expect=self._head)
        for record in stored:
            self._note(record)
        self._place = place
        return stored

    # --- appending

    def append(
        self,
        prepared: Sequence[Prepared],
        expect: int | None,
        guard: int | None,
        report: Report,
    ) -> list[AnyRecord]:
        """Add records of ours: to the file where they have a place in it, and to the mirror."""
        for left in range(TRIES, 0, -1):
            there = self._retried(prepared)
            new = [one.record for number, one in enumerate(prepared) if number not in there]
            if not new:
                break
            if expect is not None:
                admit.check_expect(self.name, self._head, expect, len(there))
            if guard is not None:
                admit.check_guard(self.name, self._newest_marker(guard), guard)
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
                if not _is_alike(one.record, stored):  # read from the file, it may have less
                    stored = admit.checked_retry(self.name, one.record, stored, seq)
                there[number] = stored
        return there

    def _newest_marker(self, guard: int) -> int:
        if self._marker or guard >= self._head - REMEMBERED:
            return self._marker
        for entry in self._port.tail(self.session):
            if (entry.seq or 0) <= guard:
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
                    raise Unsupported(
                        f"{self.dialect.NAME} session {self.name} cannot be continued here",
                        hint="import it (holdfast sessions import) and go on in a store of ours",
                    )
                plan.notes = followed.notes
                made = list(self._records(followed.items, len(plan.mirrored)))
            ours, place = _merged(record, made)
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
        except HoldfastError as error:
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
        except Unsupported:  # one of both is a branch now; which one, the whole file tells
            ours = {_as(one) or one.id: one for one in plan.mirrored}
            self._follow(ours=ours)
            self._add([one for one in plan.records if isinstance(one, Event)], self._place)
            seqs = (self._ids.get(plan.mirrored[n].id, self._head) for n in plan.given)
            return [without_place(self.record(seq)) for seq in seqs]
        place = replace(self._place, trail=landed.trail, notes=again.notes)
        stored = self._add(again.mirrored, place)
        return [without_place(stored[number]) for number in again.given]

    def _forget(self) -> None:
        """Look at the mirror and the file anew the next time."""
        self._loaded, self._signature, self._place = False, (), Place()
        self._head, self._marker, self._ids = 0, 0, {}

    # --- what else is asked

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

    def plain(self, entry: Entry) -> Entry:
        """An entry of the mirror as its writer gave it."""
        if isinstance(entry, Damaged):
            self._harmed = True
            return entry
        return without_place(entry)

    @property
    def notes(self) -> Notes:
        """What the dialect noted of the lines so far."""
        return self._place.notes

    def log(self) -> LiveLog:
        """The session for those who add to it."""
        return LiveLog(self, self.files.where(self.name))

    @property
    def head(self) -> int:
        """The last seq of the mirror."""
        return self._head

    def record(self, seq: int) -> AnyRecord:
        """One record of the mirror."""
        for entry in self._port.read(self.session, after=seq - 1, limit=1):
            if entry.seq == seq and not isinstance(entry, Damaged):
                return entry
        raise NotFound(f"session {self.name} has no readable record {seq}", seq=seq)

    def since(self, seq: int) -> list[AnyRecord]:
        """The records of the mirror from a number on."""
        entries = self._port.read(self.session, after=seq - 1)
        return [entry for entry in entries if not isinstance(entry, Damaged)]

    @property
    def metadata(self) -> Metadata:
        """That of the mirror."""
        return self._port.metadata(self.session)


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
        return _as(record) or record.id


def working_directory() -> str:
    """Where we are; the root if that was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def without_place(record: AnyRecord) -> AnyRecord:
    """A record of a mirror as its writer gave it."""
    if _MARK not in record.line:
        return record
    return replace(from_object({k: v for k, v in to_object(record).items() if k != LIVE}))


def _kept(record: AnyRecord) -> dict[str, Any]:
    found = kept(record, LIVE) if _MARK in record.line else None
    return found if isinstance(found, dict) else {}


def _place(entry: Entry) -> Place | None:
    """Where a record says that its mirror is up to date to."""
    found = {} if isinstance(entry, Damaged) else _kept(entry)
    return msgspec.convert(found, Place) if "trail" in found or "notes" in found else None


def _as(record: AnyRecord) -> str:
    """The id of a record in the file, where it is another than ours."""
    return str(_kept(record).get("as", ""))


def _is_alike(given: AnyRecord, stored: AnyRecord) -> bool:
    """Whether two messages say the same, in formats that hold less of it than ours."""
    if not isinstance(given, Message) or not isinstance(stored, Message):
        return False
    one, other = (
        (message.role, message.text, [call.name for call in message.tool_calls])
        for message in (given, stored)
    )
    return one == other


def _renamed(record: AnyRecord, name: str) -> AnyRecord:
    """A record of ours with the id that it has in the file."""
    if record.id == name:
        return record
    return extended(record, {LIVE: {"as": name}})


def _merged(record: AnyRecord, made: Sequence[AnyRecord]) -> tuple[list[AnyRecord], int]:
    """What the file says now, with our record in its place; and which one that is."""
    for place in range(len(made) - 1, -1, -1):
        read = made[place]
        if isinstance(record, Message) and isinstance(read, Message):
            own: AnyRecord = record
        elif isinstance(record, Compaction) and isinstance(read, Compaction):
            own = replace(record, first_kept_seq=read.first_kept_seq, line=b"")
        else:
            continue
        return [*made[:place], _renamed(own, _as(read) or read.id), *made[place + 1 :]], place
    return [record], 0  # it says all that the file says in other words


def _compaction(item: Summary, first: int) -> Compaction:
    return Compaction(
        id=item.id,
        strategy=item.strategy,
        first_kept_seq=first,
        summary=item.text,
        tokens_before=item.tokens_before,
        read_files=item.read_files,
        modified_files=item.modified_files,
        timestamp=item.timestamp,
    )


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
