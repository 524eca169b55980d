"""What the markers of a log mean: which messages are live, which summary stands, what is stale.

    tombstone   hides messages (no rewind brings them back; a later `restores` does)
    rewind      removes the messages after its `toSeq`, for good
    compaction  its summary stands until a later rewind goes back before the messages it kept

A marker changes only records before it. So what is said of a record is final once all later markers
are known: a log is read forward and asked at its end, or backward and asked at each record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from math import inf
from typing import Literal, NamedTuple

from everlog.model import MARKERS, Compaction, Entry, Message, Rewind, Tombstone

Fate = Literal["live", "rewound", "hidden"]
Marker = Tombstone | Rewind | Compaction


class _Edit(NamedTuple):
    """What a tombstone does to the messages before it."""

    seq: int
    visible: dict[int, bool]  # by the seq of a message


class Markers:
    """The markers among consecutive records of a log; they may grow at both ends."""

    def __init__(self) -> None:
        self._edits: deque[_Edit] = deque()  # oldest first
        self._visible: dict[int, bool] = {}  # by the newest tombstone on each seq
        # Seq and toSeq of rewinds. Invariant: both ascend. A rewind that a later one exceeds is left
        # out, so the first after a record went back the furthest of all after it.
        self._rewinds: list[tuple[int, int]] = []
        self._compactions: deque[Compaction] = deque()  # oldest first

    @staticmethod
    def of(entries: Iterable[Entry]) -> Markers:
        """Return the markers among entries, given in log order."""
        markers = Markers()
        for entry in entries:
            if isinstance(entry, MARKERS):
                markers.append(entry)
        return markers

    def append(self, marker: Marker) -> None:
        """Add a marker that is later than all others."""
        if isinstance(marker, Tombstone):
            edit = _read_tombstone(marker)
            self._edits.append(edit)
            self._visible.update(edit.visible)
        elif isinstance(marker, Rewind):
            while self._rewinds and self._rewinds[-1][1] >= marker.to_seq:
                self._rewinds.pop()
            self._rewinds.append((marker.seq, marker.to_seq))
        else:
            self._compactions.append(marker)

    def prepend(self, marker: Marker) -> None:
        """Add a marker that is earlier than all others."""
        if isinstance(marker, Tombstone):
            edit = _read_tombstone(marker)
            self._edits.appendleft(edit)
            for seq, is_visible in edit.visible.items():
                self._visible.setdefault(seq, is_visible)
        elif isinstance(marker, Rewind):
            if not self._rewinds or marker.to_seq < self._rewinds[0][1]:
                self._rewinds.insert(0, (marker.seq, marker.to_seq))
        else:
            self._compactions.appendleft(marker)

    # --- messages

    def fate(self, seq: int) -> Fate:
        """Return whether a message is live, rewound or hidden (deleted)."""
        if self._rewinds and seq > self._floor(seq):
            return "rewound"
        return "live" if self._visible.get(seq, True) else "hidden"

    def is_live(self, seq: int) -> bool:
        """Return whether a message is neither rewound nor hidden."""
        return self._visible.get(seq, True) and not (self._rewinds and seq > self._floor(seq))

    def live(self, entries: Iterable[Entry]) -> list[Message]:
        """Return the live messages among entries."""
        messages = [entry for entry in entries if isinstance(entry, Message)]
        if not self._visible and not self._rewinds:
            return messages
        return [message for message in messages if self.is_live(message.seq)]

    def hidden_seqs(self) -> set[int]:
        """Return the seqs that a tombstone hides, rewound ones too."""
        return {seq for seq, is_visible in self._visible.items() if not is_visible}

    def restored_seqs(self) -> set[int]:
        """Return the seqs of the live messages that a tombstone restored."""
        return {seq for seq in self._visible if self.is_live(seq)}

    def rewound_ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of seqs whose messages are rewound, ends included; they may overlap."""
        return [(to_seq + 1, seq - 1) for seq, to_seq in self._rewinds]

    # --- summaries

    def is_standing(self, compaction: Compaction, *, accept_stale: bool = True) -> bool:
        """Return whether no later rewind went back before the messages that a compaction kept.

        With `accept_stale=False` a stale summary does not stand either.
        """
        if self._floor(compaction.seq) < compaction.first_kept_seq - 1:
            return False
        return accept_stale or not self.stale_seqs(compaction)

    def compactions(self, *, everything: bool = False) -> list[Compaction]:
        """Return the compactions that stand, or all, in the order of the first message each kept."""
        records = (record for record in self._compactions if everything or self.is_standing(record))
        return sorted(records, key=lambda record: (record.first_kept_seq, record.seq))

    def summary(self, *, accept_stale: bool = True) -> Compaction | None:
        """Return the newest compaction that stands; with `accept_stale=False`, that is not stale."""
        newest_first = reversed(self._compactions)
        return next((record for record in newest_first if self.is_standing(record, accept_stale=accept_stale)), None)

    def stale_seqs(self, compaction: Compaction) -> tuple[int, ...]:
        """Return the messages that were deleted or restored after their summary was written."""
        before: dict[int, bool] = {}
        for edit in self._edits:
            if edit.seq > compaction.seq:
                for seq, is_visible in edit.visible.items():
                    if seq < compaction.first_kept_seq:
                        before.setdefault(seq, not is_visible)
        return tuple(sorted(seq for seq, was_visible in before.items() if was_visible != self._visible[seq]))

    def _floor(self, seq: int) -> float:
        """Return the smallest `toSeq` of the rewinds after a record."""
        index = bisect_right(self._rewinds, (seq, inf))
        return self._rewinds[index][1] if index < len(self._rewinds) else inf


def _read_tombstone(marker: Tombstone) -> _Edit:
    visible = dict.fromkeys(marker.deletes, False) | dict.fromkeys(marker.restores, True)
    return _Edit(marker.seq, {seq: is_visible for seq, is_visible in visible.items() if seq < marker.seq})


def read_since_summary(
    newest_first: Iterable[Entry], markers: Markers, *, accept_stale: bool = True
) -> Iterator[Entry]:
    """Yield entries down to the first that the standing summary kept, and add their markers.

    Nothing older is read, so the cost does not depend on the length of the history.
    """
    summary: Compaction | None = None
    for entry in newest_first:
        if summary is not None and entry.seq is not None and entry.seq < summary.first_kept_seq:
            return
        if type(entry) is not Message and isinstance(entry, MARKERS):  # most entries are messages
            markers.prepend(entry)
            if isinstance(entry, Compaction) and summary is None:
                summary = entry if markers.is_standing(entry, accept_stale=accept_stale) else None
        yield entry
