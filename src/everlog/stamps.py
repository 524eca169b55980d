"""What a store stamps records with: times and ids."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count


def timestamp(seconds: float) -> str:
    """A Unix time as ISO 8601 in UTC with milliseconds."""
    whole = datetime.fromtimestamp(int(seconds), UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{int(seconds * 1000) % 1000:03d}Z"


class Stamps:
    """Timestamps of a clock; most calls fall into the second of the call before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = (-1, "")  # a second and its text, changed in one step

    def __call__(self) -> str:
        now = self._clock()
        second, text = self._last
        if int(now) != second:
            text = timestamp(int(now))[:-4]
            self._last = (int(now), text)
        return f"{text}{int(now * 1000) % 1000:03d}Z"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999  # ms: the years 1 to 9999 of UTC


def epoch_ms(text: str) -> int | None:
    """Milliseconds of an ISO 8601 time, or None if it is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = (moment - _EPOCH) // timedelta(milliseconds=1)
    return since if _FIRST <= since <= LAST else None  # an offset may lead out of all years


class Uuids:
    """A source of UUIDs (version 4): 74 random bits that are its own, and a counter.

    For all threads: counting is a single step. A forked child needs its own.
    """

    def __init__(self) -> None:
        digits = os.urandom(15).hex()
        self._prefix = f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-a{digits[15:18]}-"
        self._next = count(int(digits[18:], 16)).__next__

    def __call__(self) -> str:
        return f"{self._prefix}{self._next():012x}"
