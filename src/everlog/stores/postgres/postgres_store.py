"""The verbs of the store port on PostgreSQL.

Truth is in `rec` and `session`; what lists, names and finds sessions is written beside it. How a
record is stored is `appending`; this file is what the verbs do with it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, NotFoundError, StoreFullError
from everlog.ids import Stamps, Ulids, Uuids, is_ulid, made_at
from everlog.log.append_rules import Prepared, lasting, prepare
from everlog.log.metadata_changes import check_facts
from everlog.log.raw_lines import Line
from everlog.model import TURN_END, AnyRecord, Damaged, Entry, Event, Meta, Metadata, Part
from everlog.ports import (
    Chats,
    Filter,
    Lease,
    Order,
    Page,
    Progress,
    Query,
    Results,
    UsageReport,
    days_of,
)
from everlog.settings import Settings
from everlog.stores import session_names
from everlog.stores.disk_usage import Holdings
from everlog.stores.indexing import Searching
from everlog.stores.postgres import schema
from everlog.stores.postgres.append_statement import Appending, Call
from everlog.stores.postgres.background import Keeper
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.driver_errors import ReadOnly
from everlog.stores.postgres.id_columns import sid_of
from everlog.stores.postgres.leases import Leases, PostgresLease, new_owner
from everlog.stores.postgres.lifecycle import Making
from everlog.stores.postgres.metadata_rows import MOST, Rows
from everlog.stores.postgres.name_changes import Compose, Naming
from everlog.stores.postgres.name_claims import NAMING, Claims
from everlog.stores.postgres.notifications import News
from everlog.stores.postgres.passage_search import Texts
from everlog.stores.postgres.record_reader import Reading
from everlog.stores.postgres.row_transfer import Carrying
from everlog.stores.postgres.session_cache import Known, Memory
from everlog.stores.postgres.shared_state import Sharing
from everlog.stores.postgres.statements import load
from everlog.stores.postgres.table_sizes import holdings
from everlog.stores.postgres.usage_sql import used
from everlog.stores.process_fork import mind_forks


class PostgresStore:
    """The store port on a database that many machines share."""

    def __init__(
        self,
        url: str,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Connects when it is first used."""
        chosen = settings or Settings()
        self.limits = chosen.session
        self._tool_output = chosen.search.tool_output
        self._clock = clock
        self._now = Stamps(clock)
        self._new_uuid = Uuids()
        self._new_ulid = Ulids(clock)
        # What went wrong beside the verbs; the newest thousand.
        self.reports: deque[str] = deque(maxlen=1000)
        report = self.reports.append
        self.database = Database(
            url,
            chosen.postgres,
            report,
            durable=chosen.session.durability == "always",
            prepare=lambda link: schema.check(link, chosen.postgres.schema),
        )
        self._sql = load("sessions", chosen.postgres.schema)
        self._records = load("records", chosen.postgres.schema)
        self._memory = Memory()
        self._keeper = Keeper(chosen.postgres.lease_seconds, report)
        self._rows = Rows(self.database, self._memory, report)
        self._leases = Leases(self.database, self._keeper)
        self._claims = Claims(self.database)
        self._appending = Appending(self.database, self.limits)
        self._reading = Reading(self.database)
        self.texts = Texts(self.database, self._rows)
        self._making = Making(
            self.database,
            rows=self._rows,
            claims=self._claims,
            texts=self.texts,
            appending=self._appending,
            reading=self._reading,
            prepared=self._prepared,
        )
        self._naming = Naming(
            appending=self._appending,
            rows=self._rows,
            claims=self._claims,
            prepared=self._prepared,
            seconds=self.limits.lock_seconds,
        )
        self._news = News(self.database, report)
        self.sharing = Sharing(self.database, self._news)
        self._carrying = Carrying(self.database, self._rows, self._claims, self.texts, self._making)
        self._keeper.refresh = self._rows.refresh
        self._keeper.prolong = self._leases.renew
        mind_forks(in_child=self._after_fork_in_child)

    def __repr__(self) -> str:
        return f"PostgresStore({self.database.address})"

    # --- writing

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session, in one transaction with its names."""
        given = {key: value for key, value in check_facts(facts or {}).items() if value is not None}
        session = self._new_ulid() if at is None else made_at(at, os.urandom(10))
        return self._making.create(session, given, unless_held=unless_held)

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records at the end: one statement for all of them."""
        epoch = None if lease is None else self._epoch(session, lease)
        kept = lasting(records)
        if not kept:
            self.resolve(session)
            return []
        sid_of(session)
        prepared = prepare(kept, self._now, self._new_uuid)
        call = Call(prepared, expected_seq, no_marker_after, epoch)
        naming = ends = False
        for one in kept:
            naming = naming or (isinstance(one, Meta) and not NAMING.isdisjoint(one.set))
            ends = ends or (isinstance(one, Event) and one.kind == TURN_END)
        with self._held(session) as known:
            try:
                if naming:
                    stored = self._naming.append(known, call)
                else:
                    stored = self._appending.append(known, call)
            except ConflictError:
                if isinstance(lease, PostgresLease) and known.epoch != lease.epoch:
                    lease.lose()
                raise
        self._keeper.appended(session, at_once=ends)
        self._news.appended(session)
        return stored

    def _held(self, session: str) -> AbstractContextManager[Known]:
        return self._memory.of(session).hold(self.limits.lock_seconds)

    @staticmethod
    def _epoch(session: str, lease: Lease) -> int:
        if isinstance(lease, PostgresLease) and lease.held and lease.session == session:
            return lease.epoch
        raise ConflictError(f"the turn lease of session {session} is not held", session=session)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record who takes a session's history over, if nobody did: a compare-and-set."""
        while True:
            held = self.metadata(session)
            known = held.promoted_to
            if known is not None:
                return known.get("id") == to
            meta = Meta(set={"promotedTo": {"id": to, "seq": seq}}, id=self._new_uuid())
            try:
                self.append(session, [meta], expected_seq=held.through.seq)
            except ConflictError:
                continue  # the log went on: perhaps by the record that decides
            return True

    def update(
        self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False
    ) -> Metadata:
        """Change metadata by a `meta` record."""
        given = check_facts(changes)
        if not given:
            return self.metadata(session)
        if NAMING.isdisjoint(given):
            self.append(session, [Meta(set=given)])
            return self.metadata(session)

        def compose(link: Link, held: Metadata) -> dict[str, Any]:
            if not session_names.changes_names(given):
                return given
            return session_names.with_claims(
                given, held, self._claims.holding(link), unless_held=unless_held
            )

        return self._change(session, given, compose)

    def resume(self, session: str) -> Metadata:
        """Claim the key or pair anew, by a `meta` record."""
        return self._change(
            session, {}, lambda link, held: session_names.resumed(held, self._claims.holding(link))
        )

    def _change(self, session: str, given: dict[str, Any], compose: Compose) -> Metadata:
        with self._held(session) as known:
            self._naming.change(known, given, compose)
            self._keeper.appended(session)
            self._news.appended(session)
            return known.metadata or self._rows.row(session).metadata

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """A new session with the records up to one, copied in the database."""
        return self._making.fork(session, self._new_ulid(), at)

    def delete(self, session: str) -> int:
        """Gone for everybody in one step; then its rows are removed, some at a time."""
        with self.lease(session) as lease:
            parts = self._making.delete(session, lease.epoch)
        self._keeper.forget(session)
        self._memory.forget(session)
        # It is done, whatever becomes of this: `catch_up` removes what is left.
        with self._keeper.harmless(f"the rows of session {session}, which is deleted, go later"):
            self._making.remove(session)
        return parts

    # --- reading

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Records above a seq, lazily, in pages."""
        return self._reading.forward(session, max(after, -1), limit)

    def tail(self, session: str) -> Iterator[Entry]:
        """All records, newest first, lazily."""
        return self._reading.backward(session)

    def metadata(self, session: str) -> Metadata:
        """The listing's row and what the records behind it change."""
        return self._rows.row(session).metadata

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
        return self._rows.page(which, min(limit, MOST), cursor, order)

    def chats(self, thread: str) -> Chats | None:
        """The chats of a key or pair."""
        newest, current = self._claims.newest_chat(thread), self._claims.holder(thread)
        if current is None:
            return None
        if newest is not None:
            return Chats(current[0], newest[0], newest[1])
        # From before chats were numbered, unless it is an alias, under which none is.
        found = self._rows.metadata(current[0])
        if found is None or found.thread != thread:
            return None
        return Chats(current[0], self._claims.unnumbered(thread) or current[0], 0)

    def resolve(self, name: str) -> str:
        """The id behind an id, a key, an alias, or an unambiguous beginning of an id."""
        if not is_ulid(name):
            return session_names.find(name, self._claims.holder, self._claims.starting_with)
        values = {"sid": sid_of(name)}
        if not self.database.reading(
            lambda link: link.execute(self._sql["exists"], values).fetchone()
        ):
            raise NotFoundError(f"there is no session {name}", session=name)
        return name

    def parts(self, session: str) -> tuple[Part, ...]:
        """The parts that its log would have as files."""
        return self._reading.parts(session)

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
        days = days_of(which, until)
        whose = replace(which, since=None)
        name = self.database.settings.schema
        found: UsageReport = self._rows.ask(lambda link: used(link, name, whose, days, spenders))
        return found

    # --- search

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Sessions in which something was said; what is new is taken in first."""
        try:
            self.catch_up(progress)
        except (ReadOnly, StoreFullError) as error:  # what was taken in before can still be found
            self.reports.append(f"the search is behind: {error.message}")
        return self._searching().search(query)

    def recall(self, query: Query, now: int) -> Results:
        """Sessions that a message is about, as far as they are taken in."""
        return self._searching().recall(query.text, now, query)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Take in what was said since the last time; returns in how many sessions."""
        self._rows.settle()
        self._rows.tidy()
        self._making.clear()
        return self._searching().catch_up(progress)

    def _searching(self) -> Searching:
        return Searching(
            self.texts,
            self._rows.metadata,
            lambda session, after: self.read(session, after=after),
            self.reports.append,
            tools=self._tool_output,
        )

    # --- turns

    def lease(self, session: str) -> PostgresLease:
        """The right to run a turn, at once or SessionBusyError."""
        return self._leases.take(session)

    # --- moving

    def ids(self) -> Iterator[str]:
        """All sessions, oldest first."""
        return self._carrying.ids()

    def lines(self, session: str) -> Iterator[Line | Damaged]:
        """The exact lines of a session at this moment."""
        return iter(self._reading.lines(session))

    def adopt(
        self, source: Metadata, lines: Callable[[], Iterator[Line]], after: int | None = None
    ) -> None:
        """Take over a session of another store, or its lines behind `after`. Durable on return."""
        try:
            self._carrying.adopt(source, lines, after)
        finally:
            self._memory.forget(source.id)

    def holdings(self, biggest: int = 10) -> Holdings:
        """What is kept here, and how much room it takes."""
        name = self.database.settings.schema
        found: Holdings = self._rows.ask(lambda link: holdings(link, name, biggest))
        return found

    # --- care

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Everything wrong with a session's records."""
        return self._reading.verify(session)

    def repair(self, session: str) -> tuple[str, ...]:
        """Count anew what is counted, and make what is derived from the log; delete nothing."""
        done: list[str] = []
        with self._held(session) as known:
            self._appending.look(known)
            known.seen, known.tally = False, None
            before, after = self._making.count_anew(session)
        if after != before:
            done.append(f"the parts were counted anew: {len(before)} before, {len(after)} now")
        for one in self.verify(session):
            place = one.file or f"record {one.seq}"
            done.append(f"{place}: {one.problem}; nothing could be done")
        return tuple(done)

    def migrate(self) -> tuple[int, int]:
        """Bring the tables to this version; from which, to which."""
        return self.database.prepared(
            lambda link: schema.migrate(link, self.database.settings.schema), patience=False
        )

    def close(self) -> None:
        """Bring rows up to date and give all connections back; the store may be used again."""
        self._news.close()
        self._keeper.close()
        self.database.close()

    # --- help

    def _prepared(self, record: Meta) -> Prepared:
        return prepare([record], self._now, self._new_uuid)[0]

    def _after_fork_in_child(self) -> None:
        self._new_uuid = Uuids()  # the parent goes on counting with the old one
        self._new_ulid = Ulids(self._clock)  # another thread may have held its lock
        for lease in list(self._keeper.held):
            lease.forsake()
        self._keeper.reset()
        self._news.reset()
        self._leases.owner = new_owner()
        self._memory.clear()
        self.database.after_fork_in_child()
