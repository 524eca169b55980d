"""An index of a log's markers, built from the end backwards: which messages are live.

It covers the records from `low` to `high`, grows at both ends and keeps little of each: the
markers, the beginning of each user message, and the seqs of messages. `log.markers` says what the
markers mean; nothing below `low` need be read for it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from everlog.log.markers import Markers
from everlog.model import MARKERS, Entry, Message
from everlog.render.html_text import make_readable
from everlog.render.humanize import one_line

MAX_PROMPT = 120  # characters kept of a prompt
_MAX_READ = 2_000  # characters read of a prompt to get them
_STEP = 500  # records read at once to extend the index

# Returns the entries with a seq in [low, high), in log order, damaged ones included.
ReadSpan = Callable[[int, int], Sequence[Entry]]


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A message of the user, as shown in an outline."""

    seq: int
    text: str
    timestamp: str


class MarkerIndex(Markers):
    """The markers of the records from `low` to `high`, their prompts and their messages."""

    def __init__(self, head: int, read: ReadSpan) -> None:
        super().__init__()
        self._read = read
        self.low = head + 1  # Invariant: every record from here to `high` was added once
        self.high = head
        self._prompts: list[Prompt] = []  # oldest first
        self._message_seqs = array("q")  # ascending

    # --- growing

    def read(self, low: int, high: int) -> Sequence[Entry]:
        """Read the records in [low, high), and index those before the start of the index.

        `high` is within the index, or at its start.
        """
        entries = self._read(low, high)
        if low < self.low:
            self._extend_back([entry for entry in entries if entry.seq is None or entry.seq < self.low])
            self.low = low
        return entries

    def extend_to(self, low: int) -> None:
        """Extend the index back to a seq."""
        while self.low > max(low, 1):
            self.read(max(low, 1, self.low - _STEP), self.low)

    def _extend_back(self, entries: Sequence[Entry]) -> None:
        messages = [entry for entry in entries if isinstance(entry, Message)]
        self._prompts[:0] = _prompts(messages)
        self._message_seqs[:0] = array("q", (message.seq for message in messages))
        for entry in reversed(entries):
            if isinstance(entry, MARKERS):
                self.prepend(replace(entry, line=b""))

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add the records appended after `high`, in log order."""
        for entry in entries:
            self.high = max(self.high, entry.seq or 0)
            if isinstance(entry, Message):
                self._prompts += _prompts([entry])
                self._message_seqs.append(entry.seq)
            elif isinstance(entry, MARKERS):
                self.append(replace(entry, line=b""))

    # --- queries about the records between `low` and `high`

    def clamp(self, seq: int) -> int:
        """Return the nearest seq of the log, or that of the next record."""
        return min(max(seq, 0), self.high + 1)

    def summary_end_before(self, seq: int) -> int:
        """Return the last seq below `seq` at which a summary's range ends; 0 if there is none."""
        ends = (record.first_kept_seq for record in self.compactions())
        return max((end for end in ends if end < seq), default=0)

    def count_messages_from(self, seq: int) -> int:
        """Count the messages, live or not, from a seq on."""
        return len(self._message_seqs) - bisect_left(self._message_seqs, seq)

    def prompts(self) -> list[Prompt]:
        """Return the live messages of the user, oldest first."""
        return [prompt for prompt in self._prompts if self.is_live(prompt.seq)]


def _prompts(messages: Iterable[Message]) -> list[Prompt]:
    return [
        Prompt(message.seq, one_line(make_readable(message.text[:_MAX_READ]))[:MAX_PROMPT], message.timestamp)
        for message in messages
        if message.is_typed
    ]
