"""The port of memory, which keeps what outlives sessions. It has four verbs:

    recall    find notes and passages of earlier sessions that a message is about
    extract   find the facts of a session and write them down
    dream     turn facts into notes, and put the notes in order
    edit      write, change or remove one note

What a memory returns for a prompt is data, redacted and fenced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol, get_args

import msgspec

from everlog.model import Category

CATEGORIES: tuple[Category, ...] = get_args(Category)
Ask = Callable[[str, str], Awaitable[str]]  # system prompt and message → answer of a model
ProblemCallback = Callable[[str], None]  # called with what could not be read


class Source(msgspec.Struct, frozen=True):
    """The message in which a fact was stated."""

    session: str
    seq: int = 0  # of the message; 0 if unknown


class Fact(msgspec.Struct, frozen=True):
    """One statement worth knowing in later sessions."""

    category: Category
    text: str  # one line
    confidence: float  # 0.0 to 1.0
    source: Source | None = None


class RecallQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A message, and how much may be recalled about it."""

    text: str
    limit: int  # notes and sessions together
    tokens: int
    sender: str  # passages come only from this sender's sessions
    session: str = ""  # the session that asks; its own passages are left out


class NoteEdit(msgspec.Struct, frozen=True, kw_only=True):
    """An edit of one note; empty names and descriptions are derived from the text."""

    note: str | None = None  # its file or its exact name; None: a new note
    text: str | None = None  # None: the note is removed
    is_whole_file: bool = False  # the text is that of the file, front matter included
    name: str = ""
    description: str = ""
    category: Category | None = None
    confidence: float | None = None  # of a new note
    source: Source | None = None  # of a new note
    by_person: bool = False  # then no dream rewrites it
    version: str = ""  # as it was read; ConflictError if it is different now


class Change(msgspec.Struct, frozen=True):
    """A change to one file."""

    path: str
    before: str | None  # None: the file does not exist
    after: str | None  # None: the file is removed
    reasons: tuple[str, ...]

    @property
    def kind(self) -> Literal["write", "rewrite", "remove"]:
        """Return what happens to the file."""
        if self.after is None:
            return "remove"
        return "write" if self.before is None else "rewrite"


class DreamPlan(msgspec.Struct, frozen=True):
    """All changes of one dream or edit; they are applied together or not at all."""

    changes: tuple[Change, ...] = ()
    remarks: tuple[str, ...] = ()  # findings that were deliberately left alone
    maker: Literal["rules", "model"] = "rules"

    def report(self) -> str:
        """Return the plan as text for people."""
        rows = [f"- {change.kind} {change.path}: {'; '.join(change.reasons)}" for change in self.changes]
        rows += [f"- left as it is: {remark}" for remark in self.remarks]
        return "\n".join(rows) or "- nothing to do"


class Verdict(NamedTuple):
    """The decision of a gate: whether to extract or to dream, and why or why not."""

    ready: bool
    reason: str


class ExtractionResult(NamedTuple):
    """The outcome of an extraction."""

    facts: tuple[Fact, ...] = ()  # new ones only
    finder: Literal["model", "rules", ""] = ""  # empty: a gate was closed
    reason: str = ""  # why it ran, or not
    problem: str = ""  # why a model's answer was not used


class Memory(Protocol):
    """The memory of one agent or project. Several threads and processes may use it at once."""

    def index(self, on_problem: ProblemCallback | None = None) -> str:
        """Return the list of the notes as a model is shown it; see `recall` for `on_problem`."""
        ...

    def recall(self, query: RecallQuery, on_problem: ProblemCallback | None = None) -> str:
        """Return what is known about a message, or nothing.

        With `on_problem`, what cannot be read is left out and reported, otherwise it is raised.
        """
        ...

    async def extract(self, session: str, ask: Ask | None = None, *, force: bool = False) -> ExtractionResult:
        """Extract the facts of a session if its gates are open, or always with `force`.

        Rules are used without a model, and if the model fails. Durable on return.
        """
        ...

    async def dream(self, ask: Ask | None = None, *, dry_run: bool = False) -> DreamPlan:
        """Consolidate the memory now and return the changes; `dry_run` only plans them.

        SessionBusyError if another dream is running. All changes are applied, or none.
        """
        ...

    def check_dream(self, *, min_hours: float = ..., min_sessions: int = ...) -> Verdict:
        """Return whether a dream is due: enough hours, then sessions, and no other one running."""
        ...

    def edit(self, edit: NoteEdit) -> str:
        """Edit a note together with its line in the index, and return its file. Durable on return.

        FormatError for a text that cannot be a note, NotFoundError and ConflictError as they say.
        """
        ...
