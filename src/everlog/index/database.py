"""The index database: the connection to one SQLite file, its errors mapped in one place.

A file that is missing, broken or of another version is not an error: it is created again and
filled from the logs, once. A file that cannot be written is not one either: changes go to an overlay
in memory until it can be written again. `run` repeats what met either.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import apsw

from everlog.errors import EverlogError, StoreFailedError, StoreFullError
from everlog.index.detached_index import DetachedIndex  # at once: a disk that fails may not load a module later
from everlog.index.index_file import (
    LOCK_TIMEOUT,
    IndexUnusableError,
    check_room,
    connect,
    connect_writable,
    delete_files,
    prepare,
)

T = TypeVar("T")

_UNUSABLE_ERRORS = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError, apsw.SchemaChangeError)
_UNWRITABLE_ERRORS = (apsw.FullError, apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.IOError)
_MAX_ATTEMPTS = 4  # of `run`: to write, on an overlay, on that of a new file, in memory alone


class Database:
    """The connection to one `index.db`, shared by the threads of a process."""

    def __init__(self, path: Path | None, report: Callable[[str], None]) -> None:
        """Connect on first use; without a path the database is in memory."""
        self._path = path
        self._report = report
        self._lock = threading.RLock()
        self._connection: apsw.Connection | None = None
        self._inode = 0
        self._detached: DetachedIndex | None = None
        self._is_reported = False  # that the file cannot be written
        self.switches = 0  # how often changes began to go to memory, or to the file again

    def run(self, work: Callable[[], T]) -> T:
        """Do work that reads and that may have to update the index before.

        If the index is unusable or cannot be written, the work is done again on a new one, or with
        the changes in memory; likewise if it was another one at the end. It must be repeatable.
        """
        for _ in range(_MAX_ATTEMPTS - 1):
            switches = self.switches
            try:
                result = work()
                if self.switches == switches:
                    return result
            except IndexUnusableError as error:
                self._report(f"rebuilding the index: {error.message}")
                self.reset()
            except EverlogError:
                if self.switches == switches:
                    raise
        return work()

    @contextmanager
    def read_cursor(self) -> Iterator[apsw.Cursor]:
        """Yield a cursor; each statement is its own transaction, and none outlives the block.

        An unfinished SELECT keeps its snapshot open, and once another process writes, this
        connection cannot write any more. The traceback of an error is enough to keep a cursor
        alive, so it is closed explicitly.
        """
        with self._lock, self._map_errors():
            cursor = self._current_connection().cursor()
            try:
                yield cursor
            finally:
                cursor.close(True)

    @contextmanager
    def write_transaction(
        self, *, durable: bool = False, timeout: float = LOCK_TIMEOUT, room: int = 0
    ) -> Iterator[apsw.Cursor]:
        """Yield a cursor in one transaction; with `durable` it is synced before return.

        `timeout`: seconds to wait for the lock of another process. `room`: bytes that the index may
        grow by; where the disk has less, they are kept in memory.
        """
        with self._lock, self._map_errors():
            connection = self._current_connection(room)
            connection.set_busy_timeout(int(timeout * 1000))
            cursor = connection.cursor()
            if durable:
                cursor.execute("PRAGMA synchronous = FULL")
            try:
                cursor.execute("BEGIN IMMEDIATE")
                try:
                    yield cursor
                    cursor.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:  # SQLite itself may have rolled back
                        cursor.execute("ROLLBACK")
                    raise
            finally:
                connection.set_busy_timeout(int(LOCK_TIMEOUT * 1000))
                if durable:
                    cursor.execute("PRAGMA synchronous = NORMAL")
                cursor.close(True)

    def truncate_log(self) -> None:
        """Move everything from the write-ahead log into the file, and empty the log.

        What was deleted is overwritten in the file by then, but the log may still have it.
        """
        with self._lock, self._map_errors():
            busy, *_ = self._current_connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() or (0,)
        if busy:
            self._report(f"{self._path}-wal may have deleted text until the next deletion: another process reads it")

    def change_stamp(self) -> tuple[int, int, int]:
        """Return a value that differs after every change, by any process."""
        with self._lock, self._map_errors():
            connection = self._current_connection()
            return id(connection), connection.data_version(), connection.total_changes()

    def reset(self) -> None:
        """Delete the file; the next use creates a new one. An overlay is replaced by an empty index in memory."""
        with self._lock:
            detached, path = self._detached, self._path
            self.close()
            if path is None:
                return
            if detached is not None:
                self._detach(path, detached.reason, is_readable=False)
                return
            try:
                delete_files(path)
            except OSError as error:
                self._detach(path, str(error), is_readable=False)

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            if self._detached is not None:
                self._detached.close()
                self.switches += 1
            elif self._connection is not None:
                with suppress(apsw.Error):
                    self._connection.close()
            self._connection = self._detached = None

    def before_fork(self) -> None:
        """Close the connection: a child inherits SQLite's record of the locks it holds, but not
        the locks, and then parent and child would corrupt the file."""
        self._lock.acquire()
        self.close()

    def after_fork_in_parent(self) -> None:
        """Release the lock; the next use connects again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Replace the lock: its owner is a thread that the child does not have."""
        self._lock = threading.RLock()

    def _current_connection(self, room: int = 0) -> apsw.Connection:
        if self._path is None:
            if self._connection is None:
                self._connection = prepare(apsw.Connection(":memory:"))
            return self._connection
        if self._connection is not None and self._connection.in_transaction:
            return self._connection
        if self._detached is not None:
            self._leave_overlay(self._path, self._detached)
        try:
            if self._connection is not None and self._detached is not None:
                return self._connection
            if self._connection is not None and self._inode == self._current_inode():
                check_room(self._path, room)
                return self._connection
            self.close()
            self._connection = connect(self._path)
            self._inode, self._is_reported = self._current_inode(), False
            return self._connection
        except _UNWRITABLE_ERRORS as error:
            return self._detach(self._path, str(error), room)

    def _detach(self, path: Path, reason: str, room: int = 0, *, is_readable: bool = True) -> apsw.Connection:
        """Keep all changes in memory from now on, over the file unless it is not readable."""
        self.close()
        if not self._is_reported:
            self._report(f"{path} cannot be written, so new rows are kept in memory: {reason}")
        self._is_reported = True
        self._detached = DetachedIndex(path, reason, room=room, is_readable=is_readable)
        self._connection = self._detached.connection
        self.switches += 1
        return self._connection

    def _leave_overlay(self, path: Path, detached: DetachedIndex) -> None:
        """Connect to the file if it can be written again; drop the overlay if the file has changed."""
        has_changed = detached.has_changed()
        if not (has_changed or detached.is_retry_due()):
            return
        connection = connect_writable(path)
        if connection is None and not has_changed:
            detached.schedule_retry()
            return
        self.close()
        self._connection = connection
        self._inode = self._current_inode()
        if connection is not None:
            self._report(f"{path} can be written again")
            self._is_reported = False

    def _current_inode(self) -> int:
        try:
            return os.stat(self._path or "", follow_symlinks=False).st_ino
        except OSError:
            return -1

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Map the errors of SQLite. After one of writing, changes go to memory: `run` tries again."""
        try:
            yield
        except _UNUSABLE_ERRORS as error:
            raise IndexUnusableError(f"the index is unusable: {error}", hint="it is rebuilt") from error
        except apsw.Error as error:
            if isinstance(error, _UNWRITABLE_ERRORS) and self._path is not None and self._detached is None:
                self._detach(self._path, str(error))
            if isinstance(error, apsw.FullError):
                raise StoreFullError(f"{self._path}: {error}", hint="free some space and try again") from error
            hint = "run everlog doctor for details"
            raise StoreFailedError(f"the index {self._path} cannot be used: {error}", hint=hint) from error
