"""Raw lines for a transfer between stores: exact bytes, each with its part and its seq.

A store that finds lines by seq can hold one line per seq, and seqs must grow. An unreadable line
takes a seq that is free at its position. A line for which none is free (an inserted line, a
duplicate seq) cannot be transferred: it is reported, and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from everlog.log.fold import MetadataFold, from_builtins, settable_fields, to_builtins
from everlog.log.line_codec import decode, decode_fast
from everlog.log.parts import part_name
from everlog.model import AnyRecord, Damaged, Meta, Metadata
from everlog.ports import RawLine

LEFT_OUT = "left out"


class LocatedLine(NamedTuple):
    """A line with its location in a file."""

    part: int
    start: int
    end: int
    body: bytes | None  # None: too long to be read

    def to_damaged(self, seq: int | None, problem: str) -> Damaged:
        """Return the line as a damaged entry."""
        file = part_name(self.part)
        return Damaged(file=file, start=self.start, end=self.end, seq=seq, problem=problem)


def number_lines(lines: Iterable[LocatedLine]) -> Iterator[RawLine | Damaged]:
    """Assign a seq to every line; yields Damaged for a line that is left out."""
    last = -1
    unreadable: list[tuple[LocatedLine, str]] = []  # until the next seq is known
    for line in lines:
        record: AnyRecord | None = None
        problem = "the line is too long"
        if line.body is not None:
            record = decode_fast(line.body)
            if record is None:
                record, problem, _ = decode(line.body)
        if record is None or line.body is None:
            unreadable.append((line, problem))
            continue
        if record.seq <= last:
            problem = f"{LEFT_OUT}: seq {record.seq} follows {last}"
            yield line.to_damaged(record.seq, problem)
            continue
        yield from _number_unreadable(unreadable, last, record.seq)
        unreadable = []
        last = record.seq
        yield RawLine(line.part, last, line.body, record)
    yield from _number_unreadable(unreadable, last, None)


def _number_unreadable(
    unreadable: list[tuple[LocatedLine, str]], last: int, end: int | None
) -> Iterator[RawLine | Damaged]:
    """Assign the free seqs between two readable lines to the unreadable lines there."""
    if last < 0 and end is not None and len(unreadable) < end:
        last = 0  # seq of the birth record, which would be one more line
    for line, problem in unreadable:
        last += 1
        if end is not None and last >= end:
            yield line.to_damaged(None, f"{LEFT_OUT}: {problem}, and no seq is free for it")
        elif line.body is None:
            yield line.to_damaged(last, f"{LEFT_OUT}: {problem}")
        else:
            yield RawLine(line.part, last, line.body, line.to_damaged(last, problem))


def start_fold(first: RawLine | None, source: Metadata) -> MetadataFold:
    """Return a fold for the lines of a session from another store.

    The birth record holds the initial metadata. If a log has none, or is empty, they are taken
    from `source`; records override them.
    """
    blank = MetadataFold.empty(source.id).metadata(1, 0)
    if first is not None and isinstance(first.entry, Meta) and first.seq == 0:
        return MetadataFold(blank)
    fields = {**source.extra, **settable_fields(source), "createdAt": source.created_at}
    return MetadataFold(from_builtins({**to_builtins(blank), **fields}))


def add_line(fold: MetadataFold, line: RawLine) -> None:
    """Fold in one line."""
    if isinstance(line.entry, Damaged):
        fold.seq = max(fold.seq, line.seq)  # its seq is not reused
    else:
        fold.add(line.entry)


def batch_lines(lines: Iterable[RawLine], max_bytes: int, max_lines: int | None = None) -> Iterator[list[RawLine]]:
    """Yield lines in batches of about so many bytes, and at most so many lines."""
    batch: list[RawLine] = []
    size = 0
    for line in lines:
        batch.append(line)
        size += len(line.body) + 1
        if size >= max_bytes or len(batch) == max_lines:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
