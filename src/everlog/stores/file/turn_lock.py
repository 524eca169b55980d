"""The turn lease of files: flock on `turn.lock`. It ends with the process; no clock is involved."""

from __future__ import annotations

import os
from typing import Self

from everlog.errors import SessionBusyError
from everlog.stores.file import disk

RUNNING = "a turn of this session is running"
WAIT = "wait for its end, or stop it"


class FileLease:
    """The right to run a turn on one session."""

    def __init__(self, session: str, directory: int) -> None:
        """At once, or SessionBusyError naming the holder."""
        self.session = session
        self._descriptor = -1
        with disk.errors_mapped(f"opening the turn lock of session {session}", session=session):
            self._descriptor = disk.open_file("turn.lock", os.O_RDWR | os.O_CREAT, directory)
        try:
            disk.lock(self._descriptor, 0, f"the turn of session {session}", session=session)
        except SessionBusyError:
            pid = disk.holder(self._descriptor)
            self.release()
            raise taken(session, "" if pid == os.getpid() else disk.named(pid)) from None
        except BaseException:
            self.release()
            raise

    @property
    def held(self) -> bool:
        """Whether it was not given back yet."""
        return self._descriptor >= 0

    def release(self) -> None:
        """Give it back; doing so twice is harmless. Closing frees the lock, and in a forked child
        it does not free the parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = release

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def taken(session: str, holder: str = "", *, hint: str = WAIT, **facts: object) -> SessionBusyError:
    """What is said when the lease cannot be had; `holder` is another process, in words."""
    text = f"a turn of session {session} is running in {holder}" if holder else RUNNING
    return SessionBusyError(text, hint=hint, session=session, **facts)
