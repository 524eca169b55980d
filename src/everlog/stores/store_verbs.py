"""The verbs of the store port that follow from the rules, over a few operations of each store."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from msgspec.structs import replace

from everlog.ids import TimestampSource, UlidGenerator, UuidGenerator, is_ulid, ulid_at
from everlog.log.fold import apply_changes
from everlog.model import AnyRecord, Meta, Metadata
from everlog.ports import Chats, Filter, Lease, Order, Page, Progress, Query, Results, UsageReport
from everlog.ports.listing import check_page_size, days_of
from everlog.settings import Settings
from everlog.stores import rules
from everlog.stores.rules import AppendCall, HolderLookup

if TYPE_CHECKING:
    from everlog.index.search.search_index import SearchIndex

T = TypeVar("T")
# Returns the fields that a change sets, given the metadata and the holders of names; none: no change.
Compose = Callable[[Metadata, HolderLookup], dict[str, Any]]


class Searching(Protocol):
    """A store with a search index of its own."""

    def refresh_index(self, progress: Progress | None = None) -> None:
        """Index new records for a search."""
        ...

    def query_index(self, ask: Callable[[SearchIndex], T], default: T) -> T:
        """Return what a function finds in the search index, or `default` if there is none.

        It may be called again if the index must be made anew.
        """
        ...


class StoreVerbs(Searching):
    """A store that keeps the rules; `ports.Store` describes the verbs.

    A store states its capabilities by its base classes.
    """

    lease_type: ClassVar[type[Lease]]
    # What each store implements. Those on files of others override `create`, `update` and `resolve` instead.
    metadata: Callable[[str], Metadata]
    catch_up: Callable[[Progress | None], int]
    _append: Callable[[str, AppendCall], list[AnyRecord]]
    _append_meta: Callable[[str, dict[str, Any]], Metadata]  # a `meta` record; returns the metadata after it
    _add: Callable[[Metadata], None]  # an empty session
    _lock_names: Callable[[], AbstractContextManager[object]]  # under which names and chat numbers change
    _exists: Callable[[str], bool]
    _holder: HolderLookup  # the session that holds a name, and the generation of its claim
    _named: HolderLookup  # the same for readers, who need not see a claim that is being made
    _newest_chat: Callable[[str], tuple[str, int] | None]  # of a key or pair, with its number, the highest
    _ids_with_prefix: Callable[[str], Sequence[str]]  # at most two
    _page: Callable[[Filter, int, str | None, Order], Page]
    _usage: Callable[[Filter, tuple[str, str], int], UsageReport]

    def __init__(self, settings: Settings | None, clock: Callable[[], float]) -> None:
        self.limits = (settings or Settings()).session
        self._tool_output = (settings or Settings()).search.tool_output  # tool results are searched too
        self._clock = clock
        self._now = TimestampSource(clock)
        self._reports: deque[str] = deque(maxlen=1000)
        self._renew_generators()

    @property
    def reports(self) -> deque[str]:
        """Actions of recovery, and errors that failed no call; the newest thousand."""
        return self._reports

    def _renew_generators(self) -> None:
        """Start new generators of ids; in a forked child, where the parent continues the old ones."""
        self._new_uuid = UuidGenerator()
        self._new_ulid = UlidGenerator(self._clock)  # another thread may have held its lock

    def capability(self, kind: type[T]) -> T | None:
        """Return the store itself if it has a capability, else None."""
        return cast("T", self) if kind in type(self).__mro__ else None

    # --- creating and naming

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session, atomically with its names and its chat number."""
        fields = {key: value for key, value in rules.check_metadata(facts or {}).items() if value is not None}
        session = self._new_ulid() if at is None else ulid_at(at, os.urandom(10))
        held_name = rules.exclusive_name(fields) if unless_held else ""
        return self._create(rules.blank_metadata(session), fields, held_name)

    def _create(self, blank: Metadata, fields: dict[str, Any], held_name: str) -> Metadata:
        """Create a session, or return the one that holds a name."""
        with self._lock_names():
            if held_name and (holding := self._holder(held_name)):
                return self.metadata(holding[0])
            metadata = apply_changes(blank, self._new_session_fields(fields, blank))
            self._add(metadata)
            return metadata

    def _new_session_fields(self, fields: dict[str, Any], blank: Metadata) -> dict[str, Any]:
        return rules.new_session_fields(fields, blank, self._holder, self._highest_chat)

    def update(self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False) -> Metadata:
        """Change metadata by a `meta` record."""
        fields = rules.check_metadata(changes)
        if not fields:
            return self.metadata(session)
        if not rules.changes_names(fields):
            return self._append_meta(session, fields)

        def claim(metadata: Metadata, holder: HolderLookup) -> dict[str, Any]:
            return rules.with_name_claims(fields, metadata, holder, unless_held=unless_held)

        return self._change(session, fields, claim)

    def resume(self, session: str) -> Metadata:
        """Make a session the current chat of its key or pair, by a `meta` record."""
        return self._change(session, {}, rules.resume_changes)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record which session takes over the history, unless one has."""

        def record_promotion(metadata: Metadata, _: HolderLookup) -> dict[str, Any]:
            return {"promotedTo": {"id": to, "seq": seq}} if metadata.promoted_to is None else {}

        return (self._change(session, {}, record_promotion).promoted_to or {}).get("id") == to

    def _change(self, session: str, fields: dict[str, Any], compose: Compose) -> Metadata:
        """Append what `compose` returns while no name moves; `fields` are those that the caller gave."""
        with self._lock_names():
            metadata = self.metadata(session)
            changes = compose(metadata, self._holder)
            return self._append_meta(session, changes) if changes else metadata

    def _meta_call(self, changes: dict[str, Any]) -> AppendCall:
        """Return the append of a `meta` record."""
        return AppendCall(rules.prepare_records([Meta(set=changes)], self._now, self._new_uuid))

    # --- appending

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Append records, all or none; durable on return."""
        if lease is not None:
            rules.check_lease(session, lease, self.lease_type)
        lasting = rules.drop_injected(records)
        if not lasting:
            self.resolve(session)
            return []
        prepared = rules.prepare_records(lasting, self._now, self._new_uuid)
        return self._append(session, AppendCall(prepared, expected_seq, no_marker_after, lease))

    # --- finding

    def resolve(self, name: str, *, prefix: bool = False) -> str:
        """Return the id behind an id, key or alias; with `prefix`, behind its first letters too."""
        if is_ulid(name) and self._exists(name):
            return name
        return rules.resolve_name(name, self._named, self._ids_with_prefix if prefix else None)

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of a key or pair."""
        newest, current = self._newest_chat(thread), self._named(thread)
        return None if newest is None or current is None else Chats(current[0], *newest)

    def _highest_chat(self, thread: str) -> int:
        newest = self._newest_chat(thread)
        return newest[1] if newest else 0

    def list(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Return a page of sessions, newest first."""
        return self._page(criteria, check_page_size(limit), cursor, order)

    def usage(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Return the usage of sessions, by day and model."""
        days = days_of(criteria, until)
        if fresh:
            self._read_new_lines(progress)
        return self._usage(replace(criteria, since=None), days, spenders)

    def _read_new_lines(self, progress: Progress | None) -> None:
        """Read what other programs have written; a store of our own has nothing to read."""
        return

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Search all sessions; new records are indexed first."""
        self.refresh_index(progress)
        return self.query_index(lambda index: index.search(query), Results())

    def refresh_index(self, progress: Progress | None = None) -> None:
        """Index new records for a search."""
        self.catch_up(progress)

    def recall(self, query: Query, now: int) -> Results:
        """Return the sessions that a message is about, as far as they are indexed."""
        return self.query_index(lambda index: index.recall(query.text, now, query), Results())
