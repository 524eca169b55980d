"""Find what is in a source, without opening any file."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from msgspec import Struct, field

_LATEST = (1 << 63) - 1  # the year 2262


class Seen(NamedTuple):
    """A regular file as its directory tells it."""

    size: int
    mtime_ns: int
    inode: int


def seen(status: os.stat_result) -> Seen:
    """The numbers of a file, as far as 64 bits hold them: SQLite has no more."""
    inode = status.st_ino - (1 << 64) if status.st_ino >= 1 << 63 else status.st_ino
    return Seen(status.st_size, min(status.st_mtime_ns, _LATEST), inode)


class Problem(Struct, frozen=True):
    """Something that could not be read, and why."""

    path: str
    problem: str


class Found(Struct):
    """What is in a source."""

    files: dict[bytes, Seen] = field(default_factory=dict)
    links: dict[bytes, bytes] = field(default_factory=dict)  # path → target
    special: list[bytes] = field(default_factory=list)  # FIFOs, sockets, devices
    unread: list[bytes] = field(default_factory=list)  # of what is in there nothing is known
    problems: list[Problem] = field(default_factory=list)

    def failed(self, path: bytes, error: OSError) -> None:
        """Note a path that cannot be looked into."""
        self.unread.append(path)
        self.problems.append(Problem(shown(path), error.strerror or str(error)))

    def knows(self, path: bytes) -> bool:
        """Whether the path would have been found if it were there."""
        return not any(path == one or path.startswith(one + b"/") for one in self.unread)


def find(place: bytes, skip: tuple[int, int] | None = None) -> Found:
    """Everything at a path. Links are not followed; `skip` is a directory (device, inode)."""
    found = Found()
    try:
        status = os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return found
    except OSError as error:
        found.failed(place, error)
        return found
    folders = []
    if stat.S_ISDIR(status.st_mode):
        folders += [place] if (status.st_dev, status.st_ino) != skip else []
    elif stat.S_ISREG(status.st_mode):
        found.files[place] = seen(status)
    else:
        found.special.append(place)
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    _sort_in(entry, found, folders, skip)
        except FileNotFoundError:
            continue  # removed meanwhile
        except OSError as error:
            found.failed(folder, error)
    return found


def _sort_in(
    entry: os.DirEntry[bytes],
    found: Found,
    folders: list[bytes],
    skip: tuple[int, int] | None,
) -> None:
    path = entry.path
    try:
        if entry.is_symlink():
            found.links[path] = os.readlink(path)
            return
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return  # removed meanwhile
    except OSError as error:
        found.failed(path, error)
        return
    if stat.S_ISDIR(status.st_mode):
        if (status.st_dev, status.st_ino) != skip:
            folders.append(path)
    elif stat.S_ISREG(status.st_mode):
        found.files[path] = seen(status)
    else:
        found.special.append(path)


def shown(path: bytes) -> str:
    """A path for people."""
    return path.decode("utf-8", "backslashreplace")
