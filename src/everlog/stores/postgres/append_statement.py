"""Appends: one statement, one round trip.

The line of a record contains its seq, so the head must be known before the line is written. Each
statement is a compare-and-set on the head that this process read last:

    rows              stored, and durable
    no rows           another process wrote or took the turn: refresh, then retry or refuse
    unique violation  a record with the same id is stored: find it
    connection lost   the outcome is unknown: find out

Stored records are found by their unique rid (`id_columns.rid_of`), so whatever happened to an
attempt, the next one completes it and nothing is stored twice. A record found this way is only
acknowledged after another commit, which checks for it again: it may come from an attempt that was
never acknowledged, and a server that took over since may lack it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import asdict

from everlog.errors import EverlogError, SessionBusyError
from everlog.log import line_codec
from everlog.log.fold import MetadataFold
from everlog.model import MARKERS, SCHEMA_VERSION, AnyRecord
from everlog.settings import SessionSettings
from everlog.stores import rules
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.driver_errors import ConnectionLostError, ContentionError, DuplicateRowError
from everlog.stores.postgres.id_columns import rid_of, sid_of
from everlog.stores.postgres.leases import PostgresLease
from everlog.stores.postgres.metadata_rows import decode_metadata
from everlog.stores.postgres.part_layout import KINDS, Layout, NewRecord, advance, lay_out, stored_records
from everlog.stores.postgres.session_cache import CachedSession, LogEnd
from everlog.stores.rules import RETRY_WINDOW, AppendCall

FollowUp = Callable[[Connection], None]  # runs in the transaction of an append, after it
_MAX_LOSSES = 3  # lost connections during one append


class _StoredRecord(NamedTuple):
    """A record that is already stored."""

    rid: UUID
    record: AnyRecord


class _UncertainAttempt:
    """An attempt with an unknown outcome, which may still succeed.

    It depends on a head and, under a lease, on its epoch: once either has changed and its records
    are not stored, they never will be.
    """

    def __init__(self, lost: ConnectionLostError | None, head: int) -> None:
        self.lost, self._head = lost, head

    def track(self, lost: ConnectionLostError, head: int) -> None:
        """Track a later attempt that was lost."""
        self.lost, self._head = lost, head

    def update(self, cached: CachedSession, epoch: int | None) -> None:
        """Clear `lost` if the attempt can no longer succeed; its records were not found."""
        if cached.end.head != self._head or epoch not in (None, cached.end.epoch):
            self.lost = None


class Appender:
    """The write path of one store."""

    def __init__(self, database: Database, settings: SessionSettings) -> None:
        self._database = database
        self._settings = settings

    def append(self, cached: CachedSession, call: AppendCall, follow_up: FollowUp | None = None) -> list[AnyRecord]:
        """Store records exactly once. The caller holds the lock of `cached`."""
        new = new_records(call)
        lost: ConnectionLostError | None = None
        if len(new) == 1 and cached.is_current and cached.end.marked and follow_up is None:
            try:
                record = self._append_fast(cached, call, new[0])
            except ConnectionLostError as error:
                self._database.discard_connections()
                lost = error
            else:
                if record is not None:
                    return [record]
        uncertain = _UncertainAttempt(lost, cached.end.head)
        try:
            return self._append_with_retries(cached, call, new, follow_up, uncertain)
        except EverlogError as error:
            if uncertain.lost is None or isinstance(error, ConnectionLostError):
                raise
            raise uncertain.lost from error  # any other error means that nothing was stored

    def _append_with_retries(
        self,
        cached: CachedSession,
        call: AppendCall,
        new: list[NewRecord],
        follow_up: FollowUp | None,
        uncertain: _UncertainAttempt,
    ) -> list[AnyRecord]:
        """Repeat attempts until all records are stored or a condition fails."""
        all_new = new
        stored: dict[int, _StoredRecord] = {}
        deadline = time.monotonic() + self._settings.lock_seconds
        refreshed, losses = False, 0
        if uncertain.lost is not None:
            new, refreshed = self._find_stored(cached, call, new, stored, uncertain), True
        elif not cached.is_current:
            self.refresh(cached)
        while True:
            if not new:
                if self._confirm(cached, stored):
                    return [stored[index].record for index in range(len(call.prepared))]
                losses += 1
                if losses >= _MAX_LOSSES:
                    raise _records_missing(cached.session)
                new, refreshed = all_new, False
                stored.clear()
                self.refresh(cached)
            try:
                self._check_conditions(cached, call, len(stored))
                layout = lay_out(cached, new, self._settings)
            except EverlogError:
                if refreshed:
                    raise
                new, refreshed = self._find_stored(cached, call, new, stored, uncertain), True
                continue
            try:
                if self._store(cached, layout, epoch_of(call), follow_up):
                    break
            except (DuplicateRowError, ContentionError):
                pass
            except ConnectionLostError as error:
                uncertain.track(error, cached.end.head)
                losses += 1
                if losses >= _MAX_LOSSES:
                    raise
                self._database.discard_connections()
            new, refreshed = self._find_stored(cached, call, new, stored, uncertain), True
            if new and time.monotonic() > deadline:
                raise contention_error(cached.session)
        records = stored_records(new, layout)
        advance(cached, layout, records.values())
        if stored and not self._confirm(cached, stored):
            raise _records_missing(cached.session)
        return [stored[index].record if index in stored else records[index] for index in range(len(call.prepared))]

    def _confirm(self, cached: CachedSession, stored: dict[int, _StoredRecord]) -> bool:
        return self.confirm_stored(cached.session, [record.rid for record in stored.values()])

    def _append_fast(self, cached: CachedSession, call: AppendCall, new: NewRecord) -> AnyRecord | None:
        """Append one record in the common case; None if a slower path is needed."""
        epoch = epoch_of(call)
        if (
            (call.expected_seq is not None and call.expected_seq != cached.end.head)
            or (call.no_marker_after is not None and call.no_marker_after < cached.end.marker)
            or (epoch is not None and epoch < cached.end.epoch)
        ):
            return None
        record, seq, limits = new.prepared.record, cached.end.head + 1, self._settings
        line = line_codec.build_line(new.prepared.body, record.record_type, seq)
        size = len(line) + 1
        if (
            not cached.end.part_first
            or size > limits.line_bytes
            or cached.end.part_bytes + size > limits.part_bytes
            or (limits.total_bytes and cached.end.bytes + size > limits.total_bytes)
        ):
            return None
        marker = seq if isinstance(record, MARKERS) else cached.end.marker
        values = (
            sid_of(cached.session), cached.end.head, cached.end.bytes, marker, size, epoch,
            new.rid, KINDS.get(record.record_type, 0), line,
        )  # fmt: skip
        try:
            row_count = self._database.run_once(lambda connection: connection.run_repeated("append_one", values))
        except (DuplicateRowError, ContentionError):
            row_count = 0
        if not row_count:
            cached.is_current = False  # refresh before the next attempt, whatever the reason
            return None
        record = line_codec.as_stored(record, seq, line, plain=new.prepared.plain)
        cached.end.head, cached.end.marker = seq, marker
        cached.end.bytes += size
        cached.end.part_bytes += size
        cached.add(record)
        return record

    def append_in_transaction(self, connection: Connection, cached: CachedSession, new: list[NewRecord]) -> bool:
        """Store records in a transaction of the caller, who restores `cached` if that fails.

        False if the log has grown since `cached` was refreshed.
        """
        layout = lay_out(cached, new, self._settings)
        if not self._execute(connection, cached, layout, None):
            return False
        advance(cached, layout, stored_records(new, layout).values())
        return True

    # --- finding stored records

    def refresh(self, cached: CachedSession) -> None:
        """Reload the end of the log. NotFoundError; FormatError if a newer everlog wrote to it."""
        self._read_state(cached, [])

    def _read_state(self, cached: CachedSession, rids: list[UUID]) -> dict[UUID, tuple[int, bytes]]:
        """Reload the end of the log; return which of the records are stored at that moment."""
        values = {"sid": sid_of(cached.session), "rids": rids}
        rows = self._database.fetch_all("session_state", values)
        load_state(cached, rows[0] if rows else None)
        return {rid: (seq, bytes(body)) for *_, rid, seq, body in rows if rid is not None}

    def _find_stored(
        self,
        cached: CachedSession,
        call: AppendCall,
        new: list[NewRecord],
        stored: dict[int, _StoredRecord],
        uncertain: _UncertainAttempt,
    ) -> list[NewRecord]:
        """Refresh; add records that are stored to `stored`, and return those that are not."""
        pending, used = new, {record.rid for record in stored.values()}
        while True:
            rows_by_rid = self._read_state(cached, [item.rid for item in pending])
            still_pending: list[NewRecord] = []
            rehashed = False
            for item in pending:
                record, rid = item.prepared.record, item.rid
                if rid not in rows_by_rid:
                    still_pending.append(item)
                    continue
                seq, body = rows_by_rid[rid]
                expired = item.prepared.retriable and seq <= cached.end.head - RETRY_WINDOW
                if expired or rid in used:
                    still_pending.append(item._replace(rid=rid_of(record.id, seq)))
                    rehashed = True
                else:
                    existing = line_codec.decode(body).record
                    checked = rules.check_retry(cached.session, record, existing, seq)
                    stored[item.position] = _StoredRecord(rid, checked)
                    used.add(rid)
            pending = still_pending
            if not rehashed:
                if len(pending) == len(new):  # records that were found are still to be confirmed
                    uncertain.update(cached, epoch_of(call))
                return pending

    def confirm_stored(self, session: str, rids: Sequence[UUID] = ()) -> bool:
        """Commit once more; return whether the session and these records are durably stored."""
        values = {"sid": sid_of(session), "rids": list(rids), "count": len(set(rids))}
        row_count = self._database.retry_contention(
            lambda: self._database.run_once(lambda connection: connection.run("confirm_stored", values).rowcount)
        )
        return row_count > 0

    # --- writing

    def _check_conditions(self, cached: CachedSession, call: AppendCall, stored_count: int) -> None:
        epoch = epoch_of(call)
        if epoch is not None and cached.end.epoch != epoch:
            raise rules.lease_error(cached.session, f"{cached.end.owner} has acquired it" if cached.end.owner else "")
        rules.check_conditions(cached.session, call, cached.end.head, stored_count, lambda _: cached.end.marker)

    def _store(self, cached: CachedSession, layout: Layout, epoch: int | None, follow_up: FollowUp | None) -> bool:
        if follow_up is None:
            return self._database.run_once(lambda connection: self._execute(connection, cached, layout, epoch))

        def in_transaction(connection: Connection) -> bool:
            with connection.transaction():
                is_stored = self._execute(connection, cached, layout, epoch)
                if is_stored:
                    follow_up(connection)
            return is_stored

        return self._database.run_once(in_transaction)

    def _execute(self, connection: Connection, cached: CachedSession, layout: Layout, epoch: int | None) -> bool:
        values = {**asdict(layout.after), "sid": sid_of(cached.session), "epoch": epoch}
        values |= {"before": cached.end.head, "bytes_before": cached.end.bytes}
        numbers = list(zip(*layout.full_parts, strict=True)) or [(), (), (), ()]
        names = ("full", "full_bytes", "full_first", "full_last")
        values |= {name: list(column) for name, column in zip(names, numbers, strict=True)}
        values |= {
            "marked": cached.end.marked,
            "seqs": layout.seqs,
            "rids": layout.rids,
            "parts": layout.parts,
            "kinds": layout.kinds,
            "bodies": layout.lines,
        }
        return connection.run("append_many", values).rowcount == len(layout.lines)


def epoch_of(call: AppendCall) -> int | None:
    """Return the epoch of the lease that an append runs under."""
    return call.lease.epoch if isinstance(call.lease, PostgresLease) else None


def new_records(call: AppendCall) -> list[NewRecord]:
    """Return the records of a call, each with its rid."""
    return [NewRecord(at, item, rid_of(item.record.id)) for at, item in enumerate(call.prepared)]


def contention_error(session: str) -> SessionBusyError:
    """Return the error for a session that others have written to at every attempt."""
    return SessionBusyError(f"other processes are writing to session {session}", hint="try again", session=session)


def _records_missing(session: str) -> ConnectionLostError:
    return ConnectionLostError(
        f"records that were stored in session {session} are missing",
        hint="another server has taken over: retry with the same id",
        session=session,
    )


def load_state(cached: CachedSession, row: Sequence[Any] | None) -> None:
    """Update a cached session from a `session_state` row; NotFoundError if there is none."""
    session = cached.session
    if row is None:
        cached.is_current = False
        raise rules.no_session(session)
    *end, newest, data = row[:11]
    if newest > SCHEMA_VERSION:
        rules.refuse_newer_schema(session, newest)
    before, cached.end = cached.end, LogEnd(*end)
    # Bytes are compared too: the id may belong to another log with as many records by now.
    if cached.fold is not None and (cached.fold.seq, before.bytes) != (cached.end.head, cached.end.bytes):
        cached.fold = None
    if data is not None:
        metadata = decode_metadata(data) or rules.blank_metadata(session)
        cached.fold = MetadataFold(metadata)
    cached.is_current = True
