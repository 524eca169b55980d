"""The end of a foreign file, to which lines are appended while its program may do anything to it.

The file is locked against nobody: after a write, the name may stand for another file, and our bytes
may be gone or elsewhere. So they are read back before they are acknowledged.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from everlog.interop.directory_walk import Stamp
from everlog.interop.foreign.transcript_files import stamp_in, stamp_of
from everlog.stores.file import disk
from everlog.stores.file.log_tail import Report

FLAGS = os.O_RDWR | os.O_APPEND
_MAX_LOOKS = 16  # at a file that another program is writing to


class ForeignTail:
    """One file, open for appending."""

    def __init__(self, name: str, folder: int, report: Report, *, new: bool = False) -> None:
        self.name = name
        self._folder = folder
        self._report = report
        self.descriptor = disk.open_file(name, FLAGS | (os.O_CREAT | os.O_EXCL if new else 0), folder)
        self.start = self.end = os.fstat(self.descriptor).st_size  # of our bytes
        self._data = b""  # our bytes

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def append(self, data: bytes) -> None:
        """Append complete lines, durably."""
        written = 0
        try:
            written = os.write(self.descriptor, data)
            while written < len(data):
                written += os.write(self.descriptor, memoryview(data)[written:])
        finally:
            if written:  # O_APPEND leaves the offset at the end of our write, wherever that was
                self.end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
                self.start = self.end - written
                self._data = data if written == len(data) else data[:written]
        disk.sync(self.descriptor)

    def check(self) -> Stamp | None:
        """Return the stamp of the file of this name if our lines are in it where they were written."""
        for _ in range(_MAX_LOOKS):
            before = os.fstat(self.descriptor)
            if not self._has_lines():
                return None
            # The name comes last: whatever happened to our lines by then shows in its file.
            after = stamp_in(self.name, self._folder)
            if after is None or after[0] != before.st_ino:
                return None
            if after == stamp_of(before):
                return after
        return None

    def _has_lines(self) -> bool:
        """Return whether our lines are whole lines of the file that we opened."""
        begin = max(self.start - 1, 0)
        found = os.pread(self.descriptor, self.end - begin, begin)
        before, length = self.start - begin, len(self._data)
        follows_newline = not before or found[:1] == b"\n" or self._data[:1] == b"\n"
        return follows_newline and len(found) == before + length and found.endswith(self._data)

    def cut(self) -> None:
        """Remove our bytes from the end again; a file with anything else there is left as it is."""
        if not self._data:
            return
        try:
            with _sole_opener(self.descriptor) as is_sole:
                length = os.fstat(self.descriptor).st_size - self.start
                if not is_sole or not 0 < length <= len(self._data):
                    return
                if os.pread(self.descriptor, length, self.start) == self._data[:length]:
                    os.ftruncate(self.descriptor, self.start)
                    disk.sync_all(self.descriptor)
        except OSError as error:
            self._report(f"{self.name}: a failed write could not be undone: {os.strerror(error.errno or errno.EIO)}")


@contextmanager
def _sole_opener(descriptor: int) -> Iterator[bool]:
    """Make other programs wait before they open a file; False if one of them has it open now."""
    if sys.platform != "linux":
        yield True
        return
    try:
        # The kernel tells of a program that waits by this signal, which is ignored by default.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        yield error.errno != errno.EAGAIN  # else not our file, or not a file system with leases
        return
    try:
        yield True
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
