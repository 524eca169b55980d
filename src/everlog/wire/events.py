"""Events that a run emits, in the names that go over the wire.

A stored message arrives as `message` with its seq; a client that missed some reads them from the
log. All other events are transient and not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from everlog.model import Message, Usage, blocks


def snake_case(name: str) -> str:
    """Return the wire name of a class: `RunStart` is `run_start`."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag=snake_case):
    """Base of all events of a session."""

    session_id: str
    run_id: str | UnsetType = UNSET  # unset for events outside a turn


class Queued(RunEvent, frozen=True, kw_only=True):
    """A message is stored and waits in the queue."""

    position: int  # 1: next


class RunStart(RunEvent, frozen=True, kw_only=True):
    """A turn started."""

    model: str
    started_at: str


class StreamDelta(RunEvent, frozen=True, kw_only=True):
    """A chunk of the model's answer."""

    text: str


class ThinkingDelta(RunEvent, frozen=True, kw_only=True):
    """A chunk of the model's reasoning."""

    text: str


class ToolStart(RunEvent, frozen=True, kw_only=True):
    """A tool call started."""

    tool_call_id: str
    tool_name: str
    args: dict[str, Any]


class ToolResult(RunEvent, frozen=True, kw_only=True):
    """A tool call ended, and its result is stored."""

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
    """A turn ended successfully, with its answer."""

    seq: int
    content: str
    model: str = ""
    usage: Usage = Usage()  # of the whole turn
    duration_ms: int = 0
    tool_calls: int = 0
    stop: str = "end"  # or "max_steps"


class Status(RunEvent, frozen=True, kw_only=True):
    """Information for the user, such as that a call is retried."""

    message: str
    attempt: int = 0
    delay_ms: int = 0


class SessionRenamed(RunEvent, frozen=True, kw_only=True):
    """The session has a new title."""

    name: str


class SessionChanged(RunEvent, frozen=True, kw_only=True):
    """The view of the session changed: a client reads it again."""

    change: Literal["hidden", "restored", "rewound", "deleted"]
    seq: int = 0  # of the marker
    seqs: tuple[int, ...] = ()  # messages hidden or restored, or the target of the rewind


class Error(RunEvent, frozen=True, kw_only=True):
    """A turn ended without an answer, or a request could not be served."""

    message: str
    code: str = ""  # the error's class, such as ProviderDeniedError; RunCancelledError if stopped
    hint: str = ""


class CompactStart(RunEvent, frozen=True, kw_only=True):
    """A compaction started."""

    strategy: str
    messages: int  # to be summarised
    tokens: int  # of the current context


class CompactEnd(RunEvent, frozen=True, kw_only=True):
    """A compaction was recorded."""

    seq: int
    tokens_freed: int
    summariser: str  # "model" or "extractive"
    problem: str = ""  # why a model's summary was not used


class CompactFailed(RunEvent, frozen=True, kw_only=True):
    """A compaction failed; the log has no new summary."""

    error: str
    failures: int = 0  # failed summary calls in a row


class TokenWarning(RunEvent, frozen=True, kw_only=True):
    """The context has reached this percentage of the window."""

    percent: int  # 80 or 95
    tokens: int
    window: int


class MemoryExtracted(RunEvent, frozen=True, kw_only=True):
    """An extraction found new facts in the session."""

    facts: int
    finder: str  # "model" or "rules"
    problem: str = ""  # why a model's answer was not used


class MemoryDreamed(RunEvent, frozen=True, kw_only=True):
    """A dream after a turn of the session consolidated its agent's memory."""

    agent: str
    changes: int  # files
    maker: str  # "model" or "rules"


class HookFailed(RunEvent, frozen=True, kw_only=True):
    """A hook raised or took too long; the run went on without it."""

    hook: str
    problem: str


class StreamNotice(RunEvent, frozen=True, kw_only=True):
    """Base of what the event stream tells a client about itself or the listing, not about a run."""


class Subscribed(StreamNotice, frozen=True, kw_only=True):
    """The client gets the session's events from now on; `run_id` is the run in progress."""

    seq: int  # of the last record in the log


class Unsubscribed(StreamNotice, frozen=True, kw_only=True):
    """The client gets no more events of the session."""


class ListingChanged(StreamNotice, frozen=True, kw_only=True):
    """Sessions were created, continued, renamed or deleted: a client reads the listing again."""

    gone: tuple[str, ...] = ()  # deleted sessions
    lost: bool = False  # unknown other sessions were deleted too: read the whole listing again


# Called in the order of the events; must not block and must not raise.
Sink = Callable[[RunEvent], None]


def ignore_event(event: RunEvent) -> None:
    """Discard an event: the sink of a run without subscribers."""


_EVENT_TYPES: dict[str, type[RunEvent]] = {
    str(event_type.__struct_config__.tag): event_type for event_type in RunEvent.__subclasses__()
}


def decode_event(payload: dict[str, Any]) -> RunEvent | None:
    """Decode an event from its JSON object; None if this version does not know its kind."""
    event_type = _EVENT_TYPES.get(str(payload.get("type")))
    if event_type is None:
        return None
    try:
        if event_type is MessageStored:
            return _decode_stored_message(payload)
        return msgspec.convert(payload, event_type)
    except (msgspec.ValidationError, KeyError, TypeError):
        return None


def _decode_stored_message(payload: dict[str, Any]) -> RunEvent:
    """Decode a `message` event, whose blocks may be of kinds the typed decoder refuses."""
    message = payload["message"]
    without_content = msgspec.convert({**message, "content": ()}, Message)
    event = msgspec.convert({**payload, "message": msgspec.to_builtins(without_content)}, MessageStored)
    return replace(event, message=replace(without_content, content=blocks(message["content"])))
