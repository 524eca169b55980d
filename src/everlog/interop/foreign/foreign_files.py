"""The files of one foreign session, written: lines are added, and what is written anew is swapped.

Lines are added whole or not at all, with one write and one sync. Everything else is written beside
the old one and renamed, so that no crash finds half of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from zlib import crc32

from everlog.errors import ConflictError, FormatError, StoreFullError
from everlog.interop.foreign.transcript_files import (
    ENDING,
    START,
    Landed,
    Stamp,
    Trail,
    Transcript,
    opened,
    stamp_in,
    stamp_of,
)
from everlog.interop.formats.format_types import LONGEST
from everlog.interop.formats.live_format import Added
from everlog.log.parts import split_at_boundary
from everlog.stores.file import disk
from everlog.stores.file.log_tail import Tail


class Files(Transcript):
    """A session that is read and written to."""

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
            raise StoreFullError(
                f"a line of {longest} bytes is more than {self._dialect.NAME} reads ({most})",
                hint="store it elsewhere and refer to it",
            )
        if self._dialect.TOTAL_BYTES and total > self._dialect.TOTAL_BYTES:
            raise StoreFullError(
                f"session {self.stem} would have {total} bytes; {self._dialect.NAME} loads at most"
                f" {self._dialect.TOTAL_BYTES}",
                hint="import it (everlog sessions import) and go on in a store of ours",
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
        with opened(name, folder) as old:
            was = stamp_of(os.fstat(old))
            start = self._beside(folder)[1]
            with self._anew(name, folder, was) as new:
                disk.write_all(new, head + b"\n")
                disk.copy(old, new, start, was[1])

    @contextmanager
    def _anew(self, name: str, folder: int, was: Stamp | None = None) -> Iterator[int]:
        """A file that takes the place of another, with its mode and owner, once it is durable.

        ConflictError if that one is not any more what it was.
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
            if was is not None and stamp_in(name, folder) != was:
                raise ConflictError(f"{self.path} was written to meanwhile", hint="try again")
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        disk.sync_directory(folder)

    def _rename(self, stem: str, folder: int) -> None:
        new = f"{stem}{ENDING}"
        if "/" in new or "\0" in new or stem.startswith("."):
            raise ConflictError(f"not a file name: {new[:60]!r}")
        try:
            os.link(self.part_name(1), new, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError as error:
            raise ConflictError(
                f"there is a file {new} already", hint="choose another title"
            ) from error
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
        """Put another transcript in the place of this one. ConflictError if it is not what it was."""
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
            was = stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False))
            return disk.get(name, folder, 1 << 40), was

    def remove(self) -> int:
        """Delete the session, its transcript first; returns how many parts it had."""
        with self.folder() as folder, disk.errors_mapped(f"deleting {self.path}"):
            names, parts = self._names(folder), len(self._parts(folder))
            for name in names:
                if stamp_in(name, folder):
                    os.unlink(name, dir_fd=folder)
            disk.sync_directory(folder)
            _remove_tree(self.stem, folder)
            return parts


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
