"""The overlay: a database file that cannot be written, read as it is, with all changes in memory.

SQLite sees one ordinary database. Pages that it writes are kept here, the others come from the file,
so memory use grows with what is new and not with the file. What is in the write-ahead log counts as
new. The file itself is never written.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import apsw

PAGE = 4096  # bytes that are kept together; at least SQLite's page size, so that a page is one write
_numbers = count(1)


class FileStamp(NamedTuple):
    """A value that changes when another process writes to a database."""

    main: tuple[int, int, int]
    wal: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Return the stamp of a database as it is now."""
        return cls(_stamp(f"{path}"), _stamp(f"{path}-wal"))


class Overlay:
    """An open database file with changes in memory."""

    def __init__(self, path: Path, *, is_full: bool) -> None:
        """Open the file. Raises apsw.Error if it cannot be read.

        On a full disk nobody writes to it, and SQLite's shared memory must not be used.
        """
        self._pin = None if is_full else _pin(path)
        self._vfs = _OverlayVfs(f"everlog-overlay-{next(_numbers)}")
        with ExitStack() as stack:
            stack.callback(self._close_files)
            self.connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs.name)
            stack.callback(self.connection.close)
            # Without shared memory, which would need a file; the write-ahead log is taken into the pages.
            self.connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self.connection.execute("PRAGMA temp_store = MEMORY")
            self.connection.execute("PRAGMA journal_mode = MEMORY")
            stack.pop_all()

    @property
    def changed_bytes(self) -> int:
        """The size of what is kept in memory."""
        return sum(file.changed_bytes for file in self._vfs.files)

    def close(self) -> None:
        """Close the file and drop the changes."""
        with suppress(apsw.Error):
            self.connection.close()
        self._close_files()

    def _close_files(self) -> None:
        if self._pin is not None:
            self._pin.close()
        self._vfs.unregister()


def _pin(path: Path) -> apsw.Connection | None:
    """Begin to read a database, so that no process changes the pages that it reads now.

    None if that is impossible: then nobody has it open, or only on another mount.
    """
    connection = None
    try:
        connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except apsw.Error:
        if connection is not None:
            connection.close()
        return None
    return connection


class _OverlayVfs(apsw.VFS):
    """The file system that SQLite sees: one database and its write-ahead log."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.files: list[_OverlayFile] = []
        self._deleted: set[str] = set()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is not None and flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            self.files.append(_OverlayFile(path))
            return self.files[-1]
        if path is not None and flags[0] & apsw.SQLITE_OPEN_WAL:
            return _CopiedFile(_read_file(path))
        raise apsw.CantOpenError("an overlay has no other files")

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname.endswith("-wal") and pathname not in self._deleted and os.path.exists(pathname)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._deleted.add(filename)


class _PrivateFile(apsw.VFSFile):
    """A file that no other connection sees: it needs no lock and no sync."""

    def xLock(self, level: int) -> None: ...

    def xUnlock(self, level: int) -> None: ...

    def xCheckReservedLock(self) -> bool:
        return False

    def xSync(self, flags: int) -> None: ...

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False


class _OverlayFile(_PrivateFile):
    """A file on the disk with changed pages in memory."""

    def __init__(self, path: str) -> None:
        # By SQLite's own file system: to close a descriptor of ours would release its locks.
        super().__init__("", path, [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        self._base = self._size = super().xFileSize()  # bytes that are read from the disk, bytes in all
        self._pages: dict[int, bytes] = {}

    @property
    def changed_bytes(self) -> int:
        """The size of the changed pages."""
        return PAGE * len(self._pages)

    def xRead(self, amount: int, offset: int) -> bytes:
        end = min(offset + amount, self._size)
        data = b"".join(map(self._page, range(offset // PAGE, -(-end // PAGE))))
        start = offset // PAGE * PAGE
        return data[offset - start : max(end - start, 0)]

    def xWrite(self, data: bytes, offset: int) -> None:
        self._size = max(self._size, offset + len(data))
        done = 0
        while done < len(data):
            number, start = divmod(offset + done, PAGE)
            piece = bytes(data[done : done + PAGE - start])
            old = b"" if len(piece) == PAGE else self._page(number)
            self._pages[number] = old[:start] + piece + old[start + len(piece) :]
            done += len(piece)

    def xTruncate(self, newsize: int) -> None:
        self._size = newsize
        self._base = min(self._base, newsize)
        self._pages = {number: page for number, page in self._pages.items() if number * PAGE < newsize}

    def xFileSize(self) -> int:
        return self._size

    def _page(self, number: int) -> bytes:
        page = self._pages.get(number)
        if page is None:
            amount = min(PAGE, self._base - number * PAGE)
            page = super().xRead(amount, number * PAGE) if amount > 0 else b""
        return page.ljust(PAGE, b"\0")


class _CopiedFile(_PrivateFile):
    """A file as it was when it was opened."""

    def __init__(self, content: bytes) -> None:  # not opened by SQLite
        self._content = content

    def xRead(self, amount: int, offset: int) -> bytes:
        return self._content[offset : offset + amount]

    def xFileSize(self) -> int:
        return len(self._content)

    def xClose(self) -> None: ...


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise apsw.CantOpenError(str(error)) from error


def _stamp(path: str) -> tuple[int, int, int]:
    """Return inode, time and size of a file; zeros for one that is missing or empty."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0, 0
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status.st_size else (0, 0, 0)
