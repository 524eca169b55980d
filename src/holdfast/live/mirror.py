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
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.dialects.following import Added, LiveDialect, Notes, Said, Where
from holdfast.dialects.form import Hidden, Line, Summary, kept, made_id
from holdfast.dialects.jsonl import keeping
from holdfast.errors import HoldfastError, NotFound, Unsupported
from holdfast.importing import BATCH, Stored, in_time
from holdfast.live.files import Files, Signature, Trail
from holdfast.log import admit
from holdfast.log.admit import REMEMBERED, Prepared
from holdfast.log.lines import extended, from_object, to_object
from holdfast.model import (
    MARKERS,
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
_MARK = b'"live":{'


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a mirror is up to date to."""

    trail: Trail = Trail()
    notes: Notes = {}
    generation: int = 0  # how often the file was found rewritten


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
        self.seconds = 0.0  # of turns that the file was not told of

    # --- following

    def level(self) -> None:
        """Bring the mirror up to date with the file."""
        self._look()
        signature = self.files.signature()
        if signature == self._signature:
            return
        where = self.files.where(self.name)
        place = self._place
        if not self.files.holds(place.trail):
            self._begin_again()
            place = self._place
        grown = self.files.grown(place.trail)
        followed = self.dialect.follow(place.notes, grown, where)
        if followed is None or any(map(self._withdraws, followed.items)):
            grown = self.files.grown(Trail())
            followed = self.dialect.whole(grown, where)
            self._merge(followed.items, replace(place, trail=grown.trail, notes=followed.notes))
        else:
            new = replace(place, trail=grown.trail, notes=followed.notes)
            if self._head and len(followed.items) <= BATCH:
                self._add(list(self._records(followed.items)), new)
            else:
                self._merge(followed.items, new)
        self._signature = signature

    def _withdraws(self, item: Said) -> bool:
        """Whether an item says what is hidden as a whole, or takes the summary back."""
        return isinstance(item, Hidden) and (not item.extra or self._summary in item.ids)

    def _look(self) -> None:
        """See what others have added to the mirror."""
        if not self._loaded:
            newest = list(islice(self._port.tail(self.session), REMEMBERED))
            found: Iterator[Entry] = iter(newest)
            if len(newest) == REMEMBERED and not any(map(_place, newest)):
                older = self._port.tail(self.session)
                found = iter([*newest, *islice((one for one in older if _place(one)), 1)])
            for entry in reversed(list(found)):
                self._note(entry)
            self._loaded = True
        for entry in self._port.read(self.session, after=self._head):
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        self._head = max(self._head, entry.seq or 0)
        if isinstance(entry, Damaged):
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

    def _merge(self, items: Sequence[Said], place: Place) -> None:
        """Store what is not there yet, of a whole session."""
        if self._summary and self._summary not in {item.id for item in items}:
            self._begin_again()  # no record of ours takes a summary back
            place = replace(place, generation=self._place.generation)
        stored = Stored(self._port, self.session, _as)
        for item in in_time(self.name, [self._own(one, place.generation) for one in items]):
            stored.add(item)
        stored.flush({LIVE: msgspec.to_builtins(place)})
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

    def _records(self, items: Iterable[Said], ahead: int = 0) -> Iterator[AnyRecord]:
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
                yield own
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
        self._place = place
        if not records:
            return []
        *before, last = records
        sealed = extended(last, {LIVE: msgspec.to_builtins(place) | _kept(last)})
        stored = self._port.append(self.session, [*before, sealed])
        for record in stored:
            self._note(record)
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
        there = self._retried(prepared)
        new = [one.record for number, one in enumerate(prepared) if number not in there]
        if new:
            if expect is not None:
                admit.check_expect(self.name, self._head, expect, len(there))
            if guard is not None:
                admit.check_guard(self.name, self._newest_marker(guard), guard)
            fresh = self._write(new, report)
        else:
            fresh = []
        return [there[n] if n in there else fresh.pop(0) for n in range(len(prepared))]

    def _retried(self, prepared: Sequence[Prepared]) -> dict[int, AnyRecord]:
        there: dict[int, AnyRecord] = {}
        for number, one in enumerate(prepared):
            seq = self._ids.get(one.record.id) if one.retriable else None
            if seq is not None and seq > self._head - REMEMBERED:
                stored = without_place(self.record(seq))
                there[number] = admit.checked_retry(self.name, one.record, stored, seq)
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

    def _write(self, records: Sequence[AnyRecord], report: Report) -> list[AnyRecord]:
        notes, where = self._place.notes, self.files.where(self.name)
        if torn := self.files.torn(self._place.trail):  # it will be ended, and counts as a line
            followed = self.dialect.follow(notes, [Line(0, torn)], where)
            notes = notes if followed is None else followed.notes
        lines: list[bytes] = []
        files: dict[str, bytes] = {}
        mirrored: list[AnyRecord] = []
        given: list[int] = []  # where those of the caller are among them
        head: bytes | None = None
        stem: str | None = None
        for record in records:
            if isinstance(record, Event):
                mirrored.append(record)
                given.append(len(mirrored) - 1)
                continue
            log = LiveLog(self, where, mirrored)
            if isinstance(record, Meta):
                added = self.dialect.change(notes, log, record.set)
                head, stem = added.head or head, added.stem or stem
            else:
                own = _at_home(record) if not self._head else record
                added = self.dialect.extend(notes, log, own)
            where = where._replace(beside=added.files.get(".meta.json", where.beside))
            followed = self.dialect.follow(notes, [Line(0, line) for line in added.lines], where)
            if followed is None:
                raise Unsupported(
                    f"{self.dialect.NAME} session {self.name} cannot be continued here",
                    hint="import it (holdfast sessions import) and go on in a store of ours",
                )
            notes = followed.notes
            made = list(self._records(followed.items, len(mirrored)))
            ours, number = _merged(record, made)
            given.append(len(mirrored) + number)
            mirrored += ours
            lines += added.lines
            files |= added.files
        place = replace(self._place, notes=notes)
        if lines:
            place = replace(place, trail=self.files.append(lines))
        if files or head is not None or stem is not None:
            self.files.replace(Added(files=files, head=head, stem=stem))
        self._signature = self.files.signature()
        self.seconds += sum(map(_seconds, records))
        return self._keep(mirrored, given, place, report)

    def _keep(
        self, mirrored: list[AnyRecord], given: list[int], place: Place, report: Report
    ) -> list[AnyRecord]:
        head = self._head
        try:
            stored = self._add(mirrored, place)
        except HoldfastError as error:
            if place.trail == self._place.trail and all(isinstance(x, Event) for x in mirrored):
                raise
            # It is in the file, durably: to say anything else would make it be said twice.
            report(f"the mirror of {self.name} is behind: {error.message}")
            self._loaded, self._signature = False, ()
            self._head, self._ids, self._place = 0, {}, Place()
            stored = [replace(one, seq=head + n) for n, one in enumerate(mirrored, 1)]
        return [without_place(stored[number]) for number in given]

    # --- what else is asked

    def change(self, changes: dict[str, Any]) -> None:
        """Change metadata where the file keeps it."""
        log = LiveLog(self, self.files.where(self.name))
        self.put(self.dialect.change(self._place.notes, log, changes))

    def put(self, added: Added) -> None:
        """Do in the files what a dialect asks for."""
        if added.lines:
            self.files.append(added.lines)
        self.files.replace(added)
        self._signature = ()
        self.level()

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


def _renamed(record: AnyRecord, name: str) -> AnyRecord:
    """A record of ours with the id that it has in the file."""
    if record.id == name:
        return record
    return extended(record, {LIVE: {"as": name}})


def _merged(record: AnyRecord, made: list[AnyRecord]) -> tuple[list[AnyRecord], int]:
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
        return replace(record, cwd=os.getcwd())
    return record


def _seconds(record: AnyRecord) -> float:
    if not isinstance(record, Event) or record.kind != TURN_END:
        return 0.0
    duration = record.data.get("durationMs")
    return duration / 1000 if isinstance(duration, int | float) else 0.0
