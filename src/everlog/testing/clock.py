"""A clock that tests can set, also backwards."""

from __future__ import annotations


class FakeClock:
    """A clock that returns the time when called. Set `now` to change it."""

    def __init__(self, now: float = 1_760_000_000.0, step: float = 0.001) -> None:
        self.now = now
        self.step = step  # seconds that each call advances it

    def __call__(self) -> float:
        self.now += self.step
        return self.now
