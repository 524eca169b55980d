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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from everlog.errors import ConflictError, EverlogError, NotFoundError, StoreFailedError, StoreFullError
from everlog.log.fold import apply_changes
from everlog.log.parts import part_name
from everlog.model import Damaged, Entry, Metadata, Part
from everlog.ports import (
    DiskUsage,
    FileBacked,
    Filter,
    Measurable,
    Progress,
    Purgeable,
    RawLine,
    RawReadable,
    Reporting,
    SessionRow,
    Sweepable,
    SweepResult,
    Transferable,
    UsageReport,
    Watchable,
)
from everlog.ports.listing import MAX_PAGE
from everlog.settings import Settings
from everlog.stores import rules
from everlog.stores.file import audit, disk, metadata_file, transfer
from everlog.stores.file.catalogue import Catalogue, new_owner
from everlog.stores.file.disk_usage import measure_disk_usage
from everlog.stores.file.layout import Root
from everlog.stores.file.locks import FileLease, NameLock
from everlog.stores.file.log_reader import (
    LogReader,
    is_birth_record,
    part_numbers,
    read_entries,
    read_newest_first,
    read_raw,
)
from everlog.stores.file.log_writer import LogWriter
from everlog.stores.file.watch import watch_sessions
from everlog.stores.file.writer_pool import WriterPool
from everlog.stores.process_fork import register_fork_hooks
from everlog.stores.store_verbs import StoreVerbs

if TYPE_CHECKING:
    from everlog.index.listing_rows import SessionIndex
    from everlog.index.search.search_index import SearchIndex

T = TypeVar("T")


class FileStore(
    StoreVerbs, Reporting, Watchable, Sweepable, Purgeable, FileBacked, Measurable, RawReadable, Transferable
):
    """The store port on a directory of the local disk."""

    lease_type = FileLease

    def __init__(
        self,
        root: Path,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(settings, clock)
        self._durable = self.limits.durability == "always"
        self._root = Root(root, durable=self._durable)
        self._root.check()
        self._catalogue = Catalogue(self._root, self.reports.append, progress)
        self._writers = WriterPool(self._root, self.limits, self._catalogue, self.reports.append)
        self._leases: weakref.WeakSet[FileLease] = weakref.WeakSet()
        self._names = NameLock(self._root, self.limits.lock_seconds)
        self._lock_names = self._names.acquire
        self._append = self._writers.append
        self._page = self._catalogue.page
        self._holder, self._named = self._catalogue.current_holder, self._catalogue.holder
        self._newest_chat, self._ids_with_prefix = self._catalogue.newest_chat, self._catalogue.ids_with_prefix
        database = self._catalogue.index.database
        register_fork_hooks(
            before=database.before_fork, in_parent=database.after_fork_in_parent, in_child=self._after_fork_in_child
        )

    # --- writing

    def _new_session_fields(self, fields: dict[str, Any], blank: Metadata) -> dict[str, Any]:
        try:
            return super()._new_session_fields(fields, blank)
        except StoreFailedError as error:
            if rules.changes_names(fields):
                raise
            # An unreadable index must not stop a conversation.
            self.reports.append(f"session {blank.id} has no chat number: {error.message}")
            return fields

    def _add(self, metadata: Metadata) -> None:
        def build(directory: int) -> None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close(disk.open_file(part_name(1), flags, directory))
            metadata_file.save(metadata, directory, durable=self._durable)

        self._publish(metadata.id, build, lambda: SessionRow(metadata, 0, 1))

    def _publish(self, session: str, build: Callable[[int], None], row: Callable[[], SessionRow]) -> None:
        self._root.prepare()
        before = self._root.changed_at()
        self._root.stage(session, build)
        self._catalogue.record_creation(row(), before)

    def _append_meta(self, session: str, changes: dict[str, Any]) -> Metadata:
        call = self._meta_call(changes)

        def work(writer: LogWriter) -> Metadata:
            writer.append(call)
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
            has_birth = first is not None and is_birth_record(first)
            changes = rules.fork_changes(source, seq, self._highest_chat, has_birth=has_birth)
            if first is None:
                metadata = apply_changes(rules.blank_metadata(new), changes)
                self._add(metadata)
                return metadata

            def build(directory: int) -> None:
                transfer.copy_log(log, end, directory, durable=self._durable)
                with self._writers.private_writer(new, self.reports.append, os.dup(directory)) as writer:
                    writer.append(self._meta_call(changes))
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

    def raw_lines(self, session: str, *, after: int = 0) -> Iterator[bytes]:
        """Yield the lines above a seq, undecoded, in pieces, lazily."""
        return read_raw(self._open_log(session), after)

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

    # --- finding

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index all new records for search; returns of how many sessions."""
        return self._catalogue.query_index(lambda index: self._search_index(index).catch_up(progress), 0)

    def query_index(self, ask: Callable[[SearchIndex], T], default: T) -> T:
        """Return what a function finds in the search index."""
        return self._catalogue.query_index(lambda index: ask(self._search_index(index)), default)

    def _usage(self, criteria: Filter, days: tuple[str, str], spenders: int) -> UsageReport:
        return self._catalogue.query_index(lambda index: index.usage(criteria, days, spenders), UsageReport())

    def _search_index(self, index: SessionIndex) -> SearchIndex:
        from everlog.index.search.search_index import open_search_index  # noqa: PLC0415 - most runs do not search

        return open_search_index(
            index,
            lambda session, after: self.read(session, after=after),
            self.reports.append,
            include_tools=self._tool_output,
        )

    def paths(self, session: str) -> Sequence[Path]:
        """Return the path of a session's directory."""
        os.close(self._root.open_session(session))
        return [self._root.path.absolute() / "sessions" / session]

    def _exists(self, session: str) -> bool:
        try:
            os.close(self._root.open_session(session))
            return True
        except NotFoundError:
            return False  # somebody may have chosen it as an alias

    def lease(self, session: str) -> FileLease:
        """Acquire the turn lease. Raises SessionBusyError if it is held; never waits."""
        directory = self._root.open_session(session)
        try:
            self._root.check_writable()
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
        rules.check_id(session)
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
        rows = self.list(limit=MAX_PAGE).sessions
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

    def purge(self) -> int:
        """Remove what crashes left of deleted sessions; return of how many."""
        count = self._root.remove_leftovers()
        self._catalogue.query_index(lambda index: index.scanned_at(), 0)  # drops the rows of what is gone
        return count

    def watch(self, stop: threading.Event) -> Iterator[frozenset[str]]:
        """Yield sessions as any program changes them, their rows updated; ends with `stop`.

        Needs watchfiles, the `watch` extra.
        """
        if not self._root.exists():
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
        self._renew_generators()
        self._writers.after_fork_in_child()
        for lease in list(self._leases):
            lease.release()
        self._names.after_fork_in_child()
        self._catalogue.owner = new_owner()
        self._catalogue.index.database.after_fork_in_child()


def _end_of(log: LogReader, at: int, session: str) -> tuple[int, int]:
    location = log.locate(at)
    if location is None:
        raise rules.no_record(session, at)
    return location[0], location[2]
