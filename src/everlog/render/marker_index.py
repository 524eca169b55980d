"""What the markers of a log say about its messages, known from the end backwards.

A sketch covers the records from `low` to `high`, grows at both ends and holds little of each: the
markers, what the user said first in each message, and the numbers of the messages. Whoever shows
a page of a session asks it which messages are live. That equals the fold (`log.fold`) of the whole
log, though nothing below `low` was read: a marker changes only what stands before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from everlog.log.backward_read import stands
from everlog.model import Compaction, Entry, Message, Rewind, Tombstone
from everlog.render.html_text import readable
from everlog.render.markdown_document import one_line

Fate = Literal["live", "rewound", "hidden"]
PROMPT = 120  # characters of a prompt that are kept
_READ = 2_000  # characters of a prompt that are looked at for them


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """Something the user said, as an outline names it."""

    seq: int
    text: str
    timestamp: str


class Sketch:
    """The markers of a log, from `low` to `high`."""

    def __init__(self, head: int) -> None:
        self.low = head + 1  # Invariant: every record from here to `high` was taken in once
        self.high = head
        self._shown: dict[int, bool] = {}  # by the newest tombstone on each seq
        self._rewinds: list[tuple[int, int]] = []  # seq and toSeq, oldest first
        self._floors: list[int] = []  # the smallest toSeq of each of them and of those behind it
        self._compactions: list[Compaction] = []  # oldest first
        self._before: list[Prompt] = []  # newest first: taken in going back
        self._since: list[Prompt] = []  # oldest first: taken in since the sketch was begun
        self._older, self._newer = array("q"), array("q")  # numbers of messages, likewise

    # --- growing

    def go_back(self, low: int, entries: Sequence[Entry]) -> None:
        """Take in the records from `low` up to where the sketch begins, in the log's order."""
        rewinds, compactions = [], []
        for entry in reversed(entries):
            if isinstance(entry, Message):
                self._older.append(-entry.seq)
                if entry.role == "user":
                    self._before.append(_prompt(entry))
            elif isinstance(entry, Tombstone):
                for one in entry.restores:
                    self._shown.setdefault(one, True)
                for one in entry.deletes:
                    self._shown.setdefault(one, False)
            elif isinstance(entry, Rewind):
                rewinds.append((entry.seq, entry.to_seq))
            elif isinstance(entry, Compaction):
                compactions.append(replace(entry, line=b""))
        if rewinds:
            self._rewinds[:0] = reversed(rewinds)
            self._count_floors()
        self._compactions[:0] = reversed(compactions)
        self.low = min(self.low, low)

    def go_on(self, entries: Iterable[Entry]) -> None:
        """Take in what was appended behind `high`, in the log's order."""
        rewound = False
        for entry in entries:
            if entry.seq is not None:
                self.high = max(self.high, entry.seq)
            if isinstance(entry, Message):
                self._newer.append(entry.seq)
                if entry.role == "user":
                    self._since.append(_prompt(entry))
            elif isinstance(entry, Tombstone):
                self._shown.update(dict.fromkeys(entry.deletes, False))
                self._shown.update(dict.fromkeys(entry.restores, True))
            elif isinstance(entry, Rewind):
                self._rewinds.append((entry.seq, entry.to_seq))
                rewound = True
            elif isinstance(entry, Compaction):
                self._compactions.append(replace(entry, line=b""))
        if rewound:
            self._count_floors()

    def _count_floors(self) -> None:
        floors, least = [], self._rewinds[-1][1]
        for _, to in reversed(self._rewinds):
            least = min(least, to)
            floors.append(least)
        self._floors = floors[::-1]

    # --- asking, about what lies between `low` and `high`

    def fate(self, seq: int) -> Fate:
        """What became of a message."""
        floor = self._floor(seq)
        if floor is not None and seq > floor:
            return "rewound"
        return "live" if self._shown.get(seq, True) else "hidden"

    def standing(self) -> list[Compaction]:
        """The summaries that no rewind took back, by the first message each kept."""
        found = [one for one in self._compactions if stands(one, self._floor(one.seq))]
        return sorted(found, key=lambda one: (one.first_kept_seq, one.seq))

    def fold_below(self, seq: int) -> int:
        """Where the last stretch that was summarised ends, below a seq; 0 if there is none."""
        starts = (one.first_kept_seq for one in self.standing() if one.first_kept_seq < seq)
        return max(starts, default=0)

    def messages_from(self, seq: int) -> int:
        """How many messages, live or not, have this number or a higher one."""
        older = bisect_right(self._older, -seq)
        return older + len(self._newer) - bisect_left(self._newer, seq)

    def prompts(self) -> list[Prompt]:
        """What the user said and nobody took back, oldest first."""
        said = (*reversed(self._before), *self._since)
        return [one for one in said if self.fate(one.seq) == "live"]

    def _floor(self, seq: int) -> int | None:
        at = bisect_right(self._rewinds, (seq, seq))
        return self._floors[at] if at < len(self._floors) else None


def _prompt(message: Message) -> Prompt:
    text = one_line(readable(message.text[:_READ]))
    return Prompt(message.seq, text[:PROMPT], message.timestamp)
