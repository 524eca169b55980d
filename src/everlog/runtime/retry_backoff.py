"""Exponential backoff for sessions that could not be repaired; each is reported once."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_PAUSE, MAX_PAUSE = 5.0, 600.0  # seconds until the next attempt, doubled each time
MAX_SESSIONS = 10_000  # remembered; one that is deleted elsewhere would never be removed


class RetryBackoff:
    """The failed repairs of this process, by session."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[float, float, str]] = {}  # next attempt, pause, problem

    def is_due(self, session: str) -> bool:
        """Return whether a session may be tried now."""
        failure = self._failures.get(session)
        return failure is None or failure[0] <= self._clock()

    def record_failure(self, session: str, problem: str) -> bool:
        """Record a failed repair; return whether the problem is new and should be reported."""
        previous = self._failures.pop(session, None)
        pause = FIRST_PAUSE if previous is None else min(2 * previous[1], MAX_PAUSE)
        if len(self._failures) >= MAX_SESSIONS:
            del self._failures[next(iter(self._failures))]
        self._failures[session] = (self._clock() + pause, pause, problem)
        return previous is None or previous[2] != problem

    def forget(self, session: str) -> None:
        """Forget the failures of a session that was repaired or deleted."""
        self._failures.pop(session, None)
