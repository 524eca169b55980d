"""The tail of a log on disk, where bytes are appended, and removed again if that fails.

    write → at the expected offset? → fdatasync            everything, or an error and nothing

Bytes that were never acknowledged are cut off again, unless a program without locks has written
after them: then they become one damaged line, and its neighbours are left alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

from everlog.errors import StoreFailedError
from everlog.log.tail_recovery import examine_tail
from everlog.stores.file import disk

Report = Callable[[str], None]


class LogTail:
    """One part, open for appending."""

    def __init__(self, descriptor: int, session: str, report: Report, *, durable: bool) -> None:
        """Take over a descriptor, which must have been opened with O_APPEND."""
        self.descriptor = descriptor
        self._session = session
        self._report = report
        self._durable = durable
        self.sync_failed = False  # further records must go to a new part
        self.has_unlocked_writer = False  # a program writes without the lock: reread the log
        self.failure: StoreFailedError | None = None  # a write could not be undone: read-only

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def append(self, data: bytes, base: int) -> int:
        """Append complete lines to a part of `base` bytes, durably; returns its new size."""
        descriptor = self.descriptor
        written = 0
        try:
            written = os.write(descriptor, data)
            while written < len(data):
                written += os.write(descriptor, memoryview(data)[written:])
            # O_APPEND leaves the offset at the end of our write, wherever that was.
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError as error:
            self.cut(base, base + written)
            raise disk.map_error(error, f"appending to session {self._session}", session=self._session) from error
        if end != base + len(data):
            self._check_misplaced_write(data, base, end)
        if self._durable:
            try:
                disk.sync(descriptor)
            except OSError as error:
                # Never sync these bytes again: a second fsync could succeed with the data lost.
                self.sync_failed = True
                self.cut(base, end)
                raise disk.map_error(error, f"syncing session {self._session}", session=self._session) from error
        return end

    def cut(self, base: int, end: int) -> None:
        """Cut off unacknowledged bytes, unless another program wrote after them."""
        try:
            if os.fstat(self.descriptor).st_size > end:
                disk.write_all(self.descriptor, b"\n")
                self._note_unlocked_writer()
                return
            os.ftruncate(self.descriptor, base)
            if self._durable:
                disk.sync_all(self.descriptor)
        except OSError as error:
            self.failure = StoreFailedError(
                f"session {self._session}: a failed write could not be undone: {os.strerror(error.errno or errno.EIO)}",
                hint="it is read-only until the disk works again and it is reopened",
                session=self._session,
            )

    def repair_tail(self, file: str, quarantine: Callable[[int, int], str]) -> int:
        """Quarantine a torn tail and cut it off, or add the missing newline to a complete line.

        Returns the size of the part afterwards.
        """
        size = os.fstat(self.descriptor).st_size
        state = examine_tail(lambda length, offset: os.pread(self.descriptor, length, offset), size)
        if state.complete:
            disk.write_all(self.descriptor, b"\n")
            disk.sync(self.descriptor)
            self._report(f"session {self._session}, {file}: the last line lacked its newline; it was added")
            return size + 1
        if state.torn:
            name = quarantine(state.lines_end, size)
            os.ftruncate(self.descriptor, state.lines_end)
            disk.sync_all(self.descriptor)
            self._report(
                f"session {self._session}, {file}: {size - state.lines_end} torn bytes from byte "
                f"{state.lines_end} on, never acknowledged, were quarantined in {name}"
            )
        return state.lines_end if state.torn else size

    def _check_misplaced_write(self, data: bytes, base: int, end: int) -> None:
        """Handle bytes at an unexpected offset: another writer without locks, or a failed write."""
        begin = end - len(data)
        self._note_unlocked_writer()
        with suppress(OSError):  # unreadable bytes count as not written
            actual = os.pread(self.descriptor, len(data), begin) if begin >= 0 else b""
            follows_newline = begin == 0 or os.pread(self.descriptor, 1, begin - 1) == b"\n"
            if begin > base and actual == data and follows_newline:
                return
        self.cut(base, base + len(data))
        raise StoreFailedError(
            f"session {self._session}: the written bytes are not in the file",
            hint="another program may be writing to it without a lock",
            session=self._session,
        )

    def _note_unlocked_writer(self) -> None:
        self.has_unlocked_writer = True
        self._report(f"session {self._session}: another program is writing to it without a lock")
