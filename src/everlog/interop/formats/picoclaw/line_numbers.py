"""What is noted of a session that is followed: its lines by number, as PicoClaw counts them.

The id of an item ends in the number of its line, so that one follows from the other.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from everlog.interop.formats.format_types import made_id
from everlog.interop.formats.live_format import Notes

MOST = 64  # numbers of odd lines that are noted; of sound files there are none
_DIGITS = 12


class State(msgspec.Struct, omit_defaults=True):
    """The notes, unpacked."""

    raw: int = 0  # lines so far
    # The last summary that was given: its digest, and the lines that it stands for. None: there
    # was none yet; empty: it was taken back.
    summary: str | None = None
    skip: int = 0
    hidden: int = 0  # messages up to this line were said to be hidden
    marks: int = 0  # summaries and hidings so far
    dead: list[int] = []  # lines that PicoClaw passes over
    mute: list[int] = []  # lines that it shows and that are no messages of ours
    known: int = 0  # behind this line, those two are complete

    @classmethod
    def of(cls, notes: Notes) -> State:
        """The notes that were kept."""
        return msgspec.convert(notes, cls)

    def notes(self) -> Notes:
        """The notes to keep: of the odd lines, the newest."""
        for odd in (self.dead, self.mute):
            if len(odd) > MOST:
                self.known = max(self.known, odd[-MOST - 1])
                del odd[:-MOST]
        made: Notes = msgspec.to_builtins(self)
        return made

    @property
    def odd(self) -> frozenset[int]:
        """The lines that are no messages of ours, as far as they are known."""
        return frozenset((*self.dead, *self.mute))

    def first_behind(self, line: int) -> int | None:
        """The number of the first message behind a line, if there is one."""
        odd = self.odd
        behind = range(line + 1, self.raw + 1)
        return next((number for number in behind if number not in odd), None)

    def from_end(self, count: int, without: Container[int]) -> int:
        """The number of a line, counted from the end without some; 0 if there are not so many."""
        left = count
        for number in range(self.raw, 0, -1):
            left -= number not in without
            if not left:
                return number
        return 0


def prefix_of(name: str) -> str:
    """What the ids of a session's messages begin with."""
    return made_id(name, "line")[:-_DIGITS]


def item_id(prefix: str, number: int) -> str:
    """The id of the message in a line."""
    return f"{prefix}{number:0{_DIGITS}x}"


def number_of(name: str, one: str) -> int | None:
    """The line that an id is of; None if it is none of the session's."""
    prefix = prefix_of(name)
    if not one.startswith(prefix) or len(one) != len(prefix) + _DIGITS:
        return None
    try:
        return int(one[-_DIGITS:], 16)
    except ValueError:
        return None
