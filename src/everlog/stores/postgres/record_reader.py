"""Reading the log: in pages by (session, seq), so that the cost follows what is read.

No connection is held between two pages: who reads lazily may never come back. What is read ends at
the head of the moment in which reading began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from everlog.errors import NotFoundError
from everlog.log.line_codec import decode, decode_fast
from everlog.log.parts import part_name
from everlog.log.raw_lines import Line
from everlog.model import SCHEMA_VERSION, Damaged, Entry, Part
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.statements import load

_BYTES = 4_000_000  # of a page, about
_MOST, _SOME, _FEW = 1000, 256, 64  # records of a page; of the first one, forwards and backwards


class Reading:
    """The read path of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load("records", database.settings.schema)

    # --- records

    def forward(self, session: str, after: int, limit: int | None) -> Iterator[Entry]:
        """Records above a seq, in order; the first page, or NotFoundError, comes at once."""
        sid = sid_of(session)
        asked = _SOME if limit is None else max(min(limit, _SOME), 1)
        values = {"sid": sid, "after": after, "limit": asked}
        head, rows = self._first(session, "opened", values)
        pages = self._forward(sid, head, rows, asked, limit)
        return (self._entry(sid, row) for row in pages)

    def lines(self, session: str) -> Iterator[Line]:
        """The exact lines of a session, that of its birth included."""
        sid = sid_of(session)
        head, rows = self._first(session, "opened", {"sid": sid, "after": -1, "limit": _SOME})
        for row in self._forward(sid, head, rows, _SOME, None):
            seq, part, body = row
            yield Line(part, seq, bytes(body), self._entry(sid, row))

    def _forward(
        self, sid: UUID, head: int, rows: list[Any], asked: int, limit: int | None
    ) -> Iterator[Any]:
        left = -1 if limit is None else max(limit, 0)
        while rows and left:
            for row in rows:
                if left == 0:
                    return
                left -= 1
                yield row
            after = rows[-1][0]
            if after >= head or len(rows) < asked:
                return
            asked = self._fitting(rows)
            values = {"sid": sid, "after": after, "head": head, "limit": asked}
            rows = self._further("above", values)

    def backward(self, session: str) -> Iterator[Entry]:
        """All records but that of the birth, newest first; the first page is read at once."""
        sid = sid_of(session)
        _, rows = self._first(session, "ended", {"sid": sid, "limit": _FEW})
        return self._backward(sid, rows)

    def _backward(self, sid: UUID, rows: list[Any]) -> Iterator[Entry]:
        size = _FEW
        while rows:
            for row in rows:
                if row[0] > 0:
                    yield self._entry(sid, row)
            if rows[-1][0] <= 1:
                return
            size = min(2 * size, self._fitting(rows))
            rows = self._further("below", {"sid": sid, "before": rows[-1][0], "limit": size})

    def _first(self, session: str, statement: str, values: dict[str, Any]) -> tuple[int, list[Any]]:
        rows = self._rows(statement, values)
        if not rows:
            raise NotFoundError(f"there is no session {session}", session=session)
        head = rows[0][0]
        return head, [row[2:] for row in rows if row[2] is not None]

    def _further(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """Another page; NotFoundError if the session is deleted by now: records of it may be missing."""
        rows = self._rows(statement, values)
        if not rows:
            session = session_of(values["sid"])
            raise NotFoundError(f"there is no session {session} any more", session=session)
        return [row for row in rows if row[0] is not None]

    def _rows(self, statement: str, values: dict[str, Any]) -> list[Any]:
        return self._database.reading(
            lambda link: link.execute(self._sql[statement], values, binary=True).fetchall()
        )

    @staticmethod
    def _fitting(rows: list[Any]) -> int:
        """How many records of about this size make a page."""
        size = sum(len(row[2]) for row in rows) // len(rows) + 1
        return max(min(_BYTES // size, _MOST), 1)

    def _entry(self, sid: UUID, row: Any) -> Entry:
        seq, part, body = row
        line = bytes(body)
        record = decode_fast(line)
        if record is not None and record.seq == seq:
            return record
        found, problem, _ = decode(line)
        if found is not None and found.seq == seq:
            return found
        return self._damaged(sid, seq, part, line, problem or f"the line is that of {found.seq}")  # type: ignore[union-attr]

    def _damaged(self, sid: UUID, seq: int, part: int, line: bytes, problem: str) -> Damaged:
        values = {"sid": sid, "part": part, "seq": seq}
        start = int(self._rows("offset", values)[0][0])
        return Damaged(
            file=part_name(part), start=start, end=start + len(line), seq=seq, problem=problem
        )

    # --- parts

    def parts(self, session: str) -> tuple[Part, ...]:
        """The parts that its log would have as files."""
        return self._database.reading(lambda link: self._parts(link, session))

    def _parts(self, link: Link, session: str) -> tuple[Part, ...]:
        with link.transaction():  # of one moment
            link.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            return self.parts_at(link, session)

    def parts_at(self, link: Link, session: str) -> tuple[Part, ...]:
        """The same, in a transaction in which they do not change."""
        values = {"sid": sid_of(session)}
        row = link.execute(self._sql["current_part"], values, binary=True).fetchone()
        full = link.execute(self._sql["full_parts"], values, binary=True).fetchall()
        if row is None:
            raise NotFoundError(f"there is no session {session}", session=session)
        current, size, first, head, _ = row
        made = [Part(part_name(n), b, f or None, (z if f else None)) for n, b, f, z in full]
        last = head if first else None
        return (*made, Part(part_name(current), size, first or None, last))

    # --- what is wrong

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Everything wrong with a session: crc, seq, epoch, parts."""
        sid = sid_of(session)
        found: list[Damaged] = []
        expected: int | None = None
        last = 0
        measured: dict[str, int] = {}
        parts = self.parts(session)
        for entry in self.forward(session, -1, None):
            seq = entry.seq or 0
            if expected is None:
                expected = 0 if seq == 0 else 1
            if seq != expected:
                missing = f"records {expected} to {seq - 1} are missing"
                found.append(Damaged(file="", start=0, end=0, seq=expected, problem=missing))
            expected, last = seq + 1, seq
            if isinstance(entry, Damaged):
                found.append(entry)
            elif entry.schema_version > SCHEMA_VERSION:
                newer = f"schema version {entry.schema_version} is newer than ours"
                found.append(Damaged(file="", start=0, end=0, seq=seq, problem=newer))
        for seq, part in self._rows("epochs", {"sid": sid}):
            back = "its epoch is lower than the one before"
            found.append(Damaged(file=part_name(part), start=0, end=0, seq=seq, problem=back))
        measured = {part_name(row[0]): row[1] for row in self._rows("measured", {"sid": sid})}
        again = self.parts(session)
        if again == parts:  # else somebody is writing, and the counts are of two moments
            for one in parts:
                if measured.get(one.file, 0) != one.bytes:
                    wrong = f"has {measured.get(one.file, 0)} bytes, not {one.bytes}"
                    found.append(Damaged(file=one.file, start=0, end=0, problem=wrong))
            counted = {one.file for one in parts}
            for file, size in measured.items():
                if file not in counted:
                    wrong = f"has {size} bytes, and is counted nowhere"
                    found.append(Damaged(file=file, start=0, end=0, problem=wrong))
            head = max((one.last_seq or 0 for one in parts), default=0)
            if last < head:
                lost = f"records {last + 1} to {head} are missing"
                found.append(Damaged(file="", start=0, end=0, seq=last + 1, problem=lost))
        return tuple(found)
