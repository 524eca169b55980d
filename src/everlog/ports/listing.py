"""Listings of sessions: which ones, in which order, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, overload

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.model import Metadata

Order = Literal["active", "created"]  # newest message first, or newest session first


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions a listing is about; None leaves a field open."""

    agent: str | None = None
    sender: str | None = None
    source: str | None = None
    since: str | None = None  # ISO 8601; last message at or after it
    title: str | None = None  # text that the title contains, whatever its case
    unfinished: bool | None = None  # a turn has not ended, or a message waits for its own


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """A session as a listing shows it."""

    metadata: Metadata
    bytes: int
    parts: int

    @property
    def id(self) -> str:
        """The session's id."""
        return self.metadata.id

    @property
    def active(self) -> int:
        """When it was last active, in milliseconds: what listings are sorted by."""
        times = (self.metadata.last_message_at, self.metadata.created_at)
        return next((ms for text in times if (ms := epoch_ms(text)) is not None), 0)

    @property
    def cursor(self) -> str:
        """Its place in any listing; the next page begins behind it."""
        return f"{self.active}-{self.id}"


def parse_cursor(text: str) -> tuple[int, str]:
    """Time and id of a cursor."""
    active, _, last = text.partition("-")
    if not (active.isascii() and active.isdigit() and len(active) < 19 and last):
        raise FormatError(f"not a cursor: {text[:60]!r}", hint="take the one a listing gave")
    return int(active), last


def since_ms(which: Filter) -> int | None:
    """The time of a filter in milliseconds."""
    if which.since is None:
        return None
    since = epoch_ms(which.since)
    if since is None:
        raise FormatError(f"not an ISO 8601 time: {which.since[:60]!r}")
    return since


def days_of(which: Filter, until: str | None) -> tuple[str, str]:
    """The first and the last day that usage is asked for, in UTC; empty: open."""
    since, before = since_ms(which), since_ms(Filter(since=until))
    first = "" if since is None else _day(since)
    return first, "" if before is None else _day(before - 1)


def _day(ms: int) -> str:
    return timestamp(max(ms, 0) / 1000)[:10]


def matcher(which: Filter) -> Callable[[SessionRow], bool]:
    """A filter as a test of sessions."""
    since = since_ms(which)
    title = which.title.casefold() if which.title is not None else ""

    def matches(row: SessionRow) -> bool:
        return (
            all(
                getattr(which, field) in (None, getattr(row.metadata, field))
                for field in ("agent", "sender", "source")
            )
            and (since is None or row.active >= since)
            and which.unfinished in (None, row.metadata.unfinished)
            and title in (row.metadata.name or "").casefold()
        )

    return matches


class Page(Sequence[SessionRow]):
    """Some sessions of a listing, and the cursor to the next ones."""

    def __init__(self, sessions: Sequence[SessionRow], next_cursor: str | None, total: int) -> None:
        self.sessions = tuple(sessions)
        self.next = next_cursor
        self.total = total  # of the whole listing

    @overload
    def __getitem__(self, index: int) -> SessionRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SessionRow, ...]: ...
    def __getitem__(self, index: int | slice) -> SessionRow | tuple[SessionRow, ...]:
        return self.sessions[index]

    def __len__(self) -> int:
        return len(self.sessions)
