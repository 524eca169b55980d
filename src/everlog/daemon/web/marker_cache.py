"""The sketches of the sessions that were looked at last, so that no page is read for another.

One per session, a few in all; each grows by what was appended since and by how far back somebody
went. It is the only thing about sessions that the page keeps, and it can be lost at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from threading import Lock
from typing import Any

from litestar import Request

from everlog.model import Entry, Metadata
from everlog.render.marker_index import Sketch
from everlog.render.page_window import Span
from everlog.session import Session

KEPT = 24  # sessions


class Sketches:
    """By session, the one used last at the end. Used from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Sketch, Lock]] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def of(self, session: Session, metadata: Metadata) -> Iterator[tuple[Sketch, Span]]:
        """A session's sketch, up to its last record, and a way to read its log; for one at a
        time."""
        head = metadata.through.seq
        with self._lock:
            known = self._kept.pop(session.id, None)
            if known is None or known[0].high > head:  # its files are others than they were
                known = (Sketch(head), Lock())
            self._kept[session.id] = known
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        sketch, lock = known
        with lock:
            if sketch.high < head:
                sketch.go_on(spans(session)(sketch.high + 1, head + 1))
            yield sketch, spans(session)


def spans(session: Session) -> Span:
    """Stretches of a session's log."""

    def span(low: int, high: int) -> list[Entry]:
        found: list[Entry] = []
        for entry in _from(session, low):
            if entry.seq is not None and entry.seq >= high:
                break
            found.append(entry)
        return found

    return span


def _from(session: Session, low: int) -> Iterator[Entry]:
    """The entries from a seq on, also if the first is damaged.

    A store finds a place in a log by what can be read there, so a damaged line at the place itself
    is not found. It is when the record before it is read first.
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


def sketches_of(request: Request[Any, Any, Any]) -> Sketches:
    """Those of the application that serves a request."""
    state = request.app.state
    if "sketches" not in state:
        state["sketches"] = Sketches()
    kept: Sketches = state["sketches"]
    return kept
