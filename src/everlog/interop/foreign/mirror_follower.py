"""One foreign session, followed into the session of ours that mirrors it.

`level` reads the file from where it was read to the last time; what it says goes into the mirror,
record by record, a few lines at a time. A file that was rewritten is followed from its beginning:
what it said before leaves the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, LogDamagedError, NotFoundError, StoreFullError
from everlog.interop.foreign.foreign_files import Files
from everlog.interop.foreign.origin_marks import (
    LIVE,
    Place,
    compaction,
    id_in_file,
    kept_of,
    place_of,
    without_place,
)
from everlog.interop.foreign.transcript_files import START, Landed, Signature
from everlog.interop.formats.format_types import Hidden, Summary, made_id
from everlog.interop.formats.jsonl import keeping
from everlog.interop.formats.live_format import LiveFormat, Notes, Said
from everlog.interop.importer import BATCH, Stored, in_time
from everlog.log.append_rules import REMEMBERED
from everlog.log.line_codec import extended, from_object
from everlog.model import (
    MARKERS,
    QUEUED,
    REREAD,
    AnyRecord,
    Compaction,
    Damaged,
    Entry,
    Event,
    Message,
    Metadata,
    Rewind,
    Tombstone,
)
from everlog.ports import Store

LINES = 400  # that are followed at once: memory does not grow with a file


class _DiskFull(Exception):
    def __init__(self, full: StoreFullError) -> None:
        self.full = full


class _Unlimited:
    """A store of ours without limits: full is its disk, and nothing may stand for a record then."""

    def __init__(self, port: Store) -> None:
        self.read = port.read
        self._append = port.append

    def append(self, session: str, records: Sequence[AnyRecord], **named: Any) -> list[AnyRecord]:
        try:
            return self._append(session, records, **named)
        except StoreFullError as error:
            raise _DiskFull(error) from error


class Following:
    """A session in its file, and the one of ours that follows it."""

    def __init__(
        self, name: str, files: Files, dialect: LiveFormat, port: Store, session: str
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
        """Bring the mirror up to date with the file. LogDamagedError if another one is needed."""
        self._look()
        if self._harmed:
            raise LogDamagedError(f"the mirror of {self.name} is damaged", session=self.name)
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
                with suppress(KeyError, TypeError, EverlogError):
                    found[name] = from_object(entry.data["message"])
            if not waiting:
                break
        return found

    def _withdraws(self, item: Said) -> bool:
        """Whether an item says what is hidden as a whole, or takes the summary back."""
        return isinstance(item, Hidden) and (not item.extra or self._summary in item.ids)

    def _look(self) -> None:
        """See what others have added to the mirror, or taken from it."""
        last = next(self._port.tail(self.session), None) if self._loaded else None
        if last is not None and last.seq == self._head and not isinstance(last, Damaged):
            return  # as it was left
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
        if len(newest) == REMEMBERED and not any(map(place_of, newest)):
            older = self._port.tail(self.session)
            found = iter([*newest, *islice((one for one in older if place_of(one)), 1)])
        for entry in reversed(list(found)):
            self._note(entry)
        self._loaded = True

    def _note(self, entry: Entry) -> None:
        self._head = max(self._head, entry.seq or 0)
        if isinstance(entry, Damaged):
            self._harmed = True
            return
        for name in (entry.id, id_in_file(entry)):
            if name:
                self._ids[name] = entry.seq
        if len(self._ids) > 4 * REMEMBERED:
            low = self._head - REMEMBERED
            self._ids = {name: seq for name, seq in self._ids.items() if seq > low}
        if isinstance(entry, MARKERS):
            self._marker = entry.seq
        if isinstance(entry, Compaction):
            self._summary = id_in_file(entry) or entry.id
        self._place = place_of(entry) or self._place

    def _begin_again(self) -> None:
        """The file is another one: what it said before leaves the view."""
        again = Place(generation=self._place.generation + 1)
        self._summary = ""
        if self._head:
            self._add([Event(kind=REREAD), Rewind(to_seq=0)], again)
        self._place = again

    def _merge(self, items: Sequence[Said], place: Place, ours: Mapping[str, AnyRecord]) -> None:
        """Store what is not there yet, of a whole session."""
        if self._summary and self._summary not in {item.id for item in items}:
            self._begin_again()  # no record of ours takes a summary back
            place = replace(place, generation=self._place.generation)
        stored = Stored(cast("Store", _Unlimited(self._port)), self.session, id_in_file)
        try:
            for item in in_time(self.name, [self._own(one, place.generation) for one in items]):
                own = ours.get(id_in_file(item) or item.id) if isinstance(item, Message) else None
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
                record = compaction(own, [*self._seqs(first, made).values(), head + 2][0])
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
                own = {entry.id, id_in_file(entry)} & wanted
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
            sealed = extended(last, {LIVE: msgspec.to_builtins(place) | kept_of(last)})
            stored = self._port.append(self.session, [*before, sealed], expected_seq=self._head)
        for record in stored:
            self._note(record)
        self._place = place
        return stored

    def _forget(self) -> None:
        """Look at the mirror and the file anew the next time."""
        self._loaded, self._signature, self._place = False, (), Place()
        self._head, self._marker, self._ids = 0, 0, {}

    # --- what is known

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

    @property
    def head(self) -> int:
        """The last seq of the mirror."""
        return self._head

    def record(self, seq: int) -> AnyRecord:
        """One record of the mirror."""
        for entry in self._port.read(self.session, after=seq - 1, limit=1):
            if entry.seq == seq and not isinstance(entry, Damaged):
                return entry
        raise NotFoundError(f"session {self.name} has no readable record {seq}", seq=seq)

    def since(self, seq: int) -> list[AnyRecord]:
        """The records of the mirror from a number on."""
        entries = self._port.read(self.session, after=seq - 1)
        return [entry for entry in entries if not isinstance(entry, Damaged)]

    @property
    def metadata(self) -> Metadata:
        """That of the mirror."""
        return self._port.metadata(self.session)
