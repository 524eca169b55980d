"""Metadata and listing: derived from the log, and never written inside an append.

A row of `listing` is a session's metadata up to a record. Who asks for metadata gets the row and
what the records behind it change. A session that is appended to is marked in the same statement;
as long as the mark stands, a listing looks whether the log went on. Taking a mark away is a change
of the session's row that every append compares, so none can slip through between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from everlog.errors import (
    FormatError,
    InvalidIdError,
    NotFoundError,
    SettingsError,
    StoreFailedError,
    StoreFullError,
)
from everlog.log import line_codec
from everlog.log.fold import Tally
from everlog.log.raw_lines import opening
from everlog.log.usage_fold import summed
from everlog.log.usage_fold import used as used_by
from everlog.model import Meta, Metadata, Through, UsageRow
from everlog.ports import Filter, Order, Page, SessionRow, parse_cursor, since_ms
from everlog.stores.file.log_tail import Report
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.driver_errors import Contended, ReadOnly
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.session_cache import Memory
from everlog.stores.postgres.statements import load

MOST = 1_000_000  # sessions of one page
AT_ONCE = 100  # rows that a listing brings up to date before it answers
_PAGE = 500  # records that are folded at a time
_LONGEST = 250  # characters of a text in an index, which takes no more than some 2,700 bytes
_LARGEST = (1 << 63) - 1
_OF_ALL = (StoreFailedError, SettingsError)  # what is wrong with the database, not with a session
_metadata = msgspec.json.Decoder(Metadata)


class Rows:
    """The derived rows of one store."""

    def __init__(self, database: Database, memory: Memory, report: Report) -> None:
        self._database = database
        self._memory = memory
        self._report = report
        self._schema = database.settings.schema
        self.sql = load("rows", self._schema)
        self._records = load("records", self._schema)

    # --- one session

    def row(self, session: str) -> SessionRow:
        """A session up to its last acknowledged record."""
        return self._database.reading(lambda link: self.fold(link, session)[0])

    def fold(self, link: Link, session: str) -> tuple[SessionRow, int]:
        """The same on a connection, and the seq that its listing covers."""
        sid = sid_of(session)
        row = link.execute(self.sql["known"], {"sid": sid}, binary=True).fetchone()
        if row is None:
            raise NotFoundError(f"there is no session {session}", session=session)
        head, size, part, part_bytes, data, seq = row
        metadata = self._memory.metadata(session)
        # Of this log, and not of one that was here before under the same id.
        if metadata is not None and metadata.through == Through(part, part_bytes, head):
            return SessionRow(metadata, size, part), seq
        old = decoded(data)
        if old is not None and seq >= head:
            return SessionRow(old, size, part), seq
        if old is None:
            tally, seq = Tally.fresh(session), -1
        elif seq >= 0:
            tally = Tally(old)
        elif self.has_birth(link, sid):
            tally = Tally.fresh(session)
        else:  # made from the log, but for what it was made with: that is in this row alone
            tally = opening(None, replace(old, id=session))
        for number, _, body in self._above(link, sid, seq, head):
            record = line_codec.decode(body).record
            if record is None:
                tally.seq = max(tally.seq, number)  # damaged: its number is not given away again
            else:
                tally.add(record)
        tally.seq = head  # also if the last ones are missing: their numbers are not given away
        return SessionRow(tally.metadata(part, part_bytes), size, part), seq

    def _above(self, link: Link, sid: UUID, after: int, head: int) -> Iterator[tuple[Any, ...]]:
        while after < head:
            values = {"sid": sid, "after": after, "head": head, "limit": _PAGE}
            rows = link.execute(self._records["above"], values, binary=True).fetchall()
            if not rows:
                session = session_of(sid)
                raise NotFoundError(f"there is no session {session}", session=session)
            yield from (row for row in rows if row[0] is not None)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def has_birth(self, link: Link, sid: UUID) -> bool:
        """Whether a log begins with the record that says what its session was made with."""
        body = one(link, self._records["birth"], {"sid": sid})
        return body is not None and isinstance(line_codec.decode(bytes(body)).record, Meta)

    # --- upkeep

    def insert(self, link: Link, metadata: Metadata) -> None:
        """The row of a new session."""
        link.execute(self.sql["insert_listing"], _values(SessionRow(metadata, 0, 1)))

    def put(self, link: Link, row: SessionRow, *, unmark: bool = False) -> None:
        """A session has come this far; to be called in a transaction."""
        values = _values(row)
        # The session's row before that of the listing, as all who lock both.
        unmarked = unmark and self._unmark(link, values["sid"], values["seq"])
        if link.execute(self.sql["put_listing"], values).rowcount:
            self._put_spent(link, values["sid"], row.metadata)
        if unmarked:
            known = self._memory.look(row.id)
            if known is not None:
                known.seen = False  # its next append reads that there is no mark

    def _unmark(self, link: Link, sid: UUID, seq: int) -> bool:
        return bool(one(link, self.sql["unmark"], {"sid": sid, "seq": seq}))

    def _put_spent(self, link: Link, sid: UUID, metadata: Metadata) -> None:
        """Write what a session spent, as far as it is not there."""
        rows = link.execute(self.sql["spent"], {"sid": sid}, binary=True).fetchall()
        known = {one[:2]: one[2:] for one in rows}
        # Of two models whose names a column cannot tell apart, the sum.
        spent = summed(replace(one, model=indexed(one.model)) for one in used_by(metadata))
        new = {(one.day, one.model): _numbers(one) for one in spent}
        if not known.keys() <= new.keys():
            link.execute(self.sql["drop_spent"], {"sid": sid})
            known = {}
        changed = [(sid, *key, *new[key]) for key in new if known.get(key) != new[key]]
        if changed:
            with link.cursor() as cursor:
                cursor.executemany(self.sql["put_spent"], changed)

    def settle(self, most: int = _LARGEST) -> None:
        """Bring the rows of marked sessions up to date, at most so many, the last marked first."""
        tried: list[UUID] = []  # once is enough: whatever comes later comes after this call
        while len(tried) < most:
            values = {"tried": tried, "limit": min(most - len(tried), 1000)}
            behind = self._database.reading(
                lambda link, values=values: link.execute(  # type: ignore[misc]
                    self.sql["behind"], values, binary=True
                ).fetchall()
            )
            for sid, old in behind:
                tried.append(sid)
                try:
                    self.refresh(session_of(sid), unmark=old)
                except (ReadOnly, StoreFullError) as error:  # what is there can still be listed
                    self._report(f"the listing is behind: {error.message}")
                    return
                except Exception as error:  # one bad session must not hide the others
                    if isinstance(error, _OF_ALL) and not isinstance(error, Contended):
                        raise
                    what = f"session {session_of(sid)} cannot be listed"
                    self._report(f"{what}: {type(error).__name__}: {error}")
            if not behind:
                return

    def refresh(self, session: str, *, unmark: bool, anew: bool = False) -> None:
        """Bring one row up to date; `anew`: whatever it says."""

        def work(link: Link) -> None:
            if anew:
                link.execute(self.sql["reset_listing"], {"sid": sid_of(session)})
            row, _ = self.fold(link, session)
            self.put(link, row, unmark=unmark)

        try:
            self._database.changing(work, repeatable=True)
        except NotFoundError:
            return  # deleted meanwhile

    def tidy(self) -> None:
        """Let nothing wait to be taken in that is: every search would look at it again."""

        def work(link: Link) -> int:
            rows = link.execute(self.sql["covered"], binary=True).fetchall()
            sids = [sid for (sid,) in rows]
            return link.execute(self.sql["drop_covered"], {"sids": sids}).rowcount if sids else 0

        with suppress(ReadOnly, StoreFullError):  # it costs time, and nothing else
            while self._database.reading(work):
                continue

    def drop(self, link: Link, sid: UUID) -> None:
        """Forget a session."""
        for name in ("drop_listing", "drop_mark", "drop_spent"):
            link.execute(self.sql[name], {"sid": sid})

    # --- asking

    def page(self, which: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        """Some sessions, newest first, and the cursor to the next ones."""
        conditions, values = conditions_of(which)
        counted, counted_values = list(conditions), dict(values)
        if cursor is not None:
            active, last = parse_cursor(cursor)
            try:
                sid = sid_of(last)
            except (InvalidIdError, NotFoundError):
                wrong = f"not a cursor: {cursor[:60]!r}"
                raise FormatError(wrong, hint="take one of a listing") from None
            values |= {"cursor_active": active, "cursor_sid": sid}
            conditions.append(
                "(active, sid) < (%(cursor_active)s, %(cursor_sid)s)"
                if order == "active"
                else "sid < %(cursor_sid)s"
            )
        by = "active DESC, sid DESC" if order == "active" else "sid DESC"
        table = f'"{self._schema}".listing'
        select = f"""SELECT sid, active, metadata, bytes, parts FROM {table} {where(conditions)}
            ORDER BY {by} LIMIT %(limit)s"""
        total = f"SELECT count(*) FROM {table} {where(counted)}" if counted else self.sql["total"]
        self.settle(AT_ONCE)

        def ask(link: Link) -> tuple[list[Any], int]:
            rows = link.execute(select, {**values, "limit": limit + 1}, binary=True).fetchall()
            if counted and cursor is None and len(rows) <= limit:
                return rows, len(rows)  # they are all of them: nobody has to count
            return rows, int(one(link, total, counted_values))

        rows, found = self._database.reading(ask)
        sessions = [self._listed(sid, *facts) for sid, _, *facts in rows[:limit]]
        further = None
        if len(rows) > limit:
            sid, active = rows[limit - 1][:2]
            further = f"{active}-{session_of(sid)}"
        return Page([one for one in sessions if one is not None], further, found)

    def _listed(self, sid: UUID, data: bytes, size: int, parts: int) -> SessionRow | None:
        """A row; one that says nothing that can be read is made anew, if that can be done."""
        metadata = decoded(data)
        if metadata is not None:
            return SessionRow(metadata, size, parts)
        session = session_of(sid)
        self._report(f"the row of session {session} cannot be read: it is made from its log")
        try:
            self.refresh(session, unmark=False, anew=True)
        except Exception as error:
            self._report(
                f"the row of session {session} cannot be written: {type(error).__name__}: {error}"
            )
        try:
            return self.row(session)
        except NotFoundError:
            return None  # deleted meanwhile

    def metadata(self, session: str) -> Metadata | None:
        """What the row says, perhaps of some records ago."""
        values = {"sid": sid_of(session)}
        row = self._database.reading(
            lambda link: link.execute(self.sql["title"], values, binary=True).fetchone()
        )
        return None if row is None else decoded(row[0])

    def ask(self, question: Callable[[Link], Any]) -> Any:
        """Ask the rows, brought up to date, something else."""
        self.settle()
        return self._database.reading(question)


def conditions_of(which: Filter, table: str = "") -> tuple[list[str], dict[str, Any]]:
    """A filter of sessions as SQL."""
    conditions: list[str] = []
    values: dict[str, Any] = {}
    for column in ("agent", "sender", "source"):
        value = getattr(which, column)
        if value is not None:
            conditions.append(f"{table}{column} = %({column})s")
            values[column] = indexed(value)
    if which.unfinished is not None:
        conditions.append(f"{table}unfinished" if which.unfinished else f"NOT {table}unfinished")
    if which.since is not None:
        conditions.append(f"{table}active >= %(since)s")
        values["since"] = since_ms(which)
    if which.title is not None:
        conditions.append(f"strpos({table}title, %(title)s) > 0")
        values["title"] = text(which.title).casefold()
    return conditions, values


def where(conditions: Sequence[str]) -> str:
    """Conditions as a clause."""
    return "WHERE " + " AND ".join(conditions) if conditions else ""


def one(link: Link, statement: str, values: dict[str, Any] | None = None) -> Any:
    """The one value that a statement gives."""
    row = link.execute(statement, values or None).fetchone()
    return None if row is None else row[0]


def text(value: str) -> str:
    """A text as a column can hold it: without NUL and without halves of characters."""
    return line_codec.clean(value.replace("\0", "\ufffd"))  # type: ignore[no-any-return]  # text in, text out


def indexed(value: str) -> str:
    """The same as an index can hold it; the end of a very long one is its hash."""
    value = text(value)
    if len(value) <= _LONGEST:
        return value
    return value[:_LONGEST] + sha256(value.encode()).hexdigest()


def decoded(data: bytes) -> Metadata | None:
    """What a row says; None if somebody has written something else into it."""
    try:
        return _metadata.decode(data)
    except (ValueError, RecursionError):
        return None


def _values(row: SessionRow) -> dict[str, Any]:
    data = row.metadata
    return {
        "sid": sid_of(data.id),
        "seq": data.through.seq,
        "active": max(min(row.active, _LARGEST), -_LARGEST),
        "bytes": row.bytes,
        "parts": row.parts,
        "unfinished": data.unfinished,
        "agent": indexed(data.agent),
        "sender": indexed(data.sender),
        "source": indexed(data.source),
        "title": text(data.name or "").casefold(),
        "metadata": msgspec.json.encode(data),
    }


def _numbers(spent: UsageRow) -> tuple[Any, ...]:
    """What stands behind day and model, in the order of the columns."""
    *counts, cost = msgspec.structs.astuple(spent)[2:]
    return (*(min(one, _LARGEST) for one in counts), cost)
