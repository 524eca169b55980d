"""Metadata and listing: derived from the log, and never written inside an append.

A row of `listing` is a session's metadata up to a record; a read of the metadata adds the records
after it. An append marks its session in the same statement; while the mark exists, a listing checks
whether the log has grown. Removing a mark changes the session's row, which every append compares,
so no append can be missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace
from psycopg.errors import UndefinedFunction

from everlog.errors import FormatError, InvalidIdError, NotFoundError, SettingsError, StoreFailedError, StoreFullError
from everlog.index import listing_sql
from everlog.index.listing_sql import SqlDialect, page_clauses
from everlog.index.usage_rows import UsageTables, query_usage
from everlog.log import line_codec
from everlog.log.fold import MetadataFold
from everlog.log.raw_lines import start_fold
from everlog.log.usage_fold import session_usage, sum_by_day_and_model
from everlog.model import Meta, Metadata, Through, UsageRow
from everlog.ports import DiskUsage, Filter, Order, Page, SessionRow, UsageReport
from everlog.ports.listing import COLUMNS, parse_cursor
from everlog.ports.queries import LargeSession, StorageArea
from everlog.stores.file.log_tail import Report
from everlog.stores.postgres import schema
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.driver_errors import ContentionError, ReadOnlyError
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.session_cache import SessionCache
from everlog.stores.rules import no_session

MAX_REFRESHED = 100  # rows that a listing refreshes before it answers
_FOLD_PAGE = 500  # records read at a time
_MAX_INDEXED_CHARS = 250  # an index entry is limited to about 2,700 bytes
_MAX_BIGINT = (1 << 63) - 1
_DATABASE_ERRORS = (StoreFailedError, SettingsError)  # not errors of a single session
_metadata_decoder = msgspec.json.Decoder(Metadata)


class MetadataRows:
    """The derived rows of one store."""

    def __init__(self, database: Database, cache: SessionCache, report: Report) -> None:
        self._database = database
        self._cache = cache
        self._report = report
        self._schema = database.settings.schema
        self._table = f'"{self._schema}".listing'

    # --- one session

    def row(self, session: str) -> SessionRow:
        """Return a session's row up to its last acknowledged record."""
        return self._database.run_idempotent(lambda connection: self.fold(connection, session)[0])

    def fold(self, connection: Connection, session: str) -> tuple[SessionRow, int]:
        """Return a session's row up to its last record, and the seq that its listing covers."""
        sid = sid_of(session)
        row = connection.run("listing_and_head", {"sid": sid}).fetchone()
        if row is None:
            raise no_session(session)
        head, size, part, part_bytes, data, seq = row
        metadata = self._cache.metadata(session)
        # Only if it is of this log: the id may have belonged to another one.
        if metadata is not None and metadata.through == Through(part, part_bytes, head):
            return SessionRow(metadata, size, part), seq
        listed = decode_metadata(data)
        if listed is not None and seq >= head:
            return SessionRow(listed, size, part), seq
        if listed is None:
            metadata_fold, seq = MetadataFold.empty(session), -1
        elif seq >= 0:
            metadata_fold = MetadataFold(listed)
        elif self.has_birth_record(connection, sid):
            metadata_fold = MetadataFold.empty(session)
        else:  # without a birth record, only this row holds the initial fields
            metadata_fold = start_fold(None, replace(listed, id=session))
        for number, _, body in self._records_above(connection, sid, seq, head):
            record = line_codec.decode(body).record
            if record is None:
                metadata_fold.seq = max(metadata_fold.seq, number)  # damaged: its seq stays used
            else:
                metadata_fold.add(record)
        metadata_fold.seq = head  # even if the last records are missing: their seqs stay used
        return SessionRow(metadata_fold.metadata(part, part_bytes), size, part), seq

    def _records_above(self, connection: Connection, sid: UUID, after: int, head: int) -> Iterator[tuple[Any, ...]]:
        while after < head:
            values = {"sid": sid, "after": after, "head": head, "limit": _FOLD_PAGE}
            rows = connection.run("page_above", values).fetchall()
            if not rows:
                session = session_of(sid)
                raise no_session(session)
            yield from (row for row in rows if row[0] is not None)
            if len(rows) < _FOLD_PAGE:
                return
            after = rows[-1][0]

    def has_birth_record(self, connection: Connection, sid: UUID) -> bool:
        """Return whether a log begins with the record of the session's initial fields."""
        body = connection.value("birth_record", {"sid": sid})
        return body is not None and isinstance(line_codec.decode(bytes(body)).record, Meta)

    # --- writing

    def insert(self, connection: Connection, metadata: Metadata) -> None:
        """Insert the row of a new session."""
        connection.run("insert_listing", _listing_values(SessionRow(metadata, 0, 1)))

    def put(self, connection: Connection, row: SessionRow, *, unmark: bool = False) -> None:
        """Update a session's row. Call in a transaction; an older row changes nothing."""
        values = _listing_values(row)
        # Lock order: the row of `session` before that of `listing`, everywhere.
        unmarked = unmark and self._unmark(connection, values["sid"], values["seq"])
        if connection.run("update_listing", values).rowcount:
            self._put_usage(connection, values["sid"], row.metadata)
        if unmarked:
            cached = self._cache.peek(row.id)
            if cached is not None:
                cached.is_current = False  # its next append must see that the mark is gone

    def _unmark(self, connection: Connection, sid: UUID, seq: int) -> bool:
        return bool(connection.value("unmark", {"sid": sid, "seq": seq}))

    def _put_usage(self, connection: Connection, sid: UUID, metadata: Metadata) -> None:
        """Write the usage rows of a session that are new or have changed."""
        rows = connection.run("usage_rows", {"sid": sid}).fetchall()
        stored = {row[:2]: row[2:] for row in rows}
        # Models with the same name in the column are added up.
        usage = sum_by_day_and_model(replace(row, model=indexable_text(row.model)) for row in session_usage(metadata))
        new = {(row.day, row.model): _usage_values(row) for row in usage}
        if not stored.keys() <= new.keys():
            connection.run("delete_usage", {"sid": sid})
            stored = {}
        changed = [(sid, *key, *new[key]) for key in new if stored.get(key) != new[key]]
        if changed:
            connection.run_many("upsert_usage", changed)

    def refresh_marked(self, limit: int = _MAX_BIGINT) -> None:
        """Refresh the rows of at most `limit` marked sessions, the last marked first."""
        tried: list[UUID] = []  # once each: later appends are after this call
        while len(tried) < limit:
            values = {"tried": tried, "limit": min(limit - len(tried), 1000)}
            behind = self._database.fetch_all("stale_listings", values)
            for sid, is_old in behind:
                tried.append(sid)
                try:
                    self.refresh(session_of(sid), unmark=is_old)
                except (ReadOnlyError, StoreFullError) as error:  # existing rows can be listed
                    self._report(f"the listing is behind: {error.message}")
                    return
                except Exception as error:  # one bad session must not hide the others
                    contention = isinstance(error, ContentionError)
                    if isinstance(error, _DATABASE_ERRORS) and not contention:
                        raise
                    problem = f"session {session_of(sid)} cannot be listed"
                    self._report(f"{problem}: {type(error).__name__}: {error}")
            if not behind:
                return

    def refresh(self, session: str, *, unmark: bool, rebuild: bool = False) -> None:
        """Refresh one row; `rebuild`: from the whole log."""

        def work(connection: Connection) -> None:
            if rebuild:
                connection.run("reset_listing", {"sid": sid_of(session)})
            row, _ = self.fold(connection, session)
            self.put(connection, row, unmark=unmark)

        try:
            self._database.run_transaction(work, repeatable=True)
        except NotFoundError:
            return  # deleted meanwhile

    def delete_indexed_pending(self) -> None:
        """Delete pending rows of indexed sessions, which every search would look at again."""

        def work(connection: Connection) -> int:
            rows = connection.run("indexed_pending").fetchall()
            sids = [sid for (sid,) in rows]
            return connection.run("delete_indexed_pending", {"sids": sids}).rowcount if sids else 0

        with suppress(ReadOnlyError, StoreFullError):  # leftovers only cost time
            while self._database.run_idempotent(work):
                continue

    def drop(self, connection: Connection, sid: UUID) -> None:
        """Delete the derived rows of a session."""
        for name in ("delete_listing", "delete_mark", "delete_usage"):
            connection.run(name, {"sid": sid})

    # --- reading

    def page(self, criteria: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        """Return a page of sessions, newest first, with the cursor of the next page."""
        start = None
        if cursor is not None:
            active, last = parse_cursor(cursor)
            try:
                start = active, sid_of(last)
            except (InvalidIdError, NotFoundError):
                problem = f"not a cursor: {cursor[:60]!r}"
                raise FormatError(problem, hint="use the cursor of an earlier page") from None
        selected, counted, values = page_clauses(criteria, start, order, "sid", dialect=DIALECT)
        values["limit"] = limit + 1
        select = f"SELECT sid, active, metadata, bytes, parts FROM {self._table} {selected}"
        self.refresh_marked(MAX_REFRESHED)

        def query(connection: Connection) -> tuple[list[Any], int]:
            rows = connection.execute(select, values, binary=True).fetchall()
            if not counted:
                return rows, int(connection.value("count_sessions"))
            if cursor is None and len(rows) <= limit:
                return rows, len(rows)  # all of them: no need to count
            row = connection.execute(f"SELECT count(*) FROM {self._table} {counted}", values).fetchone()
            return rows, 0 if row is None else row[0]

        rows, total = self._database.run_idempotent(query)
        sessions = [self._listed_row(sid, *columns) for sid, _, *columns in rows[:limit]]
        next_cursor = None
        if len(rows) > limit:
            sid, active = rows[limit - 1][:2]
            next_cursor = f"{active}-{session_of(sid)}"
        return Page([row for row in sessions if row is not None], next_cursor, total)

    def _listed_row(self, sid: UUID, data: bytes, size: int, parts: int) -> SessionRow | None:
        """Return a row; one that cannot be decoded is rebuilt, if possible."""
        metadata = decode_metadata(data)
        if metadata is not None:
            return SessionRow(metadata, size, parts)
        session = session_of(sid)
        self._report(f"the row of session {session} cannot be read: rebuilding it from the log")
        try:
            self.refresh(session, unmark=False, rebuild=True)
        except Exception as error:
            self._report(f"the row of session {session} cannot be written: {type(error).__name__}: {error}")
        try:
            return self.row(session)
        except NotFoundError:
            return None  # deleted meanwhile

    def metadata(self, session: str) -> Metadata | None:
        """Return the metadata in the row, which may be some records behind."""
        row = self._database.fetch_row("listing_metadata", {"sid": sid_of(session)})
        return None if row is None else decode_metadata(row[0])

    def usage(self, criteria: Filter, days: tuple[str, str], spenders: int) -> UsageReport:
        """Return the usage of the sessions that match a filter, between two days."""

        def query(connection: Connection) -> UsageReport:
            def fetch(statement: str, values: dict[str, Any]) -> list[Any]:
                return connection.execute(statement, values, binary=True).fetchall()

            spent = f'"{self._schema}".spent'
            tables = UsageTables(fetch, DIALECT, spent, self._table, "sid", "sid", _read_metadata)
            return query_usage(tables, criteria, days, spenders)

        self.refresh_marked()
        return self._database.run_idempotent(query)

    def disk_usage(self, biggest: int) -> DiskUsage:
        """Return the disk usage of the schema; reads the rows of all sessions, but no records."""

        def query(connection: Connection) -> DiskUsage:
            sessions, records, size = connection.run("totals").fetchall()[0]
            largest = connection.run("largest_sessions", {"limit": max(biggest, 0)}).fetchall()
            try:
                tables = connection.run("table_sizes", {"schema": self._schema}).fetchall()
            except UndefinedFunction:  # a compatible database without these functions
                tables = []
            sizes = ((_read_metadata(sid, data), size, head) for sid, size, head, data in largest)
            return DiskUsage(
                sessions,
                records,
                size,
                version=schema.version(connection, self._schema) or 0,
                rooms=tuple(StorageArea(*row) for row in tables),
                biggest=tuple(LargeSession(data.id, data.display_title, size, head) for data, size, head in sizes),
            )

        self.refresh_marked()
        return self._database.run_idempotent(query)


def storable_text(value: str) -> str:
    """Return a text that a column can hold: without NUL and lone surrogates."""
    return line_codec.replace_surrogates(value.replace("\0", "\ufffd"))  # type: ignore[no-any-return]


def indexable_text(value: str) -> str:
    """Return a text that an index can hold; the end of a very long one is its hash."""
    value = storable_text(value)
    if len(value) <= _MAX_INDEXED_CHARS:
        return value
    return value[:_MAX_INDEXED_CHARS] + sha256(value.encode()).hexdigest()


def decode_metadata(data: bytes) -> Metadata | None:
    """Decode the metadata of a row; None if it is invalid."""
    try:
        return _metadata_decoder.decode(data)
    except (ValueError, RecursionError):
        return None


def _read_metadata(sid: UUID, data: bytes | None) -> Metadata:
    return (None if data is None else decode_metadata(data)) or Metadata(id=session_of(sid))


def _sids(sessions: Collection[str]) -> list[UUID]:
    """Return the ids of sessions, without those that no session here can have."""
    sids = []
    for session in sessions:
        with suppress(InvalidIdError, NotFoundError):
            sids.append(sid_of(session))
    return sids


DIALECT = SqlDialect(
    parameter="%({})s",
    contains="strpos({}, {}) > 0",
    booleans=("false", "true"),
    sum="sum({})",
    count_sum=f"least(sum({{}}), {_MAX_BIGINT})::bigint",  # a sum may exceed it
    text=storable_text,
    key=indexable_text,
    among="sid = ANY({}::uuid[])",
    session_ids=_sids,
)
filter_conditions = partial(listing_sql.filter_conditions, dialect=DIALECT)


def _listing_values(row: SessionRow) -> dict[str, Any]:
    keys = {name: indexable_text(COLUMNS[name](row)) for name in ("agent", "sender", "source")}
    return keys | {
        "sid": sid_of(row.id),
        "seq": row.metadata.through.seq,
        "active": max(min(row.active, _MAX_BIGINT), -_MAX_BIGINT),
        "bytes": row.bytes,
        "parts": row.parts,
        "unfinished": row.metadata.unfinished,
        "title": storable_text(row.metadata.title or "").casefold(),
        "metadata": msgspec.json.encode(row.metadata),
    }


def _usage_values(usage: UsageRow) -> tuple[Any, ...]:
    """Return the columns after day and model, in order."""
    *counts, cost = msgspec.structs.astuple(usage)[2:]
    return (*(min(count, _MAX_BIGINT) for count in counts), cost)
