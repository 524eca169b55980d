"""System calls of the file store, and the one place where their errors become ours.

No symlink is followed below the root: every path component there is opened by name, relative to
the directory before it.
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
_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


def mapped(error: OSError, doing: str, **facts: str) -> EverlogError:
    """One of our errors for one of the system's."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _FULL:
        return StoreFullError(
            f"{doing}: {reason}", hint="free some space and try again; nothing was lost", **facts
        )
    if error.errno == errno.ENOENT:
        return NotFoundError(f"{doing}: {reason}", **facts)
    if error.errno in _LINK:
        return InvalidIdError(f"{doing}: a symbolic link is not followed", **facts)
    hint = ""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "check who owns the directory and whether it is writable"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "raise the limit of open files (ulimit -n)"
    return StoreFailedError(f"{doing}: {reason}", hint=hint, **facts)


@contextmanager
def errors_mapped(doing: str, **facts: str) -> Iterator[None]:
    """Turn OSError into ours."""
    try:
        yield
    except OSError as error:
        raise mapped(error, doing, **facts) from error


def open_directory(name: str, beneath: int | None = None) -> int:
    """A descriptor of a directory that is not a symlink."""
    return os.open(name, _DIRECTORY, dir_fd=beneath)


def open_file(name: str, flags: int, beneath: int) -> int:
    """A descriptor of a regular file in a directory; anything else by that name is refused."""
    # O_NONBLOCK: a planted FIFO must not make us wait for its other end.
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(name, flags, 0o600, dir_fd=beneath)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreFailedError(f"{name} is not a regular file", hint="move it out of the way")
    return descriptor


def tighten(descriptor: int) -> None:
    """Take away what others may do with a file or directory."""
    mode = os.fstat(descriptor).st_mode
    if mode & 0o077:
        os.fchmod(descriptor, stat.S_IMODE(mode) & 0o700)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything; a short write goes on where it stopped until an error says why."""
    written = os.write(descriptor, data)
    if written != len(data):
        rest = memoryview(data)[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


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
        """Bring a file's bytes to the disk itself; fsync there only reaches the drive's cache."""
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

    sync_all = sync
else:
    sync = os.fdatasync
    sync_all = os.fsync


def sync_directory(descriptor: int) -> None:
    """Make the names in a directory durable."""
    sync_all(descriptor)


def put(name: str, data: bytes, beneath: int, *, durable: bool) -> None:
    """Replace a small file as a whole: temporary, rename; with `durable`, synced in between."""
    temporary = f"{name}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    descriptor = open_file(temporary, flags, beneath)
    try:
        try:
            write_all(descriptor, data)
            if durable:
                sync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=beneath, dst_dir_fd=beneath)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=beneath)
        raise
    if durable:
        sync_directory(beneath)


def get(name: str, beneath: int, cap: int = 1 << 26) -> bytes:
    """The bytes of a file that fits into memory; a larger one is cut at the cap."""
    descriptor = open_file(name, os.O_RDONLY, beneath)
    try:
        data = os.pread(descriptor, 1 << 16, 0)
        while len(data) < cap and (more := os.pread(descriptor, 1 << 20, len(data))):
            data += more
        return data
    finally:
        os.close(descriptor)


def lock(descriptor: int, seconds: float, what: str, **facts: str) -> None:
    """Take an exclusive flock, waiting at most so long; SessionBusyError names the holder."""
    deadline = time.monotonic() + seconds
    pause = 0.0001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise mapped(error, f"locking {what}", **facts) from error
        if time.monotonic() >= deadline:
            break
        time.sleep(pause)
        pause = min(pause * 1.5, 0.002)
    raise SessionBusyError(
        f"{what} is held by {named(holder(descriptor))}",
        hint="try again when it has finished",
        **facts,
    )


def unlock(descriptor: int) -> None:
    """Give a flock back, also for those who have a copy of the descriptor."""
    with suppress(OSError):  # closing it does the same for us
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def holder(descriptor: int) -> int:
    """The process that holds the flock on a file; 0 if the system does not tell.

    Asking /proc/locks when it matters is cheaper than writing a pid at every append.
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


def named(pid: int) -> str:
    """A process in words."""
    if pid <= 0:
        return "another process"
    if pid == os.getpid():
        return f"this process (pid {pid})"
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
            return f"process {pid} ({name.read().strip()})"
    except OSError:
        return f"process {pid}"
