"""A clock that goes where the test wants it, backwards included."""

from __future__ import annotations


class FakeClock:
    """Call it for the time; set `now` to move it."""

    def __init__(self, now: float = 1_760_000_000.0, step: float = 0.001) -> None:
        self.now = now
        self.step = step  # how far each call moves it

    def __call__(self) -> float:
        self.now += self.step
        return self.now
