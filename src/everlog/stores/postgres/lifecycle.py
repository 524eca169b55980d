"""Creation, copy, adoption and removal of sessions, each in one transaction with names, row and count.

Counts and derived rows can be rebuilt from the log, in one transaction too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from everlog.errors import ConflictError, EverlogError, NotFoundError
from everlog.log import raw_lines
from everlog.log.fold import MetadataFold, apply_changes
from everlog.model import SCHEMA_VERSION, Damaged, Metadata, Part, pair
from everlog.ports import RawLine, SessionRow
from everlog.stores import rules
from everlog.stores.postgres.append_statement import Appender, contention_error, load_state, new_records
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.driver_errors import ConnectionLostError, DuplicateRowError
from everlog.stores.postgres.id_columns import name_of, rid_of, session_of, sid_of, stripe_of
from everlog.stores.postgres.metadata_rows import MetadataRows
from everlog.stores.postgres.name_claims import NameClaims, names_of
from everlog.stores.postgres.part_layout import KINDS
from everlog.stores.postgres.passage_search import PassageSearch
from everlog.stores.postgres.record_reader import read_parts
from everlog.stores.postgres.session_cache import CachedSession
from everlog.stores.rules import AppendCall, no_session

_BATCH_LINES, _BATCH_BYTES = 1000, 4_000_000  # of one statement


class _Target(NamedTuple):
    """The session that lines are inserted into."""

    sid: UUID
    epoch: int
    is_append: bool  # the session already has records
    seq_by_rid: dict[UUID, int]  # of its records, as far as looked up


class SessionLifecycle:
    """Creates, forks, rebuilds and deletes the sessions of one store."""

    def __init__(
        self,
        database: Database,
        rows: MetadataRows,
        claims: NameClaims,
        passages: PassageSearch,
        *,
        appender: Appender,
        meta_call: Callable[[dict[str, Any]], AppendCall],
    ) -> None:
        self._database, self._rows, self._claims, self._passages = database, rows, claims, passages
        self._appender, self._meta_call = appender, meta_call

    # --- creating

    def create(self, blank: Metadata, fields: dict[str, Any], held_name: str) -> Metadata:
        """Create an empty session, the current chat of its key or pair; or return a name's holder."""
        session = blank.id
        names = names_of(apply_changes(blank, fields))

        def work(connection: Connection) -> Metadata:
            self._claims.lock(connection, names)
            holder = self._claims.holder_lookup(connection)
            if held_name and (current := holder(held_name)):
                if current[0] == session:  # a lost attempt succeeded
                    raise DuplicateRowError(f"session {session} was created meanwhile", session=session)
                return self._rows.fold(connection, current[0])[0].metadata
            numbered = rules.new_session_fields(fields, blank, holder, self._claims.chat_number_lookup(connection))
            metadata = apply_changes(blank, numbered)
            self._insert(connection, metadata)
            self._register(connection, metadata)
            return metadata

        return self._create_confirmed(session, work)

    def _create_confirmed(self, session: str, work: Callable[[Connection], Metadata]) -> Metadata:
        """Create a session; if the answer is lost, find out whether it was created."""
        try:
            return self._database.run_transaction(work)
        except ConnectionLostError as error:
            lost = error
        self._database.discard_connections()
        try:
            with suppress(NotFoundError):
                return self._find_confirmed(session)
            try:
                return self._database.run_transaction(work)
            except DuplicateRowError:  # the first attempt succeeded after all
                return self._find_confirmed(session)
        except EverlogError as error:  # any other error means that nothing was created
            raise ConnectionLostError(
                f"session {session} may or may not have been created: {lost.message}",
                hint="check whether it exists before you retry",
                session=session,
            ) from error

    def _find_confirmed(self, session: str) -> Metadata:
        """Return a session that exists, after confirming that it is durably stored."""
        metadata = self._rows.row(session).metadata
        if not self._appender.confirm_stored(session):
            raise rules.no_session(session)
        return metadata

    def _insert(self, connection: Connection, metadata: Metadata) -> None:
        connection.run("insert_session", {"sid": sid_of(metadata.id)})
        self._rows.insert(connection, metadata)

    def _register(self, connection: Connection, metadata: Metadata, *, with_records: bool = False) -> None:
        """Write a session's names and count it, in the stripe that is locked for them anyway."""
        self._claims.put(connection, metadata, new=True)
        stripe = stripe_of(name_of(metadata.thread))
        connection.run("add_sessions", {"stripe": stripe, "more": 1})
        if with_records or metadata.title:
            self._passages.mark_pending(connection, sid_of(metadata.id), metadata.through.seq)

    # --- copying

    def fork(self, session: str, new: str, at: int | None) -> Metadata:
        """Create a session from the records up to `at`."""
        sid = sid_of(session)

        def work(connection: Connection) -> Metadata:
            row, _ = self._rows.fold(connection, session)
            source = row.metadata
            seq = source.through.seq if at is None else at
            if at is not None and not connection.run("record_exists", {"sid": sid, "at": at}).fetchone():
                raise rules.no_record(session, at)
            blank = rules.blank_metadata(new)
            if source.through.seq:
                self._insert(connection, blank)
                self._copy(connection, session, new, seq)
            # Copying may take long, so names are locked after it.
            self._claims.lock(connection, [pair(source.agent, source.sender)])
            has_birth = self._rows.has_birth_record(connection, sid_of(new))
            highest = self._claims.chat_number_lookup(connection)
            changes = rules.fork_changes(source, seq, highest, has_birth=has_birth)
            if source.through.seq:
                metadata = self._append_fork_record(connection, new, changes)
            else:
                metadata = apply_changes(blank, changes)
                self._insert(connection, metadata)
            self._register(connection, metadata)
            return metadata

        return self._create_confirmed(new, work)

    def _copy(self, connection: Connection, session: str, new: str, at: int) -> None:
        sid, copy = sid_of(session), sid_of(new)
        values = {"sid": sid, "copy": copy, "at": at}
        if (
            not connection.run("copy_records", values).rowcount
            and not connection.run("session_exists", {"sid": sid}).fetchone()
        ):
            raise NotFoundError(f"session {session} was deleted", session=session)
        self._recount_parts(connection, copy, before=0)

    def _append_fork_record(self, connection: Connection, new: str, changes: dict[str, Any]) -> Metadata:
        """Append the record that names the source, after the copied records."""
        values = {"sid": sid_of(new), "rids": []}
        connection.run("reset_listing", values)
        cached = CachedSession(new)
        state = connection.run("session_state", values)
        load_state(cached, state.fetchone())
        copied = self._rows.fold(connection, new)[0].metadata
        if copied.newest_schema > SCHEMA_VERSION:
            rules.refuse_newer_schema(changes["forkedFrom"]["id"], copied.newest_schema)
        cached.fold = MetadataFold(copied)
        if not self._appender.append_in_transaction(connection, cached, new_records(self._meta_call(changes))):
            raise contention_error(new)
        metadata = cached.metadata
        assert metadata is not None
        self._rows.put(connection, SessionRow(metadata, cached.end.bytes, cached.end.part))
        return metadata

    def _recount_parts(self, connection: Connection, sid: UUID, before: int) -> list[Any]:
        """Recompute the counts in a session's row from its records; return the parts."""
        rows: list[Any] = connection.run("measured_parts", {"sid": sid}).fetchall()
        connection.run("delete_parts", {"sid": sid})
        if not rows:
            return rows
        for part, size, first, last, _ in rows[:-1]:
            values = {"sid": sid, "part": part, "bytes": size, "first": first, "last": last}
            connection.run("insert_part", values)
        part, size, first, last, _ = rows[-1]
        values = {
            "sid": sid,
            "before": before,
            "head": last,
            "marker": max(row[4] for row in rows),
            "bytes": sum(row[1] for row in rows),
            "part": part,
            "part_bytes": size,
            "part_first": first,
        }
        if not connection.run("update_counts", values).rowcount:
            raise ConflictError(f"session {session_of(sid)} has grown meanwhile")
        return rows

    def rebuild_rows(self, session: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """Rebuild a session's rows from its log; return its parts before and after."""
        sid = sid_of(session)

        def work(connection: Connection) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
            row = connection.run("lock_session", {"sid": sid}).fetchone()
            if row is None:
                raise rules.no_session(session)
            head, before = row[0], read_parts(connection, session)
            if head:
                self._recount_parts(connection, sid, head)
                connection.run("reset_listing", {"sid": sid})
            listing, _ = self._rows.fold(connection, session)
            self._rows.put(connection, listing)
            self._claims.put(connection, listing.metadata)
            return before, read_parts(connection, session)

        return self._database.run_transaction(work, repeatable=True)

    # --- transfer from and to other stores

    def ids(self) -> Iterator[str]:
        """Yield the ids of all sessions, oldest first."""
        after = UUID(int=0)
        while True:
            rows = self._database.fetch_all("session_ids", {"after": after})
            yield from (session_of(row[0]) for row in rows)
            if not rows:
                return
            after = rows[-1][0]

    def adopt(self, source: Metadata, lines: Callable[[], Iterator[RawLine]], after: int | None) -> None:
        """Insert a session of another store, or append its lines after `after`; exact lines, with parts and seqs.

        It is not marked: its row is made from the same lines.
        """

        def work(connection: Connection) -> None:
            if after is None:
                self._insert_session(connection, source, lines())
            else:
                self._append_lines(connection, source.id, lines(), after)

        try:
            self._database.run_transaction(work)
        except DuplicateRowError as error:
            raise ConflictError(
                f"session {source.id} already exists, or its rows are being removed", session=source.id
            ) from error

    def _insert_session(self, connection: Connection, source: Metadata, lines: Iterator[RawLine]) -> None:
        first = next(lines, None)
        fold = raw_lines.start_fold(first, source)
        blank, sid = fold.metadata(1, 0), sid_of(source.id)
        self._insert(connection, blank)
        metadata = blank
        if first is not None:
            target = _Target(sid, 0, is_append=False, seq_by_rid={})
            lines = chain((first,), lines)
            metadata = self._insert_lines(connection, target, fold, lines, before=0)
        # Copying may take long, so names are locked after it.
        self._claims.lock(connection, names_of(metadata))
        self._register(connection, metadata, with_records=first is not None)

    def _append_lines(self, connection: Connection, session: str, lines: Iterator[RawLine], after: int) -> None:
        sid = sid_of(session)
        row = connection.run("lock_session", {"sid": sid}).fetchone()
        if row is None:
            raise no_session(session)
        head, epoch = row
        if head != after:
            raise ConflictError(f"session {session} grew to {head} while it was copied")
        before = self._rows.fold(connection, session)[0].metadata
        target = _Target(sid, epoch, is_append=True, seq_by_rid={})
        fold = MetadataFold(before)
        after_copy = self._insert_lines(connection, target, fold, lines, before=head)
        self._claims.lock(connection, names_of(before) | names_of(after_copy))
        self._claims.put(connection, after_copy)
        self._passages.mark_pending(connection, sid, after_copy.through.seq)

    def _insert_lines(
        self, connection: Connection, target: _Target, fold: MetadataFold, lines: Iterable[RawLine], before: int
    ) -> Metadata:
        """Insert lines after the seq `before`; return the metadata after them."""
        for batch in raw_lines.batch_lines(lines, _BATCH_BYTES, _BATCH_LINES):
            records = [None if isinstance(line.entry, Damaged) else line.entry for line in batch]
            values = {
                "sid": target.sid,
                "epoch": target.epoch,
                "seqs": [line.seq for line in batch],
                "rids": self._assign_rids(connection, target, batch),
                "parts": [line.part for line in batch],
                "kinds": [0 if r is None else KINDS.get(r.record_type, 0) for r in records],
                "bodies": [line.body for line in batch],
            }
            connection.run("insert_records", values)
            for line in batch:
                raw_lines.add_line(fold, line)
        parts = self._recount_parts(connection, target.sid, before)
        part, size = parts[-1][0], parts[-1][1]
        metadata = fold.metadata(part, size)
        if metadata.newest_schema > SCHEMA_VERSION:
            newest = {"sid": target.sid, "newest": min(metadata.newest_schema, 32767)}
            connection.run("raise_newest", newest)
        connection.run("reset_listing", {"sid": target.sid})
        self._rows.put(connection, SessionRow(metadata, sum(row[1] for row in parts), part))
        return metadata

    def _assign_rids(self, connection: Connection, target: _Target, batch: list[RawLine]) -> list[UUID]:
        """Return a unique rid for each record; a reused id gets the next one of its chain."""
        ids = ["" if isinstance(line.entry, Damaged) else line.entry.id for line in batch]
        while True:
            rids: list[UUID] = []
            seq_by_rid = dict(target.seq_by_rid)
            for line, record_id in zip(batch, ids, strict=True):
                rid = rid_of(record_id)
                while rid in seq_by_rid:
                    rid = rid_of(record_id, seq_by_rid[rid])
                seq_by_rid[rid] = line.seq
                rids.append(rid)
            values = {"sid": target.sid, "rids": rids}
            existing: list[Any] = []
            if target.is_append:
                existing = connection.run("records_by_rid", values).fetchall()
            target.seq_by_rid.update({rid: seq for rid, seq, _ in existing})
            if not existing:
                target.seq_by_rid.update(zip(rids, (line.seq for line in batch), strict=True))
                return rids

    # --- removing

    def delete(self, session: str, epoch: int) -> int:
        """Delete a session at once, under its turn lease; return how many parts it had."""
        sid = sid_of(session)

        def work(connection: Connection) -> int:
            values = {"sid": sid, "epoch": epoch}
            row = connection.run("mark_deleted", values).fetchone()
            if row is None:
                raise rules.lease_error(session)
            self._rows.drop(connection, sid)
            self._claims.drop(connection, sid)
            self._passages.drop(connection, sid)
            stripe = stripe_of(sid.bytes)
            connection.run("add_sessions", {"stripe": stripe, "more": -1})
            return int(row[0])

        return self._database.run_transaction(work)

    def resume_deletions(self) -> None:
        """Continue interrupted deletions."""
        for (sid,) in self._database.fetch_all("deleted_sessions"):
            self.remove_rows(session_of(sid))

    def remove_rows(self, session: str) -> None:
        """Remove the rows of a deleted session; if interrupted, `resume_deletions` continues."""
        values = {"sid": sid_of(session)}

        def remove_batch(connection: Connection) -> bool:
            # Another process may have removed it, and the id may have been copied in again.
            if connection.run("lock_deleted", values).fetchone() is None:
                return False
            if connection.run("delete_batch", values).rowcount:
                return True
            connection.run("delete_parts", values)
            connection.run("delete_session", values)
            return False

        while self._database.run_transaction(remove_batch, repeatable=True):
            continue
