"""Sessions and names as rows: what a listing asks.

A row is a session's metadata up to a log position. A writer marks its session before its first
append; as long as the mark stands, a listing looks whether the log went on. A mark names its
owner, a store in a process, so that one left by a dead process is settled once and then dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.index import usage_rows
from everlog.index.database import Database
from everlog.log.line_codec import clean
from everlog.model import Metadata
from everlog.ports import (
    Filter,
    Order,
    Page,
    SessionRow,
    UsageReport,
    days_of,
    parse_cursor,
    since_ms,
)

_metadata = msgspec.json.Decoder(Metadata)
_UPSERT = """INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
    agent = excluded.agent, sender = excluded.sender, source = excluded.source,
    title = excluded.title, active = excluded.active, bytes = excluded.bytes,
    parts = excluded.parts, unfinished = excluded.unfinished, metadata = excluded.metadata"""
HURRY = 0.1  # seconds; an append does not wait for a listing's file
_COLUMNS = "metadata, bytes, parts"


class Index:
    """The rows of one root."""

    def __init__(
        self,
        path: Path | None,
        report: Callable[[str], None],
        is_there: Callable[[str], bool] = lambda session: True,
    ) -> None:
        """`is_there` is asked of every session whose row is written, when nobody else writes.

        A row is made from what was read before. Whoever deletes a session takes it away first and
        its row then, so one that is there now will be dropped behind this, and none stays.
        """
        self.database = Database(path, report)
        self._is_there = is_there

    # --- rows

    def put(self, rows: Iterable[SessionRow], *, new: bool = False) -> None:
        """Write rows; `new` ones have no names yet."""
        with self.database.writing() as cursor:
            for row in rows:
                if not self._is_there(row.id):
                    continue
                _put(cursor, row)
                _put_names(cursor, row.metadata, new=new)
                usage_rows.put(cursor, row.metadata, new=new)

    def put_written(self, row: SessionRow, owner: str, *, last: bool) -> None:
        """Write the row of a session that an owner appends to, or has finished with."""
        with self.database.writing(patience=HURRY) as cursor:
            if not self._is_there(row.id):
                return
            _put(cursor, row)
            _put_names(cursor, row.metadata)
            usage_rows.put(cursor, row.metadata)
            (_unmark if last else _mark)(cursor, row.id, owner)

    def settle(
        self, rows: Iterable[tuple[SessionRow, SessionRow | None]], marks: Iterable[tuple[str, str]]
    ) -> None:
        """Write rows that have changed since they were read, and drop marks, in one go."""
        with self.database.writing() as cursor:
            for row, old in rows:
                if not self._is_there(row.id):
                    continue
                _put(cursor, row)
                if old is None or _claims(old.metadata) != _claims(row.metadata):
                    _put_names(cursor, row.metadata)
                usage_rows.put(cursor, row.metadata)
            for session, owner in marks:
                _unmark(cursor, session, owner)

    def drop(self, sessions: Iterable[str]) -> None:
        """Forget sessions."""
        from everlog.index.fulltext import drop  # noqa: PLC0415 - a listing needs no search

        with self.database.writing() as cursor:
            for session in sessions:
                for table in ("session", "name", "mark"):
                    cursor.execute(f"DELETE FROM {table} WHERE id = ?", (session,))
                drop(cursor, session)
                usage_rows.drop(cursor, session)

    def get(self, session: str) -> SessionRow | None:
        """One row."""
        with self.database.reading() as cursor:
            row = cursor.execute(
                f"SELECT {_COLUMNS} FROM session WHERE id = ?", (session,)
            ).fetchone()
        return None if row is None else _listed(row)

    def ids(self) -> set[str]:
        """All sessions that have a row."""
        with self.database.reading() as cursor:
            return {row[0] for row in cursor.execute("SELECT id FROM session")}

    # --- marks

    def mark(self, session: str, owner: str) -> None:
        """Say that an owner is going to append. On the disk before it returns: a power cut must
        not keep an acknowledged record and lose the hint to it."""
        with self.database.writing(durable=True, patience=HURRY) as cursor:
            _mark(cursor, session, owner)

    def marked(self) -> list[tuple[str, str, SessionRow | None]]:
        """The marks: session, owner, row (None if it has none yet)."""
        with self.database.reading() as cursor:
            rows: list[Any] = cursor.execute(
                f"SELECT mark.id, owner, {_COLUMNS} FROM mark LEFT JOIN session USING (id)"
            ).fetchall()
        return [(one, owner, _listed(rest) if rest[0] else None) for one, owner, *rest in rows]

    # --- names

    def holder(self, name: str) -> tuple[str, int] | None:
        """The session that has a name, and with which generation."""
        with self.database.reading() as cursor:
            row = cursor.execute(
                "SELECT id, generation FROM name WHERE name = ?"
                " ORDER BY generation DESC, id DESC LIMIT 1",
                (name,),
            ).fetchone()
        return None if row is None else (row[0], row[1])

    def newest_chat(self, thread: str) -> tuple[str, int] | None:
        """The chat of a key or pair with the highest number, and that number."""
        with self.database.reading() as cursor:
            row = cursor.execute(
                "SELECT id, chat FROM name WHERE name = ? ORDER BY chat DESC, id DESC LIMIT 1",
                (thread,),
            ).fetchone()
        return None if row is None else (row[0], row[1] or 0)

    def starting_with(self, prefix: str) -> list[str]:
        """At most two ids that begin so."""
        with self.database.reading() as cursor:
            rows = cursor.execute(
                "SELECT id FROM session WHERE id >= ? AND id < ? LIMIT 2", (prefix, prefix + "~")
            )
            return [row[0] for row in rows]

    # --- the directory

    def scanned(self) -> int:
        """The time of the sessions directory that the rows stand for."""
        with self.database.reading() as cursor:
            return int(_one(cursor, "SELECT value FROM fact WHERE key = 'scanned'"))

    def set_scanned(self, changed_at: int, *, before: int | None = None) -> None:
        """Remember the directory's time; with `before`, only if that is what was remembered."""
        with self.database.writing() as cursor:
            cursor.execute(
                "UPDATE fact SET value = ?1 WHERE key = 'scanned' AND (?2 IS NULL OR value = ?2)",
                (changed_at, before),
            )

    # --- listing

    def page(self, which: Filter, limit: int, cursor_text: str | None, order: Order) -> Page:
        """Some sessions, newest first, and the cursor to the next ones."""
        conditions, values = conditions_of(which)
        total_conditions, total_values = list(conditions), list(values)
        column = "active" if order == "active" else "0"
        if cursor_text is not None:
            active, last = parse_cursor(cursor_text)
            conditions.append(f"({column}, id) < (?, ?)")
            values += [active if order == "active" else 0, last]
        by = "active DESC, id DESC" if order == "active" else "id DESC"
        with self.database.reading() as cursor:
            rows = cursor.execute(
                f"SELECT {_COLUMNS} FROM session {_where(conditions)} ORDER BY {by} LIMIT ?",
                (*values, limit + 1),
            ).fetchall()
            if total_conditions:
                count = f"SELECT count(*) FROM session {_where(total_conditions)}"
            else:
                count = "SELECT value FROM fact WHERE key = 'sessions'"
            total = int(_one(cursor, count, total_values))
        sessions = [_listed(row) for row in rows[:limit]]
        return Page(sessions, sessions[-1].cursor if len(rows) > limit else None, total)

    # --- usage

    def usage(self, which: Filter, until: str | None, spenders: int) -> UsageReport:
        """What sessions spent, by day and model."""
        conditions, values = conditions_of(replace(which, since=None))
        with self.database.reading() as cursor:
            return usage_rows.used(cursor, conditions, values, days_of(which, until), spenders)


def _put(cursor: Any, row: SessionRow) -> None:
    data = row.metadata
    title = (data.name or "").casefold()
    cursor.execute(
        _UPSERT,
        (
            data.id,
            data.agent,
            data.sender,
            data.source,
            title,
            row.active,
            row.bytes,
            row.parts,
            int(data.unfinished),
            msgspec.json.encode(data),
        ),
    )


def _mark(cursor: Any, session: str, owner: str) -> None:
    cursor.execute("INSERT OR IGNORE INTO mark VALUES (?, ?)", (session, owner))


def _unmark(cursor: Any, session: str, owner: str) -> None:
    cursor.execute("DELETE FROM mark WHERE id = ? AND owner = ?", (session, owner))


def _put_names(cursor: Any, data: Metadata, *, new: bool = False) -> None:
    if not new:
        cursor.execute("DELETE FROM name WHERE id = ?", (data.id,))
    # Another process may have found the same new session.
    cursor.executemany("INSERT OR REPLACE INTO name VALUES (?, ?, ?, ?)", _claims(data))


def _claims(data: Metadata) -> list[tuple[str, int, str, int | None]]:
    """Name, generation, session, and for the name that its chats are numbered under, the number."""
    claims = [
        (name, data.generations.get(name, 0), data.id, data.chat if name == data.key else None)
        for name in data.names
    ]
    return claims if data.key else [*claims, (data.thread, data.current or 0, data.id, data.chat)]


def _listed(row: Sequence[Any]) -> SessionRow:
    return SessionRow(_metadata.decode(row[0]), row[1], row[2])


def conditions_of(which: Filter) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    values: list[Any] = []
    for column in ("agent", "sender", "source"):
        value = getattr(which, column)
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(clean(value))
    if which.unfinished is not None:
        conditions.append("unfinished = 1" if which.unfinished else "unfinished = 0")
    if which.since is not None:
        conditions.append("active >= ?")
        values.append(since_ms(which))
    if which.title is not None:
        conditions.append("instr(title, ?) > 0")
        values.append(clean(which.title).casefold())
    return conditions, values


def _where(conditions: list[str]) -> str:
    return "WHERE " + " AND ".join(conditions) if conditions else ""


def _one(cursor: Any, statement: str, values: Sequence[Any] = ()) -> Any:
    return cursor.execute(statement, values).fetchone()[0]
