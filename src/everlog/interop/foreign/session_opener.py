"""Opening foreign sessions by id: under their lock, with an up-to-date mirror.

Where the mirror cannot be written, on a full or read-only disk, a session is read through a copy of
it in memory, which follows the file in its place.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from everlog.errors import (
    EverlogError,
    LogDamagedError,
    NotFoundError,
    SessionBusyError,
    StoreFailedError,
    StoreFullError,
)
from everlog.ids import is_name
from everlog.interop.foreign.companion import Companion
from everlog.interop.foreign.companion_adoption import adopt_mirrors
from everlog.interop.foreign.foreign_catalogue import ForeignCatalogue, Progress
from everlog.interop.foreign.foreign_index import ForeignIndex, SessionRecords, SessionSource
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.foreign.transcript_row import TranscriptRow
from everlog.interop.foreign.turn_lines import TurnLines, Turns, new_turns
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import derive_id
from everlog.model import Damaged
from everlog.ports import Store
from everlog.settings import SessionSettings, Settings
from everlog.stores import rules
from everlog.stores.file import disk
from everlog.stores.in_memory import InMemoryStore
from everlog.stores.process_fork import register_fork_hooks
from everlog.stores.store_verbs import StoreVerbs

_ADOPTION_LOCK = "the adoption of mirrors"  # names a lock file: must not change
LOCK_TIMEOUT = 5.0  # seconds that another writer may hold a session
MAX_COPIES = 8  # of mirrors in memory; the oldest goes
_UNLIMITED = Settings(session=SessionSettings(total_bytes=0, line_bytes=1 << 40))


class SessionOpener(StoreVerbs):
    """The sessions of one foreign directory, each opened when it is needed.

    `home` is our directory for derived files; `mirror_store` is a store in it. `companion` is our
    directory for what the files have no place for, `companion_store` a store in it. `back_up` copies
    files that are about to lose lines. `detects_format`: a new session is of the format of the
    others, if that is only one.
    """

    def __init__(
        self,
        root: Path,
        formats: Sequence[ForeignFormat],
        mirror_store: Store,
        home: Path,
        *,
        companion_store: Store,
        back_up: Callable[[Sequence[Path]], object],
        companion: Path | None = None,
        detects_format: bool = False,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(settings, clock)
        self._root = root
        self._formats = tuple(formats)
        self._mirror_store = mirror_store
        self._companion_store = companion_store
        self._home = home
        self._back_up = back_up
        self._companion_directory = companion or home
        self._detects_format = detects_format
        try:
            self._make_home()
        except (StoreFullError, StoreFailedError) as error:  # reading goes on without it
            self.reports.append(error.message)
        self._catalogue = ForeignCatalogue(root, formats, home / "index.db", self.reports.append, progress)
        self._mutex = threading.Lock()
        self._mirrors: dict[str, Mirror] = {}
        self._copies: dict[str, Mirror] = {}  # in memory, of mirrors that cannot be written
        self._copying = threading.Lock()
        self._turns: dict[str, Turns] = {}  # those of sessions whose turn lease we had
        self._index = ForeignIndex(
            home / "foreign.db",
            SessionSource(self._find_mirror, self._open_records, self._read_records),
            self.reports.append,
            include_tools=self._tool_output,
        )
        self._locks: dict[str, threading.Lock] = {}
        self._has_adopted = False
        register_fork_hooks(in_child=self._after_fork_in_child)

    def _after_fork_in_child(self) -> None:
        """Replace locks, whose holders only the parent has, and the id source that it uses."""
        self._mutex, self._copying = threading.Lock(), threading.Lock()
        self._mirrors, self._copies, self._locks, self._turns = {}, {}, {}, {}
        self._renew_generators()
        self._catalogue.reset_after_fork()

    def _make_home(self) -> None:
        """Make our directory, and those above it, for the owner only."""
        with disk.map_errors(f"creating {self._home}"):
            for path in reversed((self._home, *self._home.parents)):
                if not path.exists():
                    path.mkdir(mode=0o700, exist_ok=True)

    def format(self, name: str) -> ForeignFormat:
        """Return the format with a name."""
        return next(format for format in self._formats if name == format.NAME)

    # --- one session

    def _find_row(self, session: str) -> TranscriptRow:
        row = self._catalogue.find(session)
        if row is not None:
            return row
        rules.check_name(session)
        raise rules.no_session(session)

    @contextmanager
    def _locked_mirror(self, session: str) -> Iterator[Mirror]:
        """Lock a session and give its mirror, up to date. SessionBusyError after LOCK_TIMEOUT."""
        self._adopt_old_mirrors()
        row = self._find_row(session)
        with self._mutex:
            lock = self._locks.setdefault(session, threading.Lock())
        if not lock.acquire(timeout=LOCK_TIMEOUT):
            raise SessionBusyError(
                f"session {session} is held by another thread of this process",
                hint="try again when it has finished",
                session=session,
            )
        try:
            with self._file_lock(mirror_key(row), f"session {session}"):
                try:
                    mirror = self._open_mirror(session, row)
                    mirror.catch_up()
                except (NotFoundError, LogDamagedError) as error:
                    # The file was renamed by its program, or the mirror is damaged.
                    with self._mutex:
                        self._mirrors.pop(session, None)
                    self._catalogue.rescan()
                    if isinstance(error, LogDamagedError):  # the file itself is intact
                        self.reports.append(f"{error.message}; it is rebuilt from the file")
                        self._replace_mirror(row)
                    mirror = self._open_mirror(session)
                    mirror.catch_up()
                yield mirror
        finally:
            lock.release()

    def _replace_mirror(self, row: TranscriptRow) -> None:
        old = self._find_mirror(row)
        _create_mirror(self._mirror_store, row)
        if old is not None:
            with suppress(EverlogError):  # a turn has its lease: it is removed later
                self._mirror_store.delete(old)

    def _adopt_old_mirrors(self) -> None:
        """Adopt what only the mirrors of earlier versions have into the companions, once."""
        mark = self._home / "adopted"
        if self._has_adopted:
            return
        try:
            if not mark.exists():
                with self._file_lock(_ADOPTION_LOCK), disk.map_errors(f"writing {mark}"):
                    adopt_mirrors(self._mirror_store, self._companion_store)
                    mark.touch(mode=0o600)
            self._has_adopted = True
        except EverlogError as error:
            report = f"the mirrors of {self._root} are not adopted yet: {error.message}"
            if self._mirror_store.list(limit=1).sessions and report not in self.reports:
                self.reports.append(report)

    def _open_mirror(self, session: str, row: TranscriptRow | None = None) -> Mirror:
        row = row or self._find_row(session)
        with self._mutex:
            cached = self._mirrors.get(session)
            if cached is not None and (cached.files.path, cached.format.NAME) == (row.path, row.format):
                return cached
        format, files = self.format(row.format), self._catalogue.files(row)
        mirrored = _create_mirror(self._mirror_store, row, unless_held=True)
        companion = self._companion(row)
        mirror = Mirror(row.name, files, format, companion=companion, store=self._mirror_store, session=mirrored)
        with self._mutex:
            self._mirrors[session] = mirror
            mirror.turns = self._turns.setdefault(session, new_turns())
        return mirror

    @contextmanager
    def _file_lock(self, key: str, label: str = "") -> Iterator[None]:
        """Hold a lock against other processes and threads of ours."""
        path = f"{self._home}/locks/{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:32]}"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        label = label or key
        disk.check_writable(self._home)
        with disk.map_errors(f"locking {label}"):
            try:
                descriptor = os.open(path, flags, 0o600)
            except FileNotFoundError:
                self._make_home()
                (self._home / "locks").mkdir(mode=0o700, exist_ok=True)
                descriptor = os.open(path, flags, 0o600)
        try:
            disk.lock(descriptor, LOCK_TIMEOUT, label)
            yield
        finally:
            disk.unlock(descriptor)  # explicitly: a forked child may have a copy of the descriptor
            os.close(descriptor)

    def _end_turn(self, session: str, turn: TurnLines) -> None:
        """Catch up, which writes again what a rewrite took from a turn; from now on it is reported."""
        if turn and turn.is_open:
            try:
                self._current_mirror(session)
            except EverlogError as error:
                self.reports.append(f"what {session} lost during a turn is not known: {error.message}")
        turn.is_open = False

    # --- for the index

    def _find_mirror(self, row: TranscriptRow) -> str | None:
        """Return the id of a session's mirror; None if it was never opened."""
        try:
            return self._mirror_store.resolve(mirror_key(row))
        except NotFoundError:
            return None

    def _open_records(self, session: str) -> SessionRecords:
        mirror = self._current_mirror(session)
        return SessionRecords(mirror.metadata, mirror.read)

    def _read_records(self, row: TranscriptRow) -> SessionRecords:
        """Read a session into memory, as its mirror would be."""
        mirror = self._mirror_in_memory(row)
        mirror.catch_up()
        return SessionRecords(mirror.metadata, mirror.read)

    # --- for reading

    def _companion(self, row: TranscriptRow) -> Companion:
        """Return the companion of a session, also if its file has moved within the directory."""
        key, alias, store = mirror_key(row), companion_alias(row), self._companion_store
        with suppress(NotFoundError):
            found = store.resolve(alias)
            holder = self._catalogue.last_sessions().get(row.name, row)
            old_key = store.metadata(found).key or ""
            is_moved = old_key not in self._mirror_keys() and holder.path == row.path
            if is_moved and not is_held(store, key):
                try:
                    store.update(found, {"key": key})
                except (StoreFullError, StoreFailedError):  # read where it is until there is room
                    key = old_key
        return Companion(store, key, row.format, alias)

    def _mirror_keys(self) -> set[str]:
        return {mirror_key(row) for row in self._catalogue.last_sessions().values()}

    def _current_mirror(self, session: str) -> Mirror:
        """Return a session's mirror, up to date; a copy in memory if it cannot be written."""
        try:
            with self._locked_mirror(session) as mirror:
                self._copies.pop(session, None)
                return mirror
        except (StoreFullError, StoreFailedError) as error:
            with self._copying:
                return self._current_copy(session, error)

    def _current_copy(self, session: str, error: EverlogError) -> Mirror:
        row = self._find_row(session)
        if not self._copies:
            self.reports.append(f"sessions are read into memory: {error.message}")
        copy = self._copies.pop(session, None)
        if copy is None or (copy.files.path, copy.format.NAME) != (row.path, row.format):
            copy = self._mirror_in_memory(row, self._find_mirror(row))
        try:
            copy.catch_up()
        except LogDamagedError:  # the file itself is intact
            copy = self._mirror_in_memory(row)
            copy.catch_up()
        self._copies[session] = copy
        if len(self._copies) > MAX_COPIES:
            self._copies.pop(next(iter(self._copies)), None)
        return copy

    def _mirror_in_memory(self, row: TranscriptRow, mirrored: str | None = None) -> Mirror:
        """Return a mirror in memory with the records of one on the disk, so that they keep their seqs."""
        store = InMemoryStore(_UNLIMITED)
        session = _create_mirror(store, row)
        entries = list(self._mirror_store.read(mirrored)) if mirrored else []
        records = [entry for entry in entries if not isinstance(entry, Damaged)]
        if len(records) == len(entries):  # a damaged mirror is of no use
            store.append(session, records)
        files, format = self._catalogue.files(row), self.format(row.format)
        return Mirror(row.name, files, format, companion=self._companion(row), store=store, session=session)


def _create_mirror(store: Store, row: TranscriptRow, *, unless_held: bool = False) -> str:
    """Create the mirror of a session, as old as the session, and return its id."""
    metadata = {"key": mirror_key(row), "source": row.format}
    return store.create(metadata, unless_held=unless_held, at=row.created_ms or None).id


def is_held(store: Store, name: str) -> bool:
    """Return whether a session has a name."""
    try:
        return bool(store.resolve(name))
    except NotFoundError:
        return False


def companion_alias(row: TranscriptRow) -> str:
    """Return the name by which the companion of a session is found when its file has moved."""
    alias = f"{row.format}/{row.name}"
    return alias if is_name(alias) else f"{row.format}/{derive_id(row.format, row.name)}"


def mirror_key(row: TranscriptRow) -> str:
    """Return the key of a session's mirror, which does not change with a title in the file name."""
    name = row.path if row.has_shared_name else row.name
    key = f"{row.format}:{row.folder}/{name}"
    return key if is_name(key) else f"{row.format}:{derive_id(row.folder, name)}"
