"""Queries beside the records of a session, and their results: search, usage, disk usage, chats."""

from __future__ import annotations

import msgspec

from everlog.model import UsageRow
from everlog.ports.listing import Filter


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A search: what to find, and in which sessions."""

    text: str  # words, "phrases", prefix*, AND, OR, NOT
    criteria: Filter = Filter()  # of sessions; `since` is about each message
    until: str | None = None  # ISO 8601; messages before it
    role: str | None = None  # user, assistant, summary, title, tool
    limit: int = 20  # sessions
    offset: int = 0  # sessions to skip, best first
    hits: int = 3  # passages per session
    excluded_sessions: frozenset[str] = frozenset()
    sessions: frozenset[str] | None = None  # no others
    # Sessions of other programs count only if they worked in one of these directories; None: all count.
    directories: frozenset[str] | None = None


class Hit(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A passage that matches a search."""

    seq: int  # of the message; 0: the title
    role: str
    snippet: str  # an excerpt, with matches between « and »
    timestamp: str
    # Where matches begin and end in the snippet: the text may contain « and » itself.
    found: tuple[tuple[int, int], ...] = ()

    @property
    def fragments(self) -> list[tuple[str, bool]]:
        """The snippet without marks, as fragments, each with whether it matches."""
        cut: list[tuple[str, bool]] = []
        at = 0
        for start, end in self.found:
            cut += [(self.snippet[at : start - 1], False), (self.snippet[start:end], True)]
            at = end + 1
        return [one for one in (*cut, (self.snippet[at:], False)) if one[0]]


class SessionHit(msgspec.Struct, frozen=True, rename="camel"):
    """A session that matches a search."""

    session: str
    title: str
    score: float  # higher is better
    hits: tuple[Hit, ...]  # its best passages


class Results(msgspec.Struct, frozen=True, rename="camel"):
    """The results of a search, best first."""

    results: tuple[SessionHit, ...] = ()
    total: int = 0  # matching sessions, also those beyond the limit


class Spender(msgspec.Struct, frozen=True, rename="camel"):
    """A session with its usage."""

    session: str
    title: str
    agent: str
    sender: str
    spent: tuple[UsageRow, ...]  # by model; rows with a stated cost apart; the day is the last one


class UsageReport(msgspec.Struct, frozen=True, rename="camel"):
    """Tokens and costs of sessions in a range of days."""

    # By day and model, oldest first. Usage with and without a stated cost is in two rows, so that
    # the second can be estimated.
    spent: tuple[UsageRow, ...] = ()
    # The sessions with most tokens, then those with the highest stated costs.
    spenders: tuple[Spender, ...] = ()
    sessions: int = 0  # with any usage
    behind: int = 0  # foreign sessions that were not read to their end yet


class StorageArea(msgspec.Struct, frozen=True, rename="camel"):
    """A directory or a table, and its bytes."""

    name: str
    bytes: int
    indexes: int = 0  # bytes of its indexes, not included


class LargeSession(msgspec.Struct, frozen=True, rename="camel"):
    """One of the largest sessions."""

    session: str
    title: str
    bytes: int
    records: int


class DiskUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The sessions of a store, their records, and the bytes they use."""

    sessions: int = 0
    records: int = 0
    bytes: int = 0  # of all lines
    version: int = 0  # of the tables; 0: files
    rooms: tuple[StorageArea, ...] = ()
    biggest: tuple[LargeSession, ...] = ()


class Chats(msgspec.Struct, frozen=True):
    """The numbered sessions of one key, or of one agent and sender."""

    current: str  # the newest, or the last one resumed
    newest: str
    highest: int  # number of the newest
