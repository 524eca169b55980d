"""Several stores as one: a root of ours, and directories of others beside it.

New sessions are made in the root. Every other verb goes to the store that has the session; an id
that several have is that of the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from everlog.errors import (
    EverlogError,
    InvalidIdError,
    NotFoundError,
    StoreFailedError,
    UnsupportedError,
)
from everlog.ids import is_ulid, made_at
from everlog.interop.foreign.listing_page import cursor_of, place
from everlog.model import AnyRecord, Damaged, Entry, Metadata, Part
from everlog.ports import (
    Chats,
    Filter,
    Lease,
    Order,
    Page,
    Progress,
    Query,
    Results,
    Store,
    UsageReport,
    parse_cursor,
)
from everlog.stores import usage_query

T = TypeVar("T")


class JoinedStore:
    """The store port on several stores."""

    def __init__(self, own: Store, others: Sequence[Store]) -> None:
        self.own = own
        self._others = tuple(others)
        self._homes: dict[str, Store] = {}  # session → the other store that has it
        self._told: deque[str] = deque(maxlen=100)

    @property
    def reports(self) -> list[str]:
        """What all of them had to tell."""
        stores = (self.own, *self._others)
        return [*self._told, *(told for one in stores for told in getattr(one, "reports", ()))]

    def __getattr__(self, name: str) -> Any:
        """What only a store of files has (`sweep`, `watch`, `leftovers`) is the root's."""
        if name.startswith("_"):  # it has none of these: a copy that is not made yet asks for them
            raise AttributeError(name)
        return getattr(self.own, name)

    def _of(self, session: str) -> Store:
        home = self._homes.get(session)
        if home is None:
            home = self.own if is_ulid(session) else self._find(session)[0]
            if home is not self.own:
                self._homes[session] = home
        return home

    def _find(self, name: str) -> tuple[Store, str]:
        """The store that has a session of this name, and the session's id."""
        failures: list[EverlogError] = []
        for store in (self.own, *self._others):
            try:
                return store, store.resolve(name)
            except (NotFoundError, InvalidIdError) as error:
                failures.append(error)
            except StoreFailedError as error:
                if store is self.own:
                    raise
                failures.append(error)
        # "There is none" tells more than "that cannot be one".
        telling = (NotFoundError, StoreFailedError, InvalidIdError)
        raise min(failures, key=lambda error: telling.index(type(error)))

    # --- the root's alone

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session in the root."""
        return self.own.create(facts, unless_held=unless_held, at=at)

    def chats(self, thread: str) -> Chats | None:
        """The chats of a key or pair in the root: routing goes nowhere else."""
        return self.own.chats(thread)

    # --- wherever the session is

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records at the end."""
        store = self._of(session)
        return store.append(
            session,
            records,
            expected_seq=expected_seq,
            no_marker_after=no_marker_after,
            lease=lease,
        )

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Records above a seq, in order."""
        return self._of(session).read(session, after=after, limit=limit)

    def tail(self, session: str) -> Iterator[Entry]:
        """All records, newest first."""
        return self._of(session).tail(session)

    def metadata(self, session: str) -> Metadata:
        """What is known of a session."""
        return self._of(session).metadata(session)

    def update(
        self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False
    ) -> Metadata:
        """Change metadata."""
        return self._of(session).update(session, changes, unless_held=unless_held)

    def resume(self, session: str) -> Metadata:
        """Make a session the current one."""
        return self._of(session).resume(session)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record that another session takes a history over."""
        return self._of(session).promote(session, to, seq=seq)

    def delete(self, session: str) -> int:
        """Remove a session."""
        parts = self._of(session).delete(session)
        self._homes.pop(session, None)
        return parts

    def lease(self, session: str) -> Lease:
        """The right to run a turn."""
        return self._of(session).lease(session)

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """A new session with the records up to one."""
        return self._of(session).fork(session, at)

    def parts(self, session: str) -> tuple[Part, ...]:
        """The files of a session."""
        return self._of(session).parts(session)

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """What is wrong with a session's bytes."""
        return self._of(session).verify(session)

    def reclaim(self, session: str) -> int:
        """Take out what a session's program skips."""
        reclaim: Callable[[str], int] | None = getattr(self._of(session), "reclaim", None)
        if reclaim is None:
            raise UnsupportedError("a session of ours has nothing to reclaim")
        return reclaim(session)

    def repair(self, session: str) -> tuple[str, ...]:
        """Set right what can be."""
        return self._of(session).repair(session)

    # --- all of them

    def resolve(self, name: str) -> str:
        """The id behind a name, in the first store that knows it."""
        store, session = self._find(name)
        if store is not self.own:
            self._homes[session] = store
        return session

    def list(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Sessions of all stores, newest first."""

        def listed(store: Store) -> tuple[Store, Page]:
            own = cursor
            if store is self.own and cursor is not None and order == "created":
                own = _created(cursor)
            return store, store.list(which, limit=limit, cursor=own, order=order)

        pages = self._each(listed)
        placed = ([(place(row, order), row, store) for row in page] for store, page in pages)
        first = list(islice(merge(*placed, key=itemgetter(0), reverse=True), limit))
        more = sum(len(page) for _, page in pages) > limit or any(page.next for _, page in pages)
        rows = [row for _, row, store in first if not self._is_covered(row.id, store)]
        following = cursor_of(first[-1][1], order) if more and first else None
        return Page(rows, following, sum(page.total for _, page in pages))

    def _is_covered(self, session: str, store: Store) -> bool:
        """Whether an id of this store is that of a session in an earlier one."""
        if store is self.own:
            return False
        earlier = takewhile(lambda one: one is not store, self._others)
        return any(getattr(one, "lists", lambda _: False)(session) for one in earlier)

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """What is found in all of them, the best first."""
        asked = _from_the_first(query)
        return _best(self._each(lambda store: store.search(asked, progress=progress)), query)

    def recall(self, query: Query, now: int) -> Results:
        """What a message is about in all of them, likewise."""
        asked = _from_the_first(query)
        return _best(self._each(lambda store: store.recall(asked, now)), query)

    def catch_up(self, progress: Progress | None = None) -> int:
        """Take in what is new in all of them."""
        return sum(self._each(lambda store: store.catch_up(progress)))

    def usage(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """What the sessions of all of them spent."""
        answers = self._each(
            lambda store: store.usage(
                which, until=until, spenders=spenders, fresh=fresh, progress=progress
            )
        )
        return usage_query.joined(answers, spenders)

    def _each(self, ask: Callable[[Store], T]) -> Sequence[T]:
        """What all stores answer. A directory that is gone does not take the others with it."""
        answers = [ask(self.own)]
        for store in self._others:
            try:
                answers.append(ask(store))
            except (StoreFailedError, NotFoundError) as error:
                self._told.append(str(error))
        return answers

    def close(self) -> None:
        """Close all of them."""
        for store in (*self._others, self.own):
            store.close()


def _created(cursor: str) -> str:
    """A cursor for the root, which lists the newest first by the times in its ids."""
    created, last = parse_cursor(cursor)
    first, behind = made_at(created, bytes(10)), made_at(created + 1, bytes(10))
    return f"{created}-{min(max(last, first), behind)}"


def _from_the_first(query: Query) -> Query:
    """A query for all of each store that may be among what is asked for."""
    return replace(query, limit=query.offset + query.limit, offset=0)


def _best(found: Sequence[Results], query: Query) -> Results:
    """Results of several stores; scores of each are shares of its best one."""
    ranked = sorted((one for own in found for one in own.results), key=lambda one: -one.score)
    shown = ranked[query.offset : query.offset + query.limit]
    return Results(tuple(shown), sum(own.total for own in found))
