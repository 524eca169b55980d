"""ULIDs: 48 bits of milliseconds and 80 random bits in 26 characters, sorted by time.

Within one generator ids strictly grow, also when the clock stands still or goes back.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {char: value for value, char in enumerate(ALPHABET)}
_SHAPE = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


def is_ulid(text: str) -> bool:
    """Whether the text is exactly one ULID in its canonical upper-case form."""
    return _SHAPE.fullmatch(text) is not None


def encode(value: int) -> str:
    """The 26 characters of a 128-bit value."""
    return "".join(ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))


def milliseconds(ulid: str) -> int:
    """The Unix time in milliseconds that a ULID was made at."""
    value = 0
    for char in ulid[:10]:
        value = value << 5 | _VALUES[char]
    return value


def made_at(milliseconds: int, entropy: bytes) -> str:
    """A ULID of some other time; `entropy` are its last 80 bits."""
    return encode(milliseconds << 80 | int.from_bytes(entropy[:10], "big"))


class Ulids:
    """A thread-safe source of strictly growing ULIDs."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._lock = threading.Lock()
        self._last = 0

    def __call__(self) -> str:
        fresh = int(self._clock() * 1000) << 80 | int.from_bytes(self._entropy(10), "big")
        # A random step, not + 1: a forked child starts from the same last value.
        step = 1 + int.from_bytes(self._entropy(4), "big")
        with self._lock:
            self._last = fresh if fresh >> 80 > self._last >> 80 else self._last + step
            return encode(self._last)
