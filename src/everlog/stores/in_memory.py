"""Sessions in memory, with the semantics of the file store: for tests and for sub-turns.

Lines are kept as they would stand in a file, parts included, so that what is stored here is byte
for byte what would be stored there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, NotFoundError
from everlog.ids import Stamps, Ulids, Uuids, is_ulid, made_at
from everlog.log import append_rules, line_codec
from everlog.log.append_rules import REMEMBERED, Prepared, lasting, prepare
from everlog.log.fold import Tally, apply, given_facts
from everlog.log.metadata_changes import check_facts
from everlog.log.parts import part_name, split_at_boundary
from everlog.model import MARKERS, AnyRecord, Damaged, Entry, Meta, Metadata, Part, pair
from everlog.ports import (
    Chats,
    Filter,
    Lease,
    Order,
    Page,
    Progress,
    Query,
    Results,
    SessionRow,
    UsageReport,
    days_of,
    matcher,
    parse_cursor,
)
from everlog.settings import SessionSettings, Settings
from everlog.stores import session_names, usage_query
from everlog.stores.file.layout import check_id
from everlog.stores.file.log_reader import is_birth
from everlog.stores.file.turn_lock import taken

if TYPE_CHECKING:
    from everlog.stores.indexing import Searching


class MemoryLog:
    """One session."""

    def __init__(self, metadata: Metadata, settings: SessionSettings) -> None:
        self.settings = settings
        self.tally = Tally(metadata)
        self.records: list[AnyRecord] = []  # the birth record included
        self.counts = [0]  # records of each part
        self.sizes = [0]  # bytes of each part
        self.marker = 0
        self.ids: dict[str, AnyRecord] = {}
        self.leased = False
        self._metadata: Metadata | None = None  # every listing and lookup asks for it

    @property
    def metadata(self) -> Metadata:
        """The metadata up to the last record."""
        if self._metadata is None:
            self._metadata = self.tally.metadata(len(self.sizes), self.sizes[-1])
        return self._metadata

    def append(
        self, prepared: Sequence[Prepared], expected_seq: int | None, no_marker_after: int | None
    ) -> list[AnyRecord]:
        """Number and keep; the rules are those of every store."""
        session = self.metadata.id
        head = self.tally.seq
        there: dict[int, AnyRecord] = {}
        for index, one in enumerate(prepared):
            stored = self.ids.get(one.record.id) if one.retriable else None
            if stored is not None and stored.seq > head - REMEMBERED:
                there[index] = append_rules.checked_retry(session, one.record, stored, stored.seq)
        new = [one for index, one in enumerate(prepared) if index not in there]
        if not new:
            return [there[index] for index in range(len(prepared))]
        if expected_seq is not None:
            append_rules.check_expected_seq(session, head, expected_seq, len(there))
        if no_marker_after is not None:
            append_rules.check_no_marker_after(session, self.marker, no_marker_after)
        rows = [] if self.records else [append_rules.birth(self.tally)]
        first = len(rows)
        for number, one in enumerate(new, head + 1):
            rows.append(line_codec.seal(one.body, one.record.record_type, number))
        append_rules.check_limits(session, rows, new, sum(self.sizes), self.settings)
        kept = [_decoded(row) for row in rows]
        self.keep(kept)
        del kept[:first]
        return [there[i] if i in there else kept.pop(0) for i in range(len(prepared))]

    def keep(self, records: Sequence[AnyRecord]) -> None:
        """Put records behind the others, as a file store would lay them into parts."""
        rows = [record.line for record in records]
        groups = split_at_boundary(rows, self.sizes[-1], self.settings.part_bytes)
        for number, group in enumerate(groups):
            if number:
                self.counts.append(0)
                self.sizes.append(0)
            self.counts[-1] += len(group)
            self.sizes[-1] += sum(map(len, group)) + len(group)
        self._metadata = None
        for record in records:
            self.records.append(record)
            self.tally.add(record)
            if isinstance(record, MARKERS):
                self.marker = record.seq
            if record.id:
                self.ids[record.id] = record


def _decoded(row: bytes) -> AnyRecord:
    record = line_codec.decode(row).record
    if record is None:
        raise FormatError("the record could not be read back")
    return record


class MemoryLease:
    """The right to run a turn on a session in memory."""

    def __init__(self, session: str, log: MemoryLog) -> None:
        self.session = session
        self._log: MemoryLog | None = log

    @property
    def held(self) -> bool:
        """Whether it was not given back yet."""
        return self._log is not None

    def release(self) -> None:
        """Give it back; doing so twice is harmless."""
        if self._log is not None:
            self._log.leased = False
            self._log = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class InMemoryStore:
    """The store port on nothing but memory."""

    def __init__(
        self, settings: Settings | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = (settings or Settings()).session
        self._search = (settings or Settings()).search
        self._now = Stamps(clock)
        self._new_uuid = Uuids()
        self._new_ulid = Ulids(clock)
        self._lock = threading.RLock()
        self._logs: dict[str, MemoryLog] = {}

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session."""
        given = {key: value for key, value in check_facts(facts or {}).items() if value is not None}
        with self._lock:
            if unless_held and (held := self._holder(given.get("key", ""))):
                return self.metadata(held[0])
            session = self._new_ulid() if at is None else made_at(at, os.urandom(10))
            blank = Tally.fresh(session).metadata(1, 0)
            if session_names.changes_names(given):
                given = session_names.with_claims(given, blank, self._holder)
            return self._create(
                blank, session_names.numbered(given, blank, self._holder, self._highest)
            )

    def chats(self, thread: str) -> Chats | None:
        """The chats of a key or pair."""
        with self._lock:
            current = self._holder(thread)
            found = [
                (log.metadata.chat or 0, session)
                for session, log in self._logs.items()
                if log.metadata.thread == thread
            ]
        if current is None or not found:
            return None
        highest, newest = max(found)
        return Chats(current[0], newest, highest)

    def resume(self, session: str) -> Metadata:
        """Claim the key or pair anew, by a `meta` record."""
        with self._lock:
            log = self._log(session)
            changes = session_names.resumed(log.metadata, self._holder)
            if changes:
                log.append(prepare([Meta(set=changes)], self._now, self._new_uuid), None, None)
            return log.metadata

    def _create(self, blank: Metadata, facts: dict[str, Any]) -> Metadata:
        metadata = apply(blank, facts)
        self._logs[metadata.id] = MemoryLog(metadata, self._settings)
        return metadata

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records at the end."""
        if lease is not None and not (
            isinstance(lease, MemoryLease) and lease.held and lease.session == session
        ):
            raise ConflictError(f"the turn lease of session {session} is not held", session=session)
        kept = lasting(records)
        if not kept:
            self.resolve(session)
            return []
        prepared = prepare(kept, self._now, self._new_uuid)
        with self._lock:
            return self._log(session).append(prepared, expected_seq, no_marker_after)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record who takes a session's history over, if nobody did."""
        with self._lock:
            log = self._log(session)
            known = log.metadata.promoted_to
            if known is None:
                meta = Meta(set={"promotedTo": {"id": to, "seq": seq}})
                log.append(prepare([meta], self._now, self._new_uuid), None, None)
            return known is None or known.get("id") == to

    def update(
        self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False
    ) -> Metadata:
        """Change metadata by a `meta` record."""
        given = check_facts(changes)
        with self._lock:
            log = self._log(session)
            if session_names.changes_names(given):
                given = session_names.with_claims(
                    given, log.metadata, self._holder, unless_held=unless_held
                )
            if given:
                log.append(prepare([Meta(set=given)], self._now, self._new_uuid), None, None)
            return log.metadata

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """A new session with the records up to one, byte for byte."""
        with self._lock:
            log = self._log(session)
            seq = log.tally.seq if at is None else at
            if at is not None and not any(record.seq == at for record in log.records):
                raise NotFoundError(
                    f"session {session} has no record {at}", session=session, seq=at
                )
            changes: dict[str, Any] = dict.fromkeys(
                ("key", "aliases", "generations", "current", "promotedFrom", "promotedTo")
            )
            changes["chat"] = self._highest(pair(log.metadata.agent, log.metadata.sender)) + 1
            changes["forkedFrom"] = {"id": session, "seq": seq}
            facts = given_facts(log.metadata)
            blank = Tally.fresh(self._new_ulid()).metadata(1, 0)
            if not log.records:
                return self._create(blank, facts | changes)
            self._create(blank, {})
            copy = self._logs[blank.id]
            copy.keep([record for record in log.records if record.seq <= seq])
            copy.append(prepare([Meta(set=changes)], self._now, self._new_uuid), None, None)
            return copy.metadata

    def delete(self, session: str) -> int:
        """Remove a session."""
        with self.lease(session), self._lock:
            return len(self._logs.pop(session).sizes)

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Records above a seq, in order."""
        with self._lock:
            records = list(self._log(session).records)
        above = (
            record
            for record in records
            if (record.seq > after if after > 0 else after < 0 or not is_birth(record))
        )
        return above if limit is None else islice(above, max(limit, 0))

    def tail(self, session: str) -> Iterator[Entry]:
        """All records, newest first."""
        with self._lock:
            records = list(self._log(session).records)
        return (record for record in reversed(records) if not is_birth(record))

    def metadata(self, session: str) -> Metadata:
        """What is known of a session."""
        with self._lock:
            return self._log(session).metadata

    def list(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Sessions, newest first."""
        if limit < 1:
            raise FormatError(f"a listing needs a limit of at least 1, not {limit}")
        with self._lock:
            rows = [
                SessionRow(log.metadata, sum(log.sizes), len(log.sizes))
                for log in self._logs.values()
            ]
        matches = matcher(which)

        def place(row: SessionRow) -> tuple[int, str]:
            return (row.active if order == "active" else 0), row.id

        rows = sorted((row for row in rows if matches(row)), key=place, reverse=True)
        total = len(rows)
        if cursor is not None:
            active, last = parse_cursor(cursor)
            start = (active if order == "active" else 0), last
            rows = [row for row in rows if place(row) < start]
        return Page(rows[:limit], rows[limit - 1].cursor if len(rows) > limit else None, total)

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Sessions in which something was said: all of them are looked through each time."""
        return self._searching().search(query)

    def recall(self, query: Query, now: int) -> Results:
        """Sessions that a message is about, likewise."""
        return self._searching().recall(query.text, now, query)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Nothing is kept for searches."""
        return 0

    def usage(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """What sessions spent, by day and model."""
        matches, days = matcher(replace(which, since=None)), days_of(which, until)
        with self._lock:
            rows = [
                SessionRow(log.metadata, sum(log.sizes), len(log.sizes))
                for log in self._logs.values()
            ]
        return usage_query.used([row.metadata for row in rows if matches(row)], days, spenders)

    def _searching(self) -> Searching:
        from everlog.index.listing_rows import Index  # noqa: PLC0415 - loads SQLite; few search here
        from everlog.stores.indexing import search_index  # noqa: PLC0415

        with self._lock:
            rows = [
                SessionRow(log.metadata, sum(log.sizes), len(log.sizes))
                for log in self._logs.values()
            ]
        index = Index(None, lambda told: None)
        index.put(rows, new=True)
        made = search_index(
            index,
            lambda one, after: self.read(one, after=after),
            lambda told: None,
            tools=self._search.tool_output,
        )
        made.catch_up()
        return made

    def resolve(self, name: str) -> str:
        """The id behind an id, a key, an alias, or an unambiguous beginning of an id."""
        with self._lock:
            if is_ulid(name):
                return self._log(name).metadata.id
            return session_names.find(
                name,
                self._holder,
                lambda prefix: [one for one in self._logs if one.startswith(prefix)][:2],
            )

    def lease(self, session: str) -> MemoryLease:
        """The right to run a turn, at once or SessionBusyError."""
        with self._lock:
            log = self._log(session)
            if log.leased:
                raise taken(session)
            log.leased = True
            return MemoryLease(session, log)

    def parts(self, session: str) -> tuple[Part, ...]:
        """The parts its log would have as files."""
        with self._lock:
            log = self._log(session)
            records = iter(log.records)
            made = []
            for number, (count, size) in enumerate(zip(log.counts, log.sizes, strict=True), 1):
                seqs = [record.seq for record in islice(records, count) if record.seq]
                first, last = (seqs[0], seqs[-1]) if seqs else (None, None)
                made.append(Part(part_name(number), size, first, last))
            return tuple(made)

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Nothing can be wrong with bytes that never left memory."""
        self.metadata(session)
        return ()

    def repair(self, session: str) -> tuple[str, ...]:
        """Nothing to do."""
        self.metadata(session)
        return ()

    def close(self) -> None:
        """Nothing to give back."""

    def _log(self, session: str) -> MemoryLog:
        check_id(session)
        if session not in self._logs:
            raise NotFoundError(f"there is no session {session}", session=session)
        return self._logs[session]

    def _highest(self, thread: str) -> int:
        chats = self.chats(thread)
        return chats.highest if chats else 0

    def _holder(self, name: str) -> tuple[str, int] | None:
        claims = [
            (log.metadata.generations.get(name, log.metadata.current or 0), session)
            for session, log in self._logs.items()
            if name in log.metadata.names or name == log.metadata.thread
        ]
        if not claims:
            return None
        generation, session = max(claims)
        return session, generation
