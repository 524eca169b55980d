"""Whole sessions out of the database and into it: the exact lines, with their parts and numbers.

Each session comes in one transaction, with its names and its row, or not at all. It is not marked:
its row is made from the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from everlog.errors import ConflictError, NotFoundError
from everlog.log import raw_lines
from everlog.log.fold import Tally
from everlog.log.raw_lines import Line
from everlog.model import SCHEMA_VERSION, Damaged, Metadata
from everlog.ports import SessionRow
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.driver_errors import Duplicate
from everlog.stores.postgres.id_columns import name_of, rid_of, session_of, sid_of, stripe_of
from everlog.stores.postgres.lifecycle import Making
from everlog.stores.postgres.metadata_rows import Rows
from everlog.stores.postgres.name_claims import Claims, names_of
from everlog.stores.postgres.part_layout import KINDS
from everlog.stores.postgres.passage_search import Texts
from everlog.stores.postgres.statements import load

_LINES, _BYTES = 1000, 4_000_000  # of one statement


class _Place(NamedTuple):
    """Where lines go."""

    sid: UUID
    epoch: int
    grown: bool  # there are others before them
    taken: dict[UUID, int]  # what makes records unique, and their seqs


class Carrying:
    """How whole sessions come to one store from another."""

    def __init__(
        self, database: Database, rows: Rows, claims: Claims, texts: Texts, making: Making
    ) -> None:
        self._database = database
        self._rows, self._claims, self._texts, self._making = rows, claims, texts, making
        name = database.settings.schema
        self._sql = load("carrying", name)
        self._sessions, self._records = load("sessions", name), load("records", name)

    def ids(self) -> Iterator[str]:
        """All sessions, oldest first."""
        after = UUID(int=0)
        while True:
            values = {"after": after}
            rows = self._database.reading(
                lambda link, values=values: link.execute(  # type: ignore[misc]
                    self._sql["ids"], values, binary=True
                ).fetchall()
            )
            yield from (session_of(row[0]) for row in rows)
            if not rows:
                return
            after = rows[-1][0]

    def adopt(
        self, source: Metadata, lines: Callable[[], Iterator[Line]], after: int | None
    ) -> None:
        """Take a session over, or its lines behind `after`."""

        def work(link: Link) -> None:
            if after is None:
                self._settle_in(link, source, lines())
            else:
                self._go_on(link, source.id, lines(), after)

        try:
            self._database.changing(work)
        except Duplicate as error:
            raise ConflictError(
                f"there is a session {source.id} already, or its rows are being removed",
                session=source.id,
            ) from error

    def _settle_in(self, link: Link, source: Metadata, lines: Iterator[Line]) -> None:
        first = next(lines, None)
        tally = raw_lines.opening(first, source)
        blank, sid = tally.metadata(1, 0), sid_of(source.id)
        link.execute(self._sessions["insert_session"], {"sid": sid})
        self._rows.insert(link, blank)
        made = blank
        if first is not None:
            place = _Place(sid, 0, grown=False, taken={})
            made = self._insert(link, place, tally, chain((first,), lines), before=0)
        # Copying may take long: names are locked behind it.
        self._claims.lock(link, names_of(made))
        self._claims.put(link, made, new=True)
        stripe = stripe_of(name_of(made.thread))
        link.execute(self._sessions["count_session"], {"stripe": stripe, "more": 1})
        if first is not None or made.name:
            self._texts.await_(link, sid, made.through.seq)

    def _go_on(self, link: Link, session: str, lines: Iterator[Line], after: int) -> None:
        sid = sid_of(session)
        row = link.execute(self._records["hold"], {"sid": sid}).fetchone()
        if row is None:
            raise NotFoundError(f"there is no session {session}", session=session)
        head, epoch = row
        if head != after:
            raise ConflictError(f"session {session} went on to {head} while it was copied")
        before = self._rows.fold(link, session)[0].metadata
        place = _Place(sid, epoch, grown=True, taken={})
        made = self._insert(link, place, Tally(before), lines, before=head)
        self._claims.lock(link, names_of(before) | names_of(made))
        self._claims.put(link, made)
        self._texts.await_(link, sid, made.through.seq)

    def _insert(
        self, link: Link, place: _Place, tally: Tally, lines: Iterable[Line], before: int
    ) -> Metadata:
        """Put lines behind a number; the metadata behind them."""
        for batch in _batches(lines):
            records = [None if isinstance(one.entry, Damaged) else one.entry for one in batch]
            values = {
                "sid": place.sid,
                "epoch": place.epoch,
                "seqs": [one.seq for one in batch],
                "rids": self._rids(link, place, batch),
                "parts": [one.part for one in batch],
                "kinds": [0 if one is None else KINDS.get(one.record_type, 0) for one in records],
                "bodies": [one.body for one in batch],
            }
            link.execute(self._sql["insert"], values)
            for line in batch:
                raw_lines.add(tally, line)
        parts = self._making.measure(link, place.sid, before)
        part, size = parts[-1][0], parts[-1][1]
        metadata = tally.metadata(part, size)
        if metadata.newest_schema > SCHEMA_VERSION:
            newest = {"sid": place.sid, "newest": min(metadata.newest_schema, 32767)}
            link.execute(self._sql["newest"], newest)
        link.execute(self._rows.sql["reset_listing"], {"sid": place.sid})
        self._rows.put(link, SessionRow(metadata, sum(one[1] for one in parts), part))
        return metadata

    def _rids(self, link: Link, place: _Place, batch: list[Line]) -> list[UUID]:
        """What makes each record unique; an id that was used before leads to the next one."""
        ids = ["" if isinstance(one.entry, Damaged) else one.entry.id for one in batch]
        while True:
            made: list[UUID] = []
            taken = dict(place.taken)
            for line, record_id in zip(batch, ids, strict=True):
                rid = rid_of(record_id)
                while rid in taken:
                    rid = rid_of(record_id, taken[rid])
                taken[rid] = line.seq
                made.append(rid)
            values = {"sid": place.sid, "rids": made}
            found = (
                link.execute(self._records["stored"], values, binary=True).fetchall()
                if place.grown
                else []
            )
            place.taken.update({rid: seq for rid, seq, _ in found})
            if not found:
                place.taken.update(zip(made, (one.seq for one in batch), strict=True))
                return made


def _batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.body)
        if len(batch) == _LINES or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
