"""The file `index.db`: its tables, and how it is opened, checked and replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw

from everlog.errors import StoreFailedError

VERSION = 8
MIN_ROOM = 1 << 22  # bytes that must be free to write: the last ones are for the logs
LOCK_TIMEOUT = 5.0  # seconds to wait for another process
_RETRY_PAUSE = 0.002
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


def free_bytes(directory: Path) -> int:
    """Return the free space in a directory; -1 on a read-only file system."""
    try:
        status = os.statvfs(directory)
    except OSError:
        return MIN_ROOM  # whoever opens the file sees why
    if status.f_flag & os.ST_RDONLY:
        return -1
    return status.f_bavail * status.f_frsize if status.f_blocks else MIN_ROOM  # some do not know


def check_room(path: Path, room: int = 0) -> None:
    """Raise apsw.FullError or apsw.ReadOnlyError if the index cannot grow by so many bytes.

    The last room is for the logs: a transaction that does not fit leaves its frames in the
    write-ahead log. And SQLite maps its shared memory from a file: where that has no block yet and
    the disk has no more, a write to it ends the process with SIGBUS.
    """
    free = free_bytes(path.parent)
    if free < 0:
        raise apsw.ReadOnlyError("the file system is read-only")
    if free < MIN_ROOM + room:
        raise apsw.FullError("the disk is full")


def real_path(path: Path) -> Path:
    """Return a path whose directories may be links, but not the file itself."""
    return Path(os.path.realpath(path.parent)) / path.name


def connect(location: Path) -> apsw.Connection:
    """Connect to a file, which is created if it is missing. Raises apsw.Error or IndexUnusableError."""
    check_room(location)
    path = real_path(location)
    # Only a new file: to close another descriptor of a file releases SQLite's locks on it.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):  # SQLite would use the umask's mode; its own error says more
        os.close(os.open(path, flags, 0o600))
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
    try:
        connection.set_busy_timeout(int(LOCK_TIMEOUT * 1000))
        if _enable_wal(connection) != "wal":
            raise IndexUnusableError(f"{path} cannot be put into WAL mode")
        return prepare(connection)
    except BaseException:
        connection.close()
        raise


def connect_writable(path: Path) -> apsw.Connection | None:
    """Connect and write something; None if that is still impossible. An unusable file is replaced."""
    connection = None
    try:
        try:
            connection = connect(path)
        except IndexUnusableError:
            delete_files(path)
            connection = connect(path)
        connection.execute("UPDATE fact SET value = value WHERE key = 'sessions'")
        return connection
    except (OSError, apsw.Error, IndexUnusableError):
        if connection is not None:
            connection.close()
        return None


def delete_files(path: Path) -> None:
    """Delete a database. Raises OSError if that is impossible."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}{suffix}")


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


def prepare(connection: apsw.Connection) -> apsw.Connection:
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
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself may have rolled back
            connection.execute("ROLLBACK")
        raise
    return connection


def _fetch_value(connection: apsw.Connection, statement: str, values: Sequence[Any] = ()) -> Any:
    row = connection.execute(statement, values).fetchone()
    return None if row is None else row[0]
