"""The end of a log on the disk: where bytes are added, and taken back when that fails.

    write → did it end where it should? → fdatasync            all of it, or an error and nothing

Bytes that were never acknowledged are cut off again, unless a program without locks has written
after them: then they become one damaged line, and neighbours are left alone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

from everlog.errors import StoreFailedError
from everlog.log.tail_recovery import examine
from everlog.stores.file import disk

Report = Callable[[str], None]


class Tail:
    """One part, open for appending."""

    def __init__(self, descriptor: int, session: str, report: Report, *, durable: bool) -> None:
        """Takes the descriptor over; it must have been opened with O_APPEND."""
        self.descriptor = descriptor
        self._session = session
        self._report = report
        self._durable = durable
        self.suspect = False  # an fsync failed: whatever follows goes to a new part
        self.disturbed = False  # somebody writes without a lock: what we know may be wrong
        self.failure: StoreFailedError | None = None  # bytes could not be taken back: read-only

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)

    def put(self, data: bytes, base: int) -> int:
        """Add whole lines to a part of `base` bytes, durably; returns its new size."""
        descriptor = self.descriptor
        done = 0
        try:
            done = os.write(descriptor, data)
            while done < len(data):
                done += os.write(descriptor, memoryview(data)[done:])
            # O_APPEND leaves the offset at the end of our write, wherever that came to lie.
            end = os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError as error:
            self.cut(base, base + done)
            raise disk.mapped(
                error, f"appending to session {self._session}", session=self._session
            ) from error
        if end != base + len(data):
            self._settle(data, base, end)
        if self._durable:
            try:
                disk.sync(descriptor)
            except OSError as error:
                # Never again on these bytes: a second fsync would say yes with the data gone.
                self.suspect = True
                self.cut(base, end)
                raise disk.mapped(
                    error, f"syncing session {self._session}", session=self._session
                ) from error
        return end

    def cut(self, base: int, end: int) -> None:
        """Take back unacknowledged bytes, unless somebody else wrote after them."""
        try:
            if os.fstat(self.descriptor).st_size > end:
                disk.write_all(self.descriptor, b"\n")
                self._disturb()
                return
            os.ftruncate(self.descriptor, base)
            if self._durable:
                disk.sync_all(self.descriptor)
        except OSError as error:
            self.failure = StoreFailedError(
                f"session {self._session}: a failed write could not be taken back: "
                f"{os.strerror(error.errno or errno.EIO)}",
                hint="it stays read-only until the disk is well and it is opened again",
                session=self._session,
            )

    def seal_torn(self, file: str, set_aside: Callable[[int, int], str]) -> int:
        """Set a torn tail aside and cut it off, or give a whole last line its newline.

        Returns the size that is left.
        """
        size = os.fstat(self.descriptor).st_size
        tail = examine(lambda length, offset: os.pread(self.descriptor, length, offset), size)
        if tail.complete:
            disk.write_all(self.descriptor, b"\n")
            disk.sync(self.descriptor)
            self._report(
                f"session {self._session}, {file}: the last line was whole, its newline was added"
            )
            return size + 1
        if tail.torn:
            name = set_aside(tail.keep, size)
            os.ftruncate(self.descriptor, tail.keep)
            disk.sync_all(self.descriptor)
            self._report(
                f"session {self._session}, {file}: {size - tail.keep} torn bytes from byte "
                f"{tail.keep} on, never acknowledged, were set aside in {name}"
            )
        return tail.keep if tail.torn else size

    def _settle(self, data: bytes, base: int, end: int) -> None:
        """Our bytes are not where they should be: a writer without locks, or a write that lied."""
        begin = end - len(data)
        self._disturb()
        with suppress(OSError):  # what cannot be read back counts as not there
            there = os.pread(self.descriptor, len(data), begin) if begin >= 0 else b""
            clean = begin == 0 or os.pread(self.descriptor, 1, begin - 1) == b"\n"
            if begin > base and there == data and clean:
                return
        self.cut(base, base + len(data))
        raise StoreFailedError(
            f"session {self._session}: the written bytes are not in the file",
            hint="another program may be writing to it without a lock",
            session=self._session,
        )

    def _disturb(self) -> None:
        self.disturbed = True
        self._report(f"session {self._session}: another program writes to it without a lock")
