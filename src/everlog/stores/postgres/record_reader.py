"""Log reader: in pages by (session, seq), so that the cost depends on what is read.

No connection is held between two pages: a lazy reader may never continue. A read ends at the head
of the moment at which it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from everlog.errors import NotFoundError
from everlog.log.line_codec import decode, decode_fast
from everlog.log.parts import part_name
from everlog.model import SCHEMA_VERSION, Damaged, Entry, Part
from everlog.ports import RawLine
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.id_columns import session_of, sid_of
from everlog.stores.postgres.statements import load_statements
from everlog.stores.rules import no_session

_PAGE_BYTES = 4_000_000  # approximately
_MAX_PAGE = 1000  # records
_FIRST_FORWARD, _FIRST_BACKWARD = 256, 64  # records of the first page


class RecordReader:
    """The read path of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load_statements("records", database.settings.schema)

    # --- records

    def forward(self, session: str, after: int, limit: int | None) -> Iterator[Entry]:
        """Return the records above a seq; reads the first page at once, or raises NotFoundError."""
        sid = sid_of(session)
        page_size = _FIRST_FORWARD if limit is None else max(min(limit, _FIRST_FORWARD), 1)
        values = {"sid": sid, "after": after, "limit": page_size}
        head, rows = self._first_page(session, "first_page", values)
        pages = self._forward(sid, head, rows, page_size, limit)
        return (self._decode_entry(sid, row) for row in pages)

    def lines(self, session: str) -> Iterator[RawLine]:
        """Yield the exact lines of a session, including the birth record."""
        sid = sid_of(session)
        values = {"sid": sid, "after": -1, "limit": _FIRST_FORWARD}
        head, rows = self._first_page(session, "first_page", values)
        for row in self._forward(sid, head, rows, _FIRST_FORWARD, None):
            seq, part, body = row
            yield RawLine(part, seq, bytes(body), self._decode_entry(sid, row))

    def _forward(self, sid: UUID, head: int, rows: list[Any], page_size: int, limit: int | None) -> Iterator[Any]:
        remaining = -1 if limit is None else max(limit, 0)
        while rows and remaining:
            for row in rows:
                if remaining == 0:
                    return
                remaining -= 1
                yield row
            after = rows[-1][0]
            if after >= head or len(rows) < page_size:
                return
            page_size = self._fitting_page_size(rows)
            values = {"sid": sid, "after": after, "head": head, "limit": page_size}
            rows = self._next_page("page_above", values)

    def backward(self, session: str) -> Iterator[Entry]:
        """Return all records but the birth record, newest first; reads the first page at once."""
        sid = sid_of(session)
        _, rows = self._first_page(session, "last_page", {"sid": sid, "limit": _FIRST_BACKWARD})
        return self._backward(sid, rows)

    def _backward(self, sid: UUID, rows: list[Any]) -> Iterator[Entry]:
        page_size = _FIRST_BACKWARD
        while rows:
            for row in rows:
                if row[0] > 0:
                    yield self._decode_entry(sid, row)
            if rows[-1][0] <= 1:
                return
            page_size = min(2 * page_size, self._fitting_page_size(rows))
            values = {"sid": sid, "before": rows[-1][0], "limit": page_size}
            rows = self._next_page("page_below", values)

    def _first_page(self, session: str, statement: str, values: dict[str, Any]) -> tuple[int, list[Any]]:
        rows = self._fetch(statement, values)
        if not rows:
            raise no_session(session)
        head = rows[0][0]
        return head, [row[2:] for row in rows if row[2] is not None]

    def _next_page(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """Read another page; NotFoundError if the session was deleted: records may be missing."""
        rows = self._fetch(statement, values)
        if not rows:
            session = session_of(values["sid"])
            raise NotFoundError(f"session {session} was deleted", session=session)
        return [row for row in rows if row[0] is not None]

    def _fetch(self, statement: str, values: dict[str, Any]) -> list[Any]:
        return self._database.run_idempotent(
            lambda connection: connection.execute(self._sql[statement], values, binary=True).fetchall()
        )

    @staticmethod
    def _fitting_page_size(rows: list[Any]) -> int:
        """Return how many records of this average size fit into a page."""
        size = sum(len(row[2]) for row in rows) // len(rows) + 1
        return max(min(_PAGE_BYTES // size, _MAX_PAGE), 1)

    def _decode_entry(self, sid: UUID, row: Any) -> Entry:
        seq, part, body = row
        line = bytes(body)
        record = decode_fast(line)
        if record is not None and record.seq == seq:
            return record
        decoded, problem, _ = decode(line)
        if decoded is not None and decoded.seq == seq:
            return decoded
        problem = problem or f"the line is that of {decoded.seq}"  # type: ignore[union-attr]
        return self._damaged_entry(sid, seq, part, line, problem)

    def _damaged_entry(self, sid: UUID, seq: int, part: int, line: bytes, problem: str) -> Damaged:
        values = {"sid": sid, "part": part, "seq": seq}
        start = int(self._fetch("record_offset", values)[0][0])
        return Damaged(file=part_name(part), start=start, end=start + len(line), seq=seq, problem=problem)

    # --- parts

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the parts that the log would have as files."""
        return self._database.run_idempotent(lambda connection: self._parts(connection, session))

    def _parts(self, connection: Connection, session: str) -> tuple[Part, ...]:
        with connection.transaction():  # one snapshot
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            return self.parts_in_transaction(connection, session)

    def parts_in_transaction(self, connection: Connection, session: str) -> tuple[Part, ...]:
        """Return the parts, in a transaction in which they cannot change."""
        values = {"sid": sid_of(session)}
        row = connection.execute(self._sql["current_part"], values, binary=True).fetchone()
        full = connection.execute(self._sql["full_parts"], values, binary=True).fetchall()
        if row is None:
            raise no_session(session)
        current, size, first, head, _ = row
        parts = [Part(part_name(n), b, f or None, (z if f else None)) for n, b, f, z in full]
        last = head if first else None
        return (*parts, Part(part_name(current), size, first or None, last))

    # --- integrity check

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return every problem of a session: crc, seq, epoch, parts."""
        sid = sid_of(session)
        problems: list[Damaged] = []
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
                problems.append(Damaged(file="", start=0, end=0, seq=expected, problem=missing))
            expected, last = seq + 1, seq
            if isinstance(entry, Damaged):
                problems.append(entry)
            elif entry.schema_version > SCHEMA_VERSION:
                newer = f"schema version {entry.schema_version} is newer than ours"
                problems.append(Damaged(file="", start=0, end=0, seq=seq, problem=newer))
        for seq, part in self._fetch("epoch_decreases", {"sid": sid}):
            back = "its epoch is lower than the one before"
            problems.append(Damaged(file=part_name(part), start=0, end=0, seq=seq, problem=back))
        measured = {part_name(row[0]): row[1] for row in self._fetch("measured_parts", {"sid": sid})}
        parts_after = self.parts(session)
        if parts_after == parts:  # else an append came in between, and the counts cannot be compared
            for item in parts:
                if measured.get(item.file, 0) != item.bytes:
                    wrong = f"has {measured.get(item.file, 0)} bytes, not {item.bytes}"
                    problems.append(Damaged(file=item.file, start=0, end=0, problem=wrong))
            counted = {item.file for item in parts}
            for file, size in measured.items():
                if file not in counted:
                    wrong = f"has {size} bytes, but is not in the list of parts"
                    problems.append(Damaged(file=file, start=0, end=0, problem=wrong))
            head = max((item.last_seq or 0 for item in parts), default=0)
            if last < head:
                lost = f"records {last + 1} to {head} are missing"
                problems.append(Damaged(file="", start=0, end=0, seq=last + 1, problem=lost))
        return tuple(problems)
