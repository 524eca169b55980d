"""What a run tells those who watch it, in the names that go over the wire.

A message that was stored comes as `message` with its seq; whoever missed some reads them from
the log. Everything else is of the moment and is not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from everlog.model import Message, Usage


class RunEvent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="type",
    tag=lambda name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_"),
):
    """Something that happened while a session was being worked on."""

    session_id: str
    run_id: str | UnsetType = UNSET  # none for what happens outside of a turn


class Queued(RunEvent, frozen=True, kw_only=True):
    """A message is kept and waits for its turn."""

    position: int  # 1: the next


class RunStart(RunEvent, frozen=True, kw_only=True):
    """A turn begins."""

    model: str
    started_at: str


class StreamDelta(RunEvent, frozen=True, kw_only=True):
    """The model says a little more."""

    text: str


class ThinkingDelta(RunEvent, frozen=True, kw_only=True):
    """The model shows a little more of its reasoning."""

    text: str


class ToolStart(RunEvent, frozen=True, kw_only=True):
    """A tool is called."""

    tool_call_id: str
    tool_name: str
    args: dict[str, Any]


class ToolResult(RunEvent, frozen=True, kw_only=True):
    """A tool has answered, and the answer is stored."""

    tool_call_id: str
    tool_name: str
    result: str
    is_error: bool
    duration_ms: int = 0


class MessageStored(RunEvent, frozen=True, kw_only=True, tag="message"):
    """A message is durable."""

    seq: int
    message: Message


class MessageComplete(RunEvent, frozen=True, kw_only=True):
    """A turn has ended well; this is its answer."""

    seq: int
    content: str
    model: str = ""
    usage: Usage = Usage()  # of the whole turn
    duration_ms: int = 0
    tool_calls: int = 0
    stop: str = "end"  # or "max_steps"


class Status(RunEvent, frozen=True, kw_only=True):
    """Something a person may want to know, such as that a call is tried again."""

    message: str
    attempt: int = 0
    delay_ms: int = 0


class SessionRenamed(RunEvent, frozen=True, kw_only=True):
    """The session has another title."""

    name: str


class SessionChanged(RunEvent, frozen=True, kw_only=True):
    """What is shown of the session is not what it was: a client reads it again."""

    change: Literal["hidden", "restored", "rewound", "deleted"]
    seq: int = 0  # of the marker that says so
    seqs: tuple[int, ...] = ()  # messages that were hidden or restored; where it was rewound to


class Error(RunEvent, frozen=True, kw_only=True):
    """A turn ended without an answer, or a request could not be served."""

    message: str
    code: str = ""  # the error's class, such as ProviderDeniedError; RunCancelledError if stopped
    hint: str = ""


class CompactStart(RunEvent, frozen=True, kw_only=True):
    """A compaction begins."""

    strategy: str
    messages: int  # that will be summarised
    tokens: int  # of the context now


class CompactEnd(RunEvent, frozen=True, kw_only=True):
    """A compaction was recorded."""

    seq: int
    tokens_freed: int
    summariser: str  # "model" or "extractive"
    problem: str = ""  # why a model's summary was not used


class CompactFailed(RunEvent, frozen=True, kw_only=True):
    """A compaction was not made; the log has no new summary."""

    error: str
    failures: int = 0  # failed summary calls in a row


class TokenWarning(RunEvent, frozen=True, kw_only=True):
    """The context has reached this part of the window."""

    percent: int  # 80 or 95
    tokens: int
    window: int


class MemoryExtracted(RunEvent, frozen=True, kw_only=True):
    """The session was looked through for facts, and new ones were found."""

    facts: int
    finder: str  # "model" or "rules"
    problem: str = ""  # why a model's answer was not used


class MemoryDreamed(RunEvent, frozen=True, kw_only=True):
    """After a turn of the session, the memory of its agent was put in order."""

    agent: str
    changes: int  # files
    maker: str  # "model" or "rules"


class HookFailed(RunEvent, frozen=True, kw_only=True):
    """A hook raised or took too long; the run went on without it."""

    hook: str
    problem: str


# Is called in the order in which things happen, must return at once and must not raise.
Sink = Callable[[RunEvent], None]


def ignore(event: RunEvent) -> None:
    """The sink of a run that nobody watches."""
