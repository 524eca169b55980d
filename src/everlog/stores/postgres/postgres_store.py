"""The store port on PostgreSQL.

The tables `rec` and `session` are the truth; listings, names and full text are derived from them.
How a record is stored is in `append_statement`; this module implements the methods of the port.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from everlog.errors import ConflictError, StoreFullError
from everlog.index.search.search_index import SearchIndex
from everlog.model import TURN_END, AnyRecord, Event, Meta, Metadata
from everlog.ports import (
    Chats,
    DiskUsage,
    Measurable,
    Progress,
    RawLine,
    Reporting,
    SharedBetweenMachines,
    Transferable,
)
from everlog.settings import Settings
from everlog.stores.postgres import schema
from everlog.stores.postgres.background import BackgroundThreads
from everlog.stores.postgres.connections import Database
from everlog.stores.postgres.driver_errors import ReadOnlyError
from everlog.stores.postgres.id_columns import sid_of
from everlog.stores.postgres.leases import Leases, PostgresLease, new_owner_name
from everlog.stores.postgres.lifecycle import SessionLifecycle
from everlog.stores.postgres.metadata_rows import MetadataRows
from everlog.stores.postgres.name_claims import NAME_FIELDS, NameClaims, NamingAppender
from everlog.stores.postgres.passage_search import PassageSearch
from everlog.stores.postgres.record_reader import RecordReader
from everlog.stores.postgres.session_cache import CachedSession, SessionCache
from everlog.stores.postgres.shared_state import SharedState
from everlog.stores.process_fork import register_fork_hooks
from everlog.stores.rules import AppendCall
from everlog.stores.store_verbs import Compose, StoreVerbs

T = TypeVar("T")


class PostgresStore(StoreVerbs, RecordReader, Reporting, Measurable, Transferable):
    """The store port on a database that many machines share."""

    lease_type = PostgresLease

    def __init__(self, url: str, settings: Settings | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """Connect on first use."""
        super().__init__(settings, clock)
        options = settings or Settings()
        report = self.reports.append
        self.database = Database(
            url,
            options.postgres,
            report,
            durable=options.session.durability == "always",
            prepare=lambda connection: schema.check(connection, options.postgres.schema),
        )
        self._cache = SessionCache()
        self._background = BackgroundThreads(options.postgres.lease_seconds, report)
        self._rows = MetadataRows(self.database, self._cache, report)
        self._leases = Leases(self.database, self._background)
        self._claims = NameClaims(self.database)
        self._appender = NamingAppender(self.database, self.limits, self._rows, self._claims, self._meta_call)
        self.passages = PassageSearch(self.database)
        parts = (self.database, self._rows, self._claims, self.passages)
        self._lifecycle = SessionLifecycle(*parts, appender=self._appender, meta_call=self._meta_call)
        self.sharing = SharedState(self.database, report)
        self._page, self._usage = self._rows.page, self._rows.usage
        self._holder = self._named = self._claims.holder
        self._newest_chat, self._ids_with_prefix = self._claims.newest_chat, self._claims.ids_with_prefix
        self._background.refresh_row = self._rows.refresh
        self._background.renew_leases = self._leases.renew
        register_fork_hooks(in_child=self._after_fork_in_child)

    def __repr__(self) -> str:
        return f"PostgresStore({self.database.address})"

    def capability(self, kind: type[T]) -> T | None:
        """Return the object that has a capability, or None."""
        if kind is SharedBetweenMachines:
            return cast("T", self.sharing)
        return super().capability(kind)

    # --- writing

    def _create(self, blank: Metadata, fields: dict[str, Any], held_name: str) -> Metadata:
        return self._lifecycle.create(blank, fields, held_name)

    def _append(self, session: str, call: AppendCall) -> list[AnyRecord]:
        sid_of(session)
        changes_names = ends_turn = False
        for item in call.prepared:
            record = item.record
            if isinstance(record, Meta):
                changes_names = changes_names or not NAME_FIELDS.isdisjoint(record.set)
            ends_turn = ends_turn or (isinstance(record, Event) and record.kind == TURN_END)
        with self._locked(session) as cached:
            try:
                stored = (self._appender.append_names if changes_names else self._appender.append)(cached, call)
            except ConflictError:
                if isinstance(call.lease, PostgresLease) and cached.end.epoch != call.lease.epoch:
                    call.lease.mark_lost()
                raise
        self._background.schedule_refresh(session, immediately=ends_turn)
        self.sharing.announce(session)
        return stored

    def _locked(self, session: str) -> AbstractContextManager[CachedSession]:
        return self._cache.get(session).hold_lock(self.limits.lock_seconds)

    def _append_meta(self, session: str, changes: dict[str, Any]) -> Metadata:
        if not NAME_FIELDS.isdisjoint(changes):  # of the pair that chats are counted under
            return self._change(session, changes, lambda *_: changes)
        self._append(session, self._meta_call(changes))
        return self.metadata(session)

    def _change(self, session: str, fields: dict[str, Any], compose: Compose) -> Metadata:
        with self._locked(session) as cached:
            self._appender.change_names(cached, fields, compose)
            self._background.schedule_refresh(session)
            self.sharing.announce(session)
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

    def metadata(self, session: str) -> Metadata:
        """Return the metadata: the listing row plus the records after it."""
        return self._rows.row(session).metadata

    # --- finding

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of a key or pair."""
        newest, current = self._newest_chat(thread), self._holder(thread)
        if current is None:
            return None
        if newest is not None:
            return Chats(current[0], *newest)
        # Older than chat numbers, unless it is an alias: chats are never numbered under those.
        metadata = self._rows.metadata(current[0])
        if metadata is None or metadata.thread != thread:
            return None
        return Chats(current[0], self._claims.newest_unnumbered(thread) or current[0], 0)

    def _exists(self, session: str) -> bool:
        return self.database.fetch_row("session_exists", {"sid": sid_of(session)}) is not None

    # --- search

    def refresh_index(self, progress: Progress | None = None) -> None:
        """Index new records for a search; if the database takes none, those indexed can still be found."""
        try:
            self.catch_up(progress)
        except (ReadOnlyError, StoreFullError) as error:
            self.reports.append(f"the search index is behind: {error.message}")

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index new records; return the number of sessions that had any."""
        self._rows.refresh_marked()
        self._rows.delete_indexed_pending()
        self._lifecycle.resume_deletions()
        return self._search_index().catch_up(progress)

    def query_index(self, ask: Callable[[SearchIndex], T], default: T) -> T:
        """Return what a function finds in the search index."""
        return ask(self._search_index())

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
        return self._lifecycle.ids()

    def adopt(self, source: Metadata, lines: Callable[[], Iterator[RawLine]], after: int | None = None) -> None:
        """Insert a session of another store, or its lines after `after`. Durable on return."""
        try:
            self._lifecycle.adopt(source, lines, after)
        finally:
            self._cache.forget(source.id)

    def disk_usage(self, biggest: int = 10) -> DiskUsage:
        """Return the number and size of sessions, and the size of the tables."""
        return self._rows.disk_usage(biggest)

    # --- maintenance

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
        self.sharing.close()
        self._background.close()
        self.database.close()

    def _after_fork_in_child(self) -> None:
        self._renew_generators()
        for lease in list(self._background.leases):
            lease.abandon()
        self._background.reset()
        self.sharing.reset()
        self._leases.owner = new_owner_name()
        self._cache.clear()
        self.database.after_fork_in_child()
