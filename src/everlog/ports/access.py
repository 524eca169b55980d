"""The access to a session: what may be done with it where it is kept."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from everlog.errors import UnconfirmedError, UnsupportedError

Action = Literal["append", "rename", "compact", "hide", "rewind", "fork", "delete"]
ACTIONS: frozenset[Action] = frozenset(get_args(Action))
# own: anything that the format can hold. ask: nothing is written before the user has said to continue here.
# read: nothing is written.
AccessMode = Literal["own", "ask", "read"]

_PHRASES: dict[Action, str] = {
    "append": "continued",
    "rename": "renamed",
    "compact": "compacted",
    "hide": "changed by deleting a message",
    "rewind": "rewound",
    "fork": "forked",
    "delete": "deleted",
}


class SessionAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The access to a session: what may be done with it where it is kept."""

    mode: AccessMode = "own"
    actions: frozenset[Action] = ACTIONS  # that its format can hold; some only once the mode allows them
    program: str = ""  # the format of its file, if it is another program's
    file: str = ""  # that an append writes to, if it is another program's
    can_copy: bool = False  # whether it can be copied into the store beside it

    def allows(self, action: Action) -> bool:
        """Return whether an action is possible, perhaps after the user has said to continue here."""
        return self.mode != "read" and action in self.actions

    def check(self, action: Action, *, continue_here: bool = False) -> None:
        """Raise UnsupportedError if an action is impossible, UnconfirmedError if the user must agree first."""
        hint = "copy it into everlog and continue the copy" if self.can_copy else "import it with everlog import"
        if self.mode == "read":
            raise UnsupportedError(
                f"this session{_of(self.program)} is only read here and cannot be {_PHRASES[action]}",
                hint=f'{hint}, or set mode = "write" for its directory in [[stores]]',
            )
        if action not in self.actions:
            raise UnsupportedError(f"this session{_of(self.program)} cannot be {_PHRASES[action]}", hint=hint)
        if self.mode == "ask" and not continue_here:
            raise UnconfirmedError(
                f"this session{_of(self.program)} is not changed before you say so: that writes to {self.file}",
                hint=f"continue it in its own program, {hint}, or say to continue here (continueHere, --continue-here)",
            )


def _of(program: str) -> str:
    return f" of {program}" if program else ""
