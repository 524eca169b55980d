"""What the daemon answers, typed, in the names that go over the wire.

Records (messages and markers) stand as they are in the file, without their crc: dictionaries in
the file's names, so that keys and kinds this version does not know arrive too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from everlog.model import Usage

RecordObject = dict[str, Any]


class Answer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Something that the daemon answers."""


class Problem(Answer, frozen=True, kw_only=True):
    """What went wrong."""

    error: str
    details: tuple[str, ...] = ()  # "/field: what is wrong with it"
    hint: str = ""  # what to do
    code: str = ""  # the error's class in everlog.errors, if it is one of those


class Summary(Answer, frozen=True, kw_only=True):
    """A session as a listing shows it."""

    id: str
    name: str
    last_message_at: str
    message_count: int
    source: str
    model: str
    agent: str
    sender: str
    running: bool
    waiting: int  # messages that wait for their turn


class Listing(Answer, frozen=True, kw_only=True):
    """A page of sessions. On the wire it is the array; the rest is in headers."""

    sessions: list[Summary]
    total: int  # of the whole listing
    next: str | None = None  # cursor of the next page


class Named(Answer, frozen=True, kw_only=True):
    """A session that was made."""

    id: str
    name: str


class Whole(Answer, frozen=True, kw_only=True):
    """A session: its live messages and its metadata."""

    messages: list[RecordObject]
    metadata: dict[str, Any]


class History(Answer, frozen=True, kw_only=True):
    """A page of a session's log."""

    messages: list[RecordObject]
    next: int | None = None  # `after` of the next page


class LeftOutOf(Answer, frozen=True, kw_only=True):
    """A message that is not in a context, and why."""

    seq: int | None = None
    why: str


class Prepared(Answer, frozen=True, kw_only=True):
    """What the model would be sent."""

    messages: list[RecordObject]
    tokens: int
    window: int
    left_out: list[LeftOutOf]
    stale: list[int] = []  # deleted or restored since the summary was made


class Ran(Answer, frozen=True, kw_only=True):
    """A turn that ended."""

    run_id: str
    messages: list[RecordObject]  # that it stored, the input first
    usage: Usage = Usage()


class Accepted(Answer, frozen=True, kw_only=True):
    """A message that is kept and will be answered."""

    run_id: str
    position: int = 0  # 0: at once; 1: the next


class Compacted(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """What a compaction came to."""

    compacted: bool
    reason: str | None = None  # why nothing was recorded
    record: RecordObject | None = None
    messages: int = 0  # that were summarised
    tokens: int = 0  # of the context before
    tokens_freed: int = 0
    summariser: str | None = None
    problem: str | None = None


class Rewound(Answer, frozen=True, kw_only=True):
    """A session that went back to a message."""

    seq: int  # of the marker
    to_seq: int


class Deleted(Answer, frozen=True, kw_only=True):
    """Messages that were hidden: the one named, and those it cannot be without."""

    seq: int  # of the marker
    deletes: tuple[int, ...]


class Restored(Answer, frozen=True, kw_only=True):
    """Messages that are shown again."""

    seq: int
    restores: tuple[int, ...]


class Cancelled(Answer, frozen=True, kw_only=True):
    """Whether there was a turn, or a waiting message, to stop."""

    cancelled: bool


class Done(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """It was done."""

    ok: bool = msgspec.field(default_factory=lambda: True)
    session_id: str | None = None  # of the run that was started


class Link(Answer, frozen=True, kw_only=True):
    """An address that opens the page once."""

    url: str


class Received(Answer, frozen=True, kw_only=True):
    """A channel's message and what became of it."""

    session_id: str
    key: str
    run_id: str
    reply: str | None = None  # None: it was not waited for


class SaidAt(Answer, frozen=True, kw_only=True):
    """Where a fact was said."""

    session: str
    seq: int  # 0: it is not known in which message


class NoteFile(Answer, frozen=True, kw_only=True):
    """A note of a memory."""

    file: str
    name: str
    description: str
    text: str  # what stands below its front matter
    category: str | None
    confidence: float
    updated: str
    by_person: bool  # no dream rewrites it
    sources: list[SaidAt] = []
    version: str = ""  # of its file, for whoever changes it


class Remembered(Answer, frozen=True, kw_only=True):
    """The memory of an agent."""

    agent: str
    index: str  # MEMORY.md, as agents are shown it
    notes: list[NoteFile]  # newest first


class Noted(Answer, frozen=True, kw_only=True):
    """A note that was written."""

    file: str


class MemoryChange(Answer, frozen=True, kw_only=True):
    """What was done to a memory at once: a dream, a note, or the undoing of one of these."""

    id: str
    at: str
    report: str  # a line for each file, and its reasons
    files: list[str]
    undoes: str  # the change that this one took back, or nothing
    undone: bool  # it was taken back


class FileChange(Answer, frozen=True, kw_only=True):
    """A file that a dream changed, or would."""

    file: str
    kind: str  # "write", "rewrite" or "remove"
    reasons: list[str]


class Dreamed(Answer, frozen=True, kw_only=True):
    """What a dream came to."""

    dreamed: bool  # whether the memory was put in order
    reason: str  # why not, or by what
    changes: list[FileChange]
    remarks: list[str]  # what was found and deliberately left as it is


class TakenBack(Answer, frozen=True, kw_only=True):
    """A change of a memory that was undone."""

    id: str
    files: list[str]
    report: str  # of what was taken back


class Damage(Answer, frozen=True, kw_only=True):
    """Bytes of a session that are not as they should be."""

    session: str
    file: str
    start: int
    end: int
    seq: int | None
    problem: str


class Verified(Answer, frozen=True, kw_only=True):
    """Every byte of a session was looked at."""

    ok: bool
    damage: list[Damage]


class Checked(Answer, frozen=True, kw_only=True):
    """How far the check of all sessions is, and what it has found."""

    running: bool
    started_at: str | None  # None: there was none since the daemon started
    ended_at: str | None
    done: int  # sessions
    of: int
    ok: bool  # nothing was found (so far), and it did not end early
    damage: list[Damage]
    failure: str  # why it ended early


class Repaired(Answer, frozen=True, kw_only=True):
    """What was done about a session, deleting nothing."""

    id: str
    done: list[str]
    left: list[Damage]  # what cannot be repaired and stays as it is
