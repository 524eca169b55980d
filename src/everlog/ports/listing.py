"""Listings of sessions: which ones, in which order, a page at a time.

Every store lists by these rules: `conditions_of` says what a filter means, for a predicate here and
for SQL in `index.listing_sql`; a cursor is the sort key of the last row of a page.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, overload

import msgspec

from everlog.errors import FormatError
from everlog.ids import epoch_ms, timestamp
from everlog.model import Metadata

Order = Literal["active", "created"]  # newest message first, or newest session first
MAX_PAGE = 1_000_000  # sessions


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


class Condition(NamedTuple):
    """A column of a session's row, and what a filter requires of it."""

    column: Literal["agent", "sender", "source", "active", "title", "unfinished"]
    test: Literal["=", ">=", "contains"]
    value: Any


# The columns of a row that a filter is about, as they are compared.
COLUMNS: dict[str, Callable[[SessionRow], Any]] = {
    "agent": lambda row: row.metadata.agent,
    "sender": lambda row: row.metadata.sender,
    "source": lambda row: row.metadata.source,
    "active": lambda row: row.active,
    "title": lambda row: (row.metadata.title or "").casefold(),
    "unfinished": lambda row: row.metadata.unfinished,
}
_TESTS: dict[str, Callable[[Any, Any], bool]] = {"=": operator.eq, ">=": operator.ge, "contains": operator.contains}


def conditions_of(criteria: Filter) -> list[Condition]:
    """Return what a filter requires; FormatError for an invalid time."""
    title = None if criteria.title is None else criteria.title.casefold()
    conditions = (
        Condition("agent", "=", criteria.agent),
        Condition("sender", "=", criteria.sender),
        Condition("source", "=", criteria.source),
        Condition("unfinished", "=", criteria.unfinished),
        Condition("active", ">=", since_ms(criteria)),
        Condition("title", "contains", title),
    )
    return [condition for condition in conditions if condition.value is not None]


def matcher(criteria: Filter) -> Callable[[SessionRow], bool]:
    """Return a predicate for a filter."""
    tests = [(COLUMNS[column], _TESTS[test], value) for column, test, value in conditions_of(criteria)]
    return lambda row: all(test(column(row), value) for column, test, value in tests)


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


def check_page_size(limit: int) -> int:
    """Return how many sessions a page may have; FormatError if it could have none."""
    if limit < 1:
        raise FormatError(f"a listing needs a limit of at least 1, not {limit}")
    return min(limit, MAX_PAGE)


def sort_key(row: SessionRow, order: Order) -> tuple[int, str]:
    """Return time (in milliseconds) and id, by which rows are sorted; the newest is the highest."""
    time = row.active if order == "active" else epoch_ms(row.metadata.created_at) or 0
    return max(time, 0), row.id


def cursor_of(row: SessionRow, order: Order) -> str:
    """Return the cursor of the rows that follow this one, also in a store that has another row.

    It has the time that its listing is sorted by: several stores may be listed together.
    """
    time, name = sort_key(row, order)
    return f"{time}-{name}"


def make_page(rows: Iterable[SessionRow], limit: int, cursor: str | None, order: Order) -> Page:
    """Sort rows, newest first, and return one page of them."""
    ordered = sorted(rows, key=lambda row: sort_key(row, order), reverse=True)
    start = None if cursor is None else parse_cursor(cursor)
    rest = ordered if start is None else [row for row in ordered if sort_key(row, order) < start]
    next_cursor = cursor_of(rest[limit - 1], order) if len(rest) > limit else None
    return Page(rest[:limit], next_cursor, len(ordered))
