"""The lines that a turn appended, to be written again if a rewrite of the file takes them.

Their program may rewrite a file from what it read before our append. While our turn runs, such lines
are written again; what is lost afterwards is reported.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from everlog.interop.foreign.lost_lines import LineContext, find_lost

MAX_TURNS = 4  # of one session that are kept, to report what is lost after them


class LostRecord(NamedTuple):
    """A record some of whose lines are not in the file."""

    seq: int
    lines: tuple[bytes, ...]  # those that are missing
    is_partial: bool  # others are there


class TurnLines:
    """The lines that one turn appended, by record."""

    def __init__(self) -> None:
        self.is_open = True
        self.rewrites = 0  # of the file when all of them were in it
        self._context = LineContext()
        self._records: list[tuple[int, tuple[bytes, ...]]] = []  # seq and lines

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._records)

    def add(self, seq: int, lines: tuple[bytes, ...], context: LineContext, rewrites: int) -> None:
        """Remember the lines of an acknowledged record; `context` precedes them."""
        if not self._records:
            self._context, self.rewrites = context, rewrites
        self._records.append((seq, lines))

    @property
    def seqs(self) -> list[int]:
        """The seqs of the records."""
        return [seq for seq, _ in self._records]

    def replace(self, seq: int, lines: tuple[bytes, ...], new_seq: int = 0) -> None:
        """Remember other lines for a record, which may have another seq with them; none: it is given up."""
        changed = ((new_seq or seq, lines) if item[0] == seq else item for item in self._records)
        self._records = [item for item in changed if item[1]]

    def find_lost(self, content: bytes, *, drops_oldest: bool) -> list[LostRecord]:
        """Return the records whose lines are not all in the content of the file."""
        lines = [line for _, record_lines in self._records for line in record_lines]
        missing = set(find_lost(self._context, lines, content, drops_oldest=drops_oldest, acknowledged=True))
        lost: list[LostRecord] = []
        index = 0
        for seq, record_lines in self._records:
            gone = tuple(line for number, line in enumerate(record_lines, index) if number in missing)
            index += len(record_lines)
            if gone:
                lost.append(LostRecord(seq, gone, len(gone) < len(record_lines)))
        return lost


Turns = deque[TurnLines]


def new_turns() -> Turns:
    """Return the turns of a session that had none yet."""
    return deque(maxlen=MAX_TURNS)
