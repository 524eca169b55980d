"""What all manifests say together: the latest of every path, and its versions. A cache.

A manifest is folded in by the same step whether it was just written or is read again, so a state
that is missing, broken or behind is only slower to open. Without a place to write it is made in
memory. Reading it writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import apsw

from everlog.errors import StoreFailedError, StoreFullError
from everlog.interop.archive.manifest import File, Gone, Link, Manifest, Manifests, Piece, Source

SCHEMA_VERSION = 1
NAME = "state.db"
PATIENCE_MS = 5_000
_BROKEN = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.SQLError)
_NO_PLACE = (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError, apsw.FullError)
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


class Known(NamedTuple):
    """What is known of a path: by its numbers it is seen whether it has changed."""

    size: int
    mtime_ns: int
    inode: int
    target: bytes | None  # of a link; None: it is a file
    gone: str | None  # since when it is no longer there
    version: int | None  # id of the latest


class Version(NamedTuple):
    """A content that a file had."""

    path: bytes
    at: str  # when it was archived
    size: int
    mtime_ns: int
    mode: int
    sha256: str
    pieces: tuple[Piece, ...]


class State:
    """The fold of the manifests, up to date when it is opened."""

    def __init__(self, folder: str, manifests: Manifests) -> None:
        self._path = f"{folder}/{NAME}"
        self._manifests = manifests
        with _errors_mapped():
            try:
                self._open(self._path)
            except _NO_PLACE:
                self._open(_MEMORY)
            except _BROKEN:
                for ending in ("", "-journal"):
                    with suppress(FileNotFoundError):
                        os.unlink(self._path + ending)
                self._open(self._path)

    def _open(self, path: str) -> None:
        if path != _MEMORY:
            with suppress(OSError):  # SQLite says it better
                os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._db = apsw.Connection(path)
        try:
            self._db.set_busy_timeout(PATIENCE_MS)
            self._catch_up()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    # --- writing ----------------------------------------------------------------------------

    def _catch_up(self) -> None:
        numbers = self._manifests.numbers()
        last = numbers[-1] if numbers else 0
        if self._is_of(last):
            return
        with self._transaction():
            if self._is_of(last):
                return  # another process did it
            done = self._applied() if self._version() == SCHEMA_VERSION else None
            if done is None or done > last:
                self._clear()
                done = 0
            for manifest in self._manifests.walk(after=done):
                self._fold(manifest)

    def _is_of(self, number: int) -> bool:
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
        """Fold in a manifest that was just written, unless another process did."""
        with _errors_mapped(), self._transaction():
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
        run = self._db.execute
        for entry in manifest.entries:
            path = entry.place
            if isinstance(entry, File):
                self._fold_file(entry, path, manifest.at)
            elif isinstance(entry, Link):
                row = (path, 0, 0, 0, entry.to)
                run("REPLACE INTO file VALUES (?, ?, ?, ?, ?, NULL, NULL)", row)
            elif isinstance(entry, Gone):
                run("UPDATE file SET gone = ? WHERE path = ?", (manifest.at, path))
            elif isinstance(entry, Source):
                run("INSERT OR IGNORE INTO source VALUES (?, ?)", (path, manifest.at))
        run("UPDATE applied SET number = ?", (manifest.number,))

    def _fold_file(self, entry: File, path: bytes, at: str) -> None:
        run = self._db.execute
        digest = bytes.fromhex(entry.sha256)
        found = run(
            "SELECT id, sha256 FROM version WHERE path = ? ORDER BY id DESC LIMIT 1", (path,)
        ).fetchone()
        if found is not None and found[1] == digest:
            version = found[0]  # only touched: no other content
        else:
            pieces = b"".join(
                bytes.fromhex(one.object) + one.size.to_bytes(4, "big") for one in entry.pieces
            )
            run(
                "INSERT INTO version VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                (path, at, entry.size, entry.mtime_ns, entry.mode, digest, pieces),
            )
            version = self._db.last_insert_rowid()
        row = (path, entry.size, entry.mtime_ns, entry.inode, version)
        run("REPLACE INTO file VALUES (?, ?, ?, ?, NULL, NULL, ?)", row)

    # --- reading ----------------------------------------------------------------------------

    def beneath(self, place: bytes) -> dict[bytes, Known]:
        """Everything known at a path and in the folder of that path."""
        folder = place.rstrip(b"/") + b"/"
        rows = self._rows(
            "SELECT path, size, mtime_ns, inode, target, gone, version FROM file"
            " WHERE path = ?1 OR (path > ?2 AND path < ?3)",
            (place, folder, folder[:-1] + b"0"),  # the character behind the slash
        )
        return {path: Known(*rest) for path, *rest in rows}

    def version(self, number: int) -> Version:
        """A version by its id."""
        (row,) = self._rows(f"SELECT {_COLUMNS} FROM version WHERE id = ?", (number,))
        return _made(row)

    def versions(self, path: bytes) -> list[Version]:
        """What a file has been, the oldest first."""
        query = f"SELECT {_COLUMNS} FROM version WHERE path = ? ORDER BY id"
        return [_made(row) for row in self._rows(query, (path,))]

    def counted(self) -> dict[bytes, tuple[int, int]]:
        """How many versions each path has, and how many bytes they have together."""
        query = "SELECT path, count(*), sum(size) FROM version GROUP BY path"
        return {path: (count, size) for path, count, size in self._rows(query)}

    def sources(self) -> list[tuple[bytes, str]]:
        """What was given to the archive, and since when."""
        return list(self._rows("SELECT path, at FROM source ORDER BY path"))

    def last(self) -> int:
        """The number of the last manifest."""
        with _errors_mapped():
            return self._applied()

    def _rows(self, query: str, values: Iterable[Any] = ()) -> list[Any]:
        with _errors_mapped():
            return self._db.execute(query, tuple(values)).fetchall()


_COLUMNS = "path, at, size, mtime_ns, mode, sha256, pieces"


def _made(row: Any) -> Version:
    path, at, size, mtime_ns, mode, digest, packed = row
    cut = [packed[start : start + 36] for start in range(0, len(packed), 36)]
    pieces = tuple(Piece(one[:32].hex(), int.from_bytes(one[32:], "big")) for one in cut)
    return Version(path, at, size, mtime_ns, mode, digest.hex(), pieces)


@contextmanager
def _errors_mapped() -> Iterator[None]:
    """Turn what SQLite says into ours. The manifests are whole whatever it says."""
    try:
        yield
    except apsw.FullError as error:
        raise StoreFullError(
            "writing the state of the archive: no space left",
            hint="free some space and try again; nothing was lost",
        ) from error
    except apsw.Error as error:
        raise StoreFailedError(
            f"the state of the archive: {error}", hint=f"delete {NAME}; it is made anew"
        ) from error
