"""System calls of the file store, and the one place where their errors are mapped.

No symlink is followed below the root: every path component is opened by name, relative to its
parent directory.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from everlog.errors import (
    EverlogError,
    InvalidIdError,
    NotFoundError,
    SessionBusyError,
    StoreFailedError,
    StoreFullError,
)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
READ_ONLY_HINT = "reading works; to write, mount it writable or choose another --home or --store"
_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


def map_error(error: OSError, action: str, **fields: str) -> EverlogError:
    """Return the EverlogError for an OSError."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return StoreFullError(f"{action}: {reason}", hint="free some space and try again; nothing was lost", **fields)
    if error.errno == errno.ENOENT:
        return NotFoundError(f"{action}: {reason}", **fields)
    if error.errno in _LINK:
        return InvalidIdError(f"{action}: a symbolic link is not followed", **fields)
    hint = ""
    if error.errno == errno.EROFS:
        hint = READ_ONLY_HINT
    elif error.errno in (errno.EACCES, errno.EPERM):
        hint = "check who owns the directory and whether it is writable"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "raise the limit of open files (ulimit -n)"
    return StoreFailedError(f"{action}: {reason}", hint=hint, **fields)


@contextmanager
def map_errors(action: str, **fields: str) -> Iterator[None]:
    """Map OSError to EverlogError in a `with` block."""
    try:
        yield
    except OSError as error:
        raise map_error(error, action, **fields) from error


def is_read_only(path: Path) -> bool:
    """Return whether a path is on a read-only file system, or would be if it existed."""
    for existing in (path, *path.absolute().parents):
        with suppress(OSError):
            return bool(os.statvfs(existing).f_flag & os.ST_RDONLY)
    return False


def check_writable(path: Path) -> None:
    """Refuse a directory on a read-only file system: the system's own errors name no path."""
    if is_read_only(path):
        raise StoreFailedError(f"{path} is on a read-only file system", hint=READ_ONLY_HINT)


def open_directory(name: str, parent: int | None = None) -> int:
    """Return a descriptor of a directory that is not a symlink."""
    return os.open(name, _DIRECTORY, dir_fd=parent)


def opened_directory(name: str, parent: int | None = None) -> OpenDescriptor:
    """Open a directory that is not a symlink, for a `with` block."""
    return OpenDescriptor(open_directory(name, parent))


def open_file(name: str, flags: int, parent: int) -> int:
    """Return a descriptor of a regular file in a directory; anything else is refused."""
    # O_NONBLOCK: opening a planted FIFO must not block.
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(name, flags, 0o600, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreFailedError(f"{name} is not a regular file", hint="move it out of the way")
    return descriptor


def opened_file(name: str, flags: int, parent: int) -> OpenDescriptor:
    """Open a regular file in a directory, for a `with` block."""
    return OpenDescriptor(open_file(name, flags, parent))


class OpenDescriptor:
    """A descriptor that is closed at the end of its `with` block."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


def restrict_mode(descriptor: int) -> None:
    """Remove the permissions of group and others from a file or directory."""
    mode = os.fstat(descriptor).st_mode
    if mode & 0o077:
        os.fchmod(descriptor, stat.S_IMODE(mode) & 0o700)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything; a short write is continued until it is complete or fails."""
    written = os.write(descriptor, data)
    if written != len(data):
        remainder = memoryview(data)[written:]
        while remainder:
            remainder = remainder[os.write(descriptor, remainder) :]


def copy(source: int, target: int, start: int, end: int) -> None:
    """Copy the bytes between two offsets to the end of another file."""
    while start < end:
        data = os.pread(source, min(1 << 20, end - start), start)
        if not data:
            return
        write_all(target, data)
        start += len(data)


if sys.platform == "darwin":

    def sync(descriptor: int) -> None:
        """Sync a file to the disk itself; fsync on macOS only reaches the drive's cache."""
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

    sync_all = sync
else:
    sync = os.fdatasync
    sync_all = os.fsync


def sync_directory(descriptor: int) -> None:
    """Make the names in a directory durable."""
    sync_all(descriptor)


def replace_small_file(name: str, data: bytes, parent: int, *, durable: bool) -> None:
    """Replace a small file atomically by a rename; with `durable`, synced before and after."""
    temporary = f"{name}.{os.getpid()}.tmp"
    try:
        with opened_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, parent) as descriptor:
            write_all(descriptor, data)
            if durable:
                sync(descriptor)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise
    if durable:
        sync_directory(parent)


def read_small_file(name: str, parent: int, cap: int = 1 << 26) -> bytes:
    """Return the bytes of a file that fits into memory; a larger one is cut at the cap."""
    with opened_file(name, os.O_RDONLY, parent) as descriptor:
        data = os.pread(descriptor, 1 << 16, 0)
        while len(data) < cap and (more := os.pread(descriptor, 1 << 20, len(data))):
            data += more
        return data


def lock(descriptor: int, seconds: float, name: str, **fields: str) -> None:
    """Acquire an exclusive flock within `seconds`; SessionBusyError names the holder."""
    deadline = time.monotonic() + seconds
    pause = 0.0001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise map_error(error, f"locking {name}", **fields) from error
        if time.monotonic() >= deadline:
            break
        time.sleep(pause)
        pause = min(pause * 1.5, 0.002)
    raise SessionBusyError(
        f"{name} is held by {describe_process(lock_holder(descriptor))}",
        hint="try again when it has finished",
        **fields,
    )


def unlock(descriptor: int) -> None:
    """Release a flock, also for copies of the descriptor."""
    with suppress(OSError):  # closing the descriptor releases our lock as well
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_holder(descriptor: int) -> int:
    """Return the process that holds the flock on a file; 0 if unknown.

    Reading /proc/locks when needed is cheaper than writing a pid at every append.
    """
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as table:
            for row in table:
                fields = row.split()
                if fields[1] == "FLOCK" and device in fields:
                    return int(fields[4])
    except (OSError, IndexError, ValueError):
        pass
    return 0


def is_running(pid: str) -> bool:
    """Return whether a process with this number runs; one of another user counts."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        pass
    return True


def describe_process(pid: int) -> str:
    """Describe a process by name and pid."""
    if pid <= 0:
        return "another process"
    if pid == os.getpid():
        return f"this process (pid {pid})"
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
            return f"process {pid} ({name.read().strip()})"
    except OSError:
        return f"process {pid}"


def remove_contents(directory: int) -> None:
    """Remove everything in a directory; links are removed, not followed."""
    with os.scandir(directory) as entries:
        children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in children:
        if is_directory:
            with opened_directory(name, directory) as inner:
                remove_contents(inner)
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)
