"""Where records go: lines behind the head of a log, in parts as files would have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from everlog.errors import NotFoundError
from everlog.log import append_rules, line_codec
from everlog.log.append_rules import Prepared
from everlog.log.parts import split_at_boundary
from everlog.model import MARKERS, AnyRecord
from everlog.settings import SessionSettings
from everlog.stores.postgres.id_columns import rid_of
from everlog.stores.postgres.session_cache import Known

KINDS = {"message": 1, "compaction": 2, "tombstone": 3, "rewind": 4, "meta": 5, "event": 6}


class New(NamedTuple):
    """A record that is still to be stored."""

    place: int  # in the call
    given: Prepared
    rid: UUID


class Placed(NamedTuple):
    """Lines with their places, and the session as it is behind them."""

    rows: list[bytes]
    seqs: list[int]
    rids: list[UUID]
    kinds: list[int]
    parts: list[int]
    full: list[tuple[int, int, int, int]]  # parts that these lines fill: number, bytes, seqs
    after: dict[str, Any]


def place(known: Known, new: Sequence[New], settings: SessionSettings) -> Placed:
    """The lines of records behind the head. NotFoundError; StoreFullError if they are too large."""
    rows: list[bytes] = []
    kinds: list[int] = []
    seqs: dict[UUID, int] = {}  # by what makes records unique, in order
    if not known.bytes:
        if known.tally is None:
            raise NotFoundError(f"there is no session {known.session}", session=known.session)
        rows.append(append_rules.birth(known.tally))
        seqs[rid_of("")] = 0
        kinds.append(KINDS["meta"])
    marker = known.marker
    for seq, one in enumerate(new, known.head + 1):
        record = one.given.record
        rows.append(line_codec.seal(one.given.body, record.record_type, seq))
        seqs[_rid(one, seqs)] = seq
        kinds.append(KINDS.get(record.record_type, 0))
        if isinstance(record, MARKERS):
            marker = seq
    given = [one.given for one in new]
    append_rules.check_limits(known.session, rows, given, known.bytes, settings)
    numbers = list(seqs.values())
    parts, full, after = _laid(known, rows, numbers, settings.part_bytes)
    return Placed(rows, numbers, list(seqs), kinds, parts, full, {**after, "marker": marker})


def written(new: Sequence[New], placed: Placed) -> dict[int, AnyRecord]:
    """The records as they are stored, by their places in the call."""
    first = len(placed.rows) - len(new)  # behind the line that a session begins with
    return {
        one.place: line_codec.stored(
            one.given.record,
            placed.seqs[first + at],
            placed.rows[first + at],
            plain=one.given.plain,
        )
        for at, one in enumerate(new)
    }


def go_on(known: Known, placed: Placed, records: Iterable[AnyRecord]) -> None:
    """The lines are stored: the head is behind them."""
    for record in records:
        known.add(record)
    for name, value in placed.after.items():
        setattr(known, name, value)
    known.marked = True


def _laid(
    known: Known, rows: list[bytes], seqs: list[int], part_bytes: int
) -> tuple[list[int], list[tuple[int, int, int, int]], dict[str, int]]:
    """The part of each line, the parts that become full, and the session behind them."""
    part, used, first = known.part, known.part_bytes, known.part_first
    parts: list[int] = []
    full: list[tuple[int, int, int, int]] = []
    for number, group in enumerate(split_at_boundary(rows, used, part_bytes)):
        if number:
            full.append((part, used, first, max(seqs[len(parts)] - 1, 0)))
            part, used, first = part + 1, 0, 0
        for row in group:
            first = first or seqs[len(parts)]
            used += len(row) + 1
            parts.append(part)
    after = {
        "head": seqs[-1],
        "bytes": known.bytes + sum(map(len, rows)) + len(rows),
        "part": part,
        "part_bytes": used,
        "part_first": first,
    }
    return parts, full, after


def _rid(one: New, seqs: Mapping[UUID, int]) -> UUID:
    """What makes a record unique; in a call that has its id twice, the second is one of its own."""
    rid = one.rid
    while rid in seqs:
        rid = rid_of(one.given.record.id, seqs[rid])
    return rid
