"""`{home}/run`: the token, the address and the lock of a home's one daemon.

    token         required by every request; created once, survives restarts, 0600
    address       where the daemon listens; exists only while one runs, or after a crash
    daemon.lock   locked while the daemon runs; the system releases it when the process ends
    everlog.sock  the socket of CrabTalk's protocol

Only the owner has access, and a directory of another user is not used: its owner could replace
the token. Symlinks are not followed, and nothing here is part of any session.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from everlog.errors import SessionBusyError, SettingsError, StoreFailedError
from everlog.stores.file import disk

TOKEN, ADDRESS, LOCK, SOCKET = "token", "address", "daemon.lock", "everlog.sock"
MIN_TOKEN_LENGTH = 32  # characters
MAX_FILE_BYTES = 4096
CLAIM_SECONDS = 0.2  # a client that checks for a running daemon holds the lock for a moment


class RunDirectory:
    """The run directory, open while the daemon runs."""

    def __init__(self, home: Path) -> None:
        self.path = home / "run"
        disk.check_writable(home)
        with disk.map_errors(f"opening {self.path}"):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(home, os.stat(home))
            with suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            self._directory = disk.open_directory(str(self.path))
            try:
                _check_owner(self.path, os.fstat(self._directory))
            except StoreFailedError:
                os.close(self._directory)
                raise
            disk.restrict_mode(self._directory)
        self._lock: int | None = None

    def claim(self) -> None:
        """Lock the home for this daemon. Raises SessionBusyError with the other's address."""
        with disk.map_errors(f"opening {self.path / LOCK}"):
            descriptor = disk.open_file(LOCK, os.O_RDWR | os.O_CREAT, self._directory)
        try:
            disk.lock(descriptor, CLAIM_SECONDS, "the home")
        except SessionBusyError as error:
            os.close(descriptor)
            address = self.address() or "an unknown address"
            raise SessionBusyError(
                f"a daemon for {self.path.parent} is running at {address}: {error.message}",
                hint="use that one, or stop it first",
            ) from error
        self._lock = descriptor
        with suppress(OSError):  # of a daemon that was killed
            os.unlink(ADDRESS, dir_fd=self._directory)

    def ensure_token(self) -> None:
        """Create the token unless it exists. Raises SettingsError if it is unusable."""
        with disk.map_errors(f"making {self.path / TOKEN}"):
            if self.stamp() is None:
                # Atomically: a partial token would lock everybody out for good.
                token = f"{secrets.token_urlsafe(32)}\n".encode()
                disk.replace_small_file(TOKEN, token, self._directory, durable=True)
        if not self.token():
            raise SettingsError(
                f"{self.path / TOKEN} cannot be used as a token",
                hint=f"delete it, or write {MIN_TOKEN_LENGTH} or more characters into it",
            )

    def stamp(self) -> tuple[int, ...] | None:
        """Return a value that changes with the token; None if there is none."""
        return file_stamp(TOKEN, self._directory)

    def token(self) -> str:
        """Return the current token; empty if there is no usable one."""
        try:
            descriptor = disk.open_file(TOKEN, os.O_RDONLY, self._directory)
        except (OSError, StoreFailedError):
            return ""
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return ""
            disk.restrict_mode(descriptor)
            text = os.read(descriptor, MAX_FILE_BYTES).decode("ascii", "replace").strip()
        finally:
            os.close(descriptor)
        return text if len(text) >= MIN_TOKEN_LENGTH and text.isprintable() else ""

    def address(self) -> str:
        """Return the address that a daemon has announced; empty if none has."""
        try:
            text = disk.read_small_file(ADDRESS, self._directory, cap=MAX_FILE_BYTES)
        except (OSError, StoreFailedError):
            return ""
        return text.decode("ascii", "replace").strip()

    def announce(self, address: str) -> None:
        """Write the address on which the daemon listens."""
        with disk.map_errors(f"writing {self.path / ADDRESS}"):
            disk.replace_small_file(ADDRESS, f"{address}\n".encode(), self._directory, durable=False)

    def close(self) -> None:
        """Remove the address and release the lock."""
        if self._lock is not None:
            with suppress(OSError):
                os.unlink(ADDRESS, dir_fd=self._directory)
            os.close(self._lock)
            self._lock = None
        os.close(self._directory)


def file_stamp(path: str | Path, directory: int | None = None) -> tuple[int, ...] | None:
    """Return a value that changes when a file is replaced or written; None if there is no file."""
    try:
        status = os.stat(path, dir_fd=directory, follow_symlinks=directory is None)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise StoreFailedError(
            f"{path} belongs to another user (uid {status.st_uid})", hint="choose a directory that you own with --home"
        )
