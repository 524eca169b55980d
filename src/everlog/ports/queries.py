"""What a store is asked beside its records, and what it answers: search, usage, chats."""

from __future__ import annotations

import msgspec

from everlog.model import UsageRow
from everlog.ports.listing import Filter


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for, and where."""

    text: str  # words, "phrases", prefix*, AND, OR, NOT
    which: Filter = Filter()  # of sessions; `since` is about each message
    until: str | None = None  # ISO 8601; said before it
    role: str | None = None  # user, assistant, summary, title, tool
    limit: int = 20  # sessions
    offset: int = 0  # sessions that are passed over, the best ones
    hits: int = 3  # of one session
    without: frozenset[str] = frozenset()  # sessions that are left out


class Hit(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A passage that was found."""

    seq: int  # where to go for it; 0: the title
    role: str
    snippet: str  # a piece of it, what was found between « and »
    timestamp: str
    # Where in the snippet what was found begins and ends: a text may have « and » of its own.
    found: tuple[tuple[int, int], ...] = ()

    @property
    def pieces(self) -> list[tuple[str, bool]]:
        """The snippet without marks, in pieces; whether each is what was found."""
        cut: list[tuple[str, bool]] = []
        at = 0
        for start, end in self.found:
            cut += [(self.snippet[at : start - 1], False), (self.snippet[start:end], True)]
            at = end + 1
        return [one for one in (*cut, (self.snippet[at:], False)) if one[0]]


class SessionHit(msgspec.Struct, frozen=True, rename="camel"):
    """A session in which something was found."""

    session: str
    title: str
    score: float  # the larger, the better
    hits: tuple[Hit, ...]  # the best of it


class Results(msgspec.Struct, frozen=True, rename="camel"):
    """What a search found, the best first."""

    results: tuple[SessionHit, ...] = ()
    total: int = 0  # sessions, with those that are not among the results


class Spender(msgspec.Struct, frozen=True, rename="camel"):
    """A session that spent something."""

    session: str
    title: str
    agent: str
    sender: str
    spent: tuple[UsageRow, ...]  # by model, what has a stated cost apart; the day is the last


class UsageReport(msgspec.Struct, frozen=True, rename="camel"):
    """What sessions spent in some days."""

    # By day and model, oldest first. Where some of it has a stated cost and some has none there
    # are two rows, so that the second can be estimated.
    spent: tuple[UsageRow, ...] = ()
    # The sessions that took most tokens, and those with the highest stated costs; tokens first.
    spenders: tuple[Spender, ...] = ()
    sessions: int = 0  # that spent something
    behind: int = 0  # sessions in files of other programs that were not read to their end yet


class Chats(msgspec.Struct, frozen=True):
    """The numbered sessions of one key, or of one agent and sender."""

    current: str  # the newest, or the one last resumed
    newest: str
    highest: int  # number of the newest
