"""The transfer of whole sessions from and to files: exact lines, in their original parts.

A session from another store appears complete, by one rename. One that exists and has grown there
is appended to under its lock, and synced before return; a crash leaves a prefix of the lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
    size = total = 0
    part = 1
    descriptor = -1
    try:
        for part, group in groupby(lines, attrgetter("part")):
            if descriptor >= 0:
                full, descriptor = descriptor, -1  # `_close_part` closes it in any case
                _close_part(full, durable=durable, seal=True)
            descriptor, size = _new_part(part, directory), 0
            for line, data in _batch_lines(group):
                fold = fold or raw_lines.start_fold(line, source)
                if data:
                    disk.write_all(descriptor, data)
                size += len(line.body) + 1
                raw_lines.add_line(fold, line)
            total += size
        if descriptor < 0:
            descriptor = _new_part(1, directory)
        last, descriptor = descriptor, -1
        _close_part(last, durable=durable, seal=False)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    metadata = (fold or raw_lines.start_fold(None, source)).metadata(part, size)
    metadata_file.save(metadata, directory, durable=durable)
    return SessionRow(metadata, total, part)


def _batch_lines(lines: Iterable[RawLine]) -> Iterator[tuple[RawLine, bytes]]:
    """Yield each line with the bytes to write after it: empty, or those of a whole batch."""
    bodies: list[bytes] = []
    size = 0
    previous: RawLine | None = None
    for line in lines:
        if previous is not None:
            yield previous, b""
        previous = line
        bodies.append(line.body)
        size += len(line.body) + 1
        if size >= _BATCH_BYTES:
            yield line, b"%b\n" % b"\n".join(bodies)
            bodies, size, previous = [], 0, None
    if previous is not None:
        yield previous, b"%b\n" % b"\n".join(bodies)


def _new_part(number: int, directory: int) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    return disk.open_file(part_name(number), flags, directory)


def _close_part(descriptor: int, *, durable: bool, seal: bool) -> None:
    try:
        if durable:
            disk.sync(descriptor)
        if seal:
            os.fchmod(descriptor, 0o400)
    finally:
        os.close(descriptor)


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
                if part == current:
                    flags = os.O_WRONLY | os.O_APPEND
                    descriptor = disk.open_file(part_name(part), flags, directory)
                else:
                    _seal(current, directory)
                    descriptor = _new_part(part, directory)
                    new_parts.append(part)
                try:
                    for _, data in _batch_lines(group):
                        if data:
                            disk.write_all(descriptor, data)
                finally:
                    _close_part(descriptor, durable=durable, seal=False)
            if durable and new_parts:
                disk.sync_directory(directory)
        except BaseException:
            _undo_append(directory, last_part, base, new_parts)
            raise
    writer.catch_up()
    writer.save()


def _seal(number: int, directory: int) -> None:
    part = disk.open_file(part_name(number), os.O_RDONLY, directory)
    try:
        os.fchmod(part, 0o400)
    finally:
        os.close(part)


def _undo_append(directory: int, last_part: int, base: os.stat_result, new_parts: list[int]) -> None:
    """Undo a failed append; if that fails too, what remains is a prefix of the lines."""
    with suppress(OSError):
        for number in reversed(new_parts):
            os.unlink(part_name(number), dir_fd=directory)
        os.chmod(part_name(last_part), 0o600, dir_fd=directory)
        part = disk.open_file(part_name(last_part), os.O_WRONLY, directory)
        try:
            os.ftruncate(part, base.st_size)
            os.fchmod(part, base.st_mode & 0o700)
            disk.sync(part)
        finally:
            os.close(part)
        disk.sync_directory(directory)
