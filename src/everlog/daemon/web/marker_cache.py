"""A cache of the marker indexes of recently viewed sessions, so that paging need not reread.

There is one index per session; each grows with appends and as pages further back are read. It is
the only state about sessions that the page holds, and it can be dropped at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from threading import Lock

from everlog.model import Entry, Metadata
from everlog.render.marker_index import MarkerIndex, ReadSpan
from everlog.session import Session

MAX_SESSIONS = 24


class MarkerCache:
    """Marker indexes by session, least recently used first. Thread-safe."""

    def __init__(self) -> None:
        self._cached: OrderedDict[str, tuple[MarkerIndex, Lock]] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def open(self, session: Session, metadata: Metadata) -> Iterator[MarkerIndex]:
        """Lock a session's marker index, extended to its last record."""
        head = metadata.through.seq
        with self._lock:
            cached = self._cached.pop(session.id, None)
            if cached is None or cached[0].high > head:  # its files were replaced
                cached = (MarkerIndex(head, log_reader(session)), Lock())
            self._cached[session.id] = cached
            while len(self._cached) > MAX_SESSIONS:
                self._cached.popitem(last=False)
        index, lock = cached
        with lock:
            if index.high < head:
                index.extend(index.read(index.high + 1, head + 1))
            yield index


def log_reader(session: Session) -> ReadSpan:
    """Return a function that reads a range of seqs from a session's log."""

    def read_span(low: int, high: int) -> list[Entry]:
        entries: list[Entry] = []
        for entry in _entries_from(session, low):
            if entry.seq is not None and entry.seq >= high:
                break
            entries.append(entry)
        return entries

    return read_span


def _entries_from(session: Session, low: int) -> Iterator[Entry]:
    """Yield the entries from a seq on, also if the first is damaged.

    A store seeks to a seq by readable lines, so it skips a damaged line at that very position.
    Starting at an earlier record includes it.
    """
    back = 1
    while True:
        entries = session.entries(after=max(low - 1 - back, 0))
        first = next(entries, None)
        if first is None or first.seq is None or first.seq < low or back >= low:
            break
        back *= 2
    for entry in chain(() if first is None else (first,), entries):
        if entry.seq is None or entry.seq >= low:
            yield entry
