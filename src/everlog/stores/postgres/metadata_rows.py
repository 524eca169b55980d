"""Metadata and listing: derived from the log, and never written inside an append.

A row of `listing` is a session's metadata up to a record; a read of the metadata adds the records
after it. An append marks its session in the same statement; while the mark exists, a listing checks
whether the log has grown. Removing a mark changes the session's row, which every append compares,
so no append can be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from everlog.errors import FormatError, InvalidIdError, NotFoundError, SettingsError, StoreFailedError, StoreFullError
from everlog.log import line_codec
from everlog.log.fold import MetadataFold
from everlog.log.raw_lines import start_fold
from everlog.log.usage_fold import session_usage, sum_by_day_and_model
from everlog.model import Meta, Metadata, Through, UsageRow
from everlog.ports import Filter, Order, Page, SessionRow, parse_cursor, since_ms
from everlog.stores.file.log_tail import Report
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.driver_errors import ContentionError, ReadOnlyError
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.session_cache import SessionCache
from everlog.stores.postgres.statements import load_statements
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
        self.sql = load_statements("rows", self._schema)
        self._record_sql = load_statements("records", self._schema)

    # --- one session

    def row(self, session: str) -> SessionRow:
        """Return a session's row up to its last acknowledged record."""
        return self._database.run_idempotent(lambda connection: self.fold(connection, session)[0])

    def fold(self, connection: Connection, session: str) -> tuple[SessionRow, int]:
        """Return a session's row up to its last record, and the seq that its listing covers."""
        sid = sid_of(session)
        row = connection.execute(self.sql["listing_and_head"], {"sid": sid}, binary=True).fetchone()
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
            statement = self._record_sql["page_above"]
            rows = connection.execute(statement, values, binary=True).fetchall()
            if not rows:
                session = session_of(sid)
                raise no_session(session)
            yield from (row for row in rows if row[0] is not None)
            if len(rows) < _FOLD_PAGE:
                return
            after = rows[-1][0]

    def has_birth_record(self, connection: Connection, sid: UUID) -> bool:
        """Return whether a log begins with the record of the session's initial fields."""
        body = fetch_value(connection, self._record_sql["birth_record"], {"sid": sid})
        return body is not None and isinstance(line_codec.decode(bytes(body)).record, Meta)

    # --- writing

    def insert(self, connection: Connection, metadata: Metadata) -> None:
        """Insert the row of a new session."""
        connection.execute(self.sql["insert_listing"], _listing_values(SessionRow(metadata, 0, 1)))

    def put(self, connection: Connection, row: SessionRow, *, unmark: bool = False) -> None:
        """Update a session's row. Call in a transaction; an older row changes nothing."""
        values = _listing_values(row)
        # Lock order: the row of `session` before that of `listing`, everywhere.
        unmarked = unmark and self._unmark(connection, values["sid"], values["seq"])
        if connection.execute(self.sql["update_listing"], values).rowcount:
            self._put_usage(connection, values["sid"], row.metadata)
        if unmarked:
            cached = self._cache.peek(row.id)
            if cached is not None:
                cached.is_current = False  # its next append must see that the mark is gone

    def _unmark(self, connection: Connection, sid: UUID, seq: int) -> bool:
        return bool(fetch_value(connection, self.sql["unmark"], {"sid": sid, "seq": seq}))

    def _put_usage(self, connection: Connection, sid: UUID, metadata: Metadata) -> None:
        """Write the usage rows of a session that are new or have changed."""
        rows = connection.execute(self.sql["usage_rows"], {"sid": sid}, binary=True).fetchall()
        stored = {row[:2]: row[2:] for row in rows}
        # Models with the same name in the column are added up.
        usage = sum_by_day_and_model(replace(row, model=indexable_text(row.model)) for row in session_usage(metadata))
        new = {(row.day, row.model): _usage_values(row) for row in usage}
        if not stored.keys() <= new.keys():
            connection.execute(self.sql["delete_usage"], {"sid": sid})
            stored = {}
        changed = [(sid, *key, *new[key]) for key in new if stored.get(key) != new[key]]
        if changed:
            with connection.cursor() as cursor:
                cursor.executemany(self.sql["upsert_usage"], changed)

    def refresh_marked(self, limit: int = _MAX_BIGINT) -> None:
        """Refresh the rows of at most `limit` marked sessions, the last marked first."""
        tried: list[UUID] = []  # once each: later appends are after this call
        while len(tried) < limit:
            values = {"tried": tried, "limit": min(limit - len(tried), 1000)}
            behind = self._database.run_idempotent(
                lambda connection, values=values: connection.execute(  # type: ignore[misc]
                    self.sql["stale_listings"], values, binary=True
                ).fetchall()
            )
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
                connection.execute(self.sql["reset_listing"], {"sid": sid_of(session)})
            row, _ = self.fold(connection, session)
            self.put(connection, row, unmark=unmark)

        try:
            self._database.run_transaction(work, repeatable=True)
        except NotFoundError:
            return  # deleted meanwhile

    def delete_indexed_pending(self) -> None:
        """Delete pending rows of indexed sessions, which every search would look at again."""

        def work(connection: Connection) -> int:
            rows = connection.execute(self.sql["indexed_pending"], binary=True).fetchall()
            sids = [sid for (sid,) in rows]
            statement = self.sql["delete_indexed_pending"]
            return connection.execute(statement, {"sids": sids}).rowcount if sids else 0

        with suppress(ReadOnlyError, StoreFullError):  # leftovers only cost time
            while self._database.run_idempotent(work):
                continue

    def drop(self, connection: Connection, sid: UUID) -> None:
        """Delete the derived rows of a session."""
        for name in ("delete_listing", "delete_mark", "delete_usage"):
            connection.execute(self.sql[name], {"sid": sid})

    # --- reading

    def page(self, criteria: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        """Return a page of sessions, newest first, with the cursor of the next page."""
        conditions, values = filter_conditions(criteria)
        count_conditions, count_values = list(conditions), dict(values)
        if cursor is not None:
            active, last = parse_cursor(cursor)
            try:
                sid = sid_of(last)
            except (InvalidIdError, NotFoundError):
                problem = f"not a cursor: {cursor[:60]!r}"
                raise FormatError(problem, hint="use the cursor of an earlier page") from None
            values |= {"cursor_active": active, "cursor_sid": sid}
            conditions.append(
                "(active, sid) < (%(cursor_active)s, %(cursor_sid)s)" if order == "active" else "sid < %(cursor_sid)s"
            )
        order_by = "active DESC, sid DESC" if order == "active" else "sid DESC"
        table = f'"{self._schema}".listing'
        select = f"""SELECT sid, active, metadata, bytes, parts FROM {table}
            {where_clause(conditions)} ORDER BY {order_by} LIMIT %(limit)s"""
        count_sql = (
            f"SELECT count(*) FROM {table} {where_clause(count_conditions)}"
            if count_conditions
            else self.sql["count_sessions"]
        )
        self.refresh_marked(MAX_REFRESHED)

        def query(connection: Connection) -> tuple[list[Any], int]:
            page_values = {**values, "limit": limit + 1}
            rows = connection.execute(select, page_values, binary=True).fetchall()
            if count_conditions and cursor is None and len(rows) <= limit:
                return rows, len(rows)  # all of them: no need to count
            return rows, int(fetch_value(connection, count_sql, count_values))

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
        values = {"sid": sid_of(session)}
        statement = self.sql["listing_metadata"]
        row = self._database.run_idempotent(
            lambda connection: connection.execute(statement, values, binary=True).fetchone()
        )
        return None if row is None else decode_metadata(row[0])

    def query_fresh(self, query: Callable[[Connection], Any]) -> Any:
        """Refresh all rows, then run a query on them."""
        self.refresh_marked()
        return self._database.run_idempotent(query)


def filter_conditions(criteria: Filter, table: str = "") -> tuple[list[str], dict[str, Any]]:
    """Return a filter as SQL conditions and their values."""
    conditions: list[str] = []
    values: dict[str, Any] = {}
    for column in ("agent", "sender", "source"):
        value = getattr(criteria, column)
        if value is not None:
            conditions.append(f"{table}{column} = %({column})s")
            values[column] = indexable_text(value)
    if criteria.unfinished is not None:
        conditions.append(f"{table}unfinished" if criteria.unfinished else f"NOT {table}unfinished")
    if criteria.since is not None:
        conditions.append(f"{table}active >= %(since)s")
        values["since"] = since_ms(criteria)
    if criteria.title is not None:
        conditions.append(f"strpos({table}title, %(title)s) > 0")
        values["title"] = storable_text(criteria.title).casefold()
    return conditions, values


def where_clause(conditions: Sequence[str]) -> str:
    """Return conditions as a WHERE clause, empty if there are none."""
    return "WHERE " + " AND ".join(conditions) if conditions else ""


def fetch_value(connection: Connection, statement: str, values: dict[str, Any] | None = None) -> Any:
    """Return the first column of the first row; None if there is no row."""
    row = connection.execute(statement, values or None).fetchone()
    return None if row is None else row[0]


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


def _listing_values(row: SessionRow) -> dict[str, Any]:
    data = row.metadata
    return {
        "sid": sid_of(data.id),
        "seq": data.through.seq,
        "active": max(min(row.active, _MAX_BIGINT), -_MAX_BIGINT),
        "bytes": row.bytes,
        "parts": row.parts,
        "unfinished": data.unfinished,
        "agent": indexable_text(data.agent),
        "sender": indexable_text(data.sender),
        "source": indexable_text(data.source),
        "title": storable_text(data.title or "").casefold(),
        "metadata": msgspec.json.encode(data),
    }


def _usage_values(usage: UsageRow) -> tuple[Any, ...]:
    """Return the columns after day and model, in order."""
    *counts, cost = msgspec.structs.astuple(usage)[2:]
    return (*(min(count, _MAX_BIGINT) for count in counts), cost)
