"""Typed response bodies of the daemon, in the names that go over the wire.

Records (messages and markers) are dictionaries with the keys of the file, without their crc, so
that keys and kinds unknown to this version are passed on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import asdict

from everlog.log.line_codec import build_line, encode, has_crc, replace_surrogates
from everlog.model import AnyRecord, Damaged, Unknown, Usage
from everlog.ports.memory import DreamPlan

RecordObject = dict[str, Any]


def record_object(record: AnyRecord) -> RecordObject:
    """Return a record as in its line, without the crc; a record outside the log has no seq.

    The result is raw JSON, which the encoder copies as it is.
    """
    line = record.line
    if not line:  # created or shortened for a context
        assert not isinstance(record, Unknown)
        _, body = encode(record)
        line = build_line(body, record.record_type, record.seq) if record.seq else body
    if has_crc(line):
        line = line[:-18] + b"}"
    return msgspec.Raw(line)  # type: ignore[return-value]


def record_objects(records: Iterable[AnyRecord]) -> list[RecordObject]:
    """Return records as in their lines, without the crc."""
    return [record_object(record) for record in records]


class ResponseBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of all response bodies."""


class ErrorBody(ResponseBody, frozen=True, kw_only=True):
    """An error."""

    error: str
    details: tuple[str, ...] = ()  # "/field: problem"
    hint: str = ""  # what to do
    code: str = ""  # the error's class in everlog.errors, if it has one


class SessionSummary(ResponseBody, frozen=True, kw_only=True):
    """A session in a listing."""

    id: str
    name: str
    last_message_at: str
    message_count: int
    source: str
    model: str
    agent: str
    sender: str
    running: bool
    waiting: int  # messages in its queue
    resume_command: str  # continues it in its own program; empty: that has none
    access: str = "own"  # ask: written to only with `continueHere`; read: never
    actions: list[str] = []  # that its format can hold: append, rename, compact, hide, rewind, fork, delete


class Listing(ResponseBody, frozen=True, kw_only=True):
    """A page of sessions. The body is the array alone; total and cursor are in headers."""

    sessions: list[SessionSummary]
    total: int  # of the whole listing
    next: str | None = None  # cursor of the next page


class CreatedSession(ResponseBody, frozen=True, kw_only=True):
    """A session that was created."""

    id: str
    name: str


class SessionDetail(ResponseBody, frozen=True, kw_only=True):
    """A session with its live messages and its metadata."""

    messages: list[RecordObject]
    metadata: dict[str, Any]


class History(ResponseBody, frozen=True, kw_only=True):
    """A page of a session's log."""

    messages: list[RecordObject]
    next: int | None = None  # `after` of the next page


class OmittedMessage(ResponseBody, frozen=True, kw_only=True):
    """A message that is left out of a context, and the reason."""

    seq: int | None = None
    why: str


class PreparedContext(ResponseBody, frozen=True, kw_only=True):
    """The context of the next model call."""

    messages: list[RecordObject]
    tokens: int
    window: int
    left_out: list[OmittedMessage]
    stale: list[int] = []  # messages deleted or restored since the last summary
    excess: int = 0  # tokens above the window, with everything left out that may be: a turn would be refused


class RunResult(ResponseBody, frozen=True, kw_only=True):
    """A turn that ended."""

    run_id: str
    messages: list[RecordObject]  # stored by the turn, the input first
    usage: Usage = Usage()


class AcceptedMessage(ResponseBody, frozen=True, kw_only=True):
    """A message that is stored and will be answered."""

    run_id: str
    position: int = 0  # in the queue; 0: running, 1: next


class CompactionResult(ResponseBody, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a compaction."""

    compacted: bool
    reason: str | None = None  # why nothing was recorded
    record: RecordObject | None = None
    messages: int = 0  # summarised
    tokens: int = 0  # of the context before the compaction
    tokens_freed: int = 0
    summariser: str | None = None
    problem: str | None = None


class RewindResult(ResponseBody, frozen=True, kw_only=True):
    """A rewind to an earlier message."""

    seq: int  # of the marker
    to_seq: int


class DeleteResult(ResponseBody, frozen=True, kw_only=True):
    """Messages that were deleted: the requested one and those that belong to it."""

    seq: int  # of the marker
    deletes: tuple[int, ...]


class RestoreResult(ResponseBody, frozen=True, kw_only=True):
    """Messages that were restored."""

    seq: int
    restores: tuple[int, ...]


class CancelResult(ResponseBody, frozen=True, kw_only=True):
    """The result of a cancellation: whether there was a turn or a queued message to cancel."""

    cancelled: bool


class ActionResult(ResponseBody, frozen=True, kw_only=True, omit_defaults=True):
    """A successful action."""

    ok: bool = msgspec.field(default_factory=lambda: True)
    session_id: str | None = None  # of the run that was started


class PageLink(ResponseBody, frozen=True, kw_only=True):
    """A one-time link to the web page."""

    url: str


class InboundResult(ResponseBody, frozen=True, kw_only=True):
    """A channel's message after routing, with its reply."""

    session_id: str
    key: str
    run_id: str
    reply: str | None = None  # None with `wait=false`


class FactSource(ResponseBody, frozen=True, kw_only=True):
    """The message that a fact comes from."""

    session: str
    seq: int  # 0: unknown


class NoteFile(ResponseBody, frozen=True, kw_only=True):
    """A note in an agent's memory."""

    file: str
    name: str
    description: str
    text: str  # below the front matter
    category: str | None
    confidence: float
    updated: str
    by_person: bool  # if true, no dream rewrites it
    sources: list[FactSource] = []
    version: str = ""  # of its file, to detect conflicting edits


class AgentMemory(ResponseBody, frozen=True, kw_only=True):
    """The memory of an agent."""

    agent: str
    index: str  # MEMORY.md, as it is sent to agents
    notes: list[NoteFile]  # newest first


class SavedNote(ResponseBody, frozen=True, kw_only=True):
    """A note that was written."""

    file: str


class MemoryChange(ResponseBody, frozen=True, kw_only=True):
    """One change to a memory: a dream, an edited note, or an undo."""

    id: str
    at: str
    report: str  # a line per file, with the reasons
    files: list[str]
    undoes: str  # id of the change that this one undoes, or empty
    undone: bool  # whether a later change undid this one


class FileChange(ResponseBody, frozen=True, kw_only=True):
    """A file that a dream changed, or would change."""

    file: str
    kind: str  # "write", "rewrite" or "remove"
    reasons: list[str]


class DreamResult(ResponseBody, frozen=True, kw_only=True):
    """The result of a dream."""

    dreamed: bool  # whether the memory was consolidated
    reason: str  # why not, or by which method
    changes: list[FileChange]
    remarks: list[str]  # findings that were deliberately left unchanged

    @classmethod
    def of(cls, plan: DreamPlan | None, refused: str = "", *, dry_run: bool = False) -> DreamResult:
        """Return the result of a dream by its plan; without one, it was refused."""
        if plan is None:
            return cls(dreamed=False, reason=refused, changes=[], remarks=[])
        changes = [
            FileChange(file=change.path, kind=change.kind, reasons=list(change.reasons)) for change in plan.changes
        ]
        return cls(
            dreamed=not dry_run,
            reason="a dry run changes nothing" if dry_run else f"by {plan.maker}",
            changes=replace_surrogates(changes),
            remarks=replace_surrogates(list(plan.remarks)),
        )


class UndoResult(ResponseBody, frozen=True, kw_only=True):
    """A change to a memory that was undone."""

    id: str
    files: list[str]
    report: str  # of the change that was undone


class Damage(ResponseBody, frozen=True, kw_only=True):
    """A damaged range of bytes in a session."""

    session: str
    file: str
    start: int
    end: int
    seq: int | None
    problem: str

    @classmethod
    def of(cls, session: str, damaged: Damaged) -> Damage:
        """Return the damage of a session."""
        return cls(session=session, **asdict(damaged))

    @classmethod
    def unreadable(cls, session: str, problem: str) -> Damage:
        """Return the damage of a session that cannot be read at all."""
        return cls(session=session, file="session.jsonl", start=0, end=0, seq=None, problem=problem)


class VerifyResult(ResponseBody, frozen=True, kw_only=True):
    """The result of the integrity check of one session."""

    ok: bool
    damage: list[Damage]


class IntegrityStatus(ResponseBody, frozen=True, kw_only=True):
    """Progress and findings of the integrity check of all sessions."""

    running: bool
    started_at: str | None  # None: not run since the daemon started
    ended_at: str | None
    done: int  # sessions
    of: int
    ok: bool  # no damage so far, and the check did not fail
    damage: list[Damage]
    failure: str  # why the check ended early


class RepairResult(ResponseBody, frozen=True, kw_only=True):
    """The result of a repair, which never deletes anything."""

    id: str
    done: list[str]
    left: list[Damage]  # damage that cannot be repaired and stays as it is


class Health(ResponseBody, frozen=True, kw_only=True):
    """The health of the runtime and its counters."""

    ok: bool
    uptime_secs: int
    sessions: int
    running: int  # turns
    waiting: int  # messages
    watchers: int
    turns: int  # since the start
    failures: int  # turns that ended without an answer
    recovered: int  # sessions that a crash had left unfinished
    jobs: int
    model: str  # of the default agent
    store: str  # its kind: files, postgresql or memory
    location: str = ""  # of the store; empty: in memory
    reachable: bool  # whether the store answers
    problem: str = ""  # why not
    hint: str = ""  # what to do about it


class JobStatus(ResponseBody, frozen=True, kw_only=True):
    """A job with its schedule and the result of its last run."""

    id: str
    schedule: str
    enabled: bool
    paused: bool = False
    running: bool = False
    last_run_at: str | None = None
    last_status: str | None = None  # "success" or "error"; None: running or cancelled
    last_error_snippet: str | None = None
    last_session_id: str | None = None
    consecutive_failures: int = 0
    next_run_at: str | None = None
