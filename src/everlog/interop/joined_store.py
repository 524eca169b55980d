"""The joined store: the store and further ones beside it, used as one.

New sessions are created in the store. Every other operation goes to the one that has the session; of
several with the same id, to the first. The others are named among the skipped files. Nothing is
written to a further store in mode "read".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from msgspec.structs import replace

from everlog.errors import EverlogError, InvalidIdError, NotFoundError, StoreFailedError, UnsupportedError
from everlog.ids import is_ulid, ulid_at
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.joined_search import SearchedStore, make_searcher, searching
from everlog.log import usage_query
from everlog.model import AnyRecord, Damaged, Entry, Metadata, Part
from everlog.ports import (
    Chats,
    Copying,
    DirectoryBacked,
    FileBacked,
    Filter,
    Lease,
    Order,
    Page,
    Permitting,
    Progress,
    Purgeable,
    Query,
    Reclaimable,
    Reporting,
    Results,
    Routing,
    SessionAccess,
    SkippedFile,
    Store,
    UsageReport,
)
from everlog.ports.access import AccessMode
from everlog.ports.listing import cursor_of, parse_cursor, sort_key
from everlog.promotion import NameRouting

T = TypeVar("T")


class FurtherStore(NamedTuple):
    """A store beside the main one."""

    store: Store
    directory: Path
    is_writable: bool


class JoinedStore(Reporting, Reclaimable, DirectoryBacked, FileBacked, Permitting, Copying, Purgeable):
    """The store port on a main store and several further ones."""

    def __init__(self, main: Store, further: Sequence[FurtherStore]) -> None:
        self.main = main
        self._further = tuple(entry.store for entry in further)
        # By the further store: that on the files themselves, where legacy sessions are joined to it.
        self._foreign = {id(store): own for store in self._further if (own := store.capability(ForeignStore))}
        self._read_only = {id(entry.store): entry.directory for entry in further if not entry.is_writable}
        self._owners: dict[str, Store] = {}  # session → the further store that has it
        self._failures: deque[str] = deque(maxlen=100)

    @property
    def reports(self) -> list[str]:
        """Reports of all stores, and failures of further ones."""
        reporting = (store.capability(Reporting) for store in (self.main, *self._further))
        return [*self._failures, *(report for store in reporting if store is not None for report in store.reports)]

    def skipped_files(self) -> Sequence[SkippedFile]:
        """Return the files of all further directories that are not taken as sessions."""
        skipped: list[SkippedFile] = []
        owners: dict[str, Path] = {}
        for further in self._further:
            store, directory = self._foreign.get(id(further)), further.capability(DirectoryBacked)
            if store is None or directory is None:
                continue
            try:
                skipped += [SkippedFile(str(store.root / file.path), file.reason) for file in directory.skipped_files()]
                transcripts = store.transcripts()
            except StoreFailedError as error:
                skipped.append(SkippedFile(f"{store.root}/", str(error)))
                continue
            for session, path in transcripts.items():
                owner = owners.setdefault(session, store.root)
                if owner != store.root:
                    reason = f"{owner} has a session with this id: open {store.root} by itself, or import it"
                    skipped.append(SkippedFile(str(store.root / path), reason))
        return skipped

    def capability(self, kind: type[T]) -> T | None:
        """Return the joined store for what it does itself, else what the main store has.

        Messages are routed in the main store only: a further one never gets, or gives up, a session.
        """
        if kind is Routing:
            return cast("T", self.main.capability(Routing) or NameRouting(self.main))
        return cast("T", self) if kind in type(self).__mro__ else self.main.capability(kind)

    def _owner_of(self, session: str) -> Store:
        owner = self._owners.get(session)
        if owner is None:
            is_main = is_ulid(session) and len(self._foreign) == len(self._further)  # no other has such ids
            owner = self.main if is_main else self._find(session)[0]
            if owner is not self.main:
                self._owners[session] = owner
        return owner

    def _foreign_of(self, store: Store) -> ForeignStore | None:
        """Return a further store as the store on another program's files that it is, if it is one."""
        return self._foreign.get(id(store))

    def _writable(self, session: str) -> Store:
        """Return the store that has a session; UnsupportedError if nothing may be written to it."""
        owner = self._owner_of(session)
        directory = self._read_only.get(id(owner))
        if directory is not None:
            raise UnsupportedError(
                f"session {session} is in {directory}, which is only read here",
                hint='set mode = "write" for it in [[stores]], import the session, or open it as the store: --store',
            )
        return owner

    def access(self, session: str) -> SessionAccess:
        """Return what may be done with a session; one of another program is not changed before the user says so."""
        owner = self._owner_of(session)
        permitting = owner.capability(Permitting)
        access = SessionAccess() if permitting is None else permitting.access(session)
        if owner is self.main:
            return access
        if id(owner) in self._read_only:
            mode: AccessMode = "read"
        else:
            mode = "ask" if self._foreign_of(owner) is not None else "own"
        can_copy = self._foreign_of(owner) is not None and self.main.capability(ForeignStore) is None
        return replace(access, mode=mode, can_copy=can_copy)

    def copy_session(self, session: str) -> str:
        """Import a session of another program into the main store, and return the id of the copy."""
        foreign = self._foreign_of(self._owner_of(session))
        if foreign is None:
            raise UnsupportedError(f"session {session} is no session of another program beside the store")
        if self.main.capability(ForeignStore) is not None:
            raise UnsupportedError("the store holds sessions of another program, which take no copies")
        from everlog.interop.importer import import_files  # noqa: PLC0415 - rarely needed

        format, path = foreign.transcript(session)
        (result,) = import_files(self.main, [path], [format])
        if result.id is None:
            raise StoreFailedError(f"{path} cannot be copied: {result.problem}")
        return result.id

    def _find(self, name: str, *, prefix: bool = False) -> tuple[Store, str]:
        """Return the store that has a session with this name, and the session's id."""
        failures: list[EverlogError] = []
        for store in (self.main, *self._further):
            try:
                found = store.resolve(name, prefix=prefix)
                if store is self.main and found != name:  # an id goes before a name, such as that of an imported copy
                    holders = (other for other in self._further if (own := self._foreign_of(other)) and own.has(name))
                    holder = next(holders, None)
                    return (store, found) if holder is None else (holder, name)
                return store, found
            except (NotFoundError, InvalidIdError) as error:
                failures.append(error)
            except StoreFailedError as error:
                if store is self.main:
                    raise
                failures.append(error)
        # That a foreign directory cannot be read matters, unless another one could be searched.
        by_relevance = (NotFoundError, StoreFailedError, InvalidIdError)
        main, *further = failures
        found_missing = min(further, key=lambda error: by_relevance.index(type(error)))
        raise main if isinstance(found_missing, InvalidIdError) else found_missing

    # --- the main store only

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session in the main store."""
        return self.main.create(facts, unless_held=unless_held, at=at)

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of a key or pair in the main store: routing uses no other."""
        return self.main.chats(thread)

    # --- the store that has the session

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Append records. Durable on return."""
        store = self._writable(session)
        return store.append(session, records, expected_seq=expected_seq, no_marker_after=no_marker_after, lease=lease)

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Return the records above a seq, in order."""
        return self._owner_of(session).read(session, after=after, limit=limit)

    def tail(self, session: str) -> Iterator[Entry]:
        """Return all records, newest first."""
        return self._owner_of(session).tail(session)

    def metadata(self, session: str) -> Metadata:
        """Return the metadata of a session."""
        return self._owner_of(session).metadata(session)

    def update(self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False) -> Metadata:
        """Change metadata."""
        return self._writable(session).update(session, changes, unless_held=unless_held)

    def resume(self, session: str) -> Metadata:
        """Make a session the current chat."""
        return self._writable(session).resume(session)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record that another session takes over this one's history."""
        return self._writable(session).promote(session, to, seq=seq)

    def delete(self, session: str) -> int:
        """Delete a session and return how many parts it had."""
        parts = self._writable(session).delete(session)
        self._owners.pop(session, None)
        return parts

    def lease(self, session: str) -> Lease:
        """Acquire the turn lease."""
        return self._writable(session).lease(session)

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Create a session with the records up to a seq."""
        return self._writable(session).fork(session, at)

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the files of a session."""
        return self._owner_of(session).parts(session)

    def paths(self, session: str) -> Sequence[Path]:
        """Return the paths of a session's files; none if they are in a database."""
        files = self._owner_of(session).capability(FileBacked)
        return () if files is None else files.paths(session)

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return the damage in a session's files."""
        return self._owner_of(session).verify(session)

    def reclaim(self, session: str) -> int:
        """Reclaim the space of deleted content and return the bytes freed."""
        reclaimable = self._writable(session).capability(Reclaimable)
        if reclaimable is None:
            raise UnsupportedError("a native session has nothing to reclaim")
        return reclaimable.reclaim(session)

    def repair(self, session: str) -> tuple[str, ...]:
        """Repair what can be repaired, and describe it."""
        return self._writable(session).repair(session)

    # --- all stores

    def resolve(self, name: str, *, prefix: bool = False) -> str:
        """Return the session id for a name, from the first store that has it."""
        store, session = self._find(name, prefix=prefix)
        if store is not self.main:
            self._owners[session] = store
        return session

    def list(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Return a page of the sessions of all stores, newest first."""

        def list_store(store: Store) -> tuple[Store, Page]:
            store_cursor = cursor
            if store.capability(ForeignStore) is None and cursor is not None and order == "created":
                store_cursor = _created_cursor(cursor)
            return store, store.list(criteria, limit=limit, cursor=store_cursor, order=order)

        pages = self._call_all(list_store)
        keyed = ([(sort_key(row, order), row, store) for row in page] for store, page in pages)
        newest = list(islice(merge(*keyed, key=itemgetter(0), reverse=True), limit))
        has_more = any(page.next for _, page in pages) or sum(len(page) for _, page in pages) > limit
        rows = [row for _, row, store in newest if not self._is_shadowed(row.id, store)]
        next_cursor = cursor_of(newest[-1][1], order) if has_more and newest else None
        return Page(rows, next_cursor, sum(page.total for _, page in pages))

    def _is_shadowed(self, session: str, store: Store) -> bool:
        """Return whether an earlier store has a session with the same id."""
        if store is self.main:
            return False
        earlier = takewhile(lambda other: other is not store, self._further)
        return any(own.was_listed(session) for other in earlier if (own := self._foreign.get(id(other))))

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Search all stores: whether any of the words will do, and the order, is decided once for all."""
        stores = [store for store in self._searched_stores(query) if store.refresh(progress)]
        return make_searcher(stores).search(query)

    def recall(self, query: Query, now: int) -> Results:
        """Return the sessions of all stores that a message is about, the best first."""
        return make_searcher(self._searched_stores(query)).recall(query.text, now, query)

    def _searched_stores(self, query: Query) -> Iterator[SearchedStore]:
        """Yield the stores that a query is about; of foreign ones perhaps only the sessions of some directories."""
        for store in (self.main, *self._further):
            sessions, foreign = query.sessions, self._foreign_of(store)
            if foreign is not None and query.directories is not None:
                sessions = foreign.sessions_in(query.directories) if query.directories else None
                if not sessions:
                    continue
            elif (nested := store.capability(JoinedStore)) is not None:  # with legacy sessions beside it
                for item in nested._searched_stores(query):
                    yield item if store is self.main else item._replace(on_failure=self._leave_out)
                continue
            yield SearchedStore(
                searching(store),
                on_failure=_raise if store is self.main else self._leave_out,
                includes=partial(self._is_own, store=store),
                sessions=sessions,
            )

    def _is_own(self, session: str, store: Store) -> bool:
        """Return whether an id stands for the session of this store, and not of an earlier one."""
        if store is self.main or self._foreign_of(store) is not None:
            return not self._is_shadowed(session, store)
        return self._owner_of(session) is store

    def _leave_out(self, error: Exception) -> None:
        """Note that a further store failed, which is left out."""
        self._failures.append(str(error))

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index new messages in all stores, and return in how many sessions."""
        return sum(self._call_all(lambda store: store.catch_up(progress)))

    def purge(self) -> int:
        """Remove what is left of deleted sessions, in all stores; return of how many."""

        def purge_store(store: Store) -> int:
            purgeable = store.capability(Purgeable)
            return 0 if purgeable is None else purgeable.purge()

        return sum(self._call_all(purge_store))

    def usage(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Report the usage of the sessions of all stores."""
        answers = self._call_all(
            lambda store: store.usage(criteria, until=until, spenders=spenders, fresh=fresh, progress=progress)
        )
        return usage_query.merge_reports(answers, spenders)

    def _call_all(self, call: Callable[[Store], T]) -> Sequence[T]:
        """Call all stores and return their answers. A further store that fails is left out."""
        answers = [call(self.main)]
        for store in self._further:
            try:
                answers.append(call(store))
            except (StoreFailedError, NotFoundError) as error:
                self._leave_out(error)
        return answers

    def close(self) -> None:
        """Close all stores."""
        for store in (*self._further, self.main):
            store.close()


def _created_cursor(cursor: str) -> str:
    """Convert a cursor for the native store, which sorts by the times in its ids."""
    created, last = parse_cursor(cursor)
    first, after = ulid_at(created, bytes(10)), ulid_at(created + 1, bytes(10))
    return f"{created}-{min(max(last, first), after)}"


def _raise(error: Exception) -> None:
    raise error
