"""Appends: one statement, one round trip.

The line of a record has its seq in it, so the head must be known before it is written. Each
statement is a compare-and-set on the head that this process saw last:

    a row     stored, and durable
    none      somebody else wrote, or took the turn: look again, and try again or refuse
    unique    a record with the same id is there: look which
    lost      whether it was stored is not known: look

Looking finds records by what makes them unique (`ids.rid_of`), so whatever happened to an attempt,
the next one completes it and stores nothing twice. A record that is found this way is acknowledged
behind a commit of its own, which looks for it once more: it may have come from an attempt that was
never acknowledged, and what is asked now may be another server, which has taken over without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from everlog.errors import ConflictError, EverlogError, NotFoundError, SessionBusyError
from everlog.log import append_rules, line_codec
from everlog.log.append_rules import REMEMBERED, Prepared
from everlog.log.fold import Tally
from everlog.model import MARKERS, SCHEMA_VERSION, AnyRecord
from everlog.settings import SessionSettings
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.driver_errors import ConnectionLost, Contended, Duplicate
from everlog.stores.postgres.id_columns import rid_of, sid_of
from everlog.stores.postgres.metadata_rows import decoded
from everlog.stores.postgres.part_layout import KINDS, New, Placed, go_on, place, written
from everlog.stores.postgres.session_cache import Known
from everlog.stores.postgres.statements import load

_LOSSES = 3  # of connections, during one append


class _Found(NamedTuple):
    """A record that is there already."""

    rid: UUID
    record: AnyRecord


class _Doubt:
    """An attempt whose outcome is not known, while it may still come through.

    It stands on a head and, under a lease, on its epoch: when either has changed and its records
    are not there, they will not come any more.
    """

    def __init__(self, lost: ConnectionLost | None, head: int) -> None:
        self.lost, self._head = lost, head

    def begin(self, lost: ConnectionLost, head: int) -> None:
        """Another one that was lost."""
        self.lost, self._head = lost, head

    def look(self, known: Known, epoch: int | None) -> None:
        """Whether it can still come through, now that it was looked for in vain."""
        if known.head != self._head or epoch not in (None, known.epoch):
            self.lost = None


class Call(NamedTuple):
    """What an append was asked for."""

    prepared: Sequence[Prepared]
    expected_seq: int | None = None
    no_marker_after: int | None = None
    epoch: int | None = None  # of the lease it is made under


class Appending:
    """The write path of one store."""

    def __init__(self, database: Database, settings: SessionSettings) -> None:
        self._database = database
        self._settings = settings
        self._sql = load("records", database.settings.schema)
        self._one = self._sql["one"]

    def append(
        self, known: Known, call: Call, also: Callable[[Link], None] | None = None
    ) -> list[AnyRecord]:
        """Store records, once; the caller holds the lock of `known`.

        `also` is done in the same transaction.
        """
        new = [New(index, one, rid_of(one.record.id)) for index, one in enumerate(call.prepared)]
        lost: ConnectionLost | None = None
        if len(new) == 1 and known.seen and known.marked and also is None:
            try:
                record = self._quickly(known, call, new[0])
            except ConnectionLost as error:
                self._database.recheck()
                lost = error
            else:
                if record is not None:
                    return [record]
        doubt = _Doubt(lost, known.head)
        try:
            return self._surely(known, call, new, also, doubt)
        except EverlogError as error:
            if doubt.lost is None or isinstance(error, ConnectionLost):
                raise
            raise doubt.lost from error  # any other word would say that nothing was stored

    def _surely(
        self,
        known: Known,
        call: Call,
        new: list[New],
        also: Callable[[Link], None] | None,
        doubt: _Doubt,
    ) -> list[AnyRecord]:
        """Attempt by attempt, until all is stored or something speaks against it."""
        everything = new
        stored: dict[int, _Found] = {}
        deadline = time.monotonic() + self._settings.lock_seconds
        looked, losses = False, 0
        if doubt.lost is not None:
            new, looked = self._find(known, call, new, stored, doubt), True
        elif not known.seen:
            self.look(known)
        while True:
            if not new:
                if self._confirmed(known, stored):
                    return [stored[index].record for index in range(len(call.prepared))]
                losses += 1
                if losses >= _LOSSES:
                    raise _gone(known.session)
                new, looked = everything, False
                stored.clear()
                self.look(known)
            try:
                self._check(known, call, len(stored))
                placed = place(known, new, self._settings)
            except EverlogError:
                if looked:
                    raise
                new, looked = self._find(known, call, new, stored, doubt), True
                continue
            try:
                if self._store(known, placed, call.epoch, also):
                    break
            except (Duplicate, Contended):
                pass
            except ConnectionLost as error:
                doubt.begin(error, known.head)
                losses += 1
                if losses >= _LOSSES:
                    raise
                self._database.recheck()
            new, looked = self._find(known, call, new, stored, doubt), True
            if new and time.monotonic() > deadline:
                raise SessionBusyError(
                    f"session {known.session} is being written to by others",
                    hint="try again",
                    session=known.session,
                )
        records = written(new, placed)
        go_on(known, placed, records.values())
        if stored and not self._confirmed(known, stored):
            raise _gone(known.session)
        return [
            stored[index].record if index in stored else records[index]
            for index in range(len(call.prepared))
        ]

    def _confirmed(self, known: Known, stored: dict[int, _Found]) -> bool:
        return self.acknowledge(known.session, [one.rid for one in stored.values()])

    def _quickly(self, known: Known, call: Call, new: New) -> AnyRecord | None:
        """The usual case with as little as it needs; None if it is not the usual case."""
        if (
            (call.expected_seq is not None and call.expected_seq != known.head)
            or (call.no_marker_after is not None and call.no_marker_after < known.marker)
            or (call.epoch is not None and call.epoch < known.epoch)
        ):
            return None
        record, seq, limits = new.given.record, known.head + 1, self._settings
        line = line_codec.seal(new.given.body, record.record_type, seq)
        size = len(line) + 1
        if (
            not known.part_first
            or size > limits.line_bytes
            or known.part_bytes + size > limits.part_bytes
            or (limits.total_bytes and known.bytes + size > limits.total_bytes)
        ):
            return None
        marker = seq if isinstance(record, MARKERS) else known.marker
        values = (
            sid_of(known.session), known.head, known.bytes, marker, size, call.epoch,
            new.rid, KINDS.get(record.record_type, 0), line,
        )  # fmt: skip
        try:
            done = self._database.once(lambda link: link.repeat(self._one, values))
        except (Duplicate, Contended):
            done = 0
        if not done:
            known.seen = False  # whatever it was, look first
            return None
        record = line_codec.stored(record, seq, line, plain=new.given.plain)
        known.head, known.marker = seq, marker
        known.bytes += size
        known.part_bytes += size
        known.add(record)
        return record

    def change(
        self, known: Known, compose: Callable[[Link], Prepared | None], also: Callable[[Link], None]
    ) -> bool:
        """Store a record that depends on more than the log, in one transaction with what it reads.

        `compose` makes it from the session as it is known, or says that there is nothing to do;
        `also` is done behind it, when the record is part of what is known. False: the log went on
        meanwhile, so look and compose again, as after a ConnectionLost. The caller holds the lock
        of `known`.
        """
        placed: Placed | None = None
        before = known.saved()

        def work(link: Link) -> bool:
            nonlocal placed
            known.restore(before)  # an attempt before this one may have gone on with it
            given = compose(link)
            if given is None:
                return True
            new = [New(0, given, rid_of(given.record.id))]
            placed = place(known, new, self._settings)
            if not self._execute(link, known, placed, None):
                return False
            go_on(known, placed, written(new, placed).values())
            also(link)
            return True

        try:
            return self._database.changing(work)
        except ConnectionLost as lost:
            known.restore(before)
            self._database.recheck()
            try:
                if placed is not None and self.acknowledge(known.session, placed.rids):
                    known.seen = False  # it is what it was before
                    return True
            except EverlogError as error:
                raise lost from error  # any other word would say that nothing was stored
            raise
        except BaseException:
            known.restore(before)
            raise

    def write(self, link: Link, known: Known, given: Prepared) -> None:
        """Store a record behind others of the same transaction, in which nobody else sees them."""
        new = [New(0, given, rid_of(given.record.id))]
        placed = place(known, new, self._settings)
        if not self._execute(link, known, placed, None):
            raise ConflictError(
                f"session {known.session} is being written to", session=known.session
            )
        go_on(known, placed, written(new, placed).values())

    # --- looking

    def look(self, known: Known) -> None:
        """Read the end of the log anew. NotFoundError; FormatError if a newer everlog wrote to it."""
        self._look(known, [])

    def _look(self, known: Known, rids: list[UUID]) -> dict[UUID, tuple[int, bytes]]:
        """The same, with the records that are there at that moment."""
        values = {"sid": sid_of(known.session), "rids": rids}
        rows = self._database.reading(
            lambda link: link.execute(self._sql["state"], values, binary=True).fetchall()
        )
        take(known, rows[0] if rows else None)
        return {rid: (seq, bytes(body)) for *_, rid, seq, body in rows if rid is not None}

    def _find(
        self, known: Known, call: Call, new: list[New], stored: dict[int, _Found], doubt: _Doubt
    ) -> list[New]:
        """Look again; which of the records are there already, and which are still to be stored."""
        left, taken = new, {one.rid for one in stored.values()}
        while True:
            found = self._look(known, [one.rid for one in left])
            again: list[New] = []
            moved = False
            for one in left:
                if one.rid not in found:
                    again.append(one)
                    continue
                seq, body = found[one.rid]
                old = one.given.retriable and seq <= known.head - REMEMBERED
                if old or one.rid in taken:
                    again.append(one._replace(rid=rid_of(one.given.record.id, seq)))
                    moved = True
                else:
                    there = line_codec.decode(body).record
                    checked = append_rules.checked_retry(
                        known.session, one.given.record, there, seq
                    )
                    stored[one.place] = _Found(one.rid, checked)
                    taken.add(one.rid)
            left = again
            if not moved:
                if len(left) == len(new):  # what was found is still to be confirmed
                    doubt.look(known, call.epoch)
                return left

    def acknowledge(self, session: str, rids: Sequence[UUID] = ()) -> bool:
        """Whether a session and records that were found in it are where a commit must be."""
        values = {"sid": sid_of(session), "rids": list(rids), "count": len(set(rids))}
        done = self._database.insisting(
            lambda: self._database.once(
                lambda link: link.execute(self._sql["barrier"], values).rowcount
            )
        )
        return done > 0

    # --- writing

    def _check(self, known: Known, call: Call, there: int) -> None:
        session = known.session
        if call.epoch is not None and known.epoch != call.epoch:
            raise ConflictError(
                f"the turn lease of session {session} is not held",
                hint=f"{known.owner} has taken it over" if known.owner else "",
                session=session,
            )
        if call.expected_seq is not None:
            append_rules.check_expected_seq(session, known.head, call.expected_seq, there)
        if call.no_marker_after is not None:
            append_rules.check_no_marker_after(session, known.marker, call.no_marker_after)

    def _store(
        self, known: Known, placed: Placed, epoch: int | None, also: Callable[[Link], None] | None
    ) -> bool:
        if also is None:
            return self._database.once(lambda link: self._execute(link, known, placed, epoch))

        def both(link: Link) -> bool:
            with link.transaction():
                done = self._execute(link, known, placed, epoch)
                if done:
                    also(link)
            return done

        return self._database.once(both)

    def _execute(self, link: Link, known: Known, placed: Placed, epoch: int | None) -> bool:
        values = {**placed.after, "sid": sid_of(known.session), "epoch": epoch}
        values |= {"before": known.head, "bytes_before": known.bytes}
        numbers = list(zip(*placed.full, strict=True)) or [(), (), (), ()]
        names = ("full", "full_bytes", "full_first", "full_last")
        values |= {name: list(each) for name, each in zip(names, numbers, strict=True)}
        values |= {
            "marked": known.marked,
            "seqs": placed.seqs,
            "rids": placed.rids,
            "parts": placed.parts,
            "kinds": placed.kinds,
            "bodies": placed.rows,
        }
        return link.execute(self._sql["many"], values).rowcount == len(placed.rows)


def _gone(session: str) -> ConnectionLost:
    return ConnectionLost(
        f"records that were found in session {session} are not there any more",
        hint="another server has taken over: try again with the same id",
        session=session,
    )


def take(known: Known, row: Sequence[Any] | None) -> None:
    """Know what a `state` row says."""
    session = known.session
    if row is None:
        known.seen = False
        raise NotFoundError(f"there is no session {session}", session=session)
    head, marker, size, part, part_bytes, part_first, newest, marked, epoch, owner, data, *_ = row
    if newest > SCHEMA_VERSION:
        append_rules.refuse_newer(session, newest)
    # The same number of bytes too: another log of as many records may be here under its id.
    if known.tally is not None and (known.tally.seq, known.bytes) != (head, size):
        known.tally = None
    if data is not None:
        known.tally = Tally(decoded(data) or Tally.fresh(session).metadata(1, 0))
    known.head, known.marker, known.bytes = head, marker, size
    known.part, known.part_bytes, known.part_first = part, part_bytes, part_first
    known.marked, known.epoch, known.owner, known.seen = marked, epoch, owner or "", True
