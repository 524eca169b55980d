"""The port of a store: it keeps the records of sessions.

A store is synchronous and safe to use from several threads. No verb waits longer than one append
does; waiting for a turn is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from everlog.model import AnyRecord, Damaged, Entry, Metadata, Part
from everlog.ports.capabilities import Lease
from everlog.ports.listing import Filter, Order, Page
from everlog.ports.queries import Chats, Query, Results, UsageReport

Progress = Callable[[int, int], None]  # done, of so many


class Store(Protocol):
    """Keeps the records of sessions.

    Every verb that takes a session raises InvalidIdError for what cannot be an id and NotFoundError for an
    id without a session. An error leaves nothing of the call behind; only a crash can leave a
    prefix of an append's records, never a gap.
    """

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session. Durable on return.

        `facts` are metadata in their file's names (agent, sender, model, source, cronJobId, key,
        aliases, scope, systemPromptOverride, name …). FormatError for unknown ones. It is the
        next chat of its key, or of its agent and sender if it has none, and the current one.
        `unless_held`: if a session holds the key already, that one is returned as it is; of any
        number of such calls at once, one makes the session. `at`: when it was made elsewhere, in
        milliseconds.
        """
        ...

    def chats(self, thread: str) -> Chats | None:
        """The chats of a key, or of `model.pair(agent, sender)`; its cost does not grow with the
        number of sessions."""
        ...

    def resume(self, session: str) -> Metadata:
        """Make a session the current chat of its key, or of its agent and sender. Durable."""
        ...

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records at the end and return them as stored. Durable on return.

        Numbers are dense and grow in the order of the appends, whoever makes them. `expect`: the
        last seq must be this. `guard`: no rewind, tombstone or compaction may have a higher seq.
        `lease`: a stale one is refused. All three raise ConflictError. A record whose id is among the
        last 1,024 is not written again, the stored one is returned (ConflictError if it differs);
        this is looked at first, so a retry succeeds and a batch found in part is completed.
        A message marked auto-injected is skipped: it is neither kept nor returned.
        Also raises SessionBusyError, StoreFullError, StoreFailedError, FormatError.
        """
        ...

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """The records with a seq above `after`, in order, lazily; damage stands in its place.

        The birth record (seq 0) is shown only to who asks for it with `after=-1`.

        Sees everything that was acknowledged before the call. Holds no lock.
        """
        ...

    def tail(self, session: str) -> Iterator[Entry]:
        """All records, newest first, lazily: reads no further back than it is asked."""
        ...

    def metadata(self, session: str) -> Metadata:
        """What is known of a session, up to its last acknowledged record."""
        ...

    def update(
        self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False
    ) -> Metadata:
        """Change metadata by a `meta` record. Durable on return; None takes a key back.

        A key or alias that another session holds moves here, or, `unless_held`, stays there.
        """
        ...

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record that another session takes this one's history over, up to `seq`; once for ever.

        True if it is recorded for that session, now or before; False if for another. Of any
        number of calls at once, one decides.
        """
        ...

    def list(
        self,
        which: Filter = ...,
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Sessions, newest first. Its cost follows what it returns."""
        ...

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Sessions in which something was said, the best first.

        Sees everything that was acknowledged before the call: what is new is taken in first, which
        may take long the first time (`progress` is told). What was deleted is not found. A query
        that makes no sense is searched as words; it never raises.
        """
        ...

    def recall(self, query: Query, now: int) -> Results:
        """Sessions that a whole message, `query.text`, is about, with the passages that say so.

        Sees what was taken in already (`catch_up`); `now` in milliseconds is what "last week" in
        the message is counted from.
        """
        ...

    def catch_up(self, progress: Progress | None = None) -> int:
        """Take in what was said since the last time, for search; returns in how many sessions."""
        ...

    def usage(
        self,
        which: Filter = ...,
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """What sessions spent, by day and model; its cost follows the rows of the days.

        `which` is about sessions, but its `since` is about days: that of the time and all later
        ones. `until`: ISO 8601, only days that began before it. `spenders`: how many sessions
        are named by their tokens, and how many by their stated costs. Sees everything that was
        acknowledged before the call; what is new in files of other programs is read first
        (`progress` is told), unless `fresh` is False: then the answer says how many are behind.
        FormatError for what is no time.
        """
        ...

    def delete(self, session: str) -> int:
        """Remove a session for good and return how many parts it had. Needs the turn lease."""
        ...

    def resolve(self, name: str) -> str:
        """The id behind an id, a key, an alias, or an unambiguous beginning of an id.

        NotFoundError if there is none, InvalidIdError for what can be neither, ConflictError if several match.
        """
        ...

    def lease(self, session: str) -> Lease:
        """The right to run a turn, at once or SessionBusyError."""
        ...

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """A new session with the records up to `at` (default: all), byte for byte."""
        ...

    def parts(self, session: str) -> tuple[Part, ...]:
        """The files of a session's log, oldest first."""
        ...

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Everything wrong with a session's bytes: crc, seq, parts."""
        ...

    def repair(self, session: str) -> tuple[str, ...]:
        """Set right what can be without deleting anything; what was done, in words."""
        ...

    def close(self) -> None:
        """Bring derived data up to date and give back all descriptors."""
        ...
