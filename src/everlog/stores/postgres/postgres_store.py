"""The store port on PostgreSQL.

The tables `rec` and `session` are the truth; listings, names and full text are derived from them.
How a record is stored is in `append_statement`; this module implements the methods of the port.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace

from everlog.errors import ConflictError, FormatError, StoreFullError
from everlog.ids import TimestampSource, UlidGenerator, UuidGenerator, is_ulid, ulid_at
from everlog.index.search.search_index import SearchIndex
from everlog.log.append_rules import PreparedRecord, drop_injected, prepare_records
from everlog.log.metadata_changes import check_metadata
from everlog.log.raw_lines import RawLine
from everlog.model import TURN_END, AnyRecord, Damaged, Entry, Event, Meta, Metadata, Part
from everlog.ports import Chats, Filter, Lease, Order, Page, Progress, Query, Results, UsageReport, days_of
from everlog.settings import Settings
from everlog.stores import session_names
from everlog.stores.disk_usage import DiskUsage
from everlog.stores.postgres import schema
from everlog.stores.postgres.append_statement import AppendCall, Appender
from everlog.stores.postgres.background import BackgroundThreads
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.driver_errors import ReadOnlyError
from everlog.stores.postgres.id_columns import sid_of
from everlog.stores.postgres.leases import Leases, PostgresLease, new_owner_name
from everlog.stores.postgres.lifecycle import SessionLifecycle
from everlog.stores.postgres.metadata_rows import MAX_PAGE, MetadataRows
from everlog.stores.postgres.name_changes import Compose, NameChanges
from everlog.stores.postgres.name_claims import NAME_FIELDS, NameClaims
from everlog.stores.postgres.notifications import Notifications
from everlog.stores.postgres.passage_search import PassageSearch
from everlog.stores.postgres.record_reader import RecordReader
from everlog.stores.postgres.row_transfer import RowTransfer
from everlog.stores.postgres.session_cache import CachedSession, SessionCache
from everlog.stores.postgres.shared_state import SharedState
from everlog.stores.postgres.statements import load_statements
from everlog.stores.postgres.table_sizes import query_disk_usage
from everlog.stores.postgres.usage_sql import query_usage
from everlog.stores.process_fork import register_fork_hooks


class PostgresStore:
    """The store port on a database that many machines share."""

    def __init__(self, url: str, settings: Settings | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Connect on first use."""
        options = settings or Settings()
        self.limits = options.session
        self._tool_output = options.search.tool_output
        self._clock = clock
        self._now = TimestampSource(clock)
        self._new_uuid = UuidGenerator()
        self._new_ulid = UlidGenerator(clock)
        # Errors outside of calls, such as those of background threads; the newest thousand.
        self.reports: deque[str] = deque(maxlen=1000)
        report = self.reports.append
        self.database = Database(
            url,
            options.postgres,
            report,
            durable=options.session.durability == "always",
            prepare=lambda connection: schema.check(connection, options.postgres.schema),
        )
        self._sql = load_statements("sessions", options.postgres.schema)
        self._record_sql = load_statements("records", options.postgres.schema)
        self._cache = SessionCache()
        self._background = BackgroundThreads(options.postgres.lease_seconds, report)
        self._rows = MetadataRows(self.database, self._cache, report)
        self._leases = Leases(self.database, self._background)
        self._claims = NameClaims(self.database)
        self._appender = Appender(self.database, self.limits)
        self._reader = RecordReader(self.database)
        self.passages = PassageSearch(self.database)
        self._lifecycle = SessionLifecycle(
            self.database,
            rows=self._rows,
            claims=self._claims,
            passages=self.passages,
            appender=self._appender,
            reader=self._reader,
            prepare=self._prepare,
        )
        self._name_changes = NameChanges(
            appender=self._appender,
            rows=self._rows,
            claims=self._claims,
            prepare=self._prepare,
            seconds=self.limits.lock_seconds,
        )
        self._notifications = Notifications(self.database, report)
        self.sharing = SharedState(self.database, self._notifications)
        self._transfer = RowTransfer(self.database, self._rows, self._claims, self.passages, self._lifecycle)
        self._background.refresh_row = self._rows.refresh
        self._background.renew_leases = self._leases.renew
        register_fork_hooks(in_child=self._after_fork_in_child)

    def __repr__(self) -> str:
        return f"PostgresStore({self.database.address})"

    # --- writing

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session, in one transaction with its names."""
        fields = {key: value for key, value in check_metadata(facts or {}).items() if value is not None}
        session = self._new_ulid() if at is None else ulid_at(at, os.urandom(10))
        return self._lifecycle.create(session, fields, unless_held=unless_held)

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Append records, all by one statement. Durable on return."""
        epoch = None if lease is None else self._epoch(session, lease)
        durable = drop_injected(records)
        if not durable:
            self.resolve(session)
            return []
        sid_of(session)
        prepared = prepare_records(durable, self._now, self._new_uuid)
        call = AppendCall(prepared, expected_seq, no_marker_after, epoch)
        changes_names = ends_turn = False
        for item in durable:
            if isinstance(item, Meta):
                changes_names = changes_names or not NAME_FIELDS.isdisjoint(item.set)
            ends_turn = ends_turn or (isinstance(item, Event) and item.kind == TURN_END)
        with self._locked(session) as cached:
            try:
                if changes_names:
                    stored = self._name_changes.append(cached, call)
                else:
                    stored = self._appender.append(cached, call)
            except ConflictError:
                if isinstance(lease, PostgresLease) and cached.epoch != lease.epoch:
                    lease.mark_lost()
                raise
        self._background.schedule_refresh(session, immediately=ends_turn)
        self._notifications.announce(session)
        return stored

    def _locked(self, session: str) -> AbstractContextManager[CachedSession]:
        return self._cache.get(session).hold_lock(self.limits.lock_seconds)

    @staticmethod
    def _epoch(session: str, lease: Lease) -> int:
        if isinstance(lease, PostgresLease) and lease.held and lease.session == session:
            return lease.epoch
        raise ConflictError(f"the turn lease of session {session} is not held", session=session)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record which session takes over the history, if none did yet: a compare-and-set."""
        while True:
            metadata = self.metadata(session)
            promoted_to = metadata.promoted_to
            if promoted_to is not None:
                return promoted_to.get("id") == to
            meta = Meta(set={"promotedTo": {"id": to, "seq": seq}}, id=self._new_uuid())
            try:
                self.append(session, [meta], expected_seq=metadata.through.seq)
            except ConflictError:
                continue  # the log has grown: perhaps by the deciding record
            return True

    def update(self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False) -> Metadata:
        """Change metadata by a `meta` record."""
        fields = check_metadata(changes)
        if not fields:
            return self.metadata(session)
        if NAME_FIELDS.isdisjoint(fields):
            self.append(session, [Meta(set=fields)])
            return self.metadata(session)

        def compose(connection: Connection, metadata: Metadata) -> dict[str, Any]:
            if not session_names.changes_names(fields):
                return fields
            return session_names.with_name_claims(
                fields, metadata, self._claims.holder_lookup(connection), unless_held=unless_held
            )

        return self._change(session, fields, compose)

    def resume(self, session: str) -> Metadata:
        """Claim the key or pair again, by a `meta` record."""

        def compose(connection: Connection, metadata: Metadata) -> dict[str, Any]:
            return session_names.resume_changes(metadata, self._claims.holder_lookup(connection))

        return self._change(session, {}, compose)

    def _change(self, session: str, fields: dict[str, Any], compose: Compose) -> Metadata:
        with self._locked(session) as cached:
            self._name_changes.change(cached, fields, compose)
            self._background.schedule_refresh(session)
            self._notifications.announce(session)
            return cached.metadata or self._rows.row(session).metadata

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Create a session from the records up to `at`, copied inside the database."""
        return self._lifecycle.fork(session, self._new_ulid(), at)

    def delete(self, session: str) -> int:
        """Delete a session in one step; its rows are then removed in batches."""
        with self.lease(session) as lease:
            parts = self._lifecycle.delete(session, lease.epoch)
        self._background.forget(session)
        self._cache.forget(session)
        # The session is deleted even if this fails: `catch_up` removes the remainder.
        with self._background.report_errors(f"rows of deleted session {session} are removed later"):
            self._lifecycle.remove_rows(session)
        return parts

    # --- reading

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Return the records above a seq, read lazily in pages."""
        return self._reader.forward(session, max(after, -1), limit)

    def tail(self, session: str) -> Iterator[Entry]:
        """Return all records, newest first, read lazily."""
        return self._reader.backward(session)

    def metadata(self, session: str) -> Metadata:
        """Return the metadata: the listing row plus the records after it."""
        return self._rows.row(session).metadata

    def list(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Return a page of sessions, newest first."""
        if limit < 1:
            raise FormatError(f"a listing needs a limit of at least 1, not {limit}")
        return self._rows.page(criteria, min(limit, MAX_PAGE), cursor, order)

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of a key or pair."""
        newest, current = self._claims.newest_chat(thread), self._claims.holder(thread)
        if current is None:
            return None
        if newest is not None:
            return Chats(current[0], newest[0], newest[1])
        # Older than chat numbers, unless it is an alias: chats are never numbered under those.
        metadata = self._rows.metadata(current[0])
        if metadata is None or metadata.thread != thread:
            return None
        return Chats(current[0], self._claims.newest_unnumbered(thread) or current[0], 0)

    def resolve(self, name: str, *, prefix: bool = False) -> str:
        """Return the id behind an id, key or alias; with `prefix`, behind its first letters too."""
        if is_ulid(name):
            values = {"sid": sid_of(name)}
            if self.database.run_idempotent(
                lambda connection: connection.execute(self._sql["session_exists"], values).fetchone()
            ):
                return name
        return session_names.resolve_name(name, self._claims.holder, self._claims.ids_with_prefix if prefix else None)

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the parts that the log would have as files."""
        return self._reader.parts(session)

    def usage(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Return the usage of sessions by day and model."""
        days = days_of(criteria, until)
        sessions = replace(criteria, since=None)
        schema_name = self.database.settings.schema
        report: UsageReport = self._rows.query_fresh(
            lambda connection: query_usage(connection, schema_name, sessions, days, spenders)
        )
        return report

    # --- search

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Search the sessions; new records are indexed first."""
        try:
            self.catch_up(progress)
        except (ReadOnlyError, StoreFullError) as error:  # indexed records can still be found
            self.reports.append(f"the search index is behind: {error.message}")
        return self._search_index().search(query)

    def recall(self, query: Query, now: int) -> Results:
        """Return sessions related to a message, as far as they are indexed."""
        return self._search_index().recall(query.text, now, query)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index new records; return the number of sessions that had any."""
        self._rows.refresh_marked()
        self._rows.delete_indexed_pending()
        self._lifecycle.resume_deletions()
        return self._search_index().catch_up(progress)

    def _search_index(self) -> SearchIndex:
        return SearchIndex(
            self.passages,
            self._rows.metadata,
            lambda session, after: self.read(session, after=after),
            self.reports.append,
            include_tools=self._tool_output,
        )

    # --- turns

    def lease(self, session: str) -> PostgresLease:
        """Acquire the turn lease. SessionBusyError if another turn holds it; never waits."""
        return self._leases.acquire(session)

    # --- transfer

    def ids(self) -> Iterator[str]:
        """Yield the ids of all sessions, oldest first."""
        return self._transfer.ids()

    def lines(self, session: str) -> Iterator[RawLine | Damaged]:
        """Return the exact lines of a session at this moment."""
        return iter(self._reader.lines(session))

    def adopt(self, source: Metadata, lines: Callable[[], Iterator[RawLine]], after: int | None = None) -> None:
        """Insert a session of another store, or its lines after `after`. Durable on return."""
        try:
            self._transfer.adopt(source, lines, after)
        finally:
            self._cache.forget(source.id)

    def disk_usage(self, biggest: int = 10) -> DiskUsage:
        """Return the number and size of sessions, and the size of the tables."""
        name = self.database.settings.schema
        usage: DiskUsage = self._rows.query_fresh(lambda connection: query_disk_usage(connection, name, biggest))
        return usage

    # --- maintenance

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return every problem with a session's records."""
        return self._reader.verify(session)

    def repair(self, session: str) -> tuple[str, ...]:
        """Rebuild counts and derived rows from the log; delete nothing."""
        actions: list[str] = []
        with self._locked(session) as cached:
            self._appender.refresh(cached)
            cached.is_current, cached.fold = False, None
            before, after = self._lifecycle.rebuild_rows(session)
        if after != before:
            actions.append(f"parts recounted: {len(before)} before, {len(after)} now")
        for damage in self.verify(session):
            location = damage.file or f"record {damage.seq}"
            actions.append(f"{location}: {damage.problem}; not repaired")
        return tuple(actions)

    def migrate(self) -> tuple[int, int]:
        """Migrate the tables; return the old and the new version."""
        return self.database.run_separately(
            lambda connection: schema.migrate(connection, self.database.settings.schema), with_timeout=False
        )

    def close(self) -> None:
        """Refresh rows and close all connections; the store may be used again."""
        self._notifications.close()
        self._background.close()
        self.database.close()

    # --- helpers

    def _prepare(self, record: Meta) -> PreparedRecord:
        return prepare_records([record], self._now, self._new_uuid)[0]

    def _after_fork_in_child(self) -> None:
        self._new_uuid = UuidGenerator()  # the parent continues the old sequence
        self._new_ulid = UlidGenerator(self._clock)  # another thread may have held its lock
        for lease in list(self._background.leases):
            lease.abandon()
        self._background.reset()
        self._notifications.reset()
        self._leases.owner = new_owner_name()
        self._cache.clear()
        self.database.after_fork_in_child()
