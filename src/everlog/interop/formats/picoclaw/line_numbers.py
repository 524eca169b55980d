"""The tail state of a session: its lines by number, as PicoClaw counts them.

The id of a message ends in the number of its line, so that one can be derived from the other.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from everlog.interop.formats.format_types import derive_id
from everlog.interop.formats.live_format import TailState

MAX_NOTED_LINES = 64  # line numbers in each list of the state; sound files have none
_DIGITS = 12


class LineState(msgspec.Struct, omit_defaults=True):
    """The decoded tail state."""

    line_count: int = msgspec.field(default=0, name="raw")
    # Digest of the last summary and the number of lines that it stands for. None: there was no
    # summary yet; empty: it was removed.
    summary_digest: str | None = msgspec.field(default=None, name="summary")
    skip: int = 0
    hidden: int = 0  # messages up to this line are hidden
    mark_count: int = msgspec.field(default=0, name="marks")  # of summaries and hidings
    # Lines that PicoClaw ignores, and lines that it shows but that are not messages here.
    ignored_lines: list[int] = msgspec.field(default_factory=list, name="dead")
    other_lines: list[int] = msgspec.field(default_factory=list, name="mute")
    complete_after: int = msgspec.field(default=0, name="known")  # line from which both are complete

    @classmethod
    def from_tail_state(cls, state: TailState) -> LineState:
        """Decode a tail state."""
        return msgspec.convert(state, cls)

    def to_tail_state(self) -> TailState:
        """Encode the tail state, with the newest numbers of each list."""
        for numbers in (self.ignored_lines, self.other_lines):
            if len(numbers) > MAX_NOTED_LINES:
                self.complete_after = max(self.complete_after, numbers[-MAX_NOTED_LINES - 1])
                del numbers[:-MAX_NOTED_LINES]
        state: TailState = msgspec.to_builtins(self)
        return state

    @property
    def non_messages(self) -> frozenset[int]:
        """Numbers of the lines that are not messages here, as far as they are known."""
        return frozenset((*self.ignored_lines, *self.other_lines))

    def first_message_after(self, line: int) -> int | None:
        """Return the number of the first message after a line, or None."""
        non_messages = self.non_messages
        numbers = range(line + 1, self.line_count + 1)
        return next((number for number in numbers if number not in non_messages), None)

    def number_from_end(self, count: int, excluded: Container[int]) -> int:
        """Return the n-th last line number, without the excluded ones; 0 if there are fewer."""
        remaining = count
        for number in range(self.line_count, 0, -1):
            remaining -= number not in excluded
            if not remaining:
                return number
        return 0


def id_prefix(session_id: str) -> str:
    """Return the common prefix of the ids of a session's messages."""
    return derive_id(session_id, "line")[:-_DIGITS]


def item_id(prefix: str, number: int) -> str:
    """Return the id of the message in a line."""
    return f"{prefix}{number:0{_DIGITS}x}"


def line_number(session_id: str, message_id: str) -> int | None:
    """Return the line number in an id; None if it is not derived from one of this session."""
    prefix = id_prefix(session_id)
    if not message_id.startswith(prefix) or len(message_id) != len(prefix) + _DIGITS:
        return None
    try:
        return int(message_id[-_DIGITS:], 16)
    except ValueError:
        return None
