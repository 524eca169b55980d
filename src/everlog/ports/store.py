"""The port of a store, which keeps the records of sessions, and the leases of their turns.

A store is synchronous and safe to use from several threads. No method waits longer than one
append does; waiting for a turn is the runtime's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from everlog.model import AnyRecord, Damaged, Entry, Metadata, Part
from everlog.ports.listing import Filter, Order, Page
from everlog.ports.queries import Chats, Query, Results, UsageReport

Progress = Callable[[int, int], None]  # done, total
T = TypeVar("T")


class Lease(Protocol):
    """The right to run a turn, held until it is released or the process ends."""

    session: str

    @property
    def held(self) -> bool:
        """Whether it was neither released nor lost, as far as this process knows."""
        ...

    def release(self) -> None:
        """Release it; doing so twice is harmless."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@runtime_checkable
class ExpiringLease(Protocol):
    """A lease that expires unless it is renewed in time.

    Once another process has acquired it, an append under it is refused.
    """

    @property
    def lost(self) -> bool:
        """Whether another process holds the lease by now, or may hold it."""
        ...

    def on_lost(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, in any thread, as soon as the lease is known to be lost.

        Returns a function that removes the callback.
        """
        ...


class Store(Protocol):
    """Keeps the records of sessions.

    Every method that takes a session raises InvalidIdError for what cannot be an id, and
    NotFoundError for an id without a session. An error leaves nothing of the call behind; only a
    crash can leave a prefix of an append's records, never a gap.
    """

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session. Durable on return.

        `facts` are metadata under their names in files (agent, sender, model, source, cronJobId,
        key, aliases, scope, systemPromptOverride, name …). FormatError for unknown ones. It becomes
        the next and the current chat of its key, or of its agent and sender if it has no key.
        `unless_held`: if a session holds the key, or without a key the first alias, that session
        is returned unchanged; of any number of such calls at once, one creates the session. `at`:
        when it was created elsewhere, in milliseconds.
        """
        ...

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of a key, or of `model.pair(agent, sender)`, in constant time."""
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
        """Append records and return them as stored. Durable on return.

        Seqs are dense and grow in the order of the appends, whoever makes them. `expected_seq`:
        the last seq must be this one. `no_marker_after`: no rewind, tombstone or compaction may
        have a higher seq. `lease`: it must still be held. All three raise ConflictError. A record
        whose id is among the last 1,024 is not written again: the stored one is returned
        (ConflictError if it differs). This is checked first, so that a retry succeeds and a batch
        that was stored in part is completed. An auto-injected message is neither stored nor
        returned. Also raises SessionBusyError, StoreFullError, StoreFailedError, FormatError.
        """
        ...

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Iterate lazily over the records with a seq above `after`, damage in its place.

        The birth record (seq 0) comes only with `after=-1`. Sees everything that was acknowledged
        before the call. Holds no lock.
        """
        ...

    def tail(self, session: str) -> Iterator[Entry]:
        """Iterate lazily over all records, newest first; reads no further back than you iterate."""
        ...

    def metadata(self, session: str) -> Metadata:
        """Return the metadata of a session, up to its last acknowledged record."""
        ...

    def update(self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False) -> Metadata:
        """Change metadata by a `meta` record; None removes a value. Durable on return.

        A key or alias that another session holds moves here or, with `unless_held`, stays there.
        """
        ...

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record that another session takes over this one's history up to `seq`; once for ever.

        True if it is recorded for that session, now or before; False if for another. Of any
        number of calls at once, one decides.
        """
        ...

    def list(
        self, criteria: Filter = ..., *, limit: int = 50, cursor: str | None = None, order: Order = "active"
    ) -> Page:
        """Return a page of sessions, newest first. The cost follows what is returned."""
        ...

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Find sessions in which something was said, best first.

        Sees everything that was acknowledged before the call: what is new is indexed first, which
        may take long the first time (`progress` is called). What was deleted is not found. A query
        that cannot be parsed is searched as words; it never raises.
        """
        ...

    def recall(self, query: Query, now: int) -> Results:
        """Find sessions that a whole message, `query.text`, is about, with their passages.

        Sees what is indexed already (`catch_up`). `now`, in milliseconds, is what "last week" in
        the message is relative to.
        """
        ...

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index what was said since the last call; returns the number of sessions indexed."""
        ...

    def usage(
        self,
        criteria: Filter = ...,
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Sum up tokens and costs by day and model; the cost follows the rows of these days.

        `criteria` chooses sessions, but its `since` chooses days: that day and all later ones.
        `until`: ISO 8601, only days that began before it. `spenders`: how many sessions are named
        by tokens, and how many by stated costs. Sees everything that was acknowledged before the
        call; what is new in foreign files is read first (`progress` is called), unless `fresh` is
        False: then the report says how many sessions are behind. FormatError for an invalid time.
        """
        ...

    def delete(self, session: str) -> int:
        """Delete a session for good; returns how many parts it had. Takes the turn lease."""
        ...

    def resolve(self, name: str, *, prefix: bool = False) -> str:
        """Return the id behind an id, key or alias; with `prefix`, also behind its first letters.

        NotFoundError if there is none, InvalidIdError for what can be none of these, ConflictError
        if several ids begin so.
        """
        ...

    def lease(self, session: str) -> Lease:
        """Acquire the turn lease. SessionBusyError if another turn holds it; never waits."""
        ...

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Create a session with the records up to `at` (default: all), byte for byte."""
        ...

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the files of a session's log, oldest first."""
        ...

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return everything wrong with a session's bytes: crc, seq, parts."""
        ...

    def repair(self, session: str) -> tuple[str, ...]:
        """Repair what can be repaired without deleting anything; returns what was done."""
        ...

    def capability(self, kind: type[T]) -> T | None:
        """Return the object that has a capability of the store (`ports.capabilities`), or None."""
        ...

    def close(self) -> None:
        """Bring derived data up to date and release all descriptors."""
        ...
