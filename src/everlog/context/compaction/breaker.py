"""When automatic compaction gives up, kept in the log as an `event` so that it holds for good.

Three failed summary calls in a row switch model summaries off; two compactions in a row that left
the context too large stop automatic compaction. Compaction by hand still works, and its success
resets both.
"""

from __future__ import annotations

import msgspec

from everlog.log.backward_read import BREAKER, Live
from everlog.model import Event

FAILURES = 3
STALLS = 2


class Breaker(msgspec.Struct, frozen=True):
    """What went wrong in a row."""

    failures: int = 0  # summary calls that failed
    stalled: int = 0  # compactions after which the context was still too large

    @property
    def open(self) -> bool:
        """Whether no model is asked for a summary any more."""
        return self.failures >= FAILURES

    @property
    def stopped(self) -> bool:
        """Whether nothing is compacted automatically any more."""
        return self.stalled >= STALLS

    def event(self) -> Event:
        """The record that keeps it. It goes in behind a compaction, where reading back finds it."""
        return Event(kind=BREAKER, data=msgspec.structs.asdict(self))


def breaker(live: Live) -> Breaker:
    """The state that a log tells."""
    return Breaker(live.breaker.get("failures", 0), live.breaker.get("stalled", 0))
