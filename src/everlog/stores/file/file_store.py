"""The file store: sessions in plain files that you can read with `less`.

Only the logs are the truth. `metadata.json` and `index.db` are derived and may be deleted; none of
their errors fails an append. This module has the operations; `log_writer` appends bytes,
`log_reader` reads them, `audit` checks them, `layout` knows where they are.
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

from everlog.errors import ConflictError, EverlogError, FormatError, NotFoundError, StoreFailedError, StoreFullError
from everlog.ids import TimestampSource, UlidGenerator, UuidGenerator, is_ulid, ulid_at
from everlog.log.append_rules import drop_injected, prepare_records
from everlog.log.fold import MetadataFold, apply_changes, settable_fields
from everlog.log.metadata_changes import check_metadata
from everlog.log.parts import part_name
from everlog.log.raw_lines import RawLine
from everlog.model import AnyRecord, Damaged, Entry, Meta, Metadata, Part, pair
from everlog.ports import Chats, Filter, Lease, Order, Page, Progress, Query, Results, SessionRow, UsageReport, days_of
from everlog.settings import Settings
from everlog.stores import session_names
from everlog.stores.disk_usage import DiskUsage, measure_disk_usage
from everlog.stores.file import audit, disk, metadata_file, transfer
from everlog.stores.file.catalogue import Catalogue, SweepResult, new_owner
from everlog.stores.file.fork_copy import copy_log
from everlog.stores.file.layout import Root, check_id
from everlog.stores.file.log_reader import LogReader, is_birth_record, part_numbers, read_entries, read_newest_first
from everlog.stores.file.log_writer import LogWriter
from everlog.stores.file.name_lock import NameLock
from everlog.stores.file.turn_lock import FileLease
from everlog.stores.file.watch import watch_sessions
from everlog.stores.file.writer_pool import WriterPool
from everlog.stores.process_fork import register_fork_hooks

if TYPE_CHECKING:
    from everlog.index.listing_rows import SessionIndex
    from everlog.index.search.search_index import SearchIndex

MAX_PAGE_SESSIONS = 1_000_000


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
        self._now = TimestampSource(clock)
        self._new_uuid = UuidGenerator()
        self._new_ulid = UlidGenerator(clock)
        self._root = Root(root, durable=self._durable)
        self._root.check()
        # Actions of recovery and index errors; the newest thousand.
        self.reports: deque[str] = deque(maxlen=1000)
        self._catalogue = Catalogue(self._root, self.reports.append, progress)
        report = self.reports.append
        self._writers = WriterPool(self._root, self._settings, self._catalogue, report)
        self._tool_output = (settings or Settings()).search.tool_output
        self._leases: weakref.WeakSet[FileLease] = weakref.WeakSet()
        self._names = NameLock(self._root, self._settings.lock_seconds)
        database = self._catalogue.index.database
        register_fork_hooks(
            before=database.before_fork, in_parent=database.after_fork_in_parent, in_child=self._after_fork_in_child
        )

    # --- writing

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session, atomically."""
        checked = check_metadata(facts or {})
        fields = {key: value for key, value in checked.items() if value is not None}
        with self._names.acquire():
            if unless_held and (holding := self._holder(session_names.exclusive_name(fields))):
                return self.metadata(holding[0])
            session = self._new_ulid() if at is None else ulid_at(at, os.urandom(10))
            blank = MetadataFold.empty(session).metadata(1, 0)
            if session_names.changes_names(fields):
                fields = session_names.with_name_claims(fields, blank, self._holder)
            return self._create(blank, self._with_chat_number(fields, blank))

    def _with_chat_number(self, fields: dict[str, Any], blank: Metadata) -> dict[str, Any]:
        try:
            return session_names.with_chat_number(fields, blank, self._holder, self._highest_chat)
        except StoreFailedError as error:  # an unreadable index must not stop a conversation
            self.reports.append(f"session {blank.id} has no chat number: {error.message}")
            return fields

    def _holder(self, name: str) -> tuple[str, int] | None:
        return self._catalogue.current_holder(name)

    def _highest_chat(self, thread: str) -> int:
        newest = self._catalogue.newest_chat(thread)
        return newest[1] if newest else 0

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of a key or pair, from the index."""
        if not self._root.exists():
            return None
        newest, current = self._catalogue.newest_chat(thread), self._catalogue.holder(thread)
        if newest is None or current is None:
            return None
        return Chats(current[0], newest[0], newest[1])

    def resume(self, session: str) -> Metadata:
        """Make a session the current chat of its key or pair, by a `meta` record."""
        with self._names.acquire():
            metadata = self.metadata(session)
            changes = session_names.resume_changes(metadata, self._holder)
            return self._append_meta(session, changes) if changes else metadata

    def _create(self, blank: Metadata, fields: dict[str, Any]) -> Metadata:
        metadata = apply_changes(blank, fields)

        def build(directory: int) -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close(disk.open_file(part_name(1), flags, directory))
            metadata_file.save(metadata, directory, durable=self._durable)

        self._publish(metadata.id, build, lambda: SessionRow(metadata, 0, 1))
        return metadata

    def _publish(self, session: str, build: Callable[[int], None], row: Callable[[], SessionRow]) -> None:
        self._root.prepare()
        before = self._root.changed_at()
        self._root.stage(session, build)
        self._catalogue.record_creation(row(), before)

    def append(
        self,
        session: str,
        records: Sequence[AnyRecord],
        *,
        expected_seq: int | None = None,
        no_marker_after: int | None = None,
        lease: Lease | None = None,
    ) -> list[AnyRecord]:
        """Append records: one write and one sync for all of them."""
        if lease is not None and not (isinstance(lease, FileLease) and lease.held and lease.session == session):
            raise ConflictError(f"the turn lease of session {session} is not held", session=session)
        lasting = drop_injected(records)
        if not lasting:
            self.resolve(session)
            return []
        prepared = prepare_records(lasting, self._now, self._new_uuid)
        return self._writers.append(session, prepared, expected_seq, no_marker_after)

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Record which session takes over the history, unless one has, under the name lock."""
        with self._names.acquire():
            promoted_to = self.metadata(session).promoted_to
            if promoted_to is None:
                self._append_meta(session, {"promotedTo": {"id": to, "seq": seq}})
            return promoted_to is None or promoted_to.get("id") == to

    def update(self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False) -> Metadata:
        """Change metadata by a `meta` record."""
        fields = check_metadata(changes)
        if not fields:
            return self.metadata(session)
        if not session_names.changes_names(fields):
            return self._append_meta(session, fields)
        with self._names.acquire():
            metadata = self.metadata(session)
            claims = session_names.with_name_claims(fields, metadata, self._holder, unless_held=unless_held)
            return self._append_meta(session, claims)

    def _append_meta(self, session: str, changes: dict[str, Any]) -> Metadata:
        prepared = prepare_records([Meta(set=changes)], self._now, self._new_uuid)

        def work(writer: LogWriter) -> Metadata:
            writer.append(prepared, None, None)
            writer.save_due = True
            return writer.metadata

        return self._writers.run_locked(session, work)

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Create a session with the bytes up to a record, so that seq and crc stay."""
        source = self.metadata(session)
        new = self._new_ulid()
        with disk.map_errors(f"reading session {session}"), self._open_log(session) as log:
            first, last = next(log.forward(), None), next(log.backward(), None)
            end = log.end_position() if at is None else _end_of(log, at, session)
            seq = at if at is not None else last.seq if last is not None else 0
            changes: dict[str, Any] = {"forkedFrom": {"id": session, "seq": seq}}
            if first is None or not is_birth_record(first):  # no record has the initial metadata
                changes = settable_fields(source) | changes
            # Names stay with the original; a copy is one more chat of its agent and sender.
            changes |= dict.fromkeys(("key", "aliases", "generations", "current"))
            changes |= dict.fromkeys(("promotedFrom", "promotedTo"))
            changes["chat"] = self._highest_chat(pair(source.agent, source.sender)) + 1
            if first is None:
                return self._create(MetadataFold.empty(new).metadata(1, 0), changes)

            def build(directory: int) -> None:
                copy_log(log, end, directory, durable=self._durable)
                meta = prepare_records([Meta(set=changes)], self._now, self._new_uuid)
                with self._writers.private_writer(new, self.reports.append, os.dup(directory)) as writer:
                    writer.append(meta, None, None)
                    writer.save()

            self._publish(new, build, lambda: self._catalogue.row(new))
        return self.metadata(new)

    def delete(self, session: str) -> int:
        """Move a session to the trash, make that durable, unlink it."""
        with ExitStack() as stack:
            # If the disk is too full to create the lock file, nobody holds the lock.
            with suppress(StoreFullError):
                stack.enter_context(self.lease(session))
            try:
                return self._writers.run_locked(session, self._seal_and_discard)
            except StoreFullError:
                directory = self._root.open_session(session)
                stack.callback(os.close, directory)
                return self._discard(session, directory)

    def _seal_and_discard(self, writer: LogWriter) -> int:
        writer.seal()
        count = self._discard(writer.session, writer.directory)
        self._writers.forget(writer)
        return count

    def _discard(self, session: str, directory: int) -> int:
        count = len(part_numbers(directory))
        before = self._root.changed_at()
        self._root.discard(session, directory)
        self._catalogue.record_deletion(session, before)
        return count

    # --- reading

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Yield records above a seq, lazily; the first is found by bisection."""
        return read_entries(self._open_log(session), after, limit)

    def tail(self, session: str) -> Iterator[Entry]:
        """Yield all records, newest first, lazily."""
        return read_newest_first(self._open_log(session))

    def metadata(self, session: str) -> Metadata:
        """Return metadata from an up-to-date writer here, else from the file and new records."""
        current = self._writers.current_metadata(session)
        if current is not None:
            return current
        row = self._catalogue.row(session)
        self._catalogue.record_read(row)
        return row.metadata

    def list(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "active",
    ) -> Page:
        """Return a page of sessions, newest first, from the index."""
        if limit < 1:
            raise FormatError(f"a listing needs a limit of at least 1, not {limit}")
        return self._catalogue.page(criteria, min(limit, MAX_PAGE_SESSIONS), cursor, order)

    def search(self, query: Query, *, progress: Progress | None = None) -> Results:
        """Search all sessions; new records are indexed first."""
        if not self._root.exists():
            return Results()
        self.catch_up(progress)
        return self._catalogue.query_index(lambda index: self._search_index(index).search(query))

    def recall(self, query: Query, now: int) -> Results:
        """Return the sessions that a message is about, as far as they are indexed."""
        if not self._root.exists():
            return Results()
        return self._catalogue.query_index(lambda index: self._search_index(index).recall(query.text, now, query))

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index all new records for search; returns of how many sessions."""
        if not self._root.exists():
            return 0
        return self._catalogue.query_index(lambda index: self._search_index(index).catch_up(progress))

    def usage(
        self,
        criteria: Filter = Filter(),  # noqa: B008 - frozen
        *,
        until: str | None = None,
        spenders: int = 10,
        fresh: bool = True,
        progress: Progress | None = None,
    ) -> UsageReport:
        """Return the usage of sessions, by day and model, from the index."""
        if not self._root.exists():
            days_of(criteria, until)  # an invalid filter is an error here as well
            return UsageReport()
        return self._catalogue.query_index(lambda index: index.usage(criteria, until, spenders))

    def _search_index(self, index: SessionIndex) -> SearchIndex:
        from everlog.index.search.search_index import open_search_index  # noqa: PLC0415 - most runs do not search

        return open_search_index(
            index,
            lambda session, after: self.read(session, after=after),
            self.reports.append,
            include_tools=self._tool_output,
        )

    def resolve(self, name: str, *, prefix: bool = False) -> str:
        """Return the id for an id, key or alias; with `prefix`, also for its first characters."""
        if is_ulid(name):
            try:
                os.close(self._root.open_session(name))
                return name
            except NotFoundError:
                pass  # somebody may have chosen it as an alias
        return session_names.resolve_name(
            name, self._catalogue.holder, self._catalogue.ids_with_prefix if prefix else None
        )

    def lease(self, session: str) -> FileLease:
        """Acquire the turn lease. Raises SessionBusyError if it is held; never waits."""
        directory = self._root.open_session(session)
        try:
            lease = FileLease(session, directory)
        finally:
            os.close(directory)
        self._leases.add(lease)
        return lease

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the files of a log."""
        with disk.map_errors(f"reading session {session}"), self._open_log(session) as log:
            return tuple(
                Part(part.file, part.size, part.first_seq(), part.last_seq()) for part in map(log.part, log.numbers)
            )

    # --- transfer

    def ids(self) -> Iterator[str]:
        """Yield the ids of all sessions, oldest first, also those that no listing shows."""
        return iter(sorted(self._root.ids()))

    def lines(self, session: str) -> Iterator[RawLine | Damaged]:
        """Yield the exact lines of a session; Damaged is one that cannot be transferred."""
        return transfer.read_lines(self._open_log(session))

    def adopt(self, source: Metadata, lines: Callable[[], Iterator[RawLine]], after: int | None = None) -> None:
        """Adopt a session of another store, or its lines after `after`. Durable on return."""
        session = source.id
        if after is not None:
            with self._writers.private_writer(session, self.reports.append) as writer:
                transfer.append_lines(writer, lines(), after, durable=self._durable)
            self._catalogue.put(self._catalogue.row(session))
            return
        check_id(session)
        if self._root.has_session(session):
            raise ConflictError(f"session {session} already exists", session=session)
        self._root.remove_stale_stages(session)
        rows: list[SessionRow] = []

        def build(directory: int) -> None:
            durable = self._durable
            rows.append(transfer.write_session(directory, source, lines(), durable=durable))

        self._publish(session, build, lambda: rows[0])

    def disk_usage(self, biggest: int = 10) -> DiskUsage:
        """Return what the store holds, and how much disk space it uses."""
        if not self._root.exists():
            return DiskUsage()
        rows = self.list(limit=MAX_PAGE_SESSIONS).sessions
        return measure_disk_usage(self._root.path, rows, biggest)

    # --- maintenance

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return all problems of a session; any are checked again under its lock."""
        findings = self._findings(session)
        if findings:
            with suppress(EverlogError), self._writers.private_writer(session, self.reports.append):
                findings = self._findings(session)
        return tuple(finding.damage for finding in findings)

    def repair(self, session: str) -> tuple[str, ...]:
        """Repair the tail, vouch, quarantine, rebuild derived data; deletes nothing."""
        actions: list[str] = []
        with self._writers.private_writer(session, actions.append) as writer:
            writer.catch_up()
            findings = self._findings(session)
            actions += audit.repair_findings(writer, findings, self._now, self._new_uuid)
            writer.save()
            row = SessionRow(writer.metadata, writer.total_bytes, writer.part)
        self._catalogue.put(row)
        return tuple(actions)

    def sweep(self, progress: Progress | None = None) -> SweepResult:
        """Bring the index in line with every log, whoever wrote to it."""
        return self._catalogue.sweep(progress)

    def watch(self, stop: threading.Event) -> Iterator[frozenset[str]]:
        """Yield sessions as any program changes them, their rows updated; ends with `stop`.

        Needs watchfiles, the `watch` extra.
        """
        self._root.prepare()
        for sessions in watch_sessions(self._root, stop):
            self._catalogue.refresh(filter(self._root.has_session, sessions))
            yield sessions

    def leftovers(self) -> Sequence[str]:
        """Return what crashes left in the staging and trash directories."""
        return self._root.leftovers()

    def close(self) -> None:
        """Save derived data and close all descriptors; the store may be used again."""
        self._writers.close()
        self._catalogue.index.database.close()

    def _findings(self, session: str) -> Sequence[audit.Finding]:
        with disk.map_errors(f"reading session {session}"), self._open_log(session) as log:
            return audit.find_problems(log)

    def _open_log(self, session: str) -> LogReader:
        with disk.map_errors(f"reading session {session}", session=session):
            return LogReader(self._root.open_session(session))

    def _after_fork_in_child(self) -> None:
        self._new_uuid = UuidGenerator()  # the parent continues with the old one
        self._new_ulid = UlidGenerator(self._clock)  # another thread may have held its lock
        self._writers.after_fork_in_child()
        for lease in list(self._leases):
            lease.release()
        self._names.after_fork_in_child()
        self._catalogue.owner = new_owner()
        self._catalogue.index.database.after_fork_in_child()


def _end_of(log: LogReader, at: int, session: str) -> tuple[int, int]:
    location = log.locate(at)
    if location is None:
        raise NotFoundError(f"session {session} has no record {at}", session=session, seq=at)
    return location[0], location[2]
