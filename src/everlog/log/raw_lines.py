"""Lines on their way from one store to another: exact bytes, each with its part and its number.

A store that finds lines by number can hold one line per number, and the numbers must grow. A line
that cannot be read takes a number that is free at its place. One for which none is free (a line
put in between, a seq that stands twice) cannot be carried: it is named, and left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from everlog.log.fold import Tally, from_builtins, given_facts, to_builtins
from everlog.log.line_codec import decode, decode_fast
from everlog.log.parts import part_name
from everlog.model import AnyRecord, Damaged, Entry, Meta, Metadata

LEFT_OUT = "left out"


class Line(NamedTuple):
    """One line of a log."""

    part: int
    seq: int  # its own, or for one that cannot be read a number that is free there
    body: bytes  # without its newline
    entry: Entry  # what it reads as

    def same(self, other: Line) -> bool:
        """Whether both are the same bytes in the same part."""
        return self.body == other.body and self.part == other.part


class Found(NamedTuple):
    """A line where it was found."""

    part: int
    start: int
    end: int
    body: bytes | None  # None: too long to be read

    def damaged(self, seq: int | None, problem: str) -> Damaged:
        """It as damage."""
        file = part_name(self.part)
        return Damaged(file=file, start=self.start, end=self.end, seq=seq, problem=problem)


def numbered(found: Iterable[Found]) -> Iterator[Line | Damaged]:
    """Lines with their numbers; Damaged is one that is left out."""
    last = -1
    run: list[tuple[Found, str]] = []  # that cannot be read, until it is known what is free
    for one in found:
        record: AnyRecord | None = None
        problem = "the line is too long"
        if one.body is not None:
            record = decode_fast(one.body)
            if record is None:
                record, problem, _ = decode(one.body)
        if record is None or one.body is None:
            run.append((one, problem))
            continue
        if record.seq <= last:
            problem = f"{LEFT_OUT}: seq {record.seq} stands behind {last}"
            yield one.damaged(record.seq, problem)
            continue
        yield from _fitted(run, last, record.seq)
        run = []
        last = record.seq
        yield Line(one.part, last, one.body, record)
    yield from _fitted(run, last, None)


def _fitted(run: list[tuple[Found, str]], last: int, end: int | None) -> Iterator[Line | Damaged]:
    """Give lines that cannot be read the numbers between two others."""
    if last < 0 and end is not None and len(run) < end:
        last = 0  # that of the birth record, which would be one line more
    for one, problem in run:
        last += 1
        if end is not None and last >= end:
            yield one.damaged(None, f"{LEFT_OUT}: {problem}, and no number is free for it")
        elif one.body is None:
            yield one.damaged(last, f"{LEFT_OUT}: {problem}")
        else:
            yield Line(one.part, last, one.body, one.damaged(last, problem))


def opening(first: Line | None, source: Metadata) -> Tally:
    """A tally for the lines of a session that comes from another store.

    What it was made with is in its birth record. A log without one, or without anything, has its
    facts beside it: they are taken from there, and the records win over them.
    """
    blank = Tally.fresh(source.id).metadata(1, 0)
    if first is not None and isinstance(first.entry, Meta) and first.seq == 0:
        return Tally(blank)
    facts = {**source.extra, **given_facts(source)}
    return Tally(from_builtins({**to_builtins(blank), **facts}))


def add(tally: Tally, line: Line) -> None:
    """Fold one line in."""
    if isinstance(line.entry, Damaged):
        tally.seq = max(tally.seq, line.seq)  # its number is not given away again
    else:
        tally.add(line.entry)
