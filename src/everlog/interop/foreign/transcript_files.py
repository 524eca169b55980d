"""Reading the files of one foreign session: which exist, and which lines are new.

A `ReadPosition` is how far a transcript was read: a part, the offset after the last line, and that
line's length and checksum. If the line is still there, everything before it is taken as unchanged:
these programs only append. A first line that its program rewrites is not counted in offsets, so
that they stay valid when it grows.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from everlog.errors import EverlogError, NotFoundError
from everlog.interop.directory_walk import METADATA_ENDING, Stamp
from everlog.interop.foreign.lost_lines import LineContext
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import MAX_LINE_BYTES, Line, TranscriptInfo
from everlog.interop.formats.jsonl import parse_object
from everlog.interop.transcript_sources import ancestor_path, read_related
from everlog.log import scan
from everlog.stores.file import disk
from everlog.stores.file.log_tail import Report

ENDING = ".jsonl"
_CHUNK = 1 << 20
_HEAD_CHUNK = 1 << 13  # the first line is short
_MAX_METADATA_BYTES = 1 << 24  # of the metadata file


class ReadPosition(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The position up to which a transcript was read."""

    part: int = 1
    end: int = 0  # offset in that part, without its first line if that is metadata
    length: int = 0  # of the last line, with its newline
    crc: int = 0  # of the last line


START_POSITION = ReadPosition()


class AppendedLines(NamedTuple):
    """The place of appended lines; another writer may have appended before us."""

    part: int
    start: int  # of the first line, counted as in a ReadPosition
    end: ReadPosition  # after the last line
    is_contiguous: bool  # no other lines follow the position that was expected
    signature: tuple[tuple[int, int, int], ...]  # of the files; empty if other lines follow these
    has_files: bool  # the other files were replaced too
    context: LineContext  # what precedes the lines


Signature = tuple[Stamp, ...]


def signature(stem: str, stamp: Callable[[str], Stamp | None]) -> Signature:
    """Return the stamps of a transcript, its parts and its metadata file; empty if missing."""
    first = stamp(f"{stem}{ENDING}")
    if first is None:
        return ()
    stamps = [first]
    while (part := stamp(f"{stem}_part{len(stamps) + 1}{ENDING}")) is not None:
        stamps.append(part)
    metadata = stamp(f"{stem}{METADATA_ENDING}")
    return (*stamps, metadata) if metadata is not None else tuple(stamps)


class Transcript:
    """The files of one foreign session: a transcript, its further parts, its metadata file."""

    def __init__(
        self, root: Path, folder: str, stem: str, format: ForeignFormat, report: Report, *, branch: str = ""
    ) -> None:
        self._root = root
        self._folder = folder  # relative to the root
        self._format = format
        self._report = report
        self.stem = stem
        self.branch = branch  # id of the session in the file, if it is not the main one

    @property
    def path(self) -> str:
        """Path of the transcript, relative to the root."""
        name = f"{self.stem}{ENDING}"
        return f"{self._folder}/{name}" if self._folder else name

    def paths(self) -> list[str]:
        """Return the paths of all files, relative to the root."""
        with self.open_folder() as folder:
            names = [name for name in self._names(folder) if stamp_in(name, folder)]
        return [f"{self._folder}/{name}" if self._folder else name for name in names]

    def part_name(self, number: int) -> str:
        """Return the file name of a part."""
        return f"{self.stem}{ENDING}" if number == 1 else f"{self.stem}_part{number}{ENDING}"

    def open_folder(self) -> AbstractContextManager[int]:
        """Open the transcript's folder and give its descriptor."""
        return self._open_folder_at(self._folder)

    @contextmanager
    def _open_folder_at(self, path: str) -> Iterator[int]:
        """Open a folder below the root and give its descriptor; symlinks are not followed.

        OSErrors while it is in use are mapped to EverlogErrors.
        """
        with disk.map_errors(f"reading {self.path}"):
            descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for name in path.split("/") if path else ():
                parent, descriptor = descriptor, -1
                try:
                    descriptor = disk.open_directory(name, parent)
                finally:
                    os.close(parent)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def report(self, message: str) -> None:
        """Report something about the session to its user."""
        self._report(f"{self.path}: {message}")

    # --- state of the files

    def signature(self) -> Signature:
        """Return a value that differs after every change; NotFoundError without a transcript."""
        with self.open_folder() as folder:

            def stamp(name: str) -> Stamp | None:
                return stamp_in(name, folder)

            result = signature(self.stem, stamp)
        if not result:
            raise NotFoundError(f"{self.path} does not exist")
        return result

    def sizes(self) -> list[int]:
        """Return the size of each part in bytes."""
        with self.open_folder() as folder:
            return [os.stat(name, dir_fd=folder).st_size for name in self._parts(folder)]

    def _parts(self, folder: int) -> list[str]:
        """Return the names of the parts up to the first missing one, as their program does."""
        names = [self.part_name(1)]
        while self._format.PART_BYTES and stamp_in(self.part_name(len(names) + 1), folder):
            names.append(self.part_name(len(names) + 1))
        return names

    def _names(self, folder: int) -> list[str]:
        has_metadata = self._format.METADATA_LOCATION == "file"
        metadata = [f"{self.stem}{METADATA_ENDING}"] if has_metadata else []
        return self._parts(folder) + metadata

    def info(self, session_id: str) -> TranscriptInfo:
        """Return what a format needs besides the session's lines."""
        meta_bytes = None
        if self._format.METADATA_LOCATION:
            with self.open_folder() as folder:
                meta_bytes = self._read_meta(folder)[0]
        parent, name = self._root / self._folder, self._format.ANCESTOR_FILE
        ancestor = ancestor_path(parent, name) if name else None
        return TranscriptInfo(
            session_id,
            meta_bytes,
            self._read_session_file,
            self.stem,
            partial(read_related, parent),
            None if ancestor is None else ancestor.read_bytes(),
            self.branch,
            lambda: self.new_lines(START_POSITION),
        )

    def _read_meta(self, folder: int) -> tuple[bytes | None, int]:
        """Return the metadata that the program rewrites each time, and the offset of the lines."""
        if self._format.METADATA_LOCATION == "file":
            try:
                name = f"{self.stem}{METADATA_ENDING}"
                return disk.read_small_file(name, folder, _MAX_METADATA_BYTES), 0
            except FileNotFoundError:
                return None, 0
        if self._format.METADATA_LOCATION == "head":
            with open_for_reading(self.part_name(1), folder) as transcript:
                head = self._format.find_head(_iter_lines(transcript, 0, _HEAD_CHUNK))
            return head.meta_bytes, head.size
        return None, 0

    def _read_session_file(self, path: str) -> bytes | None:
        """Return a file from the session's own folder, for a subagent its parent's, or None."""
        folder_path, is_agent, _ = f"{self._folder}/".partition("/subagents/")
        folder_path = folder_path if is_agent else f"{self._folder}/{self.stem}".lstrip("/")
        *folders, name = path.split("/")
        try:
            with self._open_folder_at("/".join((folder_path, *folders))) as folder:
                return disk.read_small_file(name, folder)
        except (OSError, EverlogError):
            return None  # missing, or not a regular file

    # --- new lines

    def is_unchanged_before(self, position: ReadPosition) -> bool:
        """Return whether the last line before a position is still there unchanged."""
        if not position.length:
            return position == ReadPosition()
        try:
            with self.open_folder() as folder, open_for_reading(self.part_name(position.part), folder) as part:
                base = self._read_meta(folder)[1] if position.part == 1 else 0
                start = base + position.end - position.length
                line = os.pread(part, position.length, start) if start >= base else b""
        except NotFoundError:
            return False
        return len(line) == position.length and crc32(line) == position.crc

    def new_lines(self, position: ReadPosition, until: AppendedLines | None = None) -> NewLines:
        """Return the lines after a position: all, or only those before some appended lines."""
        return NewLines(self, position, until)

    def read_lines(self, new: NewLines) -> Iterator[Line]:
        """Yield complete lines after a position, and advance it."""
        with self.open_folder() as folder:
            number = new.position.part
            while True:
                base = self._read_meta(folder)[1] if number == 1 else 0
                end = new.position.end if number == new.position.part else 0
                until = new.until if new.until and new.until.part == number else None
                with open_for_reading(self.part_name(number), folder) as part:
                    for line in _iter_lines(part, base + end):
                        if until and line.start >= base + until.start:
                            return
                        new.last = number, base, line
                        yield line
                number += 1
                next_part = self.part_name(number)
                if not self._format.PART_BYTES or not stamp_in(next_part, folder):
                    return

    def content(self) -> bytes:
        """Return all lines of all parts, without the metadata line."""
        with self.open_folder() as folder:
            parts = [disk.read_small_file(name, folder, 1 << 40) for name in self._parts(folder)]
            return b"".join(parts)[self._read_meta(folder)[1] :]

    def torn_line(self, position: ReadPosition) -> bytes:
        """Return the unfinished line after a position, if there is one; else empty."""
        with self.open_folder() as folder, open_for_reading(self.part_name(position.part), folder) as part:
            base = self._read_meta(folder)[1] if position.part == 1 else 0
            size = os.fstat(part).st_size
            start = base + position.end
            remainder = os.pread(part, min(max(size - start, 0), MAX_LINE_BYTES), start)
        return remainder if b"\n" not in remainder else b""


class NewLines:
    """New lines, to be iterated once; `position` is after the last line that was yielded."""

    def __init__(self, files: Transcript, position: ReadPosition, until: AppendedLines | None) -> None:
        self._files = files
        self._start = position
        self.last: tuple[int, int, Line] | None = None  # part, start of its lines, line
        self.until = until

    @property
    def position(self) -> ReadPosition:
        """The position after the last line: only its crc is computed, not that of each line."""
        if self.last is None:
            return self._start
        part, base, (start, data, ended) = self.last
        length = len(data) + ended
        return ReadPosition(part, start + length - base, length, crc32(b"\n", crc32(data)) if ended else crc32(data))

    def __iter__(self) -> Iterator[Line]:
        return self._files.read_lines(self)


@contextmanager
def open_for_reading(name: str, folder: int) -> Iterator[int]:
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
            return None  # too long for the name of a part: there is none
        raise
    return stamp_of(status)


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _iter_lines(part: int, start: int, chunk_size: int = _CHUNK) -> Iterator[Line]:
    """Yield complete lines from an offset on.

    A last line without a newline counts if it is a complete JSON object. A line above
    MAX_LINE_BYTES is skipped: it is damage to every reader.
    """
    offset, read = start, start
    chunks: list[bytes] = []  # of the line that starts at the offset
    while chunk := os.pread(part, chunk_size, read):
        read += len(chunk)
        first, *lines = scan.split(chunk)
        chunks.append(first)
        if lines:
            lines[:0] = [b"".join(chunks)]
            chunks = [lines.pop()]
        for line in lines:
            yield Line(offset, line)
            offset += len(line) + 1
        if read - offset > MAX_LINE_BYTES:
            yield from _skip_long_line(part, offset)
            return
    remainder = b"".join(chunks)
    if remainder.endswith(b"}") and parse_object(remainder)[0] is not None:
        yield Line(offset, remainder, ended=False)


def _skip_long_line(part: int, start: int) -> Iterator[Line]:
    """Yield the lines after one that is too long, without holding it in memory."""
    offset = start
    while chunk := os.pread(part, _CHUNK, offset):
        newline = chunk.find(b"\n")
        if newline >= 0:
            yield from _iter_lines(part, offset + newline + 1)
            return
        offset += len(chunk)
