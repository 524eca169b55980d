"""The archive's state: the fold of all manifests, with every path and its versions. A cache.

A manifest is folded in the same way whether it was just written or is read again, so that a state
that is missing, broken or out of date is only slower to open. Where it cannot be written, it is
built in RAM. Reading it writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import apsw

from everlog.errors import StoreFailedError, StoreFullError
from everlog.interop.archive.manifest import Chunk, File, Gone, Link, Manifest, Manifests, Source

SCHEMA_VERSION = 1
NAME = "state.db"
BUSY_TIMEOUT_MS = 5_000
_BROKEN = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError)
_UNWRITABLE = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, apsw.FullError)
_MEMORY = ":memory:"
_SCHEMA = f"""
CREATE TABLE file (
    path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, inode INTEGER, target BLOB,
    gone TEXT, version INTEGER) WITHOUT ROWID;
CREATE TABLE version (
    id INTEGER PRIMARY KEY, path BLOB, at TEXT, size INTEGER, mtime_ns INTEGER, mode INTEGER,
    sha256 BLOB, pieces BLOB);
CREATE INDEX version_path ON version (path, id);
CREATE TABLE source (path BLOB PRIMARY KEY, at TEXT) WITHOUT ROWID;
CREATE TABLE applied (number INTEGER);
INSERT INTO applied VALUES (0);
PRAGMA user_version = {SCHEMA_VERSION};
"""


class PathState(NamedTuple):
    """The last state of a path; its first three fields show whether a file has changed."""

    size: int
    mtime_ns: int
    inode: int
    target: bytes | None  # of a symlink; None: a file
    gone_since: str | None  # time since when it is missing
    version: int | None  # id of the latest version


class Version(NamedTuple):
    """A content that a file had at some time."""

    path: bytes
    archived_at: str  # ISO 8601
    size: int
    mtime_ns: int
    mode: int
    sha256: str
    chunks: tuple[Chunk, ...]


class ArchiveState:
    """The fold of the manifests, up to date when it is opened."""

    def __init__(self, folder: str, manifests: Manifests) -> None:
        self._path = f"{folder}/{NAME}"
        self._manifests = manifests
        with _map_errors():
            try:
                self._open(self._path)
            except _UNWRITABLE:
                self._open(_MEMORY)
            except _BROKEN:
                for ending in ("", "-journal"):
                    with suppress(FileNotFoundError):
                        os.unlink(self._path + ending)
                self._open(self._path)

    def _open(self, path: str) -> None:
        if path != _MEMORY:
            with suppress(OSError):  # SQLite's own error is clearer
                os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._db = apsw.Connection(path)
        try:
            self._db.set_busy_timeout(BUSY_TIMEOUT_MS)
            self._catch_up()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    # --- writing ----------------------------------------------------------------------------

    def _catch_up(self) -> None:
        numbers = self._manifests.numbers()
        last = numbers[-1] if numbers else 0
        if self._is_current(last):
            return
        with self._transaction():
            if self._is_current(last):
                return  # another process did it
            applied = self._applied() if self._version() == SCHEMA_VERSION else None
            if applied is None or applied > last:
                self._clear()
                applied = 0
            for manifest in self._manifests.walk(after=applied):
                self._fold(manifest)

    def _is_current(self, number: int) -> bool:
        return self._version() == SCHEMA_VERSION and self._applied() == number

    def _version(self) -> int:
        return int(self._db.pragma("user_version"))

    def _applied(self) -> int:
        return int(self._db.execute("SELECT number FROM applied").get)

    def _clear(self) -> None:
        query = "SELECT name FROM sqlite_schema WHERE type = 'table'"
        for (name,) in self._db.execute(query).fetchall():
            self._db.execute(f'DROP TABLE "{name}"')
        self._db.execute(_SCHEMA)

    def apply(self, manifest: Manifest) -> None:
        """Fold in a manifest that was just written, unless another process did already."""
        with _map_errors(), self._transaction():
            if self._applied() < manifest.number:
                self._fold(manifest)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _fold(self, manifest: Manifest) -> None:
        execute = self._db.execute
        for entry in manifest.entries:
            path = entry.raw_path
            if isinstance(entry, File):
                self._fold_file(entry, path, manifest.at)
            elif isinstance(entry, Link):
                row = (path, 0, 0, 0, entry.raw_target)
                execute("REPLACE INTO file VALUES (?, ?, ?, ?, ?, NULL, NULL)", row)
            elif isinstance(entry, Gone):
                execute("UPDATE file SET gone = ? WHERE path = ?", (manifest.at, path))
            elif isinstance(entry, Source):
                execute("INSERT OR IGNORE INTO source VALUES (?, ?)", (path, manifest.at))
        execute("UPDATE applied SET number = ?", (manifest.number,))

    def _fold_file(self, entry: File, path: bytes, archived_at: str) -> None:
        execute = self._db.execute
        digest = bytes.fromhex(entry.sha256)
        latest = execute("SELECT id, sha256 FROM version WHERE path = ? ORDER BY id DESC LIMIT 1", (path,)).fetchone()
        if latest is not None and latest[1] == digest:
            version = latest[0]  # touched, with the same content
        else:
            packed_chunks = b"".join(
                bytes.fromhex(chunk.object) + chunk.size.to_bytes(4, "big") for chunk in entry.chunks
            )
            execute(
                "INSERT INTO version VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                (path, archived_at, entry.size, entry.mtime_ns, entry.mode, digest, packed_chunks),
            )
            version = self._db.last_insert_rowid()
        row = (path, entry.size, entry.mtime_ns, entry.inode, version)
        execute("REPLACE INTO file VALUES (?, ?, ?, ?, NULL, NULL, ?)", row)

    # --- reading ----------------------------------------------------------------------------

    def entries_below(self, base: bytes) -> dict[bytes, PathState]:
        """Return the states of a path and of everything below it."""
        folder = base.rstrip(b"/") + b"/"
        rows = self._rows(
            "SELECT path, size, mtime_ns, inode, target, gone, version FROM file"
            " WHERE path = ?1 OR (path > ?2 AND path < ?3)",
            (base, folder, folder[:-1] + b"0"),  # the character after the slash
        )
        return {path: PathState(*values) for path, *values in rows}

    def version(self, number: int) -> Version:
        """Return a version by its id."""
        (row,) = self._rows(f"SELECT {_COLUMNS} FROM version WHERE id = ?", (number,))
        return _to_version(row)

    def versions(self, path: bytes) -> list[Version]:
        """Return the versions of a file, oldest first."""
        query = f"SELECT {_COLUMNS} FROM version WHERE path = ? ORDER BY id"
        return [_to_version(row) for row in self._rows(query, (path,))]

    def version_counts(self) -> dict[bytes, tuple[int, int]]:
        """Return the number of versions and their total size, by path."""
        query = "SELECT path, count(*), sum(size) FROM version GROUP BY path"
        return {path: (count, size) for path, count, size in self._rows(query)}

    def sources(self) -> list[tuple[bytes, str]]:
        """Return the sources, each with the time since when it is archived."""
        return list(self._rows("SELECT path, at FROM source ORDER BY path"))

    def last_manifest(self) -> int:
        """Return the number of the last manifest."""
        with _map_errors():
            return self._applied()

    def _rows(self, query: str, values: Iterable[Any] = ()) -> list[Any]:
        with _map_errors():
            return self._db.execute(query, tuple(values)).fetchall()


_COLUMNS = "path, at, size, mtime_ns, mode, sha256, pieces"


def _to_version(row: Any) -> Version:
    path, archived_at, size, mtime_ns, mode, digest, packed = row
    records = [packed[start : start + 36] for start in range(0, len(packed), 36)]
    chunks = tuple(Chunk(record[:32].hex(), int.from_bytes(record[32:], "big")) for record in records)
    return Version(path, archived_at, size, mtime_ns, mode, digest.hex(), chunks)


@contextmanager
def _map_errors() -> Iterator[None]:
    """Map SQLite's errors to EverlogErrors. The manifests are not affected by them."""
    try:
        yield
    except apsw.FullError as error:
        raise StoreFullError(
            "writing the state of the archive: no space left", hint="free some space and try again; nothing is lost"
        ) from error
    except apsw.Error as error:
        raise StoreFailedError(
            f"the state of the archive: {error}", hint=f"delete {NAME}; it will be rebuilt"
        ) from error
