"""Sessions that could not be repaired: each is tried again, ever more rarely, and told of once."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST, LONGEST = 5.0, 600.0  # seconds until one is tried again; twice as long each time
MOST = 10_000  # sessions that are known; those that are deleted elsewhere are never heard of again


class Setbacks:
    """What came in the way of repairs in this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, float, str]] = {}  # when, the pause before, what

    def is_due(self, session: str) -> bool:
        """Whether a session may be tried."""
        known = self._known.get(session)
        return known is None or known[0] <= self._clock()

    def add(self, session: str, problem: str) -> bool:
        """A session could not be repaired; whether that is to be told."""
        known = self._known.pop(session, None)
        pause = FIRST if known is None else min(2 * known[1], LONGEST)
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        self._known[session] = (self._clock() + pause, pause, problem)
        return known is None or known[2] != problem

    def forget(self, session: str) -> None:
        """Nothing is wrong with it any more."""
        self._known.pop(session, None)
