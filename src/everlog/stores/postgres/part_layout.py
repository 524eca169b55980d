"""Layout of an append: lines after the head, in parts as files would have them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from everlog.log import line_codec
from everlog.log.parts import split_at_boundary
from everlog.model import MARKERS, AnyRecord
from everlog.settings import SessionSettings
from everlog.stores import rules
from everlog.stores.postgres.id_columns import rid_of
from everlog.stores.postgres.session_cache import CachedSession, LogEnd
from everlog.stores.rules import PreparedRecord

KINDS = {"message": 1, "compaction": 2, "tombstone": 3, "rewind": 4, "meta": 5, "event": 6}


class NewRecord(NamedTuple):
    """A record that is not stored yet."""

    position: int  # in the call
    prepared: PreparedRecord
    rid: UUID


class Layout(NamedTuple):
    """Lines with their columns, and the session after them."""

    lines: list[bytes]
    seqs: list[int]
    rids: list[UUID]
    kinds: list[int]
    parts: list[int]
    full_parts: list[tuple[int, int, int, int]]  # filled by the lines: number, bytes, seqs
    after: LogEnd


def lay_out(cached: CachedSession, new: Sequence[NewRecord], settings: SessionSettings) -> Layout:
    """Lay out records after the head. NotFoundError; StoreFullError if they are too large."""
    lines: list[bytes] = []
    kinds: list[int] = []
    seqs: dict[UUID, int] = {}  # by rid, in order
    end = cached.end
    if not end.bytes:
        if cached.fold is None:
            raise rules.no_session(cached.session)
        lines.append(rules.birth_line(cached.fold))
        seqs[rid_of("")] = 0
        kinds.append(KINDS["meta"])
    marker = end.marker
    for seq, item in enumerate(new, end.head + 1):
        record = item.prepared.record
        lines.append(line_codec.build_line(item.prepared.body, record.record_type, seq))
        seqs[_unique_rid(item, seqs)] = seq
        kinds.append(KINDS.get(record.record_type, 0))
        if isinstance(record, MARKERS):
            marker = seq
    prepared = [item.prepared for item in new]
    rules.check_limits(cached.session, lines, prepared, end.bytes, settings)
    numbers = list(seqs.values())
    parts, full, after = _assign_parts(replace(end, marker=marker, marked=True), lines, numbers, settings.part_bytes)
    return Layout(lines, numbers, list(seqs), kinds, parts, full, after)


def stored_records(new: Sequence[NewRecord], layout: Layout) -> dict[int, AnyRecord]:
    """Return the records as they are stored, by their position in the call."""
    first = len(layout.lines) - len(new)  # after the birth line, if there is one
    return {
        item.position: line_codec.as_stored(
            item.prepared.record, layout.seqs[at], layout.lines[at], plain=item.prepared.plain
        )
        for at, item in enumerate(new, first)
    }


def advance(cached: CachedSession, layout: Layout, records: Iterable[AnyRecord]) -> None:
    """Move the cached head past lines that were stored."""
    for record in records:
        cached.add(record)
    cached.end = layout.after


def _assign_parts(
    end: LogEnd, lines: list[bytes], seqs: list[int], part_bytes: int
) -> tuple[list[int], list[tuple[int, int, int, int]], LogEnd]:
    """Return the part of each line, the parts that become full, and the end of the log, moved there."""
    part, used, first = end.part, end.part_bytes, end.part_first
    parts: list[int] = []
    full: list[tuple[int, int, int, int]] = []
    for number, group in enumerate(split_at_boundary(lines, used, part_bytes)):
        if number:
            full.append((part, used, first, max(seqs[len(parts)] - 1, 0)))
            part, used, first = part + 1, 0, 0
        for line in group:
            first = first or seqs[len(parts)]
            used += len(line) + 1
            parts.append(part)
    end.head, end.bytes = seqs[-1], end.bytes + sum(map(len, lines)) + len(lines)
    end.part, end.part_bytes, end.part_first = part, used, first
    return parts, full, end


def _unique_rid(record: NewRecord, seqs: Mapping[UUID, int]) -> UUID:
    """Return the rid of a record; a second record with the same id in one call gets its own."""
    rid = record.rid
    while rid in seqs:
        rid = rid_of(record.prepared.record.id, seqs[rid])
    return rid
