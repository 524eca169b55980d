"""The integrity check of a session's bytes.

Checked: every crc, every seq, every part, the tail, and whether the log is as long as its metadata
says. A line without a crc after one that has it was written by another program: unchecked, until
an `event` of kind `vouch` lists its seq and the crc of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import msgspec

from everlog.log import scan
from everlog.log.fold import ADOPTION_KEY
from everlog.log.line_codec import decode
from everlog.log.parts import part_number
from everlog.log.tail_recovery import examine_tail
from everlog.model import SCHEMA_VERSION, AnyRecord, Damaged, Event, Meta
from everlog.stores.file import metadata_file
from everlog.stores.file.log_reader import LogReader, PartReader
from everlog.stores.file.log_writer import LogWriter
from everlog.stores.rules import AppendCall, prepare_records

UNCHECKED = "no crc: unchecked"


class Finding(msgspec.Struct, frozen=True):
    """A problem, and the crc of the line if it can be vouched for."""

    damage: Damaged
    crc: str = ""


def find_problems(log: LogReader) -> list[Finding]:
    """Return all problems of a log, in its order."""
    checker = _LineChecker()
    findings = [Finding(missing) for missing in log.missing_parts()]
    for number in log.numbers:
        part = log.part(number)
        for start, stop, line in scan.forward(part.pread, 0, part.size):
            findings += checker.check_line(part.file, start, stop, line)
        findings += _find_tail_problems(part, checker.next_seq)
    shortfall = metadata_file.describe_shortfall(log)
    if shortfall:
        damage = Damaged(file=metadata_file.NAME, start=0, end=0, problem=shortfall)
        findings.append(Finding(damage))
    return [f for f in findings if (f.damage.seq, f.crc) not in checker.vouched_lines]


def repair_findings(
    writer: LogWriter, findings: Sequence[Finding], now: Callable[[], str], new_id: Callable[[], str]
) -> list[str]:
    """Vouch for unchecked lines and quarantine copies of damaged ones; describe each action."""
    actions = []
    unchecked = [finding for finding in findings if finding.damage.problem == UNCHECKED]
    if unchecked:
        lines = [{"seq": finding.damage.seq, "crc": finding.crc} for finding in unchecked]
        event = Event(kind="vouch", data={"lines": lines})
        writer.append(AppendCall(prepare_records([event], now, new_id)))
        actions.append(f"vouched for {len(lines)} lines without a crc")
    for damage in (finding.damage for finding in findings if finding not in unchecked):
        number = part_number(damage.file)
        if number is None or damage.end <= damage.start:
            actions.append(f"{damage.file}: {damage.problem}; nothing could be done")
            continue
        name = writer.quarantine("damaged", number, damage.start, damage.end)
        actions.append(
            f"{damage.file}: bytes {damage.start} to {damage.end} ({damage.problem}) were left in "
            f"place, a copy is in {name}"
        )
    return actions


class _LineChecker:
    """A checker of the lines of a log, which tracks the seq that must come next."""

    def __init__(self) -> None:
        self.vouched_lines: set[tuple[int | None, str]] = set()
        self.previous_seq: int | None = None
        self.damaged_count = 0  # since then
        self.has_checked = False

    @property
    def next_seq(self) -> int:
        """Return the seq that the next line should have."""
        return (0 if self.previous_seq is None else self.previous_seq) + self.damaged_count + 1

    def check_line(self, file: str, start: int, stop: int, line: bytes | None) -> Iterator[Finding]:
        """Yield the problems of one line."""

        def finding(problem: str, seq: int | None, crc: str = "") -> Finding:
            damage = Damaged(file=file, start=start, end=stop, seq=seq, problem=problem)
            return Finding(damage, crc)

        if line is None:
            yield finding("the line is too long", self.next_seq)
            self.damaged_count += 1
            return
        record, problem, checked = decode(line)
        if record is None:
            yield finding(problem, self.next_seq)
            self.damaged_count += 1
            return
        if not self._is_expected(record):
            yield finding(f"seq {record.seq} where {self.next_seq} was expected", record.seq)
        if record.schema_version > SCHEMA_VERSION:
            problem = f"schema version {record.schema_version} is newer than supported"
            yield finding(problem, record.seq)
        is_native = isinstance(record, Meta) and record.seq == 0  # only everlog starts a log so
        if not checked and (self.has_checked or is_native):
            yield finding(UNCHECKED, record.seq, f"{crc32(line):08x}")
        # After a birth record that adopts metadata, an import put lines of another program as they were.
        begins_foreign = isinstance(record, Meta) and record.seq == 0 and ADOPTION_KEY in record.set
        self.has_checked = self.has_checked or (checked and not begins_foreign)
        if checked and isinstance(record, Event) and record.kind == "vouch":
            self._vouch(record)
        self.previous_seq = record.seq
        self.damaged_count = 0

    def _is_expected(self, record: AnyRecord) -> bool:
        if self.previous_seq is None and not self.damaged_count:
            return record.seq in (0, 1)
        is_early = self.previous_seq is None and record.seq <= self.damaged_count + 1
        return record.seq == self.next_seq or is_early

    def _vouch(self, event: Event) -> None:
        lines = event.data.get("lines")
        for vouched in lines if isinstance(lines, list) else ():
            if isinstance(vouched, dict) and isinstance(vouched.get("seq"), int):
                self.vouched_lines.add((vouched["seq"], str(vouched.get("crc"))))


def _find_tail_problems(part: PartReader, seq: int) -> list[Finding]:
    state = examine_tail(part.pread, part.size)
    if state.torn and state.lines_end < scan.find_terminated_end(part.pread, part.size):
        return []  # a terminated line with NUL bytes: reported as a line already
    if not (state.torn or state.complete):
        return []
    problem = "the last line lacks its newline" if state.complete else "torn tail"
    damage = Damaged(file=part.file, start=state.lines_end, end=part.size, seq=seq, problem=problem)
    return [Finding(damage)]
