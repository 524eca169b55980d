"""Writing the files of one foreign session.

Lines are appended whole or not at all, with one write and one sync. Everything else is written to a
temporary file and renamed, so that a crash never leaves half of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import cast
from zlib import crc32

from everlog.errors import ConflictError, StoreFullError
from everlog.ids import timestamp
from everlog.interop.directory_walk import Stamp
from everlog.interop.foreign.transcript_files import (
    ENDING,
    START_POSITION,
    AppendedLines,
    ReadPosition,
    Transcript,
    open_for_reading,
    stamp_in,
    stamp_of,
)
from everlog.interop.formats.format_types import MAX_LINE_BYTES
from everlog.interop.formats.live_format import FileEdit, HeadFormat
from everlog.log.parts import split_at_boundary
from everlog.stores.file import disk
from everlog.stores.file.log_tail import LogTail


class ForeignFiles(Transcript):
    """The files of one foreign session, to be read and written."""

    def append(
        self, lines: Sequence[bytes], files: Mapping[str, bytes], expected: ReadPosition = START_POSITION
    ) -> AppendedLines:
        """Append lines and replace `files`, all or nothing. Durable on return.

        A torn line before them is ended first. `expected` is the position that the reader of the
        transcript has reached: it tells whether another program appended lines in between.
        """
        with self.open_folder() as folder, disk.map_errors(f"writing {self.path}"):
            names = self._parts(folder)
            sizes = [os.stat(name, dir_fd=folder, follow_symlinks=False).st_size for name in names]
            self._check_limits(lines, sum(sizes))
            if self._format.METADATA_LOCATION == "head" and sizes == [0]:
                sizes = [self._append_head(names[0], folder)]
            limit = self._format.PART_BYTES or 1 << 62
            first, *later_groups = split_at_boundary(list(lines), sizes[-1], limit)
            parts: list[tuple[LogTail, int, int]] = []  # start and end of our lines in it
            torn = False
            try:
                part = self._tail(names[-1], folder)
                parts.append((part, sizes[-1], sizes[-1]))
                if first:
                    torn = sizes[-1] > 0 and os.pread(part.descriptor, 1, sizes[-1] - 1) != b"\n"
                    if torn:
                        self._report(f"{self.path}: the last line had no newline; one was added")
                    data = b"\n" * torn + _join_lines(first)
                    end = part.append(data, sizes[-1])
                    parts[-1] = (part, end - len(data), end)
                for number, group in enumerate(later_groups, len(names) + 1):
                    parts.append((self._tail(self.part_name(number), folder, new=True), 0, 0))
                    parts[-1] = (parts[-1][0], 0, parts[-1][0].append(_join_lines(group), 0))
                if later_groups:
                    disk.sync_directory(folder)
                self._replace_files(files, folder)
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
            base = self._read_meta(folder)[1] if len(names) == 1 else 0
            number, last = len(names) + len(later_groups), lines[-1] + b"\n"
            end = parts[-1][2] - (0 if later_groups else base)
            position = ReadPosition(number, end, len(last), crc32(last))
            start = parts[0][1] - base
            is_contiguous = (expected.part, expected.end) == (len(names), start)
            location = (len(names), start + torn) if first else (len(names) + 1, 0)
            return AppendedLines(*location, position, parts[-1][2], is_contiguous)

    def _append_head(self, name: str, folder: int) -> int:
        """Write the metadata line into an empty file: else its program takes our line for it."""
        modified = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        head = cast("HeadFormat", self._format).missing_head(self.stem, timestamp(modified))
        tail = self._tail(name, folder)
        try:
            return tail.append(head + b"\n", 0)
        finally:
            tail.close()

    def _tail(self, name: str, folder: int, *, new: bool = False) -> LogTail:
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if new else 0)
        return LogTail(disk.open_file(name, flags, folder), self.stem, self._report, durable=True)

    def _check_limits(self, lines: Sequence[bytes], size: int) -> None:
        """Raise StoreFullError for lines that the session's own program could not read."""
        longest, total = max(map(len, lines)) + 1, size + sum(map(len, lines)) + len(lines)
        limit = self._format.LINE_BYTES or MAX_LINE_BYTES
        if longest > limit:
            raise StoreFullError(
                f"a line of {longest} bytes exceeds the limit of {self._format.NAME} ({limit})",
                hint="store the content elsewhere and refer to it",
            )
        if self._format.TOTAL_BYTES and total > self._format.TOTAL_BYTES:
            raise StoreFullError(
                f"session {self.stem} would have {total} bytes; {self._format.NAME} loads at most"
                f" {self._format.TOTAL_BYTES}",
                hint="import the session (everlog sessions import) and continue it there",
            )

    def rewrite(self, edit: FileEdit) -> None:
        """Replace files and the first line, and rename the transcript; each step is atomic."""
        with self.open_folder() as folder, disk.map_errors(f"writing {self.path}"):
            self._replace_files(edit.files, folder)
            if edit.head is not None:
                self._replace_head(edit.head, folder)
            if edit.stem is not None and edit.stem != self.stem:
                self._rename(edit.stem, folder)

    def _replace_files(self, files: Mapping[str, bytes], folder: int) -> None:
        for ending, data in files.items():
            with self._atomic_replacement(f"{self.stem}{ending}", folder) as new:
                disk.write_all(new, data)

    def _replace_head(self, head: bytes, folder: int) -> None:
        """Replace the first line in a copy that is then renamed: no crash leaves half a file."""
        name = self.part_name(1)
        with open_for_reading(name, folder) as old:
            stamp = stamp_of(os.fstat(old))
            start = self._read_meta(folder)[1]
            with self._atomic_replacement(name, folder, stamp) as new:
                disk.write_all(new, head + b"\n")
                disk.copy(old, new, start, stamp[1])

    @contextmanager
    def _atomic_replacement(self, name: str, folder: int, expected: Stamp | None = None) -> Iterator[int]:
        """Open a temporary file that replaces another, with its mode and owner, once it is durable.

        Raises ConflictError if the other file no longer has the stamp `expected`.
        """
        # Not derived from the name, which may have the maximal length already.
        temporary = f".{crc32(os.fsencode(name)):08x}.{os.getpid()}.tmp"
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
            if expected is not None and stamp_in(name, folder) != expected:
                raise ConflictError(f"{self.path} was written to by another program", hint="try again")
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        disk.sync_directory(folder)

    def _rename(self, stem: str, folder: int) -> None:
        new_name = f"{stem}{ENDING}"
        if "/" in new_name or "\0" in new_name or stem.startswith("."):
            raise ConflictError(f"not a file name: {new_name[:60]!r}")
        try:
            os.link(self.part_name(1), new_name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError as error:
            raise ConflictError(f"the file {new_name} already exists", hint="choose another title") from error
        os.unlink(self.part_name(1), dir_fd=folder)
        disk.sync_directory(folder)
        self.stem = stem

    def create(self, edit: FileEdit) -> None:
        """Create the files of a new session, or none of them. Durable on return."""
        lines = ((edit.head,) if edit.head is not None else ()) + edit.lines
        name = self.part_name(1)
        with self.open_folder() as folder, disk.map_errors(f"creating {self.path}"):
            tail = self._tail(name, folder, new=True)
            try:
                self._replace_files(edit.files, folder)
                if lines:
                    tail.append(_join_lines(lines), 0)
                disk.sync_directory(folder)
            except BaseException:
                for created in (name, *(f"{self.stem}{ending}" for ending in edit.files)):
                    with suppress(OSError):
                        os.unlink(created, dir_fd=folder)
                raise
            finally:
                tail.close()

    def overwrite(self, data: bytes, expected: Stamp | None = None) -> None:
        """Replace the transcript; ConflictError if it no longer has the stamp `expected`."""
        with (
            self.open_folder() as folder,
            disk.map_errors(f"writing {self.path}"),
            self._atomic_replacement(self.part_name(1), folder, expected) as new,
        ):
            disk.write_all(new, data)

    def read_content(self) -> tuple[bytes, Stamp]:
        """Return the content and the stamp of the transcript."""
        with self.open_folder() as folder, disk.map_errors(f"reading {self.path}"):
            name = self.part_name(1)
            stamp = stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
            return disk.read_small_file(name, folder, 1 << 40), stamp

    def remove(self) -> int:
        """Delete the session, its transcript first, and return how many parts it had."""
        with self.open_folder() as folder, disk.map_errors(f"deleting {self.path}"):
            names, parts = self._names(folder), len(self._parts(folder))
            for name in names:
                if stamp_in(name, folder):
                    os.unlink(name, dir_fd=folder)
            disk.sync_directory(folder)
            _remove_tree(self.stem, folder)
            return parts


def _join_lines(lines: Sequence[bytes]) -> bytes:
    return b"%b\n" % b"\n".join(lines)


def _remove_tree(name: str, folder: int) -> None:
    """Delete a folder and its content; symlinks are not followed."""
    try:
        descriptor = disk.open_directory(name, folder)
    except OSError:
        return  # most sessions have no such folder
    try:
        with os.scandir(descriptor) as entries:
            children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for inner, is_folder in children:
            if is_folder:
                _remove_tree(inner, descriptor)
            else:
                os.unlink(inner, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(name, dir_fd=folder)
