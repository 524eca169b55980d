"""The index database: one SQLite file in WAL mode, versioned, its errors mapped in one place.

A file that is missing, broken or of another version is not an error: it is created again and
filled from the logs, once. A root that is not writable gets an in-memory index.
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

VERSION = 8
LOCK_TIMEOUT = 5.0  # seconds to wait for another process
_RETRY_PAUSE = 0.002
_UNUSABLE_ERRORS = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError, apsw.SchemaChangeError)
_READ_ONLY_ERRORS = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError)
TOKENIZER = "porter unicode61 remove_diacritics 2"  # of the words of passages

_MARK_AHEAD = """INSERT INTO ahead SELECT new.id
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
    # Usage (`usage_rows`), ordered by day.
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
    # Search (`search.fts5`): the passages, their words, and the words inside identifiers.
    """CREATE TABLE taken (session TEXT PRIMARY KEY, number INTEGER UNIQUE, seq INTEGER,
        bytes INTEGER) WITHOUT ROWID""",
    # Sessions that may have grown since: a search must find them without reading all sessions.
    "CREATE TABLE ahead (session TEXT PRIMARY KEY) WITHOUT ROWID",
    f"CREATE TRIGGER session_begun AFTER INSERT ON session BEGIN {_MARK_AHEAD} END",
    f"""CREATE TRIGGER session_grown AFTER UPDATE OF bytes ON session
        WHEN new.bytes IS NOT old.bytes BEGIN {_MARK_AHEAD} END""",
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
    f"""CREATE VIRTUAL TABLE word USING fts5(summary, title, user, assistant, tool, grams,
        content = 'passage_column', content_rowid = 'id',
        tokenize = "{TOKENIZER}")""",
    "CREATE VIRTUAL TABLE inside USING fts5(names, content = '', tokenize = 'trigram')",
    "CREATE VIRTUAL TABLE word_term USING fts5vocab(word, 'instance')",
    "INSERT INTO fact VALUES ('passages', 0)",
    # Bytes of words that are buffered in memory: almost twice as fast.
    "INSERT INTO word (word, rank) VALUES ('hashsize', 67108864)",
    # A deletion removes the words themselves, and does not only hide them.
    "INSERT INTO word (word, rank) VALUES ('secure-delete', 1)",
    "INSERT INTO inside (inside, rank) VALUES ('secure-delete', 1)",
)


class IndexUnusableError(StoreFailedError):
    """The index cannot be used as it is; it must be deleted and rebuilt."""


class Database:
    """The connection to one `index.db`, shared by the threads of a process."""

    def __init__(self, path: Path | None, report: Callable[[str], None]) -> None:
        """Connect on first use; without a path the database is in memory."""
        self._path = path
        self._report = report
        self._lock = threading.RLock()
        self._connection: apsw.Connection | None = None
        self._inode = 0

    @contextmanager
    def read_cursor(self) -> Iterator[apsw.Cursor]:
        """Yield a cursor; each statement is its own transaction, and none outlives the block.

        An unfinished SELECT keeps its snapshot open, and once another process writes, this
        connection cannot write any more. The traceback of an error is enough to keep a cursor
        alive, so it is closed explicitly.
        """
        with self._lock, _map_errors():
            cursor = self._current_connection().cursor()
            try:
                yield cursor
            finally:
                cursor.close(True)

    @contextmanager
    def write_transaction(self, *, durable: bool = False, timeout: float = LOCK_TIMEOUT) -> Iterator[apsw.Cursor]:
        """Yield a cursor in one transaction; with `durable` it is synced before return.

        `timeout`: seconds to wait for the lock of another process.
        """
        with self._lock, _map_errors():
            connection = self._current_connection()
            connection.set_busy_timeout(int(timeout * 1000))
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
                connection.set_busy_timeout(int(LOCK_TIMEOUT * 1000))
                if durable:
                    cursor.execute("PRAGMA synchronous = NORMAL")
                cursor.close(True)

    def truncate_log(self) -> None:
        """Move everything from the write-ahead log into the file, and empty the log.

        What was deleted is overwritten in the file by then, but the log may still have it.
        """
        with self._lock, _map_errors():
            busy, *_ = self._current_connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() or (0,)
        if busy:
            self._report(f"{self._path}-wal may have deleted text until the next deletion: another process reads it")

    def change_stamp(self) -> tuple[int, int, int]:
        """Return a value that differs after every change, by any process."""
        with self._lock, _map_errors():
            connection = self._current_connection()
            return id(connection), connection.data_version(), connection.total_changes()

    def reset(self) -> None:
        """Delete the file; the next use creates a new one."""
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
        """Close the connection: a child inherits SQLite's record of the locks it holds, but not
        the locks, and then parent and child would corrupt the file."""
        self._lock.acquire()
        self.close()

    def after_fork_in_parent(self) -> None:
        """Release the lock; the next use connects again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Replace the lock: its owner is a thread that the child does not have."""
        self._lock = threading.RLock()

    def _current_connection(self) -> apsw.Connection:
        if self._connection is not None and self._inode in (0, self._current_inode()):
            return self._connection
        self.close()
        if self._path is None:
            self._connection = _prepare(apsw.Connection(":memory:"))
            self._inode = 0
            return self._connection
        try:
            self._connection = self._connect(self._path)
            self._inode = self._current_inode()
        except _READ_ONLY_ERRORS as error:
            self._report(f"{self._path} cannot be opened, using an in-memory index: {error}")
            self._connection = _prepare(apsw.Connection(":memory:"))
            self._inode = 0
        return self._connection

    def _connect(self, location: Path) -> apsw.Connection:
        path = Path(os.path.realpath(location.parent)) / location.name
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):  # SQLite would use the umask's mode; its own error says more
            os.close(os.open(path, flags, 0o600))
        connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
        try:
            connection.set_busy_timeout(int(LOCK_TIMEOUT * 1000))
            if _enable_wal(connection) != "wal":
                raise IndexUnusableError(f"{path} cannot be put into WAL mode")
            return _prepare(connection)
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


def _enable_wal(connection: apsw.Connection) -> object:
    """Put the file into WAL mode; returns the mode it is in.

    If two connections do so to a new file at once, SQLite refuses one immediately, without the
    busy timeout, since waiting could deadlock.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return _fetch_value(connection, "PRAGMA journal_mode = WAL")
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_PAUSE)


def _prepare(connection: apsw.Connection) -> apsw.Connection:
    """Set the pragmas, one per call, and create the tables if the file is empty."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")  # deleted text is overwritten
    connection.execute("PRAGMA cache_size = -32000")  # kB, for searches
    if _fetch_value(connection, "PRAGMA synchronous") != 1:
        raise IndexUnusableError("the index does not accept its pragma settings")
    version = _fetch_value(connection, "PRAGMA user_version")
    if version == VERSION:
        return connection
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _fetch_value(connection, "PRAGMA user_version")  # another process may be first
        if version != VERSION:
            if version or _fetch_value(connection, "SELECT count(*) FROM sqlite_schema"):
                raise IndexUnusableError(f"the index has version {version}, not {VERSION}")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return connection


def _fetch_value(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> Any:
    row = connection.execute(statement, values).fetchone()
    return None if row is None else row[0]


@contextmanager
def _map_errors() -> Iterator[None]:
    try:
        yield
    except _UNUSABLE_ERRORS as error:
        raise IndexUnusableError(f"the index is unusable: {error}", hint="it is rebuilt") from error
    except apsw.Error as error:
        raise StoreFailedError(f"the index cannot be used: {error}", hint="run everlog doctor for details") from error
