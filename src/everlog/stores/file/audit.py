"""What is wrong with a session's bytes.

Looked at: every crc, every seq, every part, the tail, and whether the log is as long as its
metadata knew it. A line without a crc behind one that has it was not written by us: unchecked,
until an `event` of kind `vouch` lists its seq and the crc of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import msgspec

from everlog.log import scan
from everlog.log.append_rules import prepare
from everlog.log.line_codec import decode
from everlog.log.parts import part_number
from everlog.log.tail_recovery import examine
from everlog.model import SCHEMA_VERSION, AnyRecord, Damaged, Event, Meta
from everlog.stores.file import metadata_file
from everlog.stores.file.log_reader import OpenLog, OpenPart
from everlog.stores.file.log_writer import Writer

UNCHECKED = "no crc: unchecked"


class Finding(msgspec.Struct, frozen=True):
    """A problem, and the crc of the line where vouching for it is possible."""

    damage: Damaged
    crc: str = ""


def findings(log: OpenLog) -> list[Finding]:
    """All problems of a log, in its order."""
    checker = _Checker()
    found = [Finding(missing) for missing in log.missing()]
    for number in log.numbers:
        part = log.part(number)
        for start, stop, line in scan.forward(part.pread, 0, part.size):
            found += checker.line(part.file, start, stop, line)
        found += _tail(part, checker.next_seq)
    lost = metadata_file.shortfall(log)
    if lost:
        found.append(Finding(Damaged(file=metadata_file.NAME, start=0, end=0, problem=lost)))
    return [one for one in found if (one.damage.seq, one.crc) not in checker.vouched]


def set_right(
    writer: Writer, found: Sequence[Finding], now: Callable[[], str], new_id: Callable[[], str]
) -> list[str]:
    """Vouch for unchecked lines and keep a copy of damaged ones; what was done, in words."""
    done = []
    unchecked = [one for one in found if one.damage.problem == UNCHECKED]
    if unchecked:
        lines = [{"seq": one.damage.seq, "crc": one.crc} for one in unchecked]
        event = Event(kind="vouch", data={"lines": lines})
        writer.append(prepare([event], now, new_id), None, None)
        done.append(f"vouched for {len(lines)} lines without a crc")
    for damage in (one.damage for one in found if one not in unchecked):
        number = part_number(damage.file)
        if number is None or damage.end <= damage.start:
            done.append(f"{damage.file}: {damage.problem}; nothing could be done")
            continue
        name = writer.set_aside("damaged", number, damage.start, damage.end)
        done.append(
            f"{damage.file}: bytes {damage.start} to {damage.end} ({damage.problem}) stay where "
            f"they are, a copy is in {name}"
        )
    return done


class _Checker:
    """Walks over the lines of a log and remembers what the next one must be."""

    def __init__(self) -> None:
        self.vouched: set[tuple[int | None, str]] = set()
        self.previous: int | None = None
        self.gap = 0  # damaged lines since
        self.checked_before = False

    @property
    def next_seq(self) -> int:
        """The number that the next line should have."""
        return (0 if self.previous is None else self.previous) + self.gap + 1

    def line(self, file: str, start: int, stop: int, line: bytes | None) -> Iterator[Finding]:
        """The problems of one line."""

        def finding(problem: str, seq: int | None, crc: str = "") -> Finding:
            damage = Damaged(file=file, start=start, end=stop, seq=seq, problem=problem)
            return Finding(damage, crc)

        if line is None:
            yield finding("the line is too long", self.next_seq)
            self.gap += 1
            return
        record, problem, checked = decode(line)
        if record is None:
            yield finding(problem, self.next_seq)
            self.gap += 1
            return
        if not self._follows(record):
            yield finding(f"seq {record.seq} where {self.next_seq} should stand", record.seq)
        if record.schema_version > SCHEMA_VERSION:
            yield finding(f"schema version {record.schema_version} is newer than ours", record.seq)
        ours = isinstance(record, Meta) and record.seq == 0  # nobody else begins a log like that
        if not checked and (self.checked_before or ours):
            yield finding(UNCHECKED, record.seq, f"{crc32(line):08x}")
        self.checked_before = self.checked_before or checked
        if checked and isinstance(record, Event) and record.kind == "vouch":
            self._vouch(record)
        self.previous = record.seq
        self.gap = 0

    def _follows(self, record: AnyRecord) -> bool:
        if self.previous is None and not self.gap:
            return record.seq in (0, 1)
        return record.seq == self.next_seq or (self.previous is None and record.seq <= self.gap + 1)

    def _vouch(self, event: Event) -> None:
        lines = event.data.get("lines")
        for one in lines if isinstance(lines, list) else ():
            if isinstance(one, dict) and isinstance(one.get("seq"), int):
                self.vouched.add((one["seq"], str(one.get("crc"))))


def _tail(part: OpenPart, seq: int) -> list[Finding]:
    tail = examine(part.pread, part.size)
    if tail.torn and tail.keep < scan.unterminated(part.pread, part.size):
        return []  # a terminated line with NUL bytes: reported as a line already
    if not (tail.torn or tail.complete):
        return []
    what = "the last line lacks its newline" if tail.complete else "torn tail"
    damage = Damaged(file=part.file, start=tail.keep, end=part.size, seq=seq, problem=what)
    return [Finding(damage)]
