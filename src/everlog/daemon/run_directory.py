"""`{root}/run`: the token, the address and the lock of a root's one daemon.

    token         what every request must carry; made once, kept over restarts, 0600
    address       where the daemon listens; there only while one runs, or after a crash
    daemon.lock   held as long as the daemon lives; the system gives it back
    everlog.sock CrabTalk's protocol

Only the owner may enter, and what belongs to somebody else is not used: who owns a directory can
put another token there. No symlink is followed, and nothing here is part of any session.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from everlog.errors import SessionBusyError, SettingsError, StoreFailedError
from everlog.stores.file import disk

TOKEN, ADDRESS, LOCK, SOCKET = "token", "address", "daemon.lock", "everlog.sock"
SHORTEST = 32  # characters of a token that somebody wrote by hand
LONGEST = 4096
CLAIM_SECONDS = 0.2  # a client that looks whether a daemon runs holds the lock for a moment


class RunDirectory:
    """The directory, open as long as the daemon runs."""

    def __init__(self, root: Path) -> None:
        self.path = root / "run"
        with disk.errors_mapped(f"opening {self.path}"):
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(root, os.stat(root))
            with suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            self._directory = disk.open_directory(str(self.path))
            try:
                _check_owner(self.path, os.fstat(self._directory))
            except StoreFailedError:
                os.close(self._directory)
                raise
            disk.tighten(self._directory)
        self._lock: int | None = None

    def claim(self) -> None:
        """Be the only daemon of this root, or SessionBusyError naming the other one's address."""
        with disk.errors_mapped(f"opening {self.path / LOCK}"):
            descriptor = disk.open_file(LOCK, os.O_RDWR | os.O_CREAT, self._directory)
        try:
            disk.lock(descriptor, CLAIM_SECONDS, "the root")
        except SessionBusyError as error:
            os.close(descriptor)
            address = self.address() or "an address it has not told yet"
            raise SessionBusyError(
                f"a daemon for {self.path.parent} is running at {address}: {error.message}",
                hint="use that one, or stop it first",
            ) from error
        self._lock = descriptor

    def make_token(self) -> None:
        """Make the token unless there is one; SettingsError if that cannot be used."""
        with disk.errors_mapped(f"making {self.path / TOKEN}"):
            if self.stamp() is None:
                self._write_token()
        if not self.token():
            raise SettingsError(
                f"{self.path / TOKEN} cannot be used as a token",
                hint=f"remove it, or write {SHORTEST} characters or more into a file of that name",
            )

    def _write_token(self) -> None:
        """Whole or not at all: half a token would let nobody in for ever."""
        temporary = f"{TOKEN}.{os.getpid()}.tmp"
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=self._directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = disk.open_file(temporary, flags, self._directory)
        try:
            disk.write_all(descriptor, f"{secrets.token_urlsafe(32)}\n".encode())
            disk.sync_all(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, TOKEN, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        disk.sync_directory(self._directory)

    def stamp(self) -> tuple[int, ...] | None:
        """What changes when the token does; None if there is none."""
        try:
            found = os.stat(TOKEN, dir_fd=self._directory, follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def token(self) -> str:
        """The token as it is now; empty if there is none that may be used."""
        try:
            descriptor = disk.open_file(TOKEN, os.O_RDONLY, self._directory)
        except (OSError, StoreFailedError):
            return ""
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                return ""
            disk.tighten(descriptor)
            text = os.read(descriptor, LONGEST).decode("ascii", "replace").strip()
        finally:
            os.close(descriptor)
        return text if len(text) >= SHORTEST and text.isprintable() else ""

    def address(self) -> str:
        """Where a daemon says that it listens; empty if none does."""
        try:
            text = disk.get(ADDRESS, self._directory, cap=LONGEST)
        except (OSError, StoreFailedError):
            return ""
        return text.decode("ascii", "replace").strip()

    def announce(self, address: str) -> None:
        """Write where the daemon listens."""
        with disk.errors_mapped(f"writing {self.path / ADDRESS}"):
            disk.put(ADDRESS, f"{address}\n".encode(), self._directory, durable=False)

    def close(self) -> None:
        """Take the address away and let another daemon in."""
        if self._lock is not None:
            with suppress(OSError):
                os.unlink(ADDRESS, dir_fd=self._directory)
            os.close(self._lock)
            self._lock = None
        os.close(self._directory)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise StoreFailedError(
            f"{path} belongs to another user (uid {status.st_uid})",
            hint="choose a directory of your own with --root",
        )
