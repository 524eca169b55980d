"""Sessions in plain files: the store that a person can read with `less`.

Truth is in the logs alone. `metadata.json` and `index.db` follow behind and may be deleted; no
error of theirs fails an append. This file is the verbs; how bytes are appended is `writer`, how
they are read `reading`, what is wrong with them `audit`, where they lie `layout`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everlog.errors import (
    ConflictError,
    EverlogError,
    FormatError,
    NotFoundError,
    StoreFailedError,
    StoreFullError,
)
from everlog.ids import Stamps, Ulids, Uuids, is_ulid, made_at
from everlog.log.append_rules import lasting, prepare
from everlog.log.fold import Tally, apply, given_facts
from everlog.log.metadata_changes import check_facts
from everlog.log.parts import part_name
from everlog.log.raw_lines import Line
from everlog.model import AnyRecord, Damaged, Entry, Meta, Metadata, Part, pair
from everlog.ports import (
    Chats,
    Filter,
    Lease,
    Order,
    Page,
    Progress,
    Query,
    Results,
    SessionRow,
    UsageReport,
    days_of,
)
from everlog.settings import Settings
from everlog.stores import session_names
from everlog.stores.disk_usage import Holdings, holdings
from everlog.stores.file import audit, disk, metadata_file, transfer
from everlog.stores.file.catalogue import Catalogue, Sweep, new_owner
from everlog.stores.file.fork_copy import copy_log
from everlog.stores.file.layout import Root, check_id
from everlog.stores.file.log_reader import (
    OpenLog,
    entries_above,
    is_birth,
    newest_first,
    part_numbers,
)
from everlog.stores.file.log_writer import Writer
from everlog.stores.file.name_lock import NameLock
from everlog.stores.file.turn_lock import FileLease
from everlog.stores.file.watch import watch_sessions
from everlog.stores.file.writer_pool import Writers
from everlog.stores.process_fork import mind_forks

if TYPE_CHECKING:
    from everlog.index.listing_rows import Index
    from everlog.stores.indexing import Searching

MOST = 1_000_000  # sessions of one page


class FileStore:
    """The store port on a directory of the local disk."""

    def __init__(
        self,
        root: Path,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
    ) -> None:
        self._settings = (settings or Settings()).session
        self._durable = self._settings.durability == "always"
        self._clock = clock
        self._now = Stamps(clock)
        self._new_uuid = Uuids()
        self._new_ulid = Ulids(clock)
        self._root = Root(root, durable=self._durable)
        self._root.check()
        # What recovery did and where the index is behind; the newest thousand.
        self.reports: deque[str] = deque(maxlen=1000)
        self._catalogue = Catalogue(self._root, self.reports.append, progress)
        report = self.reports.append
        self._writers = Writers(self._root, self._settings, self._catalogue, report)
        self._tool_output = (settings or Settings()).search.tool_output
        self._leases: weakref.WeakSet[FileLease] = weakref.WeakSet()
        self._names = NameLock(self._root, self._settings.lock_seconds)
        database = self._catalogue.index.database
        mind_forks(
            before=database.before_fork,
            in_parent=database.after_fork_in_parent,
            in_child=self._after_fork_in_child,
        )

    # --- writing

    def create(
        self,
        facts: Mapping[str, Any] | None = None,
        *,
        unless_held: bool = False,
        at: int | None = None,
    ) -> Metadata:
        """Make an empty session: whole or not at all."""
        given = {key: value for key, value in check_facts(facts or {}).items() if value is not None}
        with self._names.held():
            if unless_held and (held := self._holder(given.get("key", ""))):
                return self.metadata(held[0])
            session = self._new_ulid() if at is None else made_at(at, os.urandom(10))
            blank = Tally.fresh(session).metadata(1, 0)
            if session_names.changes_names(given):
                given = session_names.with_claims(given, blank, self._holder)
            return self._create(blank, self._numbered(given, blank))

    def _numbered(self, facts: dict[str, Any], blank: Metadata) -> dict[str, Any]:
        try:
            return session_names.numbered(facts, blank, self._holder, self._highest)
        except (
            StoreFailedError
        ) as error:  # an index that cannot be read must not stop a conversation
            self.reports.append(f"session {blank.id} has no number: {error.message}")
            return facts

    def _holder(self, name: str) -> tuple[str, int] | None:
        return self._catalogue.current_holder(name)

    def _highest(self, thread: str) -> int:
        newest = self._catalogue.newest_chat(thread)
        return newest[1] if newest else 0

    def chats(self, thread: str) -> Chats | None:
        """The chats of a key or pair, from the index."""
        if not self._root.exists():
            return None
        newest, current = self._catalogue.newest_chat(thread), self._catalogue.holder(thread)
        if newest is None or current is None:
            return None
        return Chats(current[0], newest[0], newest[1])

    def resume(self, session: str) -> Metadata:
        """Claim the key or pair anew, by a `meta` record."""
        with self._names.held():
            held = self.metadata(session)
            changes = session_names.resumed(held, self._holder)
            return self._set(session, changes) if changes else held

    def _create(self, blank: Metadata, facts: dict[str, Any]) -> Metadata:
        metadata = apply(blank, facts)

        def build(directory: int) -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close(disk.open_file(part_name(1), flags, directory))
            metadata_file.save(metadata, directory, durable=self._durable)

        self._appear(metadata.id, build, lambda: SessionRow(metadata, 0, 1))
        return metadata

    def _appear(
        self, session: str, build: Callable[[int], None], row: Callable[[], SessionRow]
    ) -> None:
        self._root.prepare()
        before = self._root.changed_at()
        self._root.stage(session, build)
        self._catalogue.added(row(), before)

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Add records at the end: one write and one sync for all of them."""
        if lease is not None and not (
            isinstance(lease, FileLease) and lease.held and lease.session == session
        ):
            raise ConflictError(f"the turn lease of session {session} is not held", session=session)
        kept = lasting(records)
        if not kept:
            self.resolve(session)
            return []
        prepared = prepare(kept, self._now, self._new_uuid)
        return self._writers.append(session, prepared, expected_seq, no_marker_after)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record who takes a session's history over, if nobody did, under the lock for names."""
        with self._names.held():
            known = self.metadata(session).promoted_to
            if known is None:
                self._set(session, {"promotedTo": {"id": to, "seq": seq}})
            return known is None or known.get("id") == to

    def update(
        self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False
    ) -> Metadata:
        """Change metadata by a `meta` record."""
        given = check_facts(changes)
        if not given:
            return self.metadata(session)
        if not session_names.changes_names(given):
            return self._set(session, given)
        with self._names.held():
            held = self.metadata(session)
            claims = session_names.with_claims(given, held, self._holder, unless_held=unless_held)
            return self._set(session, claims)

    def _set(self, session: str, changes: dict[str, Any]) -> Metadata:
        prepared = prepare([Meta(set=changes)], self._now, self._new_uuid)

        def work(writer: Writer) -> Metadata:
            writer.append(prepared, None, None)
            writer.due = True
            return writer.metadata

        return self._writers.locked(session, work)

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """A new session with the bytes up to a record, so seq and crc stay."""
        source = self.metadata(session)
        new = self._new_ulid()
        with disk.errors_mapped(f"reading session {session}"), self._open(session) as log:
            first, last = next(log.forward(), None), next(log.backward(), None)
            end = log.end() if at is None else _end_of(log, at, session)
            seq = at if at is not None else last.seq if last is not None else 0
            changes: dict[str, Any] = {"forkedFrom": {"id": session, "seq": seq}}
            if first is None or not is_birth(first):  # no record holds what it was made with
                changes = given_facts(source) | changes
            # Names stay with the original; a copy is one more chat of its agent and sender.
            changes |= dict.fromkeys(("key", "aliases", "generations", "current"))
            changes |= dict.fromkeys(("promotedFrom", "promotedTo"))
            changes["chat"] = self._highest(pair(source.agent, source.sender)) + 1
            if first is None:
                return self._create(Tally.fresh(new).metadata(1, 0), changes)

            def build(directory: int) -> None:
                copy_log(log, end, directory, durable=self._durable)
                meta = prepare([Meta(set=changes)], self._now, self._new_uuid)
                with self._writers.private(new, self.reports.append, os.dup(directory)) as writer:
                    writer.append(meta, None, None)
                    writer.save()

            self._appear(new, build, lambda: self._catalogue.row(new))
        return self.metadata(new)

    def delete(self, session: str) -> int:
        """Move a session to the trash, make that durable, unlink it."""
        with ExitStack() as stack:
            # A lock file that a full disk has no room for is one that nobody holds.
            with suppress(StoreFullError):
                stack.enter_context(self.lease(session))
            try:
                return self._writers.locked(session, self._remove)
            except StoreFullError:
                directory = self._root.open_session(session)
                stack.callback(os.close, directory)
                return self._discard(session, directory)

    def _remove(self, writer: Writer) -> int:
        writer.seal()
        count = self._discard(writer.session, writer.directory)
        self._writers.forget(writer)
        return count

    def _discard(self, session: str, directory: int) -> int:
        count = len(part_numbers(directory))
        before = self._root.changed_at()
        self._root.discard(session, directory)
        self._catalogue.removed(session, before)
        return count

    # --- reading

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Records above a seq, lazily; the first is found by bisection."""
        return entries_above(self._open(session), after, limit)

    def tail(self, session: str) -> Iterator[Entry]:
        """All records, newest first, lazily."""
        return newest_first(self._open(session))

    def metadata(self, session: str) -> Metadata:
        """From a writer of ours if nobody wrote after it, else from the file and what is new."""
        known = self._writers.current(session)
        if known is not None:
            return known
        row = self._catalogue.row(session)
        self._catalogue.seen(row)
        return row.metadata

    def list(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Sessions, newest first, from the index."""
        if limit < 1:
            raise FormatError(f"a listing needs a limit of at least 1, not {limit}")
        return self._catalogue.page(which, min(limit, MOST), cursor, order)

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Sessions in which something was said; what is new is taken in first."""
        if not self._root.exists():
            return Results()
        self.catch_up(progress)
        return self._catalogue.ask(lambda index: self._searching(index).search(query))

    def recall(self, query: Query, now: int) -> Results:
        """Sessions that a message is about, as far as they are taken in."""
        if not self._root.exists():
            return Results()
        return self._catalogue.ask(
            lambda index: self._searching(index).recall(query.text, now, query)
        )

    def catch_up(self, progress: Progress | None = None) -> int:
        """Take into the index what was said since the last time; returns in how many sessions."""
        if not self._root.exists():
            return 0
        return self._catalogue.ask(lambda index: self._searching(index).catch_up(progress))

    def usage(
        self,
        which: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """What sessions spent, by day and model, from the index."""
        if not self._root.exists():
            days_of(which, until)  # what is wrong is wrong here as well
            return UsageReport()
        return self._catalogue.ask(lambda index: index.usage(which, until, spenders))

    def _searching(self, index: Index) -> Searching:
        from everlog.stores.indexing import search_index  # noqa: PLC0415 - most runs do not search

        return search_index(
            index,
            lambda session, after: self.read(session, after=after),
            self.reports.append,
            tools=self._tool_output,
        )

    def resolve(self, name: str) -> str:
        """The id behind an id, a key, an alias, or an unambiguous beginning of an id."""
        if is_ulid(name):
            os.close(self._root.open_session(name))
            return name
        return session_names.find(name, self._catalogue.holder, self._catalogue.starting_with)

    def lease(self, session: str) -> FileLease:
        """The right to run a turn, at once or SessionBusyError."""
        directory = self._root.open_session(session)
        try:
            lease = FileLease(session, directory)
        finally:
            os.close(directory)
        self._leases.add(lease)
        return lease

    def parts(self, session: str) -> tuple[Part, ...]:
        """The files of a log."""
        with disk.errors_mapped(f"reading session {session}"), self._open(session) as log:
            return tuple(
                Part(part.file, part.size, part.first_seq(), part.last_seq())
                for part in map(log.part, log.numbers)
            )

    # --- moving

    def ids(self) -> Iterator[str]:
        """All sessions, oldest first, also those that no listing shows."""
        return iter(sorted(self._root.ids()))

    def lines(self, session: str) -> Iterator[Line | Damaged]:
        """The exact lines of a session at this moment; Damaged is one that cannot be carried."""
        return transfer.lines_of(self._open(session))

    def adopt(
        self, source: Metadata, lines: Callable[[], Iterator[Line]], after: int | None = None
    ) -> None:
        """Take over a session of another store, or its lines behind `after`. Durable on return."""
        session = source.id
        if after is not None:
            with self._writers.private(session, self.reports.append) as writer:
                transfer.go_on(writer, lines(), after, durable=self._durable)
            self._catalogue.put(self._catalogue.row(session))
            return
        check_id(session)
        if self._root.has(session):
            raise ConflictError(f"there is a session {session} already", session=session)
        self._root.forget_stages(session)
        rows: list[SessionRow] = []

        def build(directory: int) -> None:
            durable = self._durable
            rows.append(transfer.settle_in(directory, source, lines(), durable=durable))

        self._appear(session, build, lambda: rows[0])

    def holdings(self, biggest: int = 10) -> Holdings:
        """What is kept here, and how much room it takes."""
        if not self._root.exists():
            return Holdings()
        rows = self.list(limit=MOST).sessions
        return holdings(self._root.path, rows, biggest)

    # --- care

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Everything wrong with a session; what looks wrong is looked at again under its lock."""
        found = self._findings(session)
        if found:
            with suppress(EverlogError), self._writers.private(session, self.reports.append):
                found = self._findings(session)
        return tuple(one.damage for one in found)

    def repair(self, session: str) -> tuple[str, ...]:
        """Seal, vouch, set aside, rebuild what is derived; delete nothing."""
        done: list[str] = []
        with self._writers.private(session, done.append) as writer:
            writer.look()
            done += audit.set_right(writer, self._findings(session), self._now, self._new_uuid)
            writer.save()
            row = SessionRow(writer.metadata, writer.total, writer.part)
        self._catalogue.put(row)
        return tuple(done)

    def sweep(self, progress: Progress | None = None) -> Sweep:
        """Bring the index in line with every log, whoever wrote to it."""
        return self._catalogue.sweep(progress)

    def watch(self, stop: threading.Event) -> Iterator[frozenset[str]]:
        """Sessions that anybody changes, as it happens, their rows up to date; ends with `stop`.

        Needs watchfiles, the `watch` extra.
        """
        self._root.prepare()
        for sessions in watch_sessions(self._root, stop):
            self._catalogue.refresh(session for session in sessions if self._root.has(session))
            yield sessions

    def leftovers(self) -> Sequence[str]:
        """What crashes left in the staging and trash directories."""
        return self._root.leftovers()

    def close(self) -> None:
        """Save what is derived and give all descriptors back; the store may be used again."""
        self._writers.close()
        self._catalogue.index.database.close()

    def _findings(self, session: str) -> Sequence[audit.Finding]:
        with disk.errors_mapped(f"reading session {session}"), self._open(session) as log:
            return audit.findings(log)

    def _open(self, session: str) -> OpenLog:
        with disk.errors_mapped(f"reading session {session}", session=session):
            return OpenLog(self._root.open_session(session))

    def _after_fork_in_child(self) -> None:
        self._new_uuid = Uuids()  # the parent goes on counting with the old one
        self._new_ulid = Ulids(self._clock)  # another thread may have held its lock
        self._writers.after_fork_in_child()
        for lease in list(self._leases):
            lease.release()
        self._names.after_fork_in_child()
        self._catalogue.owner = new_owner()
        self._catalogue.index.database.after_fork_in_child()


def _end_of(log: OpenLog, at: int, session: str) -> tuple[int, int]:
    place = log.locate(at)
    if place is None:
        raise NotFoundError(f"session {session} has no record {at}", session=session, seq=at)
    return place[0], place[2]
