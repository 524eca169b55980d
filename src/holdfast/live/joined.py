"""Several stores as one: a root of ours, and directories of others beside it.

New sessions are made in the root. Every other verb goes to the store that has the session; an id
that several have is that of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from holdfast.errors import Conflict, HoldfastError, InvalidId, NotFound, Unsupported
from holdfast.model import AnyRecord, Damaged, Entry, Metadata, Part
from holdfast.ports import Chats, Filter, Lease, Listed, Order, Page, Store
from holdfast.stamps import epoch_ms
from holdfast.ulid import is_ulid


class JoinedStore:
    """The store port on several stores."""

    def __init__(self, own: Store, others: Sequence[Store]) -> None:
        self.own = own
        self._all = (own, *others)
        self._homes: dict[str, Store] = {}  # session → the store that has it

    @property
    def reports(self) -> list[str]:
        """What all of them had to tell."""
        return [told for store in self._all for told in getattr(store, "reports", ())]

    def __getattr__(self, name: str) -> Any:
        """What only a store of files has (`sweep`, `watch`, `leftovers`) is the root's."""
        return getattr(self.own, name)

    def _of(self, session: str) -> Store:
        if is_ulid(session):
            return self.own
        if session not in self._homes:
            self._homes[session] = self._find(session)[0]
        return self._homes[session]

    def _find(self, name: str) -> tuple[Store, str]:
        """The store that has a session of this name, and the session's id."""
        failure: HoldfastError | None = None
        for store in self._all:
            try:
                return store, store.resolve(name)
            except Conflict:
                raise
            except (NotFound, InvalidId) as error:
                # "There is none" tells more than "that cannot be one".
                if failure is None or isinstance(failure, InvalidId):
                    failure = error
        assert failure is not None
        raise failure

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
        expect: int | None = None,
        guard: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records at the end."""
        store = self._of(session)
        return store.append(session, records, expect=expect, guard=guard, lease=lease)

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
            raise Unsupported("a session of ours has nothing to reclaim")
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

        def place(row: Listed) -> tuple[int, str]:
            created = epoch_ms(row.metadata.created_at) or 0
            return (row.active if order == "active" else created), row.id

        pages = [store.list(which, limit=limit, cursor=cursor, order=order) for store in self._all]
        rows = list(islice(merge(*pages, key=place, reverse=True), limit))
        more = sum(map(len, pages)) > limit or any(page.next for page in pages)
        return Page(rows, rows[-1].cursor if more and rows else None, sum(p.total for p in pages))

    def close(self) -> None:
        """Close all of them."""
        for store in self._all:
            store.close()
