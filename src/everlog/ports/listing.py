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
    """Which sessions a listing contains; None matches any value."""

    agent: str | None = None
    sender: str | None = None
    source: str | None = None
    since: str | None = None  # ISO 8601; last message at or after it
    title: str | None = None  # text that the title contains, whatever its case
    unfinished: bool | None = None  # a turn has not ended, or messages are queued


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """A session in a listing."""

    metadata: Metadata
    bytes: int
    parts: int

    @property
    def id(self) -> str:
        """The session's id."""
        return self.metadata.id

    @property
    def active(self) -> int:
        """When it was last active, in milliseconds: the sort key of listings."""
        times = (self.metadata.last_message_at, self.metadata.created_at)
        return next((ms for text in times if (ms := epoch_ms(text)) is not None), 0)

    @property
    def cursor(self) -> str:
        """Its position in any listing; the next page begins after it."""
        return f"{self.active}-{self.id}"


def parse_cursor(text: str) -> tuple[int, str]:
    """Return the time and the id of a cursor."""
    active, _, last = text.partition("-")
    if not (active.isascii() and active.isdigit() and len(active) < 19 and last):
        raise FormatError(f"not a cursor: {text[:60]!r}", hint="use the cursor that a listing returned")
    return int(active), last


def since_ms(criteria: Filter) -> int | None:
    """Return the `since` of a filter in milliseconds."""
    if criteria.since is None:
        return None
    since = epoch_ms(criteria.since)
    if since is None:
        raise FormatError(f"not an ISO 8601 time: {criteria.since[:60]!r}")
    return since


def days_of(criteria: Filter, until: str | None) -> tuple[str, str]:
    """Return the first and last day (UTC) of a usage report; empty: unbounded."""
    since, before = since_ms(criteria), since_ms(Filter(since=until))
    first = "" if since is None else _day(since)
    return first, "" if before is None else _day(before - 1)


def _day(ms: int) -> str:
    return timestamp(max(ms, 0) / 1000)[:10]


def matcher(criteria: Filter) -> Callable[[SessionRow], bool]:
    """Return a predicate for a filter."""
    since = since_ms(criteria)
    title = criteria.title.casefold() if criteria.title is not None else ""

    def matches(row: SessionRow) -> bool:
        return (
            all(
                getattr(criteria, field) in (None, getattr(row.metadata, field))
                for field in ("agent", "sender", "source")
            )
            and (since is None or row.active >= since)
            and criteria.unfinished in (None, row.metadata.unfinished)
            and title in (row.metadata.title or "").casefold()
        )

    return matches


class Page(Sequence[SessionRow]):
    """A page of a listing: some sessions, and the cursor of the next page."""

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
