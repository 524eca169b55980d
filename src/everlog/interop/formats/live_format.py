"""What a dialect is whose files are used where they lie.

Beside `read` and `write`, which take a session as a whole, it is a fold over lines: `follow` takes
the lines that are new with what was noted of those before them and gives items; `extend` makes the
lines for a record of ours from the same notes. Notes are small, plain JSON; whoever follows a file
keeps them. So a file that grew costs what it grew by, whoever wrote to it, and so does an append.

What stands beside the conversation (settings, snapshots, unknown kinds) stays in the file and is
no item here: nothing of the file is ever written anew except what `Added` names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from everlog.interop.formats.format_types import Format, Hidden, Line, Summary
from everlog.model import AnyRecord, Message, Metadata

Notes = dict[str, Any]
Said = Message | Summary | Hidden


class Followed(NamedTuple):
    """What some lines said, and what is to be known when the next ones come."""

    items: Sequence[Said]
    notes: Notes


class Where(NamedTuple):
    """The session that lines are of."""

    name: str  # its id
    beside: bytes | None = None  # the first line or the second file, where the dialect has one
    # A file in the folder of the session's name (`tool-results/x.txt`), None if there is none.
    read: Callable[[str], bytes | None] = lambda _: None


class Log(Protocol):
    """A session as we hold it, for those who add to it."""

    @property
    def where(self) -> Where:
        """What `follow` is given."""
        ...

    @property
    def metadata(self) -> Metadata:
        """What is known of it."""
        ...

    def record(self, seq: int) -> AnyRecord:
        """One record by its number."""
        ...

    def since(self, seq: int) -> Sequence[AnyRecord]:
        """The records from a number on, in order."""
        ...

    def theirs(self, record: AnyRecord) -> str:
        """The id of the item that a record came from, or is in the file."""
        ...


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done in the files, in this order."""

    lines: tuple[bytes, ...] = ()  # to be appended, each without its newline
    head: bytes | None = None  # the first line, to be written anew, without its newline
    files: dict[str, bytes] = {}  # to be written anew as a whole: ending of the name → content
    stem: str | None = None  # a new name for the transcript, without its ending


class Begun(NamedTuple):
    """A session that is made."""

    name: str  # its id
    stem: str  # of its file
    added: Added


class Glance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a listing shows of a session; folded over its lines like everything else."""

    messages: int = 0  # as many as `follow` would give
    title: str = ""
    created: str = ""  # ISO 8601; empty: as the file system says
    last: str = ""  # likewise, of the last message
    agent: str = ""
    sender: str = ""
    model: str = ""
    cwd: str = ""
    key: str = ""
    aliases: tuple[str, ...] = ()
    scope: dict[str, Any] | None = None
    chat: int | None = None
    skip: bool = False  # it is no session of its own: not listed
    notes: Notes = {}  # the dialect's own; small


# Where a dialect keeps what its program writes anew each time: nowhere, in the first line of the
# transcript, or in a file `<stem>.meta.json` beside it.
Beside = Literal["", "head", "file"]


class LiveFormat(Format, Protocol):
    """One format whose files are used live. A module has all of these."""

    BESIDE: Beside
    PART_BYTES: int  # of a part `<stem>_part2.jsonl`; 0: a session is one file
    TOTAL_BYTES: int  # of all parts, above which its program cannot load it; 0: any
    LINE_BYTES: int  # above which its program cannot read a line; 0: any

    def is_id(self, text: str) -> bool:
        """Whether a text can be the id of a session."""
        ...

    def name_of(self, stem: str, beside: bytes | None) -> str:
        """The id of the session in a file of this name."""
        ...

    def follow(self, notes: Notes, lines: Iterable[Line], where: Where) -> Followed | None:
        """The items of new lines; `notes` are empty at the beginning of the file.

        Lines are whole; damaged and blank ones are among them, the one that is `beside` is not.
        None: what they say cannot be told without reading the whole file (`whole`). `beside` may
        have changed without any line. The notes that are given are not changed. Never raises.
        """
        ...

    def whole(self, lines: Iterable[Line], where: Where) -> Followed:
        """The items of a whole session, with the same ids that `follow` gives.

        Also what is in the file and was left (a branch), as messages that are then hidden. Where
        `follow` never answers None, this is `follow` from the beginning.
        """
        ...

    def extend(self, notes: Notes, log: Log, record: AnyRecord) -> Added:
        """A record of ours in the session's files.

        What `follow` makes of the new lines is the record again, as far as the format holds it,
        and, before it, what had to be added for it. UnsupportedError, with a hint of what to do
        instead, if the format cannot hold what the record says. Nothing to be done for an event.
        """
        ...

    def change(self, notes: Notes, log: Log, changes: Mapping[str, Any]) -> Added:
        """Changed metadata, in the files' names, in the session's files; UnsupportedError likewise."""
        ...

    def begin(self, facts: Mapping[str, Any], now: str, taken: Callable[[str], bool]) -> Begun:
        """A new session with these facts (agent, sender, key, name, cwd …); `taken` says whether
        there is a file of that stem. UnsupportedError for facts that it cannot hold."""
        ...

    def glance(self, seen: Glance, lines: Iterable[Line], beside: bytes | None) -> Glance:
        """What a listing shows, after some further lines. Fast: most lines need no parsing."""
        ...
