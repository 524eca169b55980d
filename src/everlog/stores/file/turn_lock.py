"""The turn lease of the file store: a flock on `turn.lock`, which ends with the process."""

from __future__ import annotations

import os

from everlog.errors import SessionBusyError
from everlog.stores.file import disk
from everlog.stores.rules import TurnLease, busy_error


class FileLease(TurnLease):
    """A lease to run a turn on one session."""

    def __init__(self, session: str, directory: int) -> None:
        """Acquire the lease. Raises SessionBusyError naming the holder; never waits."""
        super().__init__(session)
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
