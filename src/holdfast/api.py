"""What a run tells those who watch it, in the names that go over the wire."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class RunEvent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="type",
    tag=lambda name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_"),
):
    """Something that happened while a session was being worked on; it is not kept."""

    session_id: str


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

    reason: str
    failures: int = 0  # failed summary calls in a row


class TokenWarning(RunEvent, frozen=True, kw_only=True):
    """The context has reached this part of the window."""

    percent: int  # 80 or 95
    tokens: int
    window: int


class HookFailed(RunEvent, frozen=True, kw_only=True):
    """A hook raised or took too long; the run went on without what it would have injected."""

    hook: str
    problem: str


# Is called in the order in which things happen, must return at once and must not raise.
Sink = Callable[[RunEvent], None]


def ignore(event: RunEvent) -> None:
    """The sink of a run that nobody watches."""
