"""Reading the files of one foreign session: which exist, and which lines are new.

A `ReadPosition` is how far a transcript was read: a part, the offset after the last line, that
line's length and checksum, and the checksum of everything up to there. What was read is compared
with these, all of it if the file is small or changed otherwise than by growing, else its last line:
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
from everlog.interop.foreign.file_lines import RunningChecksum, crc_between, iter_lines
from everlog.interop.foreign.lost_lines import LineContext
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import MAX_LINE_BYTES, Line, TranscriptInfo
from everlog.interop.transcript_sources import ancestor_path, read_related
from everlog.stores.file import disk
from everlog.stores.file.log_tail import Report

ENDING = ".jsonl"
_HEAD_CHUNK = 1 << 13  # the first line is short
_MAX_METADATA_BYTES = 1 << 24  # of the metadata file
MAX_COMPARED = 1 << 20  # bytes that were read and are compared each time their file grows


class ReadPosition(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The position up to which a transcript was read."""

    part: int = 1
    end: int = 0  # offset in that part, without its first line if that is metadata
    length: int = 0  # of the last line, with its newline
    crc: int = 0  # of the last line
    content: int = 0  # crc of all lines up to there, in all parts; 0: unknown


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
                head = self._format.find_head(iter_lines(transcript, 0, _HEAD_CHUNK))
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

    def is_unchanged_before(self, position: ReadPosition, before: Signature, now: Signature) -> bool:
        """Return whether what was read up to a position is still there.

        `before` and `now` are the stamps of the files when that was read and now. If they have only
        grown, and are large, the last line stands for all before it.
        """
        if not position.length:
            return position == START_POSITION
        size = sum(stamp[1] for stamp in now[: position.part - 1]) + position.end
        is_compared = position.content and (size <= MAX_COMPARED or not _has_grown(position.part, before, now))
        try:
            with self.open_folder() as folder, open_for_reading(self.part_name(position.part), folder) as part:
                base = self._read_meta(folder)[1] if position.part == 1 else 0
                start = base + position.end - position.length
                data = os.pread(part, position.length + 1, start) if start >= base else b""
                line, after = data[: position.length], data[position.length :]
                if len(line) < position.length or crc32(line) != position.crc:
                    return False
                if after and after != b"\n" and not line.endswith(b"\n"):
                    return False  # it had no newline, and goes on
                return not is_compared or self._checksum(position, folder) == position.content
        except NotFoundError:
            return False

    def _checksum(self, position: ReadPosition, folder: int) -> int:
        """Return the crc of all lines up to a position; 0 if there are not as many bytes."""
        crc = 0
        for number in range(1, position.part + 1):
            with open_for_reading(self.part_name(number), folder) as part:
                start = self._read_meta(folder)[1] if number == 1 else 0
                end = start + position.end if number == position.part else os.fstat(part).st_size
                if end > os.fstat(part).st_size:
                    return 0
                crc = crc_between(part, start, end, crc)
        return crc

    def new_lines(self, position: ReadPosition, until: AppendedLines | None = None) -> NewLines:
        """Return the lines after a position: all, or only those before some appended lines."""
        return NewLines(self, position, until)

    def read_lines(self, new: NewLines) -> Iterator[Line]:
        """Yield complete lines after a position, and advance it."""
        with self.open_folder() as folder:
            number, end = new.position.part, new.position.end
            crc = new.position.content or self._checksum(new.position, folder)
            while True:
                base = self._read_meta(folder)[1] if number == 1 else 0
                until = new.until if new.until and new.until.part == number else None
                new.begin_part(number, base, RunningChecksum(base + end, crc))
                with open_for_reading(self.part_name(number), folder) as part:
                    for line in iter_lines(part, base + end, on_chunk=new.add_chunk):
                        if until and line.start >= base + until.start:
                            return
                        new.last = line
                        yield line
                number, end, crc = number + 1, 0, new.checksum.of_all()
                if not self._format.PART_BYTES or not stamp_in(self.part_name(number), folder):
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
        self._start = position  # before the lines of the part
        self.last: Line | None = None  # of the part
        self.until = until
        self._part = self._base = 0
        self.checksum = RunningChecksum(0, 0)

    def begin_part(self, part: int, base: int, checksum: RunningChecksum) -> None:
        """Begin with the lines of a part, which start at the offset `base`."""
        self._start, self.last = self.position, None
        self._part, self._base, self.checksum = part, base, checksum

    def add_chunk(self, chunk: bytes) -> None:
        """Note the bytes that the next lines are in."""
        self.checksum.add(chunk, self._end)

    @property
    def _end(self) -> int:
        """Offset of the end of the last line; 0 if there was none."""
        return 0 if self.last is None else self.last.start + len(self.last.data) + self.last.ended

    @property
    def position(self) -> ReadPosition:
        """The position after the last line: its crc and that of the content are only computed here."""
        if self.last is None:
            return self._start
        data, ended, end = self.last.data, self.last.ended, self._end
        crc = crc32(b"\n", crc32(data)) if ended else crc32(data)
        return ReadPosition(self._part, end - self._base, len(data) + ended, crc, self.checksum.up_to(end))

    def __iter__(self) -> Iterator[Line]:
        return self._files.read_lines(self)


def _has_grown(part: int, before: Signature, now: Signature) -> bool:
    """Return whether a part only became larger, and nothing else changed before its end."""
    if before[: part - 1] != now[: part - 1] or min(len(before), len(now)) < part:
        return False
    (old_inode, old_size, _), (inode, size, _) = before[part - 1], now[part - 1]
    return before[part - 1] == now[part - 1] or (inode == old_inode and size > old_size)


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
