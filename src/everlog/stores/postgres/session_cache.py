"""Cache of the sessions a process writes to; the database decides whether it is still valid."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

import msgspec

from everlog.errors import SessionBusyError
from everlog.log.fold import MetadataFold
from everlog.model import AnyRecord, Metadata

_MAX_SESSIONS = 10_000
_MAX_UNFOLDED = 64
_LOCK_SECONDS = 0.1  # then the database is asked instead


class LogEnd(msgspec.Struct):
    """The end of a session's log: what an append must know."""

    head: int = 0  # seq of the last record
    marker: int = 0  # seq of the last rewind, tombstone or compaction
    bytes: int = 0
    part: int = 1
    part_bytes: int = 0
    part_first: int = 0  # first seq of the part; 0 if it has none
    marked: bool = False
    epoch: int = 0
    owner: str = ""


class CachedSession:
    """The end of one session's log, as this process read it last.

    Every append names the head it is based on; if the head has changed, nothing is written and the
    cache is refreshed. So it may be outdated, but never leads to a wrong result.
    """

    __slots__ = ("_fold", "_lock_thread", "_unfolded", "end", "is_current", "lock", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self.lock = threading.RLock()  # serializes the appends of this process
        self._lock_thread = 0  # the thread that holds the lock
        self.is_current = False  # whether `end` is loaded and not known to be outdated
        self.end = LogEnd()
        self._fold: MetadataFold | None = None
        self._unfolded: list[AnyRecord] = []  # folded in batches, which is much faster

    @property
    def fold(self) -> MetadataFold | None:
        """Return the fold of every record up to the head, or None."""
        if self._unfolded:
            unfolded, self._unfolded = self._unfolded, []
            if self._fold is not None:
                for record in unfolded:
                    self._fold.add(record)
        return self._fold

    @fold.setter
    def fold(self, fold: MetadataFold | None) -> None:
        self._fold = fold
        self._unfolded = []

    def add(self, record: AnyRecord) -> None:
        """Add the next record of the log to the fold."""
        if self._fold is not None:
            self._unfolded.append(record)
            if len(self._unfolded) >= _MAX_UNFOLDED:
                _ = self.fold

    @property
    def metadata(self) -> Metadata | None:
        """Return the metadata at the head; None without a complete fold, or if outdated."""
        return None if self.fold is None or not self.is_current else self.folded_metadata()

    def folded_metadata(self) -> Metadata:
        """Return the metadata of the fold, which must exist, even if it may be outdated."""
        fold = self.fold
        assert fold is not None
        return fold.metadata(self.end.part, self.end.part_bytes)

    def snapshot(self) -> Callable[[], None]:
        """Return a function that restores the current values, for a transaction that is rolled back."""
        end, is_current = copy(self.end), self.is_current
        metadata = None if self.fold is None else self.folded_metadata()

        def restore() -> None:
            self.end, self.is_current = copy(end), is_current
            self.fold = None if metadata is None else MetadataFold(metadata)

        return restore

    @contextmanager
    def hold_lock(self, seconds: float) -> Iterator[CachedSession]:
        """Hold the lock of this process; SessionBusyError if it is not free within `seconds`.

        An interrupt (Ctrl-C) may arrive after any call, even the one that acquires the lock. So a
        thread acquires it once, and releases it without checking how far it got. An interrupt
        during entry or exit releases it when the generator is garbage-collected.
        """
        thread = threading.get_ident()
        if self._lock_thread == thread:  # already held by this thread
            yield self
            return
        try:
            if not self.lock.acquire(timeout=seconds):
                raise SessionBusyError(f"another thread is writing to session {self.session}", session=self.session)
            self._lock_thread = thread
            yield self
        finally:  # nothing is called before the lock is released
            if self._lock_thread == thread:
                self._lock_thread = 0
            try:
                self.lock.release()
            except RuntimeError:
                pass  # not held by this thread


class SessionCache:
    """The most recently used sessions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, CachedSession] = OrderedDict()

    def get(self, session: str) -> CachedSession:
        """Return the cached session, creating an empty one."""
        with self._lock:
            cached = self._sessions.get(session)
            if cached is None:
                cached = self._sessions[session] = CachedSession(session)
                if len(self._sessions) > _MAX_SESSIONS:
                    self._sessions.popitem(last=False)
            else:
                self._sessions.move_to_end(session)
            return cached

    def peek(self, session: str) -> CachedSession | None:
        """Return the cached session, if there is one."""
        with self._lock:
            return self._sessions.get(session)

    def metadata(self, session: str) -> Metadata | None:
        """Return a session's metadata; None if it is not cached or an append is running."""
        cached = self.peek(session)
        if cached is None:
            return None
        try:
            with cached.hold_lock(_LOCK_SECONDS):
                return cached.metadata
        except SessionBusyError:
            return None

    def forget(self, session: str) -> None:
        """Drop a session."""
        with self._lock:
            self._sessions.pop(session, None)

    def clear(self) -> None:
        """Drop everything, as after a fork."""
        self._lock = threading.Lock()
        self._sessions = OrderedDict()
