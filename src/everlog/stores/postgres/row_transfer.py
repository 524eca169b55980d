"""Transfer of whole sessions out of and into the database: exact lines, with parts and seqs.

Each session is inserted in one transaction, with its names and its row. It is not marked: its row
is made from the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from everlog.errors import ConflictError
from everlog.log import raw_lines
from everlog.log.fold import MetadataFold
from everlog.model import SCHEMA_VERSION, Damaged, Metadata
from everlog.ports import RawLine, SessionRow
from everlog.stores.postgres.connections import Connection
from everlog.stores.postgres.driver_errors import DuplicateRowError
from everlog.stores.postgres.id_columns import rid_of, session_of, sid_of
from everlog.stores.postgres.lifecycle import SessionLifecycle
from everlog.stores.postgres.name_claims import names_of
from everlog.stores.postgres.part_layout import KINDS
from everlog.stores.rules import no_session

_BATCH_LINES, _BATCH_BYTES = 1000, 4_000_000  # of one statement


class _Target(NamedTuple):
    """The session that lines are inserted into."""

    sid: UUID
    epoch: int
    is_append: bool  # the session already has records
    seq_by_rid: dict[UUID, int]  # of its records, as far as looked up


class RowTransfer(SessionLifecycle):
    """Lists the sessions of a store and adopts those of other stores."""

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
        """Insert a session of another store, or append its lines after `after`."""

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
