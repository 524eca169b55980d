"""One session's log, open for reading: no lock, no repair, no mmap (a cut would be SIGBUS).

The parts and their sizes are those of the moment it was opened. An unterminated tail is not
part of the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Self

from everlog.log import scan
from everlog.log.line_codec import decode, decode_fast, peek_seq
from everlog.log.parts import part_name, part_number
from everlog.model import MARKERS, AnyRecord, Damaged, Entry, Meta
from everlog.stores.file.disk import errors_mapped, open_file


def part_numbers(directory: int) -> list[int]:
    """The numbers of the parts in a session's directory."""
    numbers = _listed(directory)
    if numbers and len(numbers) < numbers[-1]:
        # One that was made while we looked may be passed over though a later one was seen.
        last = numbers[-1]
        numbers = sorted({*numbers, *(number for number in _listed(directory) if number < last)})
    return numbers


def _listed(directory: int) -> list[int]:
    found = (part_number(name) for name in os.listdir(directory))
    return sorted(number for number in found if number is not None)


class OpenPart:
    """One part."""

    def __init__(self, number: int, directory: int) -> None:
        self.number = number
        self.file = part_name(number)
        self.descriptor = open_file(self.file, os.O_RDONLY, directory)
        self.size = os.fstat(self.descriptor).st_size

    def pread(self, length: int, offset: int) -> bytes:
        """Bytes at an offset; shorter only at the end of the file."""
        data = os.pread(self.descriptor, length, offset)
        while 0 < len(data) < length:
            more = os.pread(self.descriptor, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def first_seq(self) -> int | None:
        """The number of its first readable record; the birth record is not counted."""
        for _, _, line in scan.forward(self.pread, 0, self.size):
            seq = peek_seq(line) if line is not None else None
            if seq:
                return seq
        return None

    def last_seq(self) -> int | None:
        """The number of its last readable record."""
        for _, _, line in scan.backward(self.pread, self.size):
            seq = peek_seq(line) if line is not None else None
            if seq is not None:
                return seq
        return None


class OpenLog:
    """The parts of a log; opened when needed, all closed together."""

    def __init__(self, directory: int) -> None:
        """Takes the directory's descriptor over."""
        self.directory = directory
        self.reached = 1, 0  # part and offset that the last forward scan came to
        self._open: dict[int, OpenPart] = {}
        self.numbers = part_numbers(directory)
        if self.numbers:
            self.part(self.numbers[-1])  # its size is the moment this log shows

    def close(self) -> None:
        """Give the descriptors back."""
        descriptors = [part.descriptor for part in self._open.values()]
        if self.directory >= 0:
            descriptors.append(self.directory)
        self._open, self.directory = {}, -1
        for descriptor in descriptors:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    __del__ = close  # a generator over the log may never be started

    def part(self, number: int) -> OpenPart:
        """One part by its number."""
        if number not in self._open:
            self._open[number] = OpenPart(number, self.directory)
        return self._open[number]

    @property
    def last(self) -> int:
        """The number of the last part; 1 when there is none yet."""
        return self.numbers[-1] if self.numbers else 1

    def size(self) -> int:
        """Bytes of all parts."""
        return sum(self.part(number).size for number in self.numbers)

    def end(self) -> tuple[int, int]:
        """The last part and where its terminated lines end."""
        if not self.numbers:
            return 1, 0
        part = self.part(self.last)
        return part.number, scan.unterminated(part.pread, part.size)

    def missing(self) -> list[Damaged]:
        """Parts that must have been there."""
        have = set(self.numbers)
        return [
            Damaged(file=part_name(number), start=0, end=0, problem="the part is missing")
            for number in range(1, self.last)
            if number not in have
        ]

    def forward(self, number: int = 1, offset: int = 0, before: int = 0) -> Iterator[Entry]:
        """Entries from a line's start on; `before` is the seq in front of it, for naming damage."""
        expected = before + 1
        have = set(self.numbers)
        self.reached = number, offset
        for current in range(number, self.last + 1):
            if current not in have:
                if self.numbers:
                    yield Damaged(
                        file=part_name(current), start=0, end=0, problem="the part is missing"
                    )
                continue
            part = self.part(current)
            for start, stop, line in scan.forward(part.pread, offset, part.size):
                record = decode_fast(line) if line is not None else None
                entry = record or entry_of(part.file, start, stop, line, expected)
                expected = (expected if entry.seq is None else entry.seq) + 1
                offset = stop + 1
                yield entry
            self.reached = current, offset
            offset = 0

    def backward(self) -> Iterator[Entry]:
        """Entries, newest first."""
        expected: int | None = None
        for number in reversed(self.numbers):
            part = self.part(number)
            for start, stop, line in scan.backward(part.pread, part.size):
                record = decode_fast(line) if line is not None else None
                entry = record or entry_of(part.file, start, stop, line, expected)
                expected = None if entry.seq is None else entry.seq - 1
                yield entry

    def seek(self, seq: int) -> tuple[int, int]:
        """Part and offset from which a forward scan meets every record from `seq` on."""
        low, high = 0, len(self.numbers) - 1
        while low < high:  # the last part whose first record is not beyond the one wanted
            middle = (low + high + 1) // 2
            first = self.part(self.numbers[middle]).first_seq()
            if first is not None and first <= seq:
                low = middle
            else:
                high = middle - 1
        if not self.numbers:
            return 1, 0
        part = self.part(self.numbers[low])
        return part.number, scan.seek(part.pread, part.size, seq)

    def locate(self, seq: int) -> tuple[int, int, int] | None:
        """Part, start and end (newline included) of the record with a number."""
        number, offset = self.seek(seq)
        for current in (n for n in self.numbers if n >= number):
            part = self.part(current)
            for start, stop, line in scan.forward(part.pread, offset, part.size):
                found = peek_seq(line) if line is not None else None
                if found == seq:
                    return current, start, stop + 1
                if found is not None and found > seq:
                    return None
            offset = 0
        return None


def entry_of(file: str, start: int, stop: int, line: bytes | None, seq: int | None) -> Entry:
    """A line as an entry, whatever it holds; `seq` is the number that damage would have had."""
    if line is None:
        return Damaged(file=file, start=start, end=stop, seq=seq, problem="the line is too long")
    record, problem, _ = decode(line)
    if record is None:
        return Damaged(file=file, start=start, end=stop, seq=seq, problem=problem)
    return record


def is_birth(entry: Entry | AnyRecord) -> bool:
    """Whether an entry is the record with seq 0 that says what the session was made with."""
    return isinstance(entry, Meta) and entry.seq == 0


def entries_above(log: OpenLog, after: int, limit: int | None) -> Iterator[Entry]:
    """Entries above a seq, or below 0 all with the birth record; closes the log at their end."""
    if limit is not None and limit <= 0:
        return
    left = -1 if limit is None else limit
    with errors_mapped("reading a session"):
        start = log.seek(after + 1) if after > 0 else (1, 0)
        for entry in log.forward(*start, before=after if after > 0 else -1):
            if after > 0:
                if entry.seq is not None and entry.seq <= after:
                    continue
            elif after == 0 and is_birth(entry):
                continue
            yield entry
            left -= 1
            if left == 0:
                break
    log.close()


def newest_first(log: OpenLog) -> Iterator[Entry]:
    """Entries without the birth record; closes the log at their end."""
    with errors_mapped("reading a session"):
        for entry in log.backward():
            if not is_birth(entry):
                yield entry
    log.close()


def recent_ids(log: OpenLog, count: int) -> dict[str, int]:
    """The ids of the last records and their seqs."""
    found: dict[str, int] = {}
    for entry in islice(log.backward(), count):
        if not isinstance(entry, Damaged) and entry.id:
            found.setdefault(entry.id, entry.seq)
    return found


def record_at(log: OpenLog, seq: int) -> AnyRecord | None:
    """The record with a number, if it can be read."""
    for entry in log.forward(*log.seek(seq)):
        if entry.seq is not None and entry.seq >= seq:
            return None if isinstance(entry, Damaged) or entry.seq != seq else entry
    return None


def last_marker(log: OpenLog, above: int) -> int:
    """The seq of the last rewind, tombstone or compaction above a number; 0 if there is none."""
    for entry in log.backward():
        if isinstance(entry, MARKERS):
            return entry.seq
        if entry.seq is not None and entry.seq <= above:
            break
    return 0
