"""The lock under which keys and aliases change hands: one for a whole root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from everlog.stores.file import disk
from everlog.stores.file.layout import Root


class NameLock:
    """Held by one thread of one process at a time."""

    def __init__(self, root: Root, seconds: float) -> None:
        """`seconds`: how long to wait for it."""
        self._root = root
        self._seconds = seconds
        self._descriptors: set[int] = set()  # of threads that have it or wait for it

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have it for a while; SessionBusyError if others have it too long."""
        self._root.prepare()
        descriptor = self._root.open_lock("names.lock")
        self._descriptors.add(descriptor)
        try:
            disk.lock(descriptor, self._seconds, "the names of this root")
            try:
                yield
            finally:
                disk.unlock(descriptor)  # a child forked meanwhile has the descriptor too
        finally:
            self._descriptors.discard(descriptor)
            os.close(descriptor)

    def after_fork_in_child(self) -> None:
        """Give up what belongs to threads that are not here."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
