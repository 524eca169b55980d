"""Whole sessions out of files and into files: the exact lines, in the parts they were in.

A session that comes from elsewhere appears whole, by one rename. One that is here and has gone on
there is added to under its lock, and synced before that is said; a crash leaves a prefix of it.
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
from everlog.log.raw_lines import Found, Line
from everlog.model import Damaged, Metadata
from everlog.ports import SessionRow
from everlog.stores.file import disk, metadata_file
from everlog.stores.file.log_reader import OpenLog
from everlog.stores.file.log_writer import Writer

_PIECE = 1 << 20  # bytes of one write, about


def lines_of(log: OpenLog) -> Iterator[Line | Damaged]:
    """The lines of a log as they can be carried; closes the log."""
    with disk.errors_mapped("reading a session"), log:
        yield from raw_lines.numbered(_found(log))


def _found(log: OpenLog) -> Iterator[Found]:
    for number in log.numbers:
        part = log.part(number)
        for start, end, body in scan.forward(part.pread, 0, part.size):
            yield Found(number, start, end, body)


def settle_in(
    directory: int, source: Metadata, lines: Iterable[Line], *, durable: bool
) -> SessionRow:
    """Write a session that comes from elsewhere into a directory of its own."""
    tally = None
    size = total = 0
    part = 1
    descriptor = -1
    try:
        for part, group in groupby(lines, attrgetter("part")):
            if descriptor >= 0:
                full, descriptor = descriptor, -1  # it is closed there, whatever happens
                _finish(full, durable=durable, sealed=True)
            descriptor, size = _new_part(part, directory), 0
            for line, data in _pieces(group):
                tally = tally or raw_lines.opening(line, source)
                if data:
                    disk.write_all(descriptor, data)
                size += len(line.body) + 1
                raw_lines.add(tally, line)
            total += size
        if descriptor < 0:
            descriptor = _new_part(1, directory)
        last, descriptor = descriptor, -1
        _finish(last, durable=durable, sealed=False)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    metadata = (tally or raw_lines.opening(None, source)).metadata(part, size)
    metadata_file.save(metadata, directory, durable=durable)
    return SessionRow(metadata, total, part)


def _pieces(lines: Iterable[Line]) -> Iterator[tuple[Line, bytes]]:
    """Each line, and with some of them the bytes of all since the last such one."""
    kept: list[bytes] = []
    size = 0
    before: Line | None = None
    for line in lines:
        if before is not None:
            yield before, b""
        before = line
        kept.append(line.body)
        size += len(line.body) + 1
        if size >= _PIECE:
            yield line, b"%b\n" % b"\n".join(kept)
            kept, size, before = [], 0, None
    if before is not None:
        yield before, b"%b\n" % b"\n".join(kept)


def _new_part(number: int, directory: int) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    return disk.open_file(part_name(number), flags, directory)


def _finish(descriptor: int, *, durable: bool, sealed: bool) -> None:
    try:
        if durable:
            disk.sync(descriptor)
        if sealed:
            os.fchmod(descriptor, 0o400)
    finally:
        os.close(descriptor)


def go_on(writer: Writer, lines: Iterable[Line], after: int, *, durable: bool) -> None:
    """Add lines behind the last one, which must have the number `after`. Needs the lock."""
    writer.look()
    found = writer.metadata.through.seq
    if found != after:
        raise ConflictError(
            f"session {writer.session} went on to {found} while it was copied",
            session=writer.session,
        )
    last, directory = writer.part, writer.directory
    base = os.stat(part_name(last), dir_fd=directory, follow_symlinks=False)
    made: list[int] = []
    with disk.errors_mapped(f"adding to session {writer.session}", session=writer.session):
        try:
            for part, group in groupby(lines, attrgetter("part")):
                current = made[-1] if made else last
                if part < current:
                    raise ConflictError(f"session {writer.session} has its parts elsewhere")
                if part == current:
                    flags = os.O_WRONLY | os.O_APPEND
                    descriptor = disk.open_file(part_name(part), flags, directory)
                else:
                    _seal(current, directory)
                    descriptor = _new_part(part, directory)
                    made.append(part)
                try:
                    for _, data in _pieces(group):
                        if data:
                            disk.write_all(descriptor, data)
                finally:
                    _finish(descriptor, durable=durable, sealed=False)
            if durable and made:
                disk.sync_directory(directory)
        except BaseException:
            _take_back(directory, last, base, made)
            raise
    writer.look()
    writer.save()


def _seal(number: int, directory: int) -> None:
    part = disk.open_file(part_name(number), os.O_RDONLY, directory)
    try:
        os.fchmod(part, 0o400)
    finally:
        os.close(part)


def _take_back(directory: int, last: int, base: os.stat_result, made: list[int]) -> None:
    """An error leaves nothing of the call behind; what cannot be taken back is a prefix."""
    with suppress(OSError):
        for number in reversed(made):
            os.unlink(part_name(number), dir_fd=directory)
        os.chmod(part_name(last), 0o600, dir_fd=directory)
        part = disk.open_file(part_name(last), os.O_WRONLY, directory)
        try:
            os.ftruncate(part, base.st_size)
            os.fchmod(part, base.st_mode & 0o700)
            disk.sync(part)
        finally:
            os.close(part)
        disk.sync_directory(directory)
