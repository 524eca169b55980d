"""Writing the files of one foreign session.

Lines are appended whole or not at all, with one write and one sync. Everything else is written to a
temporary file and renamed, so that a crash never leaves half of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from zlib import crc32

from msgspec.structs import replace

from everlog.errors import ConflictError, StoreFullError
from everlog.ids import timestamp
from everlog.interop.directory_walk import METADATA_ENDING, Stamp
from everlog.interop.foreign import renames
from everlog.interop.foreign.file_copy import FileCopy
from everlog.interop.foreign.foreign_tail import FLAGS, ForeignTail
from everlog.interop.foreign.lost_lines import (
    CONTEXT_BYTES,
    FIRST_BYTES,
    FileChangedError,
    LineContext,
    find_lost,
    make_context,
)
from everlog.interop.foreign.transcript_files import (
    ENDING,
    START_POSITION,
    AppendedLines,
    ReadPosition,
    Signature,
    Transcript,
    signature,
    stamp_in,
    stamp_of,
)
from everlog.interop.formats.format_types import MAX_LINE_BYTES, FileEdit
from everlog.log.parts import split_at_boundary
from everlog.stores.file import disk

_ASIDE = ".damaged-"  # between the name of a metadata file and a checksum of what was in it
_MAX_ASIDE = 255 - len(_ASIDE) - 8
OldFiles = Mapping[str, bytes | None]  # suffix of the name → content; None: there was no such file


class ForeignFiles(Transcript):
    """The files of one foreign session, to be read and written."""

    def append(
        self,
        lines: Sequence[bytes],
        files: Mapping[str, bytes],
        expected: ReadPosition = START_POSITION,
        old_files: OldFiles | None = None,
    ) -> AppendedLines:
        """Append lines and replace `files`, all or nothing. Durable on return.

        A torn line before them is ended first. `expected` is the position that the reader of the
        transcript has reached: it tells whether another program appended lines in between.
        FileChangedError says which lines are lost to a rewrite by another program; the others, if
        any, are in the file. `old_files` are the contents that `files` were made from; if another
        program has changed one of them, that stays.
        """
        with self.open_folder() as folder, disk.map_errors(f"writing {self._root / self.path}"):
            names = self._parts(folder)
            sizes = [os.stat(name, dir_fd=folder, follow_symlinks=False).st_size for name in names]
            self._check_limits(lines, sum(sizes))
            if self._format.METADATA_LOCATION == "head" and sizes == [0]:
                sizes = [self._append_head(names[0], folder)]
            base = self._base(folder)
            limit = self._format.PART_BYTES or 1 << 62
            first, *later_groups = split_at_boundary(list(lines), sizes[-1], limit)
            tails: list[ForeignTail] = []
            try:
                tail = ForeignTail(names[-1], folder, self._report)
                tails.append(tail)
                context, is_torn = self._read_context(tail, base if len(names) == 1 else 0)
                if first:
                    if is_torn:
                        self._report(f"{self.path}: the last line had no newline; one was added")
                    tail.append(b"\n" * is_torn + _join_lines(first))
                    if is_torn and base in (0, tail.start):  # it may be the first line, which counts apart
                        base = self._base(folder)
                for number, group in enumerate(later_groups, len(names) + 1):
                    tails.append(ForeignTail(self.part_name(number), folder, self._report, new=True))
                    tails[-1].append(_join_lines(group))
                if later_groups:
                    disk.sync_directory(folder)
                has_files = True
                try:
                    self._replace_files(files, folder, old_files)
                except FileChangedError:
                    has_files = False
                new_signature = self._check_tails(tails, folder, expected, base)
                if new_signature is None:
                    for tail in tails:
                        tail.cut()
                    lost = find_lost(context, lines, self.content(), drops_oldest=self._format.IS_REWRITTEN)
                    raise FileChangedError(self.path, lost, context)
            except FileChangedError:
                raise
            except BaseException:
                for number, tail in enumerate(tails, len(names)):
                    if number > len(names):
                        os.unlink(self.part_name(number), dir_fd=folder)
                    else:
                        tail.cut()
                raise
            finally:
                for tail in tails:
                    tail.close()
            base = base if len(names) == 1 else 0
            number, last = len(names) + len(later_groups), lines[-1] + b"\n"
            end = tails[-1].end - (0 if later_groups else base)
            start = tails[0].start - base
            is_contiguous = (expected.part, expected.end) == (len(names), max(start, 0))
            position = ReadPosition(number, end, len(last), crc32(last))
            if is_contiguous and (expected.content or expected == START_POSITION):
                content = crc32(_join_lines(lines), expected.content)
            else:
                content = self._checksum(position, folder)
            position = replace(position, content=content)
            location = (len(names), start + is_torn) if first else (len(names) + 1, 0)
            return AppendedLines(*location, position, is_contiguous, new_signature, has_files, context)

    def _append_head(self, name: str, folder: int) -> int:
        """Write the metadata line into an empty file: else its program takes our line for it."""
        modified = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
        head = self._format.missing_head(self.stem, timestamp(modified))
        with closing(ForeignTail(name, folder, self._report)) as tail:
            tail.append(head + b"\n")
            return tail.end

    def _read_context(self, tail: ForeignTail, base: int) -> tuple[LineContext, bool]:
        """Return what precedes our lines, and whether it ends with a torn line."""
        begin = max(base, tail.end - CONTEXT_BYTES)
        last = os.pread(tail.descriptor, max(tail.end - begin, 0), begin)
        first = os.pread(tail.descriptor, FIRST_BYTES, base) if self._format.IS_REWRITTEN else b""
        is_torn = tail.end > 0 and os.pread(tail.descriptor, 1, tail.end - 1) != b"\n"
        return make_context(begin - base, last, first), is_torn

    def _check_tails(
        self, tails: Sequence[ForeignTail], folder: int, expected: ReadPosition, base: int
    ) -> Signature | None:
        """Return the new signature if our lines are in the file, after what the reader has read of it.

        Lines that follow something else would refer to records that are gone. The signature is
        empty, which never matches, if another program's lines follow ours.
        """
        if base != self._base(folder):
            return None
        start = tails[0].start - (base if expected.part == 1 else 0)
        if len(tails) == 1 and start != expected.end and not self.is_unchanged_before(expected, (), ()):
            return None
        new_signature = signature(self.stem, lambda name: stamp_in(name, folder))
        stamps = [tail.check() for tail in tails]
        if None in stamps:
            return None
        is_last = stamps[-1] in new_signature and stamps[-1][1] == tails[-1].end
        return new_signature if is_last else ()

    def _base(self, folder: int) -> int:
        """Return the offset of the lines in the transcript, after the metadata line if it has one."""
        return self._read_meta(folder)[1] if self._format.METADATA_LOCATION == "head" else 0

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
                hint="import the session (everlog import) and continue it there",
            )

    def rewrite(self, edit: FileEdit, old_files: OldFiles | None = None) -> None:
        """Replace files and the first line, and rename the transcript; each step is atomic.

        `old_files` are the contents that `edit.files` were made from; FileChangedError if one of
        them or the transcript was changed by another program meanwhile.
        """
        with self.open_folder() as folder, disk.map_errors(f"writing {self._root / self.path}"):
            self._replace_files(edit.files, folder, old_files)
            with self._new_head(edit.head, folder) if edit.head is not None else nullcontext():
                if edit.stem is not None and edit.stem != self.stem:
                    self._rename(edit.stem, folder)

    def _replace_files(self, files: Mapping[str, bytes], folder: int, old_files: OldFiles | None = None) -> None:
        for ending, data in files.items():
            name = f"{self.stem}{ending}"
            self._set_aside(name, folder)

            def is_expected(old: str, ending: str = ending) -> bool:
                return old_files is None or _read_file(old, folder) == old_files.get(ending)

            with self._atomic_replacement(name, folder, is_expected) as new:
                disk.write_all(new, data)

    def _set_aside(self, name: str, folder: int) -> None:
        """Give a damaged metadata file a second name before it is replaced: somebody may repair it."""
        data = _read_file(name, folder)
        if not data or not self._format.is_damaged_metadata(data):
            return
        base = name if len(os.fsencode(name)) <= _MAX_ASIDE else f"{crc32(os.fsencode(name)):08x}{METADATA_ENDING}"
        aside = f"{base}{_ASIDE}{crc32(data):08x}"
        with suppress(FileExistsError):
            os.link(name, aside, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            disk.sync_directory(folder)
            self._report(f"{name} is damaged: it was set aside as {aside}, and a new one was made")

    @contextmanager
    def _new_head(self, head: bytes, folder: int) -> Iterator[None]:
        """Replace the first line in a copy that takes the name: no crash leaves half a file.

        What their program appends to the old file until the end of the block is appended to the new
        one: it may have the old one open.
        """
        name = self.part_name(1)
        with disk.opened_file(name, FLAGS, folder) as old:
            _, base = self._read_meta(folder)
            with closing(FileCopy(old, head + b"\n", base)) as copy:

                def is_complete(taken: str) -> bool:
                    return os.path.samestat(os.stat(taken, dir_fd=folder), os.fstat(old)) and copy.catch_up()

                try:
                    with self._atomic_replacement(name, folder, is_complete, FLAGS) as new:
                        copy.start(new)
                except FileChangedError:
                    copy.give_back(name, folder)
                    raise
                yield
                copy.catch_up()

    @contextmanager
    def _atomic_replacement(
        self, name: str, folder: int, is_expected: Callable[[str], bool] = bool, flags: int = os.O_WRONLY
    ) -> Iterator[int]:
        """Open a temporary file that replaces another, with its mode and owner, once it is durable.

        `is_expected` is asked about the file that was taken away, under its temporary name; if it
        denies, that is put back and FileChangedError is raised.
        """
        # Not derived from the name, which may have the maximal length already.
        temporary = f".{crc32(os.fsencode(name)):08x}.{os.getpid()}.tmp"
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        try:
            new = disk.open_file(temporary, flags | os.O_CREAT | os.O_EXCL, folder)
            try:
                with suppress(FileNotFoundError):
                    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    os.fchmod(new, stat.S_IMODE(before.st_mode))
                    with suppress(PermissionError):  # only root can give it back to another user
                        os.fchown(new, before.st_uid, before.st_gid)
                yield new
                disk.sync_all(new)
                if not renames.replace(temporary, name, folder, is_expected, os.fstat(new).st_ino):
                    raise FileChangedError(self.path)
            finally:
                os.close(new)
        finally:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
        disk.sync_directory(folder)

    def _rename(self, stem: str, folder: int) -> None:
        new_name = f"{stem}{ENDING}"
        if "/" in new_name or "\0" in new_name or stem.startswith("."):
            raise ConflictError(f"not a file name: {new_name[:60]!r}")
        try:
            renames.rename_new(self.part_name(1), new_name, folder)
        except FileExistsError as error:
            raise ConflictError(f"the file {new_name} already exists", hint="choose another title") from error
        disk.sync_directory(folder)
        self.stem = stem

    def create(self, edit: FileEdit) -> None:
        """Create the files of a new session, or none of them. Durable on return."""
        lines = ((edit.head,) if edit.head is not None else ()) + edit.lines
        name = self.part_name(1)
        with self.open_folder() as folder, disk.map_errors(f"creating {self._root / self.path}"):
            tail = ForeignTail(name, folder, self._report, new=True)
            try:
                self._replace_files(edit.files, folder)
                if lines:
                    tail.append(_join_lines(lines))
                disk.sync_directory(folder)
            except BaseException:
                for created in (name, *(f"{self.stem}{ending}" for ending in edit.files)):
                    with suppress(OSError):
                        os.unlink(created, dir_fd=folder)
                raise
            finally:
                tail.close()

    def overwrite(self, data: bytes, expected: Stamp | None = None) -> None:
        """Replace the transcript; FileChangedError if it no longer has the stamp `expected`."""

        def is_expected(old: str) -> bool:
            return expected is None or stamp_in(old, folder) == expected

        with (
            self.open_folder() as folder,
            disk.map_errors(f"writing {self._root / self.path}"),
            self._atomic_replacement(self.part_name(1), folder, is_expected) as new,
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
        with self.open_folder() as folder, disk.map_errors(f"deleting {self._root / self.path}"):
            names, parts = self._names(folder), len(self._parts(folder))
            beside = f"{self.stem}{METADATA_ENDING}{_ASIDE}"
            for name in (*names, *(name for name in os.listdir(folder) if name.startswith(beside))):
                if stamp_in(name, folder):
                    os.unlink(name, dir_fd=folder)
            disk.sync_directory(folder)
            _remove_tree(self.stem, folder)
            return parts


def _read_file(name: str, folder: int) -> bytes | None:
    try:
        return disk.read_small_file(name, folder)
    except FileNotFoundError:
        return None


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
