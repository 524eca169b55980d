"""Which session an id means, and the session itself under its lock, its mirror up to date."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from everlog.errors import InvalidIdError, LogDamagedError, NotFoundError, SessionBusyError
from everlog.ids import Stamps, Uuids
from everlog.interop.foreign.foreign_catalogue import Catalogue, Progress, Row
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.foreign.transcript_files import ENDING, Signature
from everlog.interop.formats.format_types import made_id
from everlog.interop.formats.live_format import LiveFormat
from everlog.log.metadata_changes import is_name
from everlog.ports import Store
from everlog.stores.file import disk
from everlog.stores.process_fork import mind_forks

PATIENCE = 5.0  # seconds that another writer may hold a session


class Opening:
    """The sessions of one directory, each opened when it is needed.

    `home` is a directory of ours for everything that is derived; `mirror` a store in it. `keep`
    takes a copy of files that are about to lose lines.
    """

    def __init__(
        self,
        root: Path,
        dialects: Sequence[LiveFormat],
        mirror: Store,
        home: Path,
        *,
        keep: Callable[[Sequence[Path]], object],
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
    ) -> None:
        self._root = root
        self._dialects = tuple(dialects)
        self._mirror = mirror
        self._home = home
        self._keep = keep
        with disk.errors_mapped(f"making {home}"):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._now = Stamps(clock)
        self._new_uuid = Uuids()
        self.reports: deque[str] = deque(maxlen=1000)
        self._catalogue = Catalogue(
            root, dialects, home / "index.db", self.reports.append, progress
        )
        self._guard = threading.Lock()
        self._open: dict[str, Mirror] = {}
        self._caught: dict[str, Signature] = {}  # what files were like when they were mirrored last
        self._locks: dict[str, threading.Lock] = {}
        mind_forks(in_child=self._after_fork_in_child)

    def _after_fork_in_child(self) -> None:
        """Locks may belong to threads that are not here; the parent goes on with its ids."""
        self._guard = threading.Lock()
        self._open, self._locks = {}, {}
        self._new_uuid = Uuids()
        self._catalogue.forked()

    # --- one session

    def _row(self, session: str) -> Row:
        row = self._catalogue.find(session)
        if row is not None:
            return row
        parent, _, inner = session.partition(":")
        if inner and (above := self._catalogue.find(parent)) is not None:
            child = self._child(above, inner)
            if child is not None:
                return child
        if not any(dialect.is_id(session) for dialect in self._dialects):
            raise InvalidIdError(
                f"not a session id: {session[:60]!r}",
                hint="ids are those of the program whose sessions these are",
            )
        raise NotFoundError(f"there is no session {session}", session=session)

    def _child(self, above: Row, stem: str) -> Row | None:
        """The transcript of an agent that a session asked."""
        for folder, one in self._children(above):
            if one == stem:
                name = f"{above.name}:{stem}"
                return Row(folder=folder, stem=stem, dialect=above.dialect, name=name)
        return None

    def _children(self, row: Row) -> Iterator[tuple[str, str]]:
        """Folder and stem of the transcripts of agents that a session asked."""
        top = self._root / row.folder / row.stem / "subagents"
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if name.endswith(ENDING) and not path.is_symlink():
                    inside = Path(folder).relative_to(self._root).as_posix()
                    yield inside, name.removesuffix(ENDING)

    @contextmanager
    def _held(self, session: str) -> Iterator[Mirror]:
        """A session under its lock, its mirror up to date."""
        row = self._row(session)
        with self._guard:
            lock = self._locks.setdefault(session, threading.Lock())
        if not lock.acquire(timeout=PATIENCE):
            raise SessionBusyError(
                f"session {session} is held by another thread of this process",
                hint="try again when it has finished",
                session=session,
            )
        try:
            with self._flock(key_of(row), f"session {session}"):
                try:
                    mirror = self._opened(session)
                    mirror.level()
                except (
                    NotFoundError,
                    LogDamagedError,
                ) as error:  # renamed by its program; or the mirror's
                    with self._guard:
                        self._open.pop(session, None)
                    self._catalogue.moved()
                    if isinstance(
                        error, LogDamagedError
                    ):  # the file is whole: it is mirrored again
                        self.reports.append(f"{error.message} and is made anew")
                        self._mirror.create({"key": key_of(row), "source": row.dialect})
                    mirror = self._opened(session)
                    mirror.level()
                yield mirror
        finally:
            lock.release()

    def _opened(self, session: str) -> Mirror:
        row = self._row(session)
        with self._guard:
            known = self._open.get(session)
            if known is not None and known.files.path == row.path:
                return known
        dialect = next(one for one in self._dialects if row.dialect == one.NAME)
        facts = {"key": key_of(row), "source": row.dialect}
        own = self._mirror.create(facts, unless_held=True)
        mirror = Mirror(row.name, self._catalogue.files(row), dialect, self._mirror, own.id)
        with self._guard:
            self._open[session] = mirror
        return mirror

    @contextmanager
    def _flock(self, key: str, what: str = "") -> Iterator[None]:
        """Keep other processes and threads of ours away."""
        folder = self._home / "locks"
        name = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:32]
        what = what or key
        with disk.errors_mapped(f"locking {what}"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(folder / name, flags, 0o600)
        try:
            disk.lock(descriptor, PATIENCE, what)
            yield
        finally:
            disk.unlock(descriptor)  # a child that was forked meanwhile has a copy
            os.close(descriptor)

    def _level(self, session: str) -> Mirror:
        with self._held(session) as mirror:
            return mirror


def key_of(row: Row) -> str:
    """The key of a session's mirror: a title in the file's name does not change it."""
    name = row.path if row.twin else row.name
    key = f"{row.dialect}:{row.folder}/{name}"
    return key if is_name(key) else f"{row.dialect}:{made_id(row.folder, name)}"
