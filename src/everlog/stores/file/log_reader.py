"""The reader of one session's log: no lock, no repair, no mmap (a cut would be SIGBUS).

The parts and their sizes are those at the time of opening. An unterminated tail is not part of
the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Self

from everlog.log import scan
from everlog.log.fold import ADOPTION_KEY
from everlog.log.line_codec import decode, decode_fast, peek_seq
from everlog.log.parts import part_name, part_number
from everlog.model import MARKERS, AnyRecord, Damaged, Entry, Meta
from everlog.stores.file.disk import map_errors, open_file

_PIECE = 1 << 18


def part_numbers(directory: int) -> list[int]:
    """Return the numbers of the parts in a session's directory."""
    numbers = _list_part_numbers(directory)
    if numbers and len(numbers) < numbers[-1]:
        # listdir may miss a part created meanwhile although it returns a later one.
        last = numbers[-1]
        numbers = sorted({*numbers, *(n for n in _list_part_numbers(directory) if n < last)})
    return numbers


def _list_part_numbers(directory: int) -> list[int]:
    numbers = (part_number(name) for name in os.listdir(directory))
    return sorted(number for number in numbers if number is not None)


class PartReader:
    """One part, open for reading."""

    def __init__(self, number: int, directory: int) -> None:
        self.number = number
        self.file = part_name(number)
        self.descriptor = open_file(self.file, os.O_RDONLY, directory)
        self.size = os.fstat(self.descriptor).st_size

    def pread(self, length: int, offset: int) -> bytes:
        """Return bytes at an offset; shorter only at the end of the file."""
        data = os.pread(self.descriptor, length, offset)
        while 0 < len(data) < length:
            more = os.pread(self.descriptor, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def first_seq(self) -> int | None:
        """Return the seq of its first readable record; the birth record is not counted."""
        for _, _, line in scan.forward(self.pread, 0, self.size):
            seq = peek_seq(line) if line is not None else None
            if seq:
                return seq
        return None

    def last_seq(self) -> int | None:
        """Return the seq of its last readable record."""
        for _, _, line in scan.backward(self.pread, self.size):
            seq = peek_seq(line) if line is not None else None
            if seq is not None:
                return seq
        return None


class LogReader:
    """The parts of a log; opened when needed, closed together."""

    def __init__(self, directory: int) -> None:
        """Take over the directory's descriptor."""
        self.directory = directory
        self.position = 1, 0  # part and offset that the last forward scan reached
        self._open: dict[int, PartReader] = {}
        self.numbers = part_numbers(directory)
        if self.numbers:
            self.part(self.numbers[-1])  # its size decides which records this reader sees

    def close(self) -> None:
        """Close the descriptors."""
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

    def part(self, number: int) -> PartReader:
        """Return one part by its number."""
        if number not in self._open:
            self._open[number] = PartReader(number, self.directory)
        return self._open[number]

    @property
    def last_part(self) -> int:
        """Return the number of the last part; 1 if there is none yet."""
        return self.numbers[-1] if self.numbers else 1

    def total_size(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.part(number).size for number in self.numbers)

    def end_position(self) -> tuple[int, int]:
        """Return the last part and the offset where its terminated lines end."""
        if not self.numbers:
            return 1, 0
        part = self.part(self.last_part)
        return part.number, scan.find_terminated_end(part.pread, part.size)

    def missing_parts(self) -> list[Damaged]:
        """Return the missing parts as damage: gaps in the numbers."""
        present = set(self.numbers)
        return [
            Damaged(file=part_name(number), start=0, end=0, problem="the part is missing")
            for number in range(1, self.last_part)
            if number not in present
        ]

    def forward(self, number: int = 1, offset: int = 0, previous_seq: int = 0) -> Iterator[Entry]:
        """Yield entries from a line's start on; `previous_seq` is used to number damage."""
        expected = previous_seq + 1
        present = set(self.numbers)
        self.position = number, offset
        for current in range(number, self.last_part + 1):
            if current not in present:
                if self.numbers:
                    yield Damaged(file=part_name(current), start=0, end=0, problem="the part is missing")
                continue
            part = self.part(current)
            for start, stop, line in scan.forward(part.pread, offset, part.size):
                record = decode_fast(line) if line is not None else None
                entry = record or make_entry(part.file, start, stop, line, expected)
                expected = (expected if entry.seq is None else entry.seq) + 1
                offset = stop + 1
                yield entry
            self.position = current, offset
            offset = 0

    def backward(self) -> Iterator[Entry]:
        """Yield entries, newest first."""
        expected: int | None = None
        for number in reversed(self.numbers):
            part = self.part(number)
            for start, stop, line in scan.backward(part.pread, part.size):
                record = decode_fast(line) if line is not None else None
                entry = record or make_entry(part.file, start, stop, line, expected)
                expected = None if entry.seq is None else entry.seq - 1
                yield entry

    def seek(self, seq: int) -> tuple[int, int]:
        """Return part and offset from which a forward scan meets every record from `seq` on."""
        low, high = 0, len(self.numbers) - 1
        while low < high:  # the last part whose first record is not after `seq`
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
        """Return part, start and end (newline included) of the record with a seq."""
        number, offset = self.seek(seq)
        for current in (n for n in self.numbers if n >= number):
            part = self.part(current)
            for start, stop, line in scan.forward(part.pread, offset, part.size):
                line_seq = peek_seq(line) if line is not None else None
                if line_seq == seq:
                    return current, start, stop + 1
                if line_seq is not None and line_seq > seq:
                    return None
            offset = 0
        return None


def make_entry(file: str, start: int, stop: int, line: bytes | None, seq: int | None) -> Entry:
    """Return a line as an entry, whatever it holds; `seq` is used if it is damaged."""
    if line is None:
        return Damaged(file=file, start=start, end=stop, seq=seq, problem="the line is too long")
    record, problem, _ = decode(line)
    if record is None:
        return Damaged(file=file, start=start, end=stop, seq=seq, problem=problem)
    return record


def is_birth_record(entry: Entry | AnyRecord) -> bool:
    """Return whether an entry is the birth record: seq 0, with the initial metadata."""
    return isinstance(entry, Meta) and entry.seq == 0


def holds_metadata(log: LogReader) -> bool:
    """Return whether a log holds the metadata it began with: by its birth record, or adopted later."""
    first = next(log.forward(), None)
    if first is None or is_birth_record(first):
        return first is not None
    return any(isinstance(entry, Meta) and ADOPTION_KEY in entry.set for entry in log.forward())


def read_entries(log: LogReader, after: int, limit: int | None) -> Iterator[Entry]:
    """Yield entries above a seq (-1: all, with the birth record); closes the log at the end."""
    if limit is not None and limit <= 0:
        return
    remaining = -1 if limit is None else limit
    with map_errors("reading a session"):
        start = log.seek(after + 1) if after > 0 else (1, 0)
        for entry in log.forward(*start, previous_seq=after if after > 0 else -1):
            if after > 0:
                if entry.seq is not None and entry.seq <= after:
                    continue
            elif after == 0 and is_birth_record(entry):
                continue
            yield entry
            remaining -= 1
            if remaining == 0:
                break
    log.close()


def read_raw(log: LogReader, after: int) -> Iterator[bytes]:
    """Yield the bytes of the records above a seq, in pieces; closes the log at the end."""
    with map_errors("reading a session"), log:
        number, offset, _ = log.locate(after + 1) or (log.last_part + 1, 0, 0)
        for current in (n for n in log.numbers if n >= number):
            part = log.part(current)
            while data := part.pread(min(_PIECE, part.size - offset), offset):
                yield data
                offset += len(data)
            offset = 0


def read_newest_first(log: LogReader) -> Iterator[Entry]:
    """Yield entries, newest first, without the birth record; closes the log at the end."""
    with map_errors("reading a session"):
        for entry in log.backward():
            if not is_birth_record(entry):
                yield entry
    log.close()


def recent_ids(log: LogReader, count: int) -> dict[str, int]:
    """Return the ids of the last `count` records and their seqs."""
    seqs: dict[str, int] = {}
    for entry in islice(log.backward(), count):
        if not isinstance(entry, Damaged) and entry.id:
            seqs.setdefault(entry.id, entry.seq)
    return seqs


def record_at(log: LogReader, seq: int) -> AnyRecord | None:
    """Return the record with a seq, if it can be read."""
    for entry in log.forward(*log.seek(seq)):
        if entry.seq is not None and entry.seq >= seq:
            return None if isinstance(entry, Damaged) or entry.seq != seq else entry
    return None


def last_marker(log: LogReader, above: int) -> int:
    """Return the seq of the last rewind, tombstone or compaction above a seq; 0 if none."""
    for entry in log.backward():
        if isinstance(entry, MARKERS):
            return entry.seq
        if entry.seq is not None and entry.seq <= above:
            break
    return 0
