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
from everlog.stores.rules import no_session

_PAGE_BYTES = 4_000_000  # approximately
_MAX_PAGE = 1000  # records
_FIRST_FORWARD, _FIRST_BACKWARD = 256, 64  # records of the first page


class RecordReader:
    """The verbs of a store that read its records."""

    database: Database

    # --- records

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Return the records above a seq; reads the first page at once, or raises NotFoundError."""
        sid = sid_of(session)
        after = max(after, -1)
        page_size = _FIRST_FORWARD if limit is None else max(min(limit, _FIRST_FORWARD), 1)
        values = {"sid": sid, "after": after, "limit": page_size}
        head, rows = self._first_page(session, "first_page", values)
        pages = self._forward(sid, head, rows, page_size, limit)
        return (self._decode_entry(sid, row) for row in pages)

    def lines(self, session: str) -> Iterator[RawLine | Damaged]:
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

    def tail(self, session: str) -> Iterator[Entry]:
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
        rows = self.database.fetch_all(statement, values)
        if not rows:
            raise no_session(session)
        head = rows[0][0]
        return head, [row[2:] for row in rows if row[2] is not None]

    def _next_page(self, statement: str, values: dict[str, Any]) -> list[Any]:
        """Read another page; NotFoundError if the session was deleted: records may be missing."""
        rows = self.database.fetch_all(statement, values)
        if not rows:
            session = session_of(values["sid"])
            raise NotFoundError(f"session {session} was deleted", session=session)
        return [row for row in rows if row[0] is not None]

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
        start = int(self.database.fetch_all("record_offset", values)[0][0])
        return Damaged(file=part_name(part), start=start, end=start + len(line), seq=seq, problem=problem)

    # --- parts

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the parts that the log would have as files."""

        def read(connection: Connection) -> tuple[Part, ...]:
            with connection.transaction():  # one snapshot
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return read_parts(connection, session)

        return self.database.run_idempotent(read)

    # --- integrity check

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return every problem of a session: crc, seq, epoch, parts."""
        sid = sid_of(session)
        problems: list[Damaged] = []

        def report(problem: str, seq: int | None = None, file: str = "") -> None:
            problems.append(Damaged(file=file, start=0, end=0, seq=seq, problem=problem))

        expected: int | None = None
        last = 0
        parts = self.parts(session)
        for entry in self.read(session, after=-1):
            seq = entry.seq or 0
            if expected is None:
                expected = 0 if seq == 0 else 1
            if seq != expected:
                report(f"records {expected} to {seq - 1} are missing", expected)
            expected, last = seq + 1, seq
            if isinstance(entry, Damaged):
                problems.append(entry)
            elif entry.schema_version > SCHEMA_VERSION:
                report(f"schema version {entry.schema_version} is newer than ours", seq)
        for seq, part in self.database.fetch_all("epoch_decreases", {"sid": sid}):
            report("its epoch is lower than the one before", seq, part_name(part))
        measured = {part_name(row[0]): row[1] for row in self.database.fetch_all("measured_parts", {"sid": sid})}
        if self.parts(session) != parts:  # an append came in between, and the counts cannot be compared
            return tuple(problems)
        for item in parts:
            size = measured.pop(item.file, 0)
            if size != item.bytes:
                report(f"has {size} bytes, not {item.bytes}", file=item.file)
        for file, size in measured.items():
            report(f"has {size} bytes, but is not in the list of parts", file=file)
        head = max((item.last_seq or 0 for item in parts), default=0)
        if last < head:
            report(f"records {last + 1} to {head} are missing", last + 1)
        return tuple(problems)


def read_parts(connection: Connection, session: str) -> tuple[Part, ...]:
    """Return the parts, in a transaction in which they cannot change."""
    values = {"sid": sid_of(session)}
    row = connection.run("current_part", values).fetchone()
    full = connection.run("full_parts", values).fetchall()
    if row is None:
        raise no_session(session)
    current, size, first, head, _ = row
    parts = [Part(part_name(n), b, f or None, (z if f else None)) for n, b, f, z in full]
    return (*parts, Part(part_name(current), size, first or None, head if first else None))
