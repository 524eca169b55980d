"""Ids and timestamps.

An id is a ULID: 48 bits of milliseconds and 80 random bits in 26 characters, sorted by time. Within
one generator ids strictly grow, also when the clock stands still or goes back.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {char: value for value, char in enumerate(ALPHABET)}
_SHAPE = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,500}")


def is_ulid(text: str) -> bool:
    """Tell whether a text is a ULID in its canonical upper-case form."""
    return _SHAPE.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Tell whether a text may be a key or an alias of a session."""
    return _NAME.fullmatch(text) is not None


def encode(value: int) -> str:
    """Return the 26 characters of a 128-bit value."""
    return "".join(ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def decode(text: str) -> int:
    """Return the value of some characters of a ULID."""
    value = 0
    for char in text:
        value = value << 5 | _VALUES[char]
    return value


def milliseconds(ulid: str) -> int:
    """Return the Unix time of a ULID in milliseconds."""
    return decode(ulid[:10])


def ulid_at(milliseconds: int, entropy: bytes) -> str:
    """Return a ULID for a time; `entropy` are its last 80 bits."""
    return encode(milliseconds << 80 | int.from_bytes(entropy[:10], "big"))


class UlidGenerator:
    """A thread-safe generator of strictly growing ULIDs."""

    def __init__(self, clock: Callable[[], float] = time.time, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        candidate = int(self._clock() * 1000) << 80 | int.from_bytes(self._entropy(10), "big")
        # A random step, not + 1: a forked child starts from the same last value.
        step = 1 + int.from_bytes(self._entropy(4), "big")
        with self._lock:
            self._last = candidate if candidate >> 80 > self._last >> 80 else self._last + step
            return encode(self._last)


def timestamp(seconds: float) -> str:
    """Format a Unix time as ISO 8601 in UTC with milliseconds."""
    whole = datetime.fromtimestamp(int(seconds), UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{int(seconds * 1000) % 1000:03d}Z"


class TimestampSource:
    """Timestamps of a clock; the text of the last second is cached."""

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
    """Return the milliseconds of an ISO 8601 time, or None if it is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = (moment - _EPOCH) // timedelta(milliseconds=1)
    return since if _FIRST <= since <= LAST else None  # an offset may lead out of this range


class UuidGenerator:
    """A generator of UUIDs (version 4): 74 random bits of its own, and a counter.

    Thread-safe, since counting is one step. A forked child needs its own.
    """

    def __init__(self) -> None:
        digits = os.urandom(15).hex()
        self._prefix = f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-a{digits[15:18]}-"
        self._next = count(int(digits[18:], 16)).__next__

    def __call__(self) -> str:
        return f"{self._prefix}{self._next():012x}"
