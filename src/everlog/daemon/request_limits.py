"""Limits on requests: their rate, and the encoding and depth of JSON."""

from __future__ import annotations

import time
from collections.abc import Callable

from everlog.log.line_codec import is_too_deep

BURST_SECONDS = 5.0  # a burst after a pause may be this many seconds of the rate
MAX_DEPTH = 100  # levels of a JSON value


class RateLimiter:
    """A token bucket: a rate per second, with bursts of a few seconds' worth."""

    def __init__(self, rate: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate  # may change while the daemon runs
        self._clock = clock
        self._updated_at = clock()
        self._available = rate() * BURST_SECONDS

    def acquire(self) -> float:
        """Return 0 if a request may pass, else the seconds to wait."""
        rate, now = self._rate(), self._clock()
        self._available = min(rate * BURST_SECONDS, self._available + (now - self._updated_at) * rate)
        self._updated_at = now
        if self._available < 1:
            return (1 - self._available) / rate
        self._available -= 1
        return 0.0


def find_json_problem(body: bytes) -> str:
    """Return why these bytes must not be decoded as JSON; empty if they may be."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return f"deeper than {MAX_DEPTH} levels" if is_too_deep(body, MAX_DEPTH) else ""
