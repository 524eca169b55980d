"""The catalogue: keeps `index.db` in line with the logs, without ever delaying an append.

list        checks the sessions that are marked, and looks for new directories if the directory
            of sessions changed
broken      an unusable index is deleted and rebuilt, once
sweep       checks every session: finds what programs without marks have added
full        what cannot be written is kept in memory; since marks are not written either, every
            session is checked then, and again when the index can be written
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from everlog.errors import EverlogError, NotFoundError
from everlog.index.listing_rows import SessionIndex
from everlog.log.fold import MetadataFold
from everlog.log.parts import part_name
from everlog.ports import Filter, Order, Page, Progress, SessionRow, SweepResult
from everlog.ports.listing import conditions_of, parse_cursor
from everlog.stores.file import metadata_file
from everlog.stores.file.disk import is_running, map_errors
from everlog.stores.file.layout import Root
from everlog.stores.file.log_reader import LogReader
from everlog.stores.file.log_tail import Report

T = TypeVar("T")
_BATCH = 500
_MAX_CACHED_NAMES = 1000  # names


class NameCache(NamedTuple):
    """A cache of looked-up names, valid for one state of the index."""

    stamp: tuple[int, ...]
    names: dict[str, tuple[str, int]]


class Catalogue:
    """The index of one root and its maintenance."""

    def __init__(self, root: Root, report: Report, progress: Progress | None = None) -> None:
        self._root = root
        self._report = report
        self._progress = progress
        self.owner = new_owner()  # of the marks; a forked child needs its own
        self.index = SessionIndex(root.path / "index.db", report, root.has_session)
        self._name_cache = NameCache((), {})
        self._checked_switches = 0  # of the index, when every session was checked

    # --- queries

    def page(self, criteria: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        """Return a page of sessions, current to the last acknowledged record."""
        if not self._root.exists():
            conditions_of(criteria)  # an invalid filter is an error here as well
            if cursor is not None:
                parse_cursor(cursor)
        return self.query_index(lambda index: index.page(criteria, limit, cursor, order), Page((), None, 0))

    def query_index(self, query: Callable[[SessionIndex], T], default: T) -> T:
        """Run a query on the updated index; `default` is the answer of a root that does not exist."""
        if not self._root.exists():
            return default
        return self.index.database.run(lambda: query(self._current_index()))

    def holder(self, name: str) -> tuple[str, int] | None:
        """Return the session that holds a key or alias, and its generation."""
        if not self._root.exists():
            return None
        return self.index.database.run(lambda: self._cached_holder(name)) or self.current_holder(name)

    def _cached_holder(self, name: str) -> tuple[str, int] | None:
        """Return the holder from the index, cached until the index changes."""
        stamp = (*self.index.database.change_stamp(), self._root.changed_at())
        cache = self._name_cache
        if cache.stamp != stamp or len(cache.names) >= _MAX_CACHED_NAMES:
            cache = self._name_cache = NameCache(stamp, {})
        if name not in cache.names:
            holder = self._scanned_index().holder(name)
            if holder is None:
                return None
            cache.names[name] = holder
        return cache.names[name]

    def current_holder(self, name: str) -> tuple[str, int] | None:
        """Return the holder, also if a process died between its claim and its index row."""
        return self.query_index(lambda index: index.holder(name), None)

    def newest_chat(self, thread: str) -> tuple[str, int] | None:
        """Return the chat of a key or pair with the highest number, and that number."""
        return self.query_index(lambda index: index.newest_chat(thread), None)

    def ids_with_prefix(self, prefix: str) -> list[str]:
        """Return at most two ids that start with a prefix."""
        if not self._root.exists():
            return []
        return self.index.database.run(lambda: self._scanned_index().ids_with_prefix(prefix))

    # --- updates: none of these may fail an append, so errors are only reported

    def mark(self, session: str) -> None:
        """Mark a session that this store is about to append to."""
        with self._report_errors():
            self.index.mark(session, self.owner)

    def record_write(self, row: SessionRow, *, last: bool) -> None:
        """Update the row of a session that this store appends to; with `last`, drop its mark."""
        with self._report_errors():
            self.index.put_writer_row(row, self.owner, last=last)

    def put(self, row: SessionRow) -> None:
        """Write the row of a session."""
        with self._report_errors():
            self.index.put([row])

    def record_read(self, row: SessionRow) -> None:
        """Update the row of a session that was read, if a program wrote to it without a mark."""
        with self._report_errors():
            indexed = self.index.get(row.id)
            if indexed is None or indexed.metadata.through != row.metadata.through:
                self.index.put([row])

    def record_creation(self, row: SessionRow, before: int) -> None:
        """Add a session created here; `before` is the directory's time just before that."""
        with self._report_errors():
            self.index.put([row])
            self.index.set_scanned_at(self._root.changed_at(), before=before)

    def record_deletion(self, session: str, before: int) -> None:
        """Remove a session deleted here; `before` is the directory's time just before that."""
        with self._report_errors():
            self.index.drop([session])
            self.index.set_scanned_at(self._root.changed_at(), before=before)

    # --- maintenance

    def sweep(self, progress: Progress | None = None) -> SweepResult:
        """Check every session, whoever wrote to it."""
        if not self._root.exists():
            return SweepResult(0, 0, 0)
        removed = self.index.database.run(self._scan)
        ids = sorted(self.index.database.run(self.index.ids))
        refreshed = 0
        for start in range(0, len(ids), _BATCH):
            refreshed += self.refresh(ids[start : start + _BATCH])
            if progress is not None:
                progress(min(start + _BATCH, len(ids)), len(ids))
        return SweepResult(len(ids), refreshed, removed)

    def refresh(self, sessions: Iterable[str]) -> int:
        """Check some sessions, whoever wrote to them; returns how many rows changed."""
        checked = list(sessions)
        return self.index.database.run(lambda: self._refresh(checked))

    def _refresh(self, sessions: Iterable[str]) -> int:
        grown = []
        for session in sessions:
            row = self.index.get(session)
            if row is None or self._has_grown(row):
                grown.append(session)
        self._put_all(self._read_rows(grown))
        return len(grown)

    def row(self, session: str, cached: SessionRow | None = None, parent: int | None = None) -> SessionRow:
        """Return a session's row from its log; with a cached one, only new records are read."""
        with (
            map_errors(f"reading session {session}", session=session),
            LogReader(self._root.open_session(session, parent)) as log,
        ):
            if cached is not None and metadata_file.covers(cached.metadata.through, log):
                fold = MetadataFold(cached.metadata)
                end = metadata_file.catch_up(fold, log, cached.metadata.through)
            else:
                fold, end = metadata_file.load(session, log)
            metadata = fold.metadata(end.part, end.bytes)
            return SessionRow(metadata, log.total_size(), max(len(log.numbers), 1))

    def _scanned_index(self) -> SessionIndex:
        if self.index.scanned_at() != self._root.changed_at():
            self._scan()
        return self.index

    def _current_index(self) -> SessionIndex:
        index = self._scanned_index()
        self._check_unmarked()
        changed: list[tuple[SessionRow, SessionRow | None]] = []  # the new row, the old row
        stale_marks: list[tuple[str, str]] = []
        for session, owner, row in index.marks():
            if not is_running(owner.partition(".")[0]):
                stale_marks.append((session, owner))
            if row is not None and not self._has_grown(row):
                continue
            try:
                changed.append((self.row(session, row), row))
            except NotFoundError:
                index.drop([session])
            except EverlogError as error:  # one bad session must not hide the others
                self._report(f"session {session} cannot be read: {error.message}")
        if changed or stale_marks:
            index.apply_refresh(changed, stale_marks)
        return index

    def _check_unmarked(self) -> None:
        """Check every session once if there may be records without a mark, since the disk was full or read-only."""
        switches = self.index.database.switches
        if self._checked_switches != switches:
            self._refresh(sorted(self.index.ids()))
            self._checked_switches = switches

    def _scan(self) -> int:
        """Bring rows in line with the existing directories; returns how many were removed."""
        changed_at = self._root.changed_at()
        on_disk = set(self._root.ids())
        indexed = self.index.ids()
        removed = indexed - on_disk
        if removed:
            self.index.drop(removed)
        self._put_all(self._read_rows(sorted(on_disk - indexed)), new=True)
        self.index.set_scanned_at(changed_at)
        return len(removed)

    def _read_rows(self, sessions: list[str]) -> Iterator[SessionRow]:
        if not sessions:
            return
        with self._root.open_subdirectory("sessions") as directory:
            for done, session in enumerate(sessions, 1):
                try:
                    yield self.row(session, parent=directory)
                except EverlogError as error:  # one bad session must not hide the others
                    self._report(f"session {session} cannot be listed: {error.message}")
                is_due = done % _BATCH == 0 or (done > _BATCH and done == len(sessions))
                if self._progress is not None and is_due:
                    self._progress(done, len(sessions))

    def _put_all(self, rows: Iterable[SessionRow], *, new: bool = False) -> None:
        batch: list[SessionRow] = []
        for row in rows:
            batch.append(row)
            if len(batch) == _BATCH:
                self.index.put(batch, new=new)
                batch = []
        if batch:
            self.index.put(batch, new=new)

    def _has_grown(self, row: SessionRow) -> bool:
        through = row.metadata.through
        part = self._root.file_path(row.id, part_name(through.part))
        next_part = self._root.file_path(row.id, part_name(through.part + 1))
        try:
            size = os.stat(part, follow_symlinks=False).st_size
        except OSError:
            return True
        return size != through.bytes or os.path.lexists(next_part)

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        """Report an error of the index instead of raising it."""
        try:
            yield
        except EverlogError as error:
            self._report(f"the index is out of date: {error.message}")


def new_owner() -> str:
    """Return a name for one store in this process."""
    return f"{os.getpid()}.{os.urandom(4).hex()}"
