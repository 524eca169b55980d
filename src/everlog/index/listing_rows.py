"""The rows of sessions and names, for listings.

A row is a session's metadata up to a log position. A writer marks its session before its first
append; while the mark exists, a listing checks whether the log has grown. A mark names its owner,
a store in a process, so that the mark of a dead process is checked once and then dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from everlog.index import usage_rows
from everlog.index.database import Database
from everlog.index.listing_sql import SQLITE, page_clauses
from everlog.index.usage_rows import UsageTables
from everlog.model import Metadata
from everlog.ports import Filter, Order, Page, SessionRow, UsageReport
from everlog.ports.listing import COLUMNS, parse_cursor

_metadata_decoder = msgspec.json.Decoder(Metadata)
_UPSERT = """INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
    agent = excluded.agent, sender = excluded.sender, source = excluded.source,
    title = excluded.title, active = excluded.active, bytes = excluded.bytes,
    parts = excluded.parts, unfinished = excluded.unfinished, metadata = excluded.metadata"""
APPEND_LOCK_TIMEOUT = 0.1  # seconds; an append must not wait for listings
_DROPPED_AT_ONCE = 200  # passages; to remove their words takes milliseconds each
_PAUSE = 0.1  # seconds after that many: SQLite lets others in when they ask, which is as often
_COLUMNS = "metadata, bytes, parts"


class SessionIndex:
    """The index rows of one root."""

    def __init__(
        self,
        path: Path | None,
        report: Callable[[str], None],
        has_session: Callable[[str], bool] = lambda session: True,
    ) -> None:
        """`has_session` is called for every row to write, inside the transaction.

        A row comes from an earlier read. A deletion removes the session first and its row after
        that, so the row of a session that still exists will be dropped later, and none stays.
        """
        self.database = Database(path, report)
        self._has_session = has_session

    # --- rows

    def put(self, rows: Iterable[SessionRow], *, new: bool = False) -> None:
        """Write rows; `new` ones have no name rows yet."""
        with self.database.write_transaction() as cursor:
            for row in rows:
                self._put(cursor, row, new=new)

    def put_writer_row(self, row: SessionRow, owner: str, *, last: bool) -> None:
        """Write the row of a session that an owner appends to; with `last`, drop its mark."""
        with self.database.write_transaction(timeout=APPEND_LOCK_TIMEOUT) as cursor:
            if self._put(cursor, row):
                (_unmark if last else _mark)(cursor, row.id, owner)

    def apply_refresh(
        self, rows: Iterable[tuple[SessionRow, SessionRow | None]], marks: Iterable[tuple[str, str]]
    ) -> None:
        """Write rows that have changed, each with the old one, and drop marks; one transaction."""
        with self.database.write_transaction() as cursor:
            for row, old in rows:
                self._put(cursor, row, old=old)
            for session, owner in marks:
                _unmark(cursor, session, owner)

    def _put(self, cursor: Any, row: SessionRow, *, new: bool = False, old: SessionRow | None = None) -> bool:
        """Write the rows of a session; False if it was deleted meanwhile."""
        if not self._has_session(row.id):
            return False
        _put_session(cursor, row)
        if old is None or name_claims(old.metadata) != name_claims(row.metadata):
            _put_names(cursor, row.metadata, new=new)
        usage_rows.put(cursor, row.metadata, new=new)
        return True

    def drop(self, sessions: Iterable[str]) -> None:
        """Delete all rows of sessions with their text, so that no file has it any more."""
        from everlog.index.search import fts5  # noqa: PLC0415 - a listing needs no search

        has_passages = False
        for session in sessions:
            count = _DROPPED_AT_ONCE
            while count == _DROPPED_AT_ONCE:
                with self.database.write_transaction() as cursor:
                    count = fts5.drop_passages(cursor, session, _DROPPED_AT_ONCE)
                    if count < _DROPPED_AT_ONCE:
                        for table in ("session", "name", "mark"):
                            cursor.execute(f"DELETE FROM {table} WHERE id = ?", (session,))
                        usage_rows.drop(cursor, session)
                has_passages = has_passages or count > 0
                if count == _DROPPED_AT_ONCE:
                    time.sleep(_PAUSE)
        if has_passages:  # FTS5 writes its changes at the end of a transaction
            with self.database.write_transaction() as cursor:
                if fts5.has_deleted_words(cursor):
                    fts5.optimize(cursor)
        self.database.truncate_log()

    def get(self, session: str) -> SessionRow | None:
        """Return the row of a session; None if it has none."""
        with self.database.read_cursor() as cursor:
            row = cursor.execute(f"SELECT {_COLUMNS} FROM session WHERE id = ?", (session,)).fetchone()
        return None if row is None else _to_row(row)

    def ids(self) -> set[str]:
        """Return the ids of all sessions that have a row."""
        with self.database.read_cursor() as cursor:
            return {row[0] for row in cursor.execute("SELECT id FROM session")}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all sessions that have a row, by id."""
        with self.database.read_cursor() as cursor:
            return dict(cursor.execute("SELECT id, bytes FROM session"))

    # --- marks

    def mark(self, session: str, owner: str) -> None:
        """Mark a session that an owner is about to append to. Durable on return: a power cut must
        not keep an acknowledged record and lose its mark."""
        with self.database.write_transaction(durable=True, timeout=APPEND_LOCK_TIMEOUT) as cursor:
            _mark(cursor, session, owner)

    def marks(self) -> list[tuple[str, str, SessionRow | None]]:
        """Return all marks: session, owner, row (None if it has none yet)."""
        with self.database.read_cursor() as cursor:
            rows: list[Any] = cursor.execute(
                f"SELECT mark.id, owner, {_COLUMNS} FROM mark LEFT JOIN session USING (id)"
            ).fetchall()
        return [(session, owner, _to_row(row) if row[0] else None) for session, owner, *row in rows]

    # --- names

    def holder(self, name: str) -> tuple[str, int] | None:
        """Return the session that holds a name, and its generation."""
        with self.database.read_cursor() as cursor:
            row = cursor.execute(
                "SELECT id, generation FROM name WHERE name = ? ORDER BY generation DESC, id DESC LIMIT 1", (name,)
            ).fetchone()
        return None if row is None else (row[0], row[1])

    def newest_chat(self, thread: str) -> tuple[str, int] | None:
        """Return the chat of a key or pair with the highest number, and that number."""
        with self.database.read_cursor() as cursor:
            row = cursor.execute(
                "SELECT id, chat FROM name WHERE name = ? ORDER BY chat DESC, id DESC LIMIT 1", (thread,)
            ).fetchone()
        return None if row is None else (row[0], row[1] or 0)

    def ids_with_prefix(self, prefix: str) -> list[str]:
        """Return at most two ids that start with a prefix, or are those of a key or alias that does."""
        with self.database.read_cursor() as cursor:
            rows = cursor.execute(
                "SELECT id FROM session WHERE id >= :low AND id < :high UNION"
                " SELECT id FROM name WHERE name >= :low AND name < :high AND instr(name, char(0)) = 0 LIMIT 2",
                {"low": prefix, "high": prefix + "\U0010ffff"},
            )
            return [row[0] for row in rows]

    # --- the directory

    def scanned_at(self) -> int:
        """Return the modification time of the sessions directory at its last scan."""
        with self.database.read_cursor() as cursor:
            return int(_fetch_value(cursor, "SELECT value FROM fact WHERE key = 'scanned'"))

    def set_scanned_at(self, changed_at: int, *, before: int | None = None) -> None:
        """Store the directory's time; with `before`, only if that is the stored one."""
        with self.database.write_transaction() as cursor:
            cursor.execute(
                "UPDATE fact SET value = ?1 WHERE key = 'scanned' AND (?2 IS NULL OR value = ?2)", (changed_at, before)
            )

    # --- listing

    def page(self, criteria: Filter, limit: int, cursor_text: str | None, order: Order) -> Page:
        """Return a page of sessions, newest first, and the cursor to the next page."""
        start = None if cursor_text is None else parse_cursor(cursor_text)
        selected, counted, values = page_clauses(criteria, start, order, "id")
        values["limit"] = limit + 1
        count = "SELECT value FROM fact WHERE key = 'sessions'"
        if counted:
            count = f"SELECT count(*) FROM session {counted}"
        with self.database.read_cursor() as cursor:
            rows = cursor.execute(f"SELECT {_COLUMNS} FROM session {selected}", values).fetchall()
            total = int(_fetch_value(cursor, count, values))
        sessions = [_to_row(row) for row in rows[:limit]]
        return Page(sessions, sessions[-1].cursor if len(rows) > limit else None, total)

    # --- usage

    def usage(self, criteria: Filter, days: tuple[str, str], spenders: int) -> UsageReport:
        """Return the usage of sessions between two days, by day and model."""
        with self.database.read_cursor() as cursor:

            def fetch(statement: str, values: dict[str, Any]) -> list[Any]:
                return cursor.execute(statement, values).fetchall()

            tables = UsageTables(fetch, SQLITE, "spent", "session", "session", "id", _read_metadata)
            return usage_rows.query_usage(tables, criteria, days, spenders)


def _read_metadata(session: str, data: bytes | None) -> Metadata:
    return Metadata(id=session) if data is None else _metadata_decoder.decode(data)


def _put_session(cursor: Any, row: SessionRow) -> None:
    columns = (COLUMNS[name](row) for name in ("agent", "sender", "source", "title", "active"))
    data = msgspec.json.encode(row.metadata)
    cursor.execute(_UPSERT, (row.id, *columns, row.bytes, row.parts, int(row.metadata.unfinished), data))


def _mark(cursor: Any, session: str, owner: str) -> None:
    cursor.execute("INSERT OR IGNORE INTO mark VALUES (?, ?)", (session, owner))


def _unmark(cursor: Any, session: str, owner: str) -> None:
    cursor.execute("DELETE FROM mark WHERE id = ? AND owner = ?", (session, owner))


def _put_names(cursor: Any, data: Metadata, *, new: bool = False) -> None:
    if not new:
        cursor.execute("DELETE FROM name WHERE id = ?", (data.id,))
    # Another process may have indexed the same new session.
    rows = [(name, generation, data.id, chat) for name, generation, chat in name_claims(data)]
    cursor.executemany("INSERT OR REPLACE INTO name VALUES (?, ?, ?, ?)", rows)


def name_claims(data: Metadata) -> list[tuple[str, int, int | None]]:
    """Return the names of a session with their generations; the name that chats count under, with its chat number."""
    claims = [(name, data.generations.get(name, 0), data.chat if name == data.key else None) for name in data.names]
    return claims if data.key else [*claims, (data.thread, data.current or 0, data.chat)]


def _to_row(row: Sequence[Any]) -> SessionRow:
    return SessionRow(_metadata_decoder.decode(row[0]), row[1], row[2])


def _fetch_value(cursor: Any, statement: str, values: dict[str, Any] | None = None) -> Any:
    return cursor.execute(statement, values).fetchone()[0]
