"""Scanning a source, without opening any file."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from msgspec import Struct, field

_MAX_MTIME_NS = (1 << 63) - 1  # the year 2262


class FileStat(NamedTuple):
    """Size, mtime and inode of a regular file."""

    size: int
    mtime_ns: int
    inode: int


def file_stat(status: os.stat_result) -> FileStat:
    """Return the stat of a file, in signed 64-bit numbers as SQLite has them."""
    inode = status.st_ino - (1 << 64) if status.st_ino >= 1 << 63 else status.st_ino
    return FileStat(status.st_size, min(status.st_mtime_ns, _MAX_MTIME_NS), inode)


class Problem(Struct, frozen=True):
    """A path that could not be read, and why."""

    path: str
    problem: str


class ScanResult(Struct):
    """The content of a source."""

    files: dict[bytes, FileStat] = field(default_factory=dict)
    links: dict[bytes, bytes] = field(default_factory=dict)  # path → target
    special: list[bytes] = field(default_factory=list)  # FIFOs, sockets, devices
    unread: list[bytes] = field(default_factory=list)  # paths whose content is unknown
    problems: list[Problem] = field(default_factory=list)

    def add_failure(self, path: bytes, error: OSError) -> None:
        """Record a path that cannot be read."""
        self.unread.append(path)
        self.problems.append(Problem(display_path(path), error.strerror or str(error)))

    def covers(self, path: bytes) -> bool:
        """Return whether the scan would have found the path if it existed."""
        return not any(path == top or path.startswith(top + b"/") for top in self.unread)


def scan_source(path: bytes, skip: tuple[int, int] | None = None) -> ScanResult:
    """Scan a path. Symlinks are not followed; `skip` is a directory (device, inode)."""
    result = ScanResult()
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return result
    except OSError as error:
        result.add_failure(path, error)
        return result
    folders = []
    if stat.S_ISDIR(status.st_mode):
        folders += [path] if (status.st_dev, status.st_ino) != skip else []
    elif stat.S_ISREG(status.st_mode):
        result.files[path] = file_stat(status)
    else:
        result.special.append(path)
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    _add_entry(entry, result, folders, skip)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            result.add_failure(folder, error)
    return result


def _add_entry(
    entry: os.DirEntry[bytes], result: ScanResult, folders: list[bytes], skip: tuple[int, int] | None
) -> None:
    path = entry.path
    try:
        if entry.is_symlink():
            result.links[path] = os.readlink(path)
            return
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # removed meanwhile
    except OSError as error:
        result.add_failure(path, error)
        return
    if stat.S_ISDIR(status.st_mode):
        if (status.st_dev, status.st_ino) != skip:
            folders.append(path)
    elif stat.S_ISREG(status.st_mode):
        result.files[path] = file_stat(status)
    else:
        result.special.append(path)


def display_path(path: bytes) -> str:
    """Return a path as text to show."""
    return path.decode("utf-8", "backslashreplace")
