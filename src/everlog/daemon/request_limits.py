"""How much is taken: so many requests in a time, bodies of some size, JSON of some depth."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

BURST_SECONDS = 5.0  # of the rate, at once, after a rest
DEPTH = 100  # levels of a JSON value

# A string that has no end is one token too: else each quote in it would be tried to the last byte.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class Bucket:
    """So many a second, and a few seconds' worth of them at once."""

    def __init__(
        self, rate: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate  # may change while the daemon runs
        self._clock = clock
        self._then = clock()
        self._left = rate() * BURST_SECONDS

    def take(self) -> float:
        """0 if one more may pass, else how many seconds to wait."""
        rate, now = self._rate(), self._clock()
        self._left = min(rate * BURST_SECONDS, self._left + (now - self._then) * rate)
        self._then = now
        if self._left < 1:
            return (1 - self._left) / rate
        self._left -= 1
        return 0.0


def text_problem(body: bytes) -> str:
    """Why no JSON decoder should be given these bytes; empty if one may be."""
    try:
        body.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    return f"deeper than {DEPTH} levels" if _is_too_deep(body) else ""


def _is_too_deep(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= DEPTH:
        return False
    depth = 0
    for token in _TOKENS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            if depth > DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False
