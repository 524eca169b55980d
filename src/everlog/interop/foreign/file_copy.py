"""A copy of a file with another first line, while another program may write to the file."""

from __future__ import annotations

import os
from zlib import crc32

from everlog.interop.foreign.foreign_tail import FLAGS
from everlog.stores.file import disk

_CHUNK = 1 << 20
_MAX_ROUNDS = 16


class FileCopy:
    """Follows the old file into the new one that takes its name."""

    def __init__(self, old: int, head: bytes, base: int) -> None:
        """Take the descriptor of the old file, whose lines after `base` are copied."""
        self._old = old
        self._head = head
        self._base = base
        self._copied = 0  # offset in the old file
        self._crc = 0  # of the old file before that
        self._modified = 0  # mtime of the old file, ns
        self._new = -1
        self._new_size = 0

    def start(self, new: int) -> None:
        """Write what is in the old file now."""
        self._new = os.dup(new)
        disk.write_all(new, self._head)
        self._new_size = len(self._head)
        self._crc = crc32(os.pread(self._old, self._base, 0))
        self._copied = self._base
        self._copy_more()

    def _copy_more(self) -> bool:
        """Copy what was added, and return whether that was anything."""
        status = os.fstat(self._old)
        self._modified = status.st_mtime_ns
        begin = self._copied
        while self._copied < status.st_size:
            data = os.pread(self._old, min(_CHUNK, status.st_size - self._copied), self._copied)
            if not data:
                break
            disk.write_all(self._new, data)
            self._crc = crc32(data, self._crc)
            self._copied += len(data)
            self._new_size += len(data)
        return self._copied > begin

    def catch_up(self) -> bool:
        """Copy what was appended to the old file meanwhile; False if it was rewritten instead."""
        for _ in range(_MAX_ROUNDS):
            status = os.fstat(self._old)
            if status.st_mtime_ns == self._modified and status.st_size == self._copied:
                return True
            if status.st_size < self._copied or self._checksum() != self._crc:
                return False
            if self._copy_more():
                disk.sync_all(self._new)
        return False

    def _checksum(self) -> int:
        crc = offset = 0
        while offset < self._copied:
            data = os.pread(self._old, min(_CHUNK, self._copied - offset), offset)
            if not data:
                return -1
            crc = crc32(data, crc)
            offset += len(data)
        return crc

    def give_back(self, name: str, folder: int) -> None:
        """Append to the file what their program wrote to the new one while that had the name."""
        size = os.fstat(self._new).st_size if self._new >= 0 else 0
        if size > self._new_size:
            with disk.opened_file(name, FLAGS, folder) as theirs:
                disk.copy(self._new, theirs, self._new_size, size)
                disk.sync_all(theirs)

    def close(self) -> None:
        """Close the descriptor of the new file."""
        if self._new >= 0:
            os.close(self._new)
