"""Keeps `index.db` true to the logs, without ever standing in an append's way.

list        looks at the sessions that are marked, and for new directories when the directory
            of sessions changed
broken      an index that cannot be used is thrown away and filled again, once
sweep       looks at every session: finds what programs without marks have added
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import msgspec

from everlog.errors import EverlogError, NotFoundError
from everlog.index.database import IndexBroken
from everlog.index.listing_rows import Index
from everlog.log.fold import Tally
from everlog.log.parts import part_name
from everlog.ports import Filter, Order, Page, Progress, SessionRow, parse_cursor, since_ms
from everlog.stores.file import metadata_file
from everlog.stores.file.disk import errors_mapped
from everlog.stores.file.layout import Root
from everlog.stores.file.log_reader import OpenLog
from everlog.stores.file.log_tail import Report

T = TypeVar("T")
_BATCH = 500
_REMEMBERED = 1000  # names


class Sweep(msgspec.Struct, frozen=True):
    """What a sweep found."""

    sessions: int
    refreshed: int
    removed: int


class Known(NamedTuple):
    """Names that were looked up, and the state of the index that they are of."""

    stamp: tuple[int, ...]
    names: dict[str, tuple[str, int]]


class Catalogue:
    """The index of one root and its upkeep."""

    def __init__(self, root: Root, report: Report, progress: Progress | None = None) -> None:
        self._root = root
        self._report = report
        self._progress = progress
        self.owner = new_owner()  # whose marks these are; a forked child needs its own
        self.index = Index(root.path / "index.db", report, root.has)
        self._known = Known((), {})

    # --- asking

    def page(self, which: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        """A page of a listing, current to the last acknowledged record of marked sessions."""
        if not self._root.exists():
            since_ms(which)  # what is wrong is wrong here as well
            if cursor is not None:
                parse_cursor(cursor)
            return Page((), None, 0)
        return self._sound(lambda: self._current().page(which, limit, cursor, order))

    def ask(self, question: Callable[[Index], T]) -> T:
        """Ask the index, brought up to date, something else."""
        return self._sound(lambda: question(self._current()))

    def holder(self, name: str) -> tuple[str, int] | None:
        """The session that holds a key or alias, and its generation."""
        if not self._root.exists():
            return None
        return self._sound(lambda: self._remembered(name)) or self.current_holder(name)

    def _remembered(self, name: str) -> tuple[str, int] | None:
        """The same as the index tells, which need not be asked again until it has changed."""
        stamp = (*self.index.database.stamp(), self._root.changed_at())
        known = self._known
        if known.stamp != stamp or len(known.names) >= _REMEMBERED:
            known = self._known = Known(stamp, {})
        if name not in known.names:
            found = self._scanned().holder(name)
            if found is None:
                return None
            known.names[name] = found
        return known.names[name]

    def current_holder(self, name: str) -> tuple[str, int] | None:
        """The same, when a process may have died between its claim and its row."""
        return self._sound(lambda: self._current().holder(name))

    def newest_chat(self, thread: str) -> tuple[str, int] | None:
        """The chat of a key or pair with the highest number, and that number."""
        return self._sound(lambda: self._current().newest_chat(thread))

    def starting_with(self, prefix: str) -> list[str]:
        """At most two ids that begin so."""
        if not self._root.exists():
            return []
        return self._sound(lambda: self._scanned().starting_with(prefix))

    # --- telling: none of these may fail an append, so they report and go on

    def mark(self, session: str) -> None:
        """This store is going to append to a session."""
        with self._harmless():
            self.index.mark(session, self.owner)

    def written(self, row: SessionRow, *, last: bool) -> None:
        """A session that this store appends to, or has finished with, has come this far."""
        with self._harmless():
            self.index.put_written(row, self.owner, last=last)

    def put(self, row: SessionRow) -> None:
        """A session's row is up to date."""
        with self._harmless():
            self.index.put([row])

    def seen(self, row: SessionRow) -> None:
        """A session was looked at: its row follows if somebody wrote to it without a mark."""
        with self._harmless():
            known = self.index.get(row.id)
            if known is None or known.metadata.through != row.metadata.through:
                self.index.put([row])

    def added(self, row: SessionRow, before: int) -> None:
        """A session of ours appeared; `before` is the directory's time just before that."""
        with self._harmless():
            self.index.put([row])
            self.index.set_scanned(self._root.changed_at(), before=before)

    def removed(self, session: str, before: int) -> None:
        """A session of ours is gone."""
        with self._harmless():
            self.index.drop([session])
            self.index.set_scanned(self._root.changed_at(), before=before)

    # --- upkeep

    def sweep(self, progress: Progress | None = None) -> Sweep:
        """Look at every session, whoever wrote to it."""
        if not self._root.exists():
            return Sweep(0, 0, 0)
        removed = self._sound(self._scan)
        ids = sorted(self.index.ids())
        refreshed = 0
        for start in range(0, len(ids), _BATCH):
            refreshed += self.refresh(ids[start : start + _BATCH])
            if progress is not None:
                progress(min(start + _BATCH, len(ids)), len(ids))
        return Sweep(len(ids), refreshed, removed)

    def refresh(self, sessions: Iterable[str]) -> int:
        """Look at some sessions, whoever wrote to them; returns how many rows changed."""
        grown = []
        for session in sessions:
            row = self.index.get(session)
            if row is None or self._grown(row):
                grown.append(session)
        self._put_all(self._rows(grown))
        return len(grown)

    def row(
        self, session: str, known: SessionRow | None = None, beneath: int | None = None
    ) -> SessionRow:
        """A session's row from its log; with a known one, only what is new is read."""
        with (
            errors_mapped(f"reading session {session}", session=session),
            OpenLog(self._root.open_session(session, beneath)) as log,
        ):
            if known is not None and metadata_file.covers(known.metadata.through, log):
                tally = Tally(known.metadata)
                end = metadata_file.catch_up(tally, log, known.metadata.through)
            else:
                tally, end = metadata_file.load(session, log)
            metadata = tally.metadata(end.part, end.bytes)
            return SessionRow(metadata, log.size(), max(len(log.numbers), 1))

    def _sound(self, ask: Callable[[], T]) -> T:
        """Ask the index; if it is broken, make a new one and ask again."""
        try:
            return ask()
        except IndexBroken as error:
            self._report(f"the index is made anew: {error.message}")
            self.index.database.reset()
            return ask()

    def _scanned(self) -> Index:
        if self.index.scanned() != self._root.changed_at():
            self._scan()
        return self.index

    def _current(self) -> Index:
        index = self._scanned()
        changed: list[tuple[SessionRow, SessionRow | None]] = []  # as it is, as the row was
        settled: list[tuple[str, str]] = []
        for session, owner, row in index.marked():
            if not _alive(owner):
                settled.append((session, owner))
            if row is not None and not self._grown(row):
                continue
            try:
                changed.append((self.row(session, row), row))
            except NotFoundError:
                index.drop([session])
            except EverlogError as error:  # one bad session must not hide the others
                self._report(f"session {session} cannot be read: {error.message}")
        if changed or settled:
            index.settle(changed, settled)
        return index

    def _scan(self) -> int:
        """Bring rows in line with the directories that are there; returns how many went."""
        changed_at = self._root.changed_at()
        on_disk = set(self._root.ids())
        known = self.index.ids()
        gone = known - on_disk
        if gone:
            self.index.drop(gone)
        self._put_all(self._rows(sorted(on_disk - known)), new=True)
        self.index.set_scanned(changed_at)
        return len(gone)

    def _rows(self, sessions: list[str]) -> Iterator[SessionRow]:
        if not sessions:
            return
        with self._root.within("sessions") as directory:
            for done, session in enumerate(sessions, 1):
                try:
                    yield self.row(session, beneath=directory)
                except EverlogError as error:  # one bad session must not hide the others
                    self._report(f"session {session} cannot be listed: {error.message}")
                due = done % _BATCH == 0 or (done > _BATCH and done == len(sessions))
                if self._progress is not None and due:
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

    def _grown(self, row: SessionRow) -> bool:
        through = row.metadata.through
        part = self._root.file_path(row.id, part_name(through.part))
        following = self._root.file_path(row.id, part_name(through.part + 1))
        try:
            size = os.stat(part, follow_symlinks=False).st_size
        except OSError:
            return True
        return size != through.bytes or os.path.lexists(following)

    def _harmless(self) -> _Harmless:
        return _Harmless(self._report)


class _Harmless:
    """Reports an index error instead of raising it."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, EverlogError):
            self._report(f"the index is behind: {error.message}")
            return True
        return False


def new_owner() -> str:
    """A name for one store in this process."""
    return f"{os.getpid()}.{os.urandom(4).hex()}"


def _alive(owner: str) -> bool:
    try:
        os.kill(int(owner.partition(".")[0]), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        pass
    return True
