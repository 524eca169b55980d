"""The circuit breaker of automatic compaction, kept in the log as an `event` so that it persists.

Three failed summary calls in a row switch model summaries off; two compactions in a row that left
the context too large stop automatic compaction. Manual compaction still works, and its success
resets both.
"""

from __future__ import annotations

import msgspec

from everlog.log.backward_read import BREAKER, LiveMessages
from everlog.model import Event

MAX_FAILURES = 3
MAX_STALLS = 2


class Breaker(msgspec.Struct, frozen=True):
    """The numbers of consecutive failures."""

    failures: int = 0  # summary calls that failed
    stalled: int = 0  # compactions after which the context was still too large

    @property
    def is_open(self) -> bool:
        """Return whether models are no longer asked for summaries."""
        return self.failures >= MAX_FAILURES

    @property
    def is_stopped(self) -> bool:
        """Return whether automatic compaction is stopped."""
        return self.stalled >= MAX_STALLS

    def event(self) -> Event:
        """Return the record of this state, appended after a compaction to be found there."""
        return Event(kind=BREAKER, data=msgspec.structs.asdict(self))


def read_breaker(live: LiveMessages) -> Breaker:
    """Return the state recorded in a log."""
    return Breaker(live.breaker.get("failures", 0), live.breaker.get("stalled", 0))
