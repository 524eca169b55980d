"""An index of a log's markers, built from the end backwards: which messages are live.

It covers the records from `low` to `high`, grows at both ends and keeps little of each: the
markers, the beginning of each user message, and the seqs of messages. Its answers equal those of
the fold (`log.fold`) of the whole log, although nothing below `low` was read: a marker changes
only records before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from everlog.log.backward_read import is_standing
from everlog.model import Compaction, Entry, Message, Rewind, Tombstone
from everlog.render.html_text import make_readable
from everlog.render.markdown_document import one_line

Fate = Literal["live", "rewound", "hidden"]
MAX_PROMPT = 120  # characters kept of a prompt
_MAX_READ = 2_000  # characters read of a prompt to get them


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """A message of the user, as shown in an outline."""

    seq: int
    text: str
    timestamp: str


class MarkerIndex:
    """The markers of the records from `low` to `high`."""

    def __init__(self, head: int) -> None:
        self.low = head + 1  # Invariant: every record from here to `high` was added once
        self.high = head
        self._is_visible: dict[int, bool] = {}  # by the newest tombstone on each seq
        self._rewinds: list[tuple[int, int]] = []  # seq and toSeq, oldest first
        self._floors: list[int] = []  # for each rewind, the smallest toSeq of it and all later ones
        self._compactions: list[Compaction] = []  # oldest first
        self._older_prompts: list[Prompt] = []  # newest first: from extend_back
        self._newer_prompts: list[Prompt] = []  # oldest first: from extend
        self._older_messages = array("q")  # negated seqs, newest first: from extend_back
        self._newer_messages = array("q")  # seqs, oldest first: from extend

    # --- growing

    def extend_back(self, low: int, entries: Sequence[Entry]) -> None:
        """Add the records from `low` up to the start of the index, given in log order."""
        rewinds, compactions = [], []
        for entry in reversed(entries):
            if isinstance(entry, Message):
                self._older_messages.append(-entry.seq)
                if entry.role == "user":
                    self._older_prompts.append(_prompt(entry))
            elif isinstance(entry, Tombstone):
                for seq in entry.restores:
                    self._is_visible.setdefault(seq, True)
                for seq in entry.deletes:
                    self._is_visible.setdefault(seq, False)
            elif isinstance(entry, Rewind):
                rewinds.append((entry.seq, entry.to_seq))
            elif isinstance(entry, Compaction):
                compactions.append(replace(entry, line=b""))
        if rewinds:
            self._rewinds[:0] = reversed(rewinds)
            self._update_floors()
        self._compactions[:0] = reversed(compactions)
        self.low = min(self.low, low)

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add the records appended after `high`, in log order."""
        rewound = False
        for entry in entries:
            if entry.seq is not None:
                self.high = max(self.high, entry.seq)
            if isinstance(entry, Message):
                self._newer_messages.append(entry.seq)
                if entry.role == "user":
                    self._newer_prompts.append(_prompt(entry))
            elif isinstance(entry, Tombstone):
                self._is_visible.update(dict.fromkeys(entry.deletes, False))
                self._is_visible.update(dict.fromkeys(entry.restores, True))
            elif isinstance(entry, Rewind):
                self._rewinds.append((entry.seq, entry.to_seq))
                rewound = True
            elif isinstance(entry, Compaction):
                self._compactions.append(replace(entry, line=b""))
        if rewound:
            self._update_floors()

    def _update_floors(self) -> None:
        floors, lowest = [], self._rewinds[-1][1]
        for _, to in reversed(self._rewinds):
            lowest = min(lowest, to)
            floors.append(lowest)
        self._floors = floors[::-1]

    # --- queries about the records between `low` and `high`

    def fate(self, seq: int) -> Fate:
        """Return whether a message is live, rewound or hidden (deleted)."""
        floor = self._floor(seq)
        if floor is not None and seq > floor:
            return "rewound"
        return "live" if self._is_visible.get(seq, True) else "hidden"

    def active_compactions(self) -> list[Compaction]:
        """Return the compactions that no rewind undid, sorted by the first message each kept."""
        active = (c for c in self._compactions if is_standing(c, self._floor(c.seq)))
        return sorted(active, key=lambda c: (c.first_kept_seq, c.seq))

    def summary_end_before(self, seq: int) -> int:
        """Return the last seq below `seq` at which a summary's range ends; 0 if there is none."""
        ends = (record.first_kept_seq for record in self.active_compactions())
        return max((end for end in ends if end < seq), default=0)

    def count_messages_from(self, seq: int) -> int:
        """Count the messages, live or not, from a seq on."""
        older = bisect_right(self._older_messages, -seq)
        return older + len(self._newer_messages) - bisect_left(self._newer_messages, seq)

    def prompts(self) -> list[Prompt]:
        """Return the live messages of the user, oldest first."""
        all_prompts = (*reversed(self._older_prompts), *self._newer_prompts)
        return [prompt for prompt in all_prompts if self.fate(prompt.seq) == "live"]

    def _floor(self, seq: int) -> int | None:
        index = bisect_right(self._rewinds, (seq, seq))
        return self._floors[index] if index < len(self._floors) else None


def _prompt(message: Message) -> Prompt:
    text = one_line(make_readable(message.text[:_MAX_READ]))
    return Prompt(message.seq, text[:MAX_PROMPT], message.timestamp)
