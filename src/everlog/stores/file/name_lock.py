"""The lock for changes of keys and aliases: one for a whole root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from everlog.stores.file import disk
from everlog.stores.file.layout import Root


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
