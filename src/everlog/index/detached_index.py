"""The index while its file cannot be written."""

from __future__ import annotations

import time
from pathlib import Path

import apsw

from everlog.index.index_file import MIN_ROOM, IndexUnusableError, free_bytes, prepare, real_path
from everlog.index.overlay import FileStamp, Overlay

_RETRY_SECONDS = 10.0  # until a file is tried again that could not be written though there is room


class DetachedIndex:
    """An overlay over the file, or an empty index in memory."""

    def __init__(self, path: Path, reason: str, *, room: int, is_readable: bool) -> None:
        """`room`: bytes by which the index is to grow; without `is_readable` the file is unusable."""
        self.reason = reason
        self._path = path
        self._overlay = _open_overlay(path) if is_readable else None
        self.connection = self._overlay.connection if self._overlay else prepare(apsw.Connection(":memory:"))
        self._needed = 2 * MIN_ROOM + room  # more than what is enough to write, so as not to change to and fro
        self._is_full = free_bytes(path.parent) < MIN_ROOM + room
        self.schedule_retry()

    def has_changed(self) -> bool:
        """Return whether another process has written to the file."""
        return FileStamp.of(self._path) != self._stamp

    def is_retry_due(self) -> bool:
        """Return whether the file may be writable again."""
        if self._is_full:
            return free_bytes(self._path.parent) >= self._needed
        return time.monotonic() >= self._retry_at

    def schedule_retry(self) -> None:
        """Note that the file cannot be written now; the attempt may have left frames in its write-ahead log."""
        self._stamp = FileStamp.of(self._path)
        self._retry_at = time.monotonic() + _RETRY_SECONDS

    def close(self) -> None:
        """Drop the changes."""
        if self._overlay is not None:
            self._overlay.close()
        else:
            self.connection.close()


def _open_overlay(path: Path) -> Overlay | None:
    """Return an overlay over a usable index; None if the file is missing or unusable."""
    overlay = None
    try:
        overlay = Overlay(real_path(path), is_full=0 <= free_bytes(path.parent) < MIN_ROOM)
        connection = prepare(overlay.connection)
        for table in ("word", "inside"):  # merges copy old segments into memory, more than is new
            connection.execute(f"INSERT INTO {table} ({table}, rank) VALUES ('automerge', 0)")
    except (apsw.Error, IndexUnusableError):
        if overlay is not None:
            overlay.close()
        return None
    return overlay
