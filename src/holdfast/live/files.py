"""The files of one foreign session: what is new in them, and how bytes are added.

A `Trail` says how far a transcript was followed: a part, an offset behind its last line, and what
that line was. If the line still stands there, everything before it is taken as unchanged: these
programs append. The first line, where a program writes it anew each time, is not counted, so that
its growing moves no offset.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgspec

from holdfast.dialects.following import Added, LiveDialect, Where
from holdfast.dialects.form import LONGEST, Line
from holdfast.dialects.jsonl import parse
from holdfast.errors import Conflict, FormatError, HoldfastError, NotFound, StoreFull
from holdfast.log.parts import split_at_boundary
from holdfast.stores import disk
from holdfast.stores.tail import Report, Tail

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


class Files:
    """One session: a transcript, its further parts, and what lies beside it."""

    def __init__(
        self, root: Path, folder: str, stem: str, dialect: LiveDialect, report: Report
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
            names = [name for name in self._names(folder) if _stamp(name, folder)]
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
        """Something that is another after every change. NotFound if there is no transcript."""
        with self.folder() as folder:

            def stamp(name: str) -> Stamp | None:
                return _stamp(name, folder)

            found = signature(self.stem, stamp)
        if not found:
            raise NotFound(f"{self.path} is gone")
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
        while self._dialect.PART_BYTES and _stamp(self.part_name(len(names) + 1), folder):
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
            with _opened(self.part_name(1), folder) as transcript:
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
        except (OSError, HoldfastError):
            return None  # there is none, or it is no plain file

    # --- following

    def holds(self, trail: Trail) -> bool:
        """Whether the last line that was followed still stands where it stood."""
        if not trail.length:
            return trail == Trail()
        try:
            with self.folder() as folder, _opened(self.part_name(trail.part), folder) as part:
                base = self._beside(folder)[1] if trail.part == 1 else 0
                start = base + trail.end - trail.length
                line = os.pread(part, trail.length, start) if start >= base else b""
        except NotFound:
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
                with _opened(self.part_name(number), folder) as part:
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
                if not self._dialect.PART_BYTES or not _stamp(following, folder):
                    return

    def torn(self, trail: Trail) -> bytes:
        """What stands behind a trail that nobody ended: part of a line, if anything."""
        with self.folder() as folder, _opened(self.part_name(trail.part), folder) as part:
            base = self._beside(folder)[1] if trail.part == 1 else 0
            size = os.fstat(part).st_size
            rest = os.pread(part, min(max(size - base - trail.end, 0), LONGEST), base + trail.end)
        return rest if b"\n" not in rest else b""

    # --- writing

    def append(
        self, lines: Sequence[bytes], files: Mapping[str, bytes], known: Trail = START
    ) -> Landed:
        """Add lines at the end and write `files` anew, all or nothing.

        A torn line before them is ended first. `known` is how far the transcript was followed.
        """
        with self.folder() as folder, disk.errors_mapped(f"writing {self.path}"):
            names = self._parts(folder)
            sizes = [os.stat(name, dir_fd=folder, follow_symlinks=False).st_size for name in names]
            self._check(lines, sum(sizes))
            if self._dialect.BESIDE == "head" and self._beside(folder)[0] is None:
                raise FormatError(
                    f"{self.path} does not begin with a line about the session",
                    hint="begin a new one: what is added here would be taken for that line",
                )
            limit = self._dialect.PART_BYTES or 1 << 62
            first, *rest = split_at_boundary(list(lines), sizes[-1], limit)
            parts: list[tuple[Tail, int, int]] = []  # where ours begins in it, and where it ends
            torn = False
            try:
                part = self._tail(names[-1], folder)
                parts.append((part, sizes[-1], sizes[-1]))
                if first:
                    torn = sizes[-1] > 0 and os.pread(part.descriptor, 1, sizes[-1] - 1) != b"\n"
                    if torn:
                        self._report(f"{self.path}: its last line had no end and was given one")
                    data = b"\n" * torn + _joined(first)
                    end = part.put(data, sizes[-1])
                    parts[-1] = (part, end - len(data), end)
                for number, group in enumerate(rest, len(names) + 1):
                    parts.append((self._tail(self.part_name(number), folder, new=True), 0, 0))
                    parts[-1] = (parts[-1][0], 0, parts[-1][0].put(_joined(group), 0))
                if rest:
                    disk.sync_directory(folder)
                self._put_files(files, folder)
            except BaseException:
                for number, (tail, start, end) in enumerate(parts, len(names)):
                    if number > len(names):
                        os.unlink(self.part_name(number), dir_fd=folder)
                    elif start != end:
                        tail.cut(start, end)
                raise
            finally:
                for tail, _, _ in parts:
                    tail.close()
            base = self._beside(folder)[1] if len(names) == 1 else 0
            number, last = len(names) + len(rest), lines[-1] + b"\n"
            end = parts[-1][2] - (0 if rest else base)
            trail = Trail(number, end, len(last), crc32(last))
            start = parts[0][1] - base
            alone = (known.part, known.end) == (len(names), start)
            place = (len(names), start + torn) if first else (len(names) + 1, 0)
            return Landed(*place, trail, parts[-1][2], alone)

    def _tail(self, name: str, folder: int, *, new: bool = False) -> Tail:
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if new else 0)
        return Tail(disk.open_file(name, flags, folder), self.stem, self._report, durable=True)

    def _check(self, lines: Sequence[bytes], size: int) -> None:
        """Refuse what the session's own program could not read any more."""
        longest, total = max(map(len, lines)) + 1, size + sum(map(len, lines)) + len(lines)
        most = self._dialect.LINE_BYTES or LONGEST
        if longest > most:
            raise StoreFull(
                f"a line of {longest} bytes is more than {self._dialect.NAME} reads ({most})",
                hint="store it elsewhere and refer to it",
            )
        if self._dialect.TOTAL_BYTES and total > self._dialect.TOTAL_BYTES:
            raise StoreFull(
                f"session {self.stem} would have {total} bytes; {self._dialect.NAME} loads at most"
                f" {self._dialect.TOTAL_BYTES}",
                hint="import it (holdfast sessions import) and go on in a store of ours",
            )

    def replace(self, added: Added) -> None:
        """Write anew what is written anew, each by a temporary file and a rename."""
        with self.folder() as folder, disk.errors_mapped(f"writing {self.path}"):
            self._put_files(added.files, folder)
            if added.head is not None:
                self._put_head(added.head, folder)
            if added.stem is not None and added.stem != self.stem:
                self._rename(added.stem, folder)

    def _put_files(self, files: Mapping[str, bytes], folder: int) -> None:
        for ending, data in files.items():
            with self._anew(f"{self.stem}{ending}", folder) as new:
                disk.write_all(new, data)

    def _put_head(self, head: bytes, folder: int) -> None:
        """Another first line: the rest is copied behind it, so no crash finds half a session."""
        name = self.part_name(1)
        with _opened(name, folder) as old:
            was = _stamp_of(os.fstat(old))
            start = self._beside(folder)[1]
            with self._anew(name, folder, was) as new:
                disk.write_all(new, head + b"\n")
                disk.copy(old, new, start, was[1])

    @contextmanager
    def _anew(self, name: str, folder: int, was: Stamp | None = None) -> Iterator[int]:
        """A file that takes the place of another, with its mode and owner, once it is durable.

        Conflict if that one is not any more what it was.
        """
        temporary = f".{crc32(os.fsencode(name)):08x}.{os.getpid()}.tmp"  # a name may be long
        try:
            new = disk.open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, folder)
            try:
                with suppress(FileNotFoundError):
                    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    os.fchmod(new, stat.S_IMODE(before.st_mode))
                    with suppress(PermissionError):  # only root can give it back to another user
                        os.fchown(new, before.st_uid, before.st_gid)
                yield new
                disk.sync_all(new)
            finally:
                os.close(new)
            if was is not None and _stamp(name, folder) != was:
                raise Conflict(f"{self.path} was written to meanwhile", hint="try again")
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        disk.sync_directory(folder)

    def _rename(self, stem: str, folder: int) -> None:
        new = f"{stem}{ENDING}"
        if "/" in new or "\0" in new or stem.startswith("."):
            raise Conflict(f"not a file name: {new[:60]!r}")
        try:
            os.link(self.part_name(1), new, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError as error:
            raise Conflict(f"there is a file {new} already", hint="choose another title") from error
        os.unlink(self.part_name(1), dir_fd=folder)
        disk.sync_directory(folder)
        self.stem = stem

    def make(self, added: Added) -> None:
        """Make the files of a new session, durably, or none of them."""
        lines = ((added.head,) if added.head is not None else ()) + added.lines
        name = self.part_name(1)
        with self.folder() as folder, disk.errors_mapped(f"making {self.path}"):
            tail = self._tail(name, folder, new=True)
            try:
                self._put_files(added.files, folder)
                if lines:
                    tail.put(_joined(lines), 0)
                disk.sync_directory(folder)
            except BaseException:
                for one in (name, *(f"{self.stem}{ending}" for ending in added.files)):
                    with suppress(OSError):
                        os.unlink(one, dir_fd=folder)
                raise
            finally:
                tail.close()

    def overwrite(self, data: bytes, was: Stamp | None = None) -> None:
        """Put another transcript in the place of this one. Conflict if it is not what it was."""
        with (
            self.folder() as folder,
            disk.errors_mapped(f"writing {self.path}"),
            self._anew(self.part_name(1), folder, was) as new,
        ):
            disk.write_all(new, data)

    def content(self) -> tuple[bytes, Stamp]:
        """The transcript as it is."""
        with self.folder() as folder, disk.errors_mapped(f"reading {self.path}"):
            name = self.part_name(1)
            was = _stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
            return disk.get(name, folder, 1 << 40), was

    def remove(self) -> int:
        """Delete the session, its transcript first; returns how many parts it had."""
        with self.folder() as folder, disk.errors_mapped(f"deleting {self.path}"):
            names, parts = self._names(folder), len(self._parts(folder))
            for name in names:
                if _stamp(name, folder):
                    os.unlink(name, dir_fd=folder)
            disk.sync_directory(folder)
            _remove_tree(self.stem, folder)
            return parts


class Grown:
    """Lines that are read once; `trail` is behind the last one that was taken."""

    def __init__(self, files: Files, trail: Trail, until: Landed | None) -> None:
        self._files = files
        self.trail = trail
        self.until = until

    def __iter__(self) -> Iterator[Line]:
        return self._files.lines(self)


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int]:
    descriptor = disk.open_file(name, os.O_RDONLY, folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _stamp(name: str, folder: int) -> Stamp | None:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None  # the name of a part that there cannot be
        raise
    return _stamp_of(status)


def _stamp_of(status: os.stat_result) -> Stamp:
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


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"%b\n" % b"\n".join(lines)


def _remove_tree(name: str, folder: int) -> None:
    """Delete a folder and what is in it; no link is followed."""
    try:
        here = disk.open_directory(name, folder)
    except OSError:
        return  # most sessions have none
    try:
        with os.scandir(here) as entries:
            found = [(one.name, one.is_dir(follow_symlinks=False)) for one in entries]
        for inner, is_folder in found:
            if is_folder:
                _remove_tree(inner, here)
            else:
                os.unlink(inner, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=folder)
