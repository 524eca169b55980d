"""Opening foreign sessions by id: under their lock, with an up-to-date mirror."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from everlog.errors import EverlogError, InvalidIdError, LogDamagedError, NotFoundError, SessionBusyError
from everlog.ids import is_name
from everlog.interop.foreign.foreign_catalogue import ForeignCatalogue, Progress
from everlog.interop.foreign.foreign_index import ForeignIndex, SessionRecords, SessionSource
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.foreign.transcript_row import TranscriptRow
from everlog.interop.foreign.turn_lines import TurnLines, Turns, new_turns
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import derive_id
from everlog.ports import Store
from everlog.settings import SessionSettings, Settings
from everlog.stores.file import disk
from everlog.stores.in_memory import InMemoryStore
from everlog.stores.process_fork import register_fork_hooks
from everlog.stores.rules import no_session
from everlog.stores.store_verbs import StoreVerbs

LOCK_TIMEOUT = 5.0  # seconds that another writer may hold a session


class SessionOpener(StoreVerbs):
    """The sessions of one foreign directory, each opened when it is needed.

    `home` is our directory for derived files; `mirror_store` is a store in it. `back_up` copies
    files that are about to lose lines. `companion` is our directory for what the files have no place
    for. `detects_format`: a new session is of the format of the others, if that is only one.
    """

    def __init__(
        self,
        root: Path,
        formats: Sequence[ForeignFormat],
        mirror_store: Store,
        home: Path,
        *,
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
        self._home = home
        self._back_up = back_up
        self._companion = companion or home
        self._detects_format = detects_format
        with disk.map_errors(f"creating {home}"):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._catalogue = ForeignCatalogue(root, formats, home / "index.db", self.reports.append, progress)
        self._mutex = threading.Lock()
        self._mirrors: dict[str, Mirror] = {}
        self._turns: dict[str, Turns] = {}  # those of sessions whose turn lease we had
        self._index = ForeignIndex(
            home / "foreign.db",
            SessionSource(self._find_mirror, self._open_records, self._read_records),
            self.reports.append,
            include_tools=self._tool_output,
        )
        self._locks: dict[str, threading.Lock] = {}
        register_fork_hooks(in_child=self._after_fork_in_child)

    def _after_fork_in_child(self) -> None:
        """Replace locks, whose holders only the parent has, and the id source that it uses."""
        self._mutex = threading.Lock()
        self._mirrors, self._locks, self._turns = {}, {}, {}
        self._renew_generators()
        self._catalogue.reset_after_fork()

    def format(self, name: str) -> ForeignFormat:
        """Return the format with a name."""
        return next(format for format in self._formats if name == format.NAME)

    # --- one session

    def _find_row(self, session: str) -> TranscriptRow:
        row = self._catalogue.find(session)
        if row is not None:
            return row
        if not any(format.is_id(session.partition(":")[0]) for format in self._formats):
            raise InvalidIdError(
                f"not a session id: {session[:60]!r}", hint="use the ids of the program that the sessions belong to"
            )
        raise no_session(session)

    @contextmanager
    def _locked_mirror(self, session: str) -> Iterator[Mirror]:
        """Lock a session and give its mirror, up to date. SessionBusyError after LOCK_TIMEOUT."""
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
                        _create_mirror(self._mirror_store, row)
                    mirror = self._open_mirror(session)
                    mirror.catch_up()
                yield mirror
        finally:
            lock.release()

    def _open_mirror(self, session: str, row: TranscriptRow | None = None) -> Mirror:
        row = row or self._find_row(session)
        with self._mutex:
            cached = self._mirrors.get(session)
            if cached is not None and (cached.files.path, cached.format.NAME) == (row.path, row.format):
                return cached
        format, files = self.format(row.format), self._catalogue.files(row)
        mirrored = _create_mirror(self._mirror_store, row, unless_held=True)
        mirror = Mirror(row.name, files, format, self._mirror_store, mirrored)
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
        with disk.map_errors(f"locking {label}"):
            try:
                descriptor = os.open(path, flags, 0o600)
            except FileNotFoundError:
                (self._home / "locks").mkdir(mode=0o700, parents=True, exist_ok=True)
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
        return SessionRecords(mirror.metadata, lambda after: self._mirror_store.read(mirror.session, after=after))

    def _read_records(self, row: TranscriptRow) -> SessionRecords:
        """Read a session into memory, as its mirror would be."""
        store = InMemoryStore(Settings(session=SessionSettings(total_bytes=0, line_bytes=1 << 40)))
        session = _create_mirror(store, row)
        mirror = Mirror(row.name, self._catalogue.files(row), self.format(row.format), store, session)
        mirror.catch_up()
        return SessionRecords(mirror.metadata, lambda after: store.read(session, after=after))

    def _current_mirror(self, session: str) -> Mirror:
        with self._locked_mirror(session) as mirror:
            return mirror


def _create_mirror(store: Store, row: TranscriptRow, *, unless_held: bool = False) -> str:
    """Create the mirror of a session, as old as the session, and return its id."""
    metadata = {"key": mirror_key(row), "source": row.format}
    return store.create(metadata, unless_held=unless_held, at=row.created_ms or None).id


def mirror_key(row: TranscriptRow) -> str:
    """Return the key of a session's mirror, which does not change with a title in the file name."""
    name = row.path if row.has_shared_name else row.name
    key = f"{row.format}:{row.folder}/{name}"
    return key if is_name(key) else f"{row.format}:{derive_id(row.folder, name)}"
