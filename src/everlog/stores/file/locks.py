"""The locks of the file store beside that of a log: a flock ends with its process.

`turn.lock` of a session is its turn lease; `names.lock` of a root is held while keys and aliases change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from everlog.errors import SessionBusyError
from everlog.ports import Lease
from everlog.stores.file import disk
from everlog.stores.file.layout import Root
from everlog.stores.rules import busy_error


class FileLease(Lease):
    """A lease to run a turn on one session."""

    def __init__(self, session: str, directory: int) -> None:
        """Acquire the lease. Raises SessionBusyError naming the holder; never waits."""
        self.session = session
        self._descriptor = -1
        with disk.map_errors(f"opening the turn lock of session {session}", session=session):
            self._descriptor = disk.open_file("turn.lock", os.O_RDWR | os.O_CREAT, directory)
        try:
            disk.lock(self._descriptor, 0, f"the turn of session {session}", session=session)
        except SessionBusyError:
            pid = disk.lock_holder(self._descriptor)
            self.release()
            raise busy_error(session, "" if pid == os.getpid() else disk.describe_process(pid)) from None
        except BaseException:
            self.release()
            raise

    @property
    def held(self) -> bool:
        """Return whether it is not released yet."""
        return self._descriptor >= 0

    def release(self) -> None:
        """Release the lease; doing so twice is harmless. Closing releases the lock, but in a
        forked child not the parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release


class NameLock:
    """A lock that one thread of one process holds at a time."""

    def __init__(self, root: Root, seconds: float) -> None:
        """`seconds`: the timeout of `acquire`."""
        self._root = root
        self._seconds = seconds
        self._descriptors: set[int] = set()  # of threads that hold it or wait for it

    @contextmanager
    def acquire(self) -> Iterator[None]:
        """Hold the lock for a `with` block; SessionBusyError after the timeout."""
        self._root.prepare()
        descriptor = self._root.open_lock("names.lock")
        self._descriptors.add(descriptor)
        try:
            disk.lock(descriptor, self._seconds, "the names of this root")
            try:
                yield
            finally:
                disk.unlock(descriptor)  # a child forked meanwhile inherited the descriptor
        finally:
            self._descriptors.discard(descriptor)
            os.close(descriptor)

    def after_fork_in_child(self) -> None:
        """Close the descriptors of threads that the child does not have."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
