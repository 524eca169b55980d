"""The transfer of whole sessions from, to and between files: exact lines, in their original parts.

A session from another store appears complete, by one rename. One that exists and has grown there
is appended to under its lock, and synced before return; a crash leaves a prefix of the lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import attrgetter

from everlog.errors import ConflictError
from everlog.log import raw_lines, scan
from everlog.log.parts import part_name
from everlog.log.raw_lines import LocatedLine
from everlog.model import Damaged, Metadata
from everlog.ports import RawLine, SessionRow
from everlog.stores.file import disk, metadata_file
from everlog.stores.file.log_reader import LogReader
from everlog.stores.file.log_writer import LogWriter

_BATCH_BYTES = 1 << 20  # of one write, approximately


def read_lines(log: LogReader) -> Iterator[RawLine | Damaged]:
    """Yield the lines of a log for a transfer; closes the log."""
    with disk.map_errors("reading a session"), log:
        yield from raw_lines.number_lines(_locate_lines(log))


def _locate_lines(log: LogReader) -> Iterator[LocatedLine]:
    for number in log.numbers:
        part = log.part(number)
        for start, end, body in scan.forward(part.pread, 0, part.size):
            yield LocatedLine(number, start, end, body)


def write_session(directory: int, source: Metadata, lines: Iterable[RawLine], *, durable: bool) -> SessionRow:
    """Write a session from another store into a new directory; returns its index row."""
    fold = None
    holds_initial = False
    part, size, total = 1, 0, 0
    for number, group in groupby(lines, attrgetter("part")):
        if total:
            _seal(part, directory)
        part, size = number, 0
        with _open_part(part, directory, durable=durable) as descriptor:
            for batch in raw_lines.batch_lines(group, _BATCH_BYTES):
                if fold is None:
                    fold = raw_lines.start_fold(batch[0], source)
                    holds_initial = batch[0].seq == 0
                size += _write_lines(descriptor, batch)
                for line in batch:
                    raw_lines.add_line(fold, line)
        total += size
    if not total:
        with _open_part(part, directory, durable=durable):
            pass
    fold = fold or raw_lines.start_fold(None, source)
    if not holds_initial:  # what another program counted is in no record
        fold.set_metrics(source.metrics)
    metadata = fold.metadata(part, size)
    metadata_file.save(metadata, directory, durable=durable)
    return SessionRow(metadata, total, part)


@contextmanager
def _open_part(number: int, directory: int, *, durable: bool, new: bool = True) -> Iterator[int]:
    """Yield a descriptor to append to a part, which is synced and closed afterwards."""
    flags = os.O_WRONLY | os.O_APPEND | (os.O_CREAT | os.O_EXCL if new else 0)
    with disk.opened_file(part_name(number), flags, directory) as descriptor:
        yield descriptor
        if durable:
            disk.sync(descriptor)


def _write_lines(descriptor: int, lines: Iterable[RawLine]) -> int:
    data = b"".join(b"%b\n" % line.body for line in lines)
    disk.write_all(descriptor, data)
    return len(data)


def _seal(number: int, directory: int) -> None:
    with disk.opened_file(part_name(number), os.O_RDONLY, directory) as part:
        os.fchmod(part, 0o400)


def copy_log(log: LogReader, end: tuple[int, int], directory: int, *, durable: bool) -> None:
    """Copy the parts up to `end` (part, offset) into a new directory, byte for byte."""
    last, size = end
    for number in (n for n in log.numbers if n <= last):
        part = log.part(number)
        with _open_part(number, directory, durable=durable) as copy:
            disk.copy(part.descriptor, copy, 0, size if number == last else part.size)
        if number != last:
            _seal(number, directory)


def append_lines(writer: LogWriter, lines: Iterable[RawLine], after: int, *, durable: bool) -> None:
    """Append lines after the last one, which must have the seq `after`. Needs the lock."""
    writer.catch_up()
    last_seq = writer.metadata.through.seq
    if last_seq != after:
        raise ConflictError(
            f"session {writer.session} grew to seq {last_seq} while it was copied", session=writer.session
        )
    last_part, directory = writer.part, writer.directory
    base = os.stat(part_name(last_part), dir_fd=directory, follow_symlinks=False)
    new_parts: list[int] = []
    with disk.map_errors(f"adding to session {writer.session}", session=writer.session):
        try:
            for part, group in groupby(lines, attrgetter("part")):
                current = new_parts[-1] if new_parts else last_part
                if part < current:
                    raise ConflictError(f"session {writer.session} is split into parts differently")
                if part > current:
                    _seal(current, directory)
                with _open_part(part, directory, durable=durable, new=part > current) as descriptor:
                    if part > current:
                        new_parts.append(part)
                    for batch in raw_lines.batch_lines(group, _BATCH_BYTES):
                        _write_lines(descriptor, batch)
            if durable and new_parts:
                disk.sync_directory(directory)
        except BaseException:
            _undo_append(directory, last_part, base, new_parts)
            raise
    writer.catch_up()
    writer.save()


def _undo_append(directory: int, last_part: int, base: os.stat_result, new_parts: list[int]) -> None:
    """Undo a failed append; if that fails too, what remains is a prefix of the lines."""
    with suppress(OSError):
        for number in reversed(new_parts):
            os.unlink(part_name(number), dir_fd=directory)
        os.chmod(part_name(last_part), 0o600, dir_fd=directory)
        with disk.opened_file(part_name(last_part), os.O_WRONLY, directory) as part:
            os.ftruncate(part, base.st_size)
            os.fchmod(part, base.st_mode & 0o700)
            disk.sync(part)
        disk.sync_directory(directory)
