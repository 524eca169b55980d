"""The files of one foreign session, read: what is there, and what is new.

A `Trail` says how far a transcript was followed: a part, an offset behind its last line, and what
that line was. If the line still stands there, everything before it is taken as unchanged: these
programs append. The first line, where a program writes it anew each time, is not counted, so that
its growing moves no offset.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from everlog.errors import EverlogError, NotFoundError
from everlog.interop.formats.format_types import LONGEST, Line
from everlog.interop.formats.jsonl import parse
from everlog.interop.formats.live_format import LiveFormat, Where
from everlog.stores.file import disk
from everlog.stores.file.log_tail import Report

ENDING = ".jsonl"
BESIDE = ".meta.json"
_CHUNK = 1 << 20
_BESIDE_MOST = 1 << 24  # bytes of the first line, or of the file beside it


class Trail(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How far a transcript was followed."""

    part: int = 1
    end: int = 0  # offset in that part, counted from behind its head
    length: int = 0  # of the last line, with its newline
    crc: int = 0  # of the last line


START = Trail()


class Landed(NamedTuple):
    """Where lines of ours came to lie: another writer may have been faster."""

    part: int
    start: int  # of the first of them, counted like a trail
    trail: Trail  # behind the last one
    size: int  # of the part then
    alone: bool  # nothing but them stands behind the trail that was known


Stamp = tuple[int, int, int]  # inode, size and time of a file
Signature = tuple[Stamp, ...]


def signature(stem: str, stamp: Callable[[str], Stamp | None]) -> Signature:
    """The stamps of a transcript, its parts and the file beside it; empty if it is not there."""
    first = stamp(f"{stem}{ENDING}")
    if first is None:
        return ()
    found = [first]
    while (part := stamp(f"{stem}_part{len(found) + 1}{ENDING}")) is not None:
        found.append(part)
    beside = stamp(f"{stem}{BESIDE}")
    return (*found, beside) if beside is not None else tuple(found)


class Transcript:
    """One session: a transcript, its further parts, and what lies beside it."""

    def __init__(
        self, root: Path, folder: str, stem: str, dialect: LiveFormat, report: Report
    ) -> None:
        self._root = root
        self._folder = folder  # relative to the root
        self._dialect = dialect
        self._report = report
        self.stem = stem

    @property
    def path(self) -> str:
        """Where the transcript is, relative to the root."""
        name = f"{self.stem}{ENDING}"
        return f"{self._folder}/{name}" if self._folder else name

    def paths(self) -> list[str]:
        """All files, relative to the root."""
        with self.folder() as folder:
            names = [name for name in self._names(folder) if stamp_in(name, folder)]
        return [f"{self._folder}/{name}" if self._folder else name for name in names]

    def part_name(self, number: int) -> str:
        """The file name of a part."""
        return f"{self.stem}{ENDING}" if number == 1 else f"{self.stem}_part{number}{ENDING}"

    def folder(self) -> AbstractContextManager[int]:
        """A descriptor of the transcript's folder."""
        return self._opened_folder(self._folder)

    @contextmanager
    def _opened_folder(self, path: str) -> Iterator[int]:
        """A descriptor of a folder below the root; no link is followed there.

        Whatever the system refuses while it is used becomes an error of ours.
        """
        with disk.errors_mapped(f"reading {self.path}"):
            here = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for name in path.split("/") if path else ():
                above, here = here, -1
                try:
                    here = disk.open_directory(name, above)
                finally:
                    os.close(above)
            try:
                yield here
            finally:
                os.close(here)

    # --- what is there

    def signature(self) -> Signature:
        """Something that is another after every change. NotFoundError if there is no transcript."""
        with self.folder() as folder:

            def stamp(name: str) -> Stamp | None:
                return stamp_in(name, folder)

            found = signature(self.stem, stamp)
        if not found:
            raise NotFoundError(f"{self.path} is gone")
        return found

    def ended(self, landed: Landed) -> Signature:
        """The signature if lines of ours are the last ones; else one that nothing has."""
        found = self.signature()
        return found if found[landed.trail.part - 1][1] == landed.size else ()

    def sizes(self) -> list[int]:
        """The bytes of each part."""
        with self.folder() as folder:
            return [os.stat(name, dir_fd=folder).st_size for name in self._parts(folder)]

    def _parts(self, folder: int) -> list[str]:
        """The names of the parts: a missing one ends them, as it does for their program."""
        names = [self.part_name(1)]
        while self._dialect.PART_BYTES and stamp_in(self.part_name(len(names) + 1), folder):
            names.append(self.part_name(len(names) + 1))
        return names

    def _names(self, folder: int) -> list[str]:
        beside = [f"{self.stem}{BESIDE}"] if self._dialect.BESIDE == "file" else []
        return self._parts(folder) + beside

    def where(self, name: str) -> Where:
        """The surroundings of the session's lines."""
        with self.folder() as folder:
            return Where(name, self._beside(folder)[0], self._read)

    def _beside(self, folder: int) -> tuple[bytes | None, int]:
        """What the program writes anew each time, and where the lines behind it begin."""
        if self._dialect.BESIDE == "file":
            try:
                return disk.get(f"{self.stem}{BESIDE}", folder, _BESIDE_MOST), 0
            except FileNotFoundError:
                return None, 0
        if self._dialect.BESIDE == "head":
            with opened(self.part_name(1), folder) as transcript:
                head = _first_line(transcript)
            return (None, 0) if head is None else (head, len(head) + 1)
        return None, 0

    def _read(self, path: str) -> bytes | None:
        """A file in the folder of the session's name; that of an agent is its parent's."""
        own, is_agent, _ = f"{self._folder}/".partition("/subagents/")
        own = own if is_agent else f"{self._folder}/{self.stem}".lstrip("/")
        *folders, name = path.split("/")
        try:
            with self._opened_folder("/".join((own, *folders))) as folder:
                return disk.get(name, folder)
        except (OSError, EverlogError):
            return None  # there is none, or it is no plain file

    # --- following

    def holds(self, trail: Trail) -> bool:
        """Whether the last line that was followed still stands where it stood."""
        if not trail.length:
            return trail == Trail()
        try:
            with self.folder() as folder, opened(self.part_name(trail.part), folder) as part:
                base = self._beside(folder)[1] if trail.part == 1 else 0
                start = base + trail.end - trail.length
                line = os.pread(part, trail.length, start) if start >= base else b""
        except NotFoundError:
            return False
        return len(line) == trail.length and crc32(line) == trail.crc

    def grown(self, trail: Trail, until: Landed | None = None) -> Grown:
        """The lines behind a trail, all or those before some of ours."""
        return Grown(self, trail, until)

    def lines(self, grown: Grown) -> Iterator[Line]:
        """The whole lines behind a trail, which is moved along."""
        with self.folder() as folder:
            number = grown.trail.part
            while True:
                base = self._beside(folder)[1] if number == 1 else 0
                end = grown.trail.end if number == grown.trail.part else 0
                until = grown.until if grown.until and grown.until.part == number else None
                with opened(self.part_name(number), folder) as part:
                    for line in _lines(part, base + end):
                        if until and line.start >= base + until.start:
                            return
                        length = len(line.data) + line.ended
                        after = line.start + length - base
                        data = line.data + b"\n" if line.ended else line.data
                        grown.trail = Trail(number, after, length, crc32(data))
                        yield line
                number += 1
                following = self.part_name(number)
                if not self._dialect.PART_BYTES or not stamp_in(following, folder):
                    return

    def torn(self, trail: Trail) -> bytes:
        """What stands behind a trail that nobody ended: part of a line, if anything."""
        with self.folder() as folder, opened(self.part_name(trail.part), folder) as part:
            base = self._beside(folder)[1] if trail.part == 1 else 0
            size = os.fstat(part).st_size
            rest = os.pread(part, min(max(size - base - trail.end, 0), LONGEST), base + trail.end)
        return rest if b"\n" not in rest else b""


class Grown:
    """Lines that are read once; `trail` is behind the last one that was taken."""

    def __init__(self, files: Transcript, trail: Trail, until: Landed | None) -> None:
        self._files = files
        self.trail = trail
        self.until = until

    def __iter__(self) -> Iterator[Line]:
        return self._files.lines(self)


@contextmanager
def opened(name: str, folder: int) -> Iterator[int]:
    descriptor = disk.open_file(name, os.O_RDONLY, folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def stamp_in(name: str, folder: int) -> Stamp | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None  # the name of a part that there cannot be
        raise
    return stamp_of(status)


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _first_line(part: int) -> bytes | None:
    """The first line, None if it has no end or is too long to be about a session."""
    size = 4096
    while True:
        data = os.pread(part, size, 0)
        at = data.find(b"\n")
        if at >= 0:
            return data[:at]
        if len(data) < size or size >= _BESIDE_MOST:
            return None
        size *= 16


def _lines(part: int, start: int) -> Iterator[Line]:
    """Whole lines from an offset on. A last one without its newline counts if it is a record:
    nothing can follow in it any more. One that is far too long is passed over: it is damage to
    every reader."""
    offset, read = start, start
    pieces: list[bytes] = []  # of the line that begins at the offset
    while chunk := os.pread(part, _CHUNK, read):
        read += len(chunk)
        first, *lines = chunk.split(b"\n")
        pieces.append(first)
        if lines:
            lines[:0] = [b"".join(pieces)]
            pieces = [lines.pop()]
        for line in lines:
            yield Line(offset, line)
            offset += len(line) + 1
        if read - offset > LONGEST:
            yield from _too_long(part, offset)
            return
    rest = b"".join(pieces)
    if rest.endswith(b"}") and parse(rest)[0] is not None:
        yield Line(offset, rest, ended=False)


def _too_long(part: int, start: int) -> Iterator[Line]:
    """Go on behind a line that is longer than any record, which is not kept in memory."""
    offset = start
    while chunk := os.pread(part, _CHUNK, offset):
        at = chunk.find(b"\n")
        if at >= 0:
            yield from _lines(part, offset + at + 1)
            return
        offset += len(chunk)
