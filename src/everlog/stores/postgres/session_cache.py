"""What a process knows of the sessions it writes to; the database says whether that still holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from everlog.errors import SessionBusyError
from everlog.log.fold import Tally
from everlog.model import AnyRecord, Metadata

_MOST = 10_000  # sessions
_FRESH = 64  # records
_PATIENCE = 0.1  # seconds; then the database is asked instead


class Known:
    """The end of one session's log, as this process saw it last.

    Every append says which head it stands on; if that is not the head any more, nothing is
    written and this is read again. So it may be old, but never leads to anything wrong.
    """

    __slots__ = (
        "_fresh", "_holder", "_tally", "bytes", "epoch", "head", "lock", "marked", "marker",
        "owner", "part", "part_bytes", "part_first", "seen", "session",
    )  # fmt: skip

    def __init__(self, session: str) -> None:
        self.session = session
        self.lock = threading.RLock()  # the appends of one process stand in line here
        self._holder = 0  # the thread that has it
        self.seen = False  # whether the rest says anything
        self.head = 0
        self.marker = 0
        self.bytes = 0
        self.part = 1
        self.part_bytes = 0
        self.part_first = 0
        self.marked = False
        self.epoch = 0
        self.owner = ""
        self._tally: Tally | None = None
        self._fresh: list[AnyRecord] = []  # to be folded, many at once: that is quicker by far

    @property
    def tally(self) -> Tally | None:
        """None, or one that has folded every record up to `head`."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            if self._tally is not None:
                for record in fresh:
                    self._tally.add(record)
        return self._tally

    @tally.setter
    def tally(self, tally: Tally | None) -> None:
        self._tally = tally
        self._fresh = []

    def add(self, record: AnyRecord) -> None:
        """The next record of the log, behind those that the tally has."""
        if self._tally is not None:
            self._fresh.append(record)
            if len(self._fresh) >= _FRESH:
                _ = self.tally

    @property
    def metadata(self) -> Metadata | None:
        """The metadata at the head, if the records up to there were all seen."""
        return None if self.tally is None or not self.seen else self.folded()

    def folded(self) -> Metadata:
        """The same where the tally is known to be there, whoever else says that it may be old."""
        tally = self.tally
        assert tally is not None
        return tally.metadata(self.part, self.part_bytes)

    def saved(self) -> tuple[object, ...]:
        """All of it, for when a transaction that it went on with does not come about."""
        metadata = None if self.tally is None else self.folded()
        return (*(getattr(self, name) for name in _RUNNING), metadata)

    def restore(self, saved: tuple[object, ...]) -> None:
        """As it was."""
        *values, metadata = saved
        for name, value in zip(_RUNNING, values, strict=True):
            setattr(self, name, value)
        self.tally = Tally(metadata) if isinstance(metadata, Metadata) else None

    @contextmanager
    def hold(self, seconds: float) -> Iterator[Known]:
        """Hold the lock of this process, waited for so long at most, or SessionBusyError.

        An interrupt (Ctrl-C) may come behind any call, also behind the one that takes the lock. So
        a thread takes it once, and gives it back without asking whether it got so far. One that
        comes while this is entered or left ends it when nobody refers to it any more.
        """
        me = threading.get_ident()
        if self._holder == me:  # further out
            yield self
            return
        try:
            if not self.lock.acquire(timeout=seconds):
                raise SessionBusyError(
                    f"session {self.session} is being written to by another thread",
                    session=self.session,
                )
            self._holder = me
            yield self
        finally:  # nothing is called before the lock is given back
            if self._holder == me:
                self._holder = 0
            try:
                self.lock.release()
            except RuntimeError:
                pass  # not ours


_RUNNING = ("head", "marker", "bytes", "part", "part_bytes", "part_first", "marked", "seen")


class Memory:
    """The sessions that were used last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Known] = OrderedDict()

    def of(self, session: str) -> Known:
        """What is known of a session, perhaps nothing."""
        with self._lock:
            known = self._known.get(session)
            if known is None:
                known = self._known[session] = Known(session)
                if len(self._known) > _MOST:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(session)
            return known

    def look(self, session: str) -> Known | None:
        """The same, without beginning to know one."""
        with self._lock:
            return self._known.get(session)

    def metadata(self, session: str) -> Metadata | None:
        """The metadata of a session, unless somebody is just appending to it."""
        known = self.look(session)
        if known is None:
            return None
        try:
            with known.hold(_PATIENCE):
                return known.metadata
        except SessionBusyError:
            return None

    def forget(self, session: str) -> None:
        """A session is gone."""
        with self._lock:
            self._known.pop(session, None)

    def clear(self) -> None:
        """Know nothing, as after a fork."""
        self._lock = threading.Lock()
        self._known = OrderedDict()
