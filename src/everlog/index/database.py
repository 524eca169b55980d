"""The connection: one SQLite file in WAL mode, versioned, its errors mapped in one place.

A file that is missing, of another version or broken is no problem to report: it is made anew and
filled from the logs, once. A root that cannot be written gets an index in memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from everlog.errors import StoreFailedError

VERSION = 7
PATIENCE = 5.0  # seconds that another process may be in the way
_PAUSE = 0.002
_BROKEN = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    apsw.SQLError,
    apsw.SchemaChangeError,
)
_READ_ONLY = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)

_GO_ON = """INSERT INTO ahead SELECT new.id
    WHERE NOT EXISTS (SELECT 1 FROM ahead WHERE session = new.id);"""
SCHEMA = (
    """CREATE TABLE session (
        id TEXT PRIMARY KEY, agent TEXT, sender TEXT, source TEXT, title TEXT,
        active INTEGER, bytes INTEGER, parts INTEGER, unfinished INTEGER, metadata BLOB)
        WITHOUT ROWID""",
    "CREATE INDEX session_active ON session (active, id)",
    "CREATE INDEX session_pair ON session (agent, sender, active, id)",
    "CREATE INDEX session_unfinished ON session (active, id) WHERE unfinished = 1",
    """CREATE TABLE name (name TEXT, generation INTEGER, id TEXT, chat INTEGER,
        PRIMARY KEY (name, generation, id)) WITHOUT ROWID""",
    "CREATE INDEX name_id ON name (id)",
    "CREATE INDEX name_chat ON name (name, chat, id)",
    # What was spent, for usage (`spending`): days stand together.
    """CREATE TABLE spent (day TEXT, model TEXT, session TEXT, turns INTEGER,
        tool_calls INTEGER, input_tokens INTEGER, output_tokens INTEGER,
        cache_read_tokens INTEGER, cache_write_tokens INTEGER, cost REAL,
        PRIMARY KEY (day, model, session)) WITHOUT ROWID""",
    "CREATE INDEX spent_session ON spent (session)",
    "CREATE TABLE transcript (path TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID",
    "CREATE TABLE mark (id TEXT, owner TEXT, PRIMARY KEY (id, owner)) WITHOUT ROWID",
    "CREATE TABLE fact (key TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID",
    "INSERT INTO fact VALUES ('scanned', 0), ('sessions', 0)",
    """CREATE TRIGGER session_added AFTER INSERT ON session BEGIN
        UPDATE fact SET value = value + 1 WHERE key = 'sessions'; END""",
    """CREATE TRIGGER session_removed AFTER DELETE ON session BEGIN
        UPDATE fact SET value = value - 1 WHERE key = 'sessions'; END""",
    # What was said, for search (`fulltext`): the passages, their words, and what is in names.
    """CREATE TABLE taken (session TEXT PRIMARY KEY, number INTEGER UNIQUE, seq INTEGER,
        bytes INTEGER) WITHOUT ROWID""",
    # Sessions that may have gone on since: a search must not look at all of them to find these.
    "CREATE TABLE ahead (session TEXT PRIMARY KEY) WITHOUT ROWID",
    f"CREATE TRIGGER session_begun AFTER INSERT ON session BEGIN {_GO_ON} END",
    f"""CREATE TRIGGER session_grown AFTER UPDATE OF bytes ON session
        WHEN new.bytes IS NOT old.bytes BEGIN {_GO_ON} END""",
    """CREATE TRIGGER session_gone AFTER DELETE ON session BEGIN
        DELETE FROM ahead WHERE session = old.id; END""",
    """CREATE TABLE passage (id INTEGER PRIMARY KEY, kind TEXT, at INTEGER, text TEXT,
        grams TEXT)""",
    """CREATE VIEW passage_column AS SELECT id,
        CASE kind WHEN 'summary' THEN text END AS summary,
        CASE kind WHEN 'title' THEN text END AS title,
        CASE kind WHEN 'user' THEN text END AS user,
        CASE kind WHEN 'assistant' THEN text END AS assistant,
        CASE kind WHEN 'tool' THEN text END AS tool, grams FROM passage""",
    """CREATE VIRTUAL TABLE word USING fts5(summary, title, user, assistant, tool, grams,
        content = 'passage_column', content_rowid = 'id',
        tokenize = "porter unicode61 remove_diacritics 2")""",
    """CREATE VIRTUAL TABLE inside USING fts5(names, content = '', contentless_delete = 1,
        tokenize = 'trigram')""",
    "INSERT INTO fact VALUES ('passages', 0)",
    # Words are gathered in memory up to so many bytes: almost twice as fast.
    "INSERT INTO word (word, rank) VALUES ('hashsize', 67108864)",
)


class IndexBroken(StoreFailedError):
    """The index cannot be used as it is; deleting it makes a new one."""


class Database:
    """The connection to one `index.db`, shared by the threads of a process."""

    def __init__(self, path: Path | None, report: Callable[[str], None]) -> None:
        """Without a path it is kept in memory."""
        self._path = path
        self._report = report
        self._lock = threading.RLock()
        self._connection: apsw.Connection | None = None
        self._inode = 0

    @contextmanager
    def reading(self) -> Iterator[apsw.Cursor]:
        """A cursor; each statement stands for itself, and none outlives this.

        A question that is left half answered keeps what it sees as it was, and from the next change
        of another process on nothing can be written any more: its cursor may be kept alive by no
        more than the traceback of an error.
        """
        with self._lock, _errors_mapped():
            cursor = self._connected().cursor()
            try:
                yield cursor
            finally:
                cursor.close(True)

    @contextmanager
    def writing(
        self, *, durable: bool = False, patience: float = PATIENCE
    ) -> Iterator[apsw.Cursor]:
        """A cursor in one transaction; `durable` waits until it is on the disk.

        `patience`: seconds that another process may hold the file before this gives up.
        """
        with self._lock, _errors_mapped():
            connection = self._connected()
            connection.set_busy_timeout(int(patience * 1000))
            cursor = connection.cursor()
            if durable:
                cursor.execute("PRAGMA synchronous = FULL")
            try:
                cursor.execute("BEGIN IMMEDIATE")
                try:
                    yield cursor
                except BaseException:
                    cursor.execute("ROLLBACK")
                    raise
                cursor.execute("COMMIT")
            finally:
                connection.set_busy_timeout(int(PATIENCE * 1000))
                if durable:
                    cursor.execute("PRAGMA synchronous = NORMAL")
                cursor.close(True)

    def stamp(self) -> tuple[int, int, int]:
        """Something that is another after every change, whoever made it."""
        with self._lock, _errors_mapped():
            connection = self._connected()
            return id(connection), connection.data_version(), connection.total_changes()

    def reset(self) -> None:
        """Throw the file away; the next use makes a new one."""
        with self._lock:
            self.close()
            for suffix in ("", "-wal", "-shm") if self._path is not None else ():
                with suppress(FileNotFoundError):
                    os.unlink(f"{self._path}{suffix}")

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                with suppress(apsw.Error):
                    self._connection.close()
            self._connection = None

    def before_fork(self) -> None:
        """Close what must not be shared: a child inherits SQLite's idea of the locks it holds,
        but not the locks, and then parent and child ruin each other's file."""
        self._lock.acquire()
        self.close()

    def after_fork_in_parent(self) -> None:
        """Go on; the next use connects again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """The lock belongs to a thread that is not here."""
        self._lock = threading.RLock()

    def _connected(self) -> apsw.Connection:
        if self._connection is not None and self._inode in (0, self._current_inode()):
            return self._connection
        self.close()
        if self._path is None:
            self._connection = _prepared(apsw.Connection(":memory:"))
            self._inode = 0
            return self._connection
        try:
            self._connection = self._connect(self._path)
            self._inode = self._current_inode()
        except _READ_ONLY as error:
            self._report(f"{self._path} cannot be opened, listing from memory: {error}")
            self._connection = _prepared(apsw.Connection(":memory:"))
            self._inode = 0
        return self._connection

    def _connect(self, given: Path) -> apsw.Connection:
        path = Path(os.path.realpath(given.parent)) / given.name
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):  # SQLite would take the umask's mode; its own error says more
            os.close(os.open(path, flags, 0o600))
        connection = apsw.Connection(
            str(path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
        )
        try:
            connection.set_busy_timeout(int(PATIENCE * 1000))
            if _journal(connection) != "wal":
                raise IndexBroken(f"{path} cannot be put into WAL mode")
            return _prepared(connection)
        except BaseException:
            connection.close()
            raise

    def _current_inode(self) -> int:
        if self._path is None:
            return 0
        try:
            return os.stat(self._path, follow_symlinks=False).st_ino
        except OSError:
            return -1


def _journal(connection: apsw.Connection) -> object:
    """Put the file into WAL mode; which mode it is in.

    Of two who do so to a new file at once, SQLite refuses one on the spot: waiting as for other
    locks could never end.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return _value(connection, "PRAGMA journal_mode = WAL")
        except apsw.BusyError:
            if time.monotonic() > end:
                raise
        time.sleep(_PAUSE)


def _prepared(connection: apsw.Connection) -> apsw.Connection:
    """Set the pragmas, one per call, and make the tables if the file is empty."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -32000")  # kB, for searches
    if _value(connection, "PRAGMA synchronous") != 1:
        raise IndexBroken("the index does not take its settings")
    version = _value(connection, "PRAGMA user_version")
    if version == VERSION:
        return connection
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _value(connection, "PRAGMA user_version")  # another process may have been first
        if version != VERSION:
            if version or _value(connection, "SELECT count(*) FROM sqlite_schema"):
                raise IndexBroken(f"the index has version {version}, not {VERSION}")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return connection


def _value(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> Any:
    row = connection.execute(statement, values).fetchone()
    return None if row is None else row[0]


@contextmanager
def _errors_mapped() -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise IndexBroken(f"the index is broken: {error}", hint="it is rebuilt") from error
    except apsw.Error as error:
        raise StoreFailedError(
            f"the index cannot be used: {error}", hint="everlog doctor tells more"
        ) from error
