"""Where things are below a root, and how sessions come and go there.

{root}/sessions/{ULID}/     session.jsonl, session_part2.jsonl …, metadata.json,
                            lock, turn.lock, torn.<part>.<offset>, damaged.<part>.<offset>
{root}/tmp/                 sessions being made; renamed into sessions/ when whole
{root}/trash/               sessions being deleted
{root}/index.db             a projection; may be deleted at any time
{root}/names.lock           held while a key or alias changes hands
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from everlog.errors import ConflictError, InvalidIdError, NotFoundError, StoreFailedError
from everlog.ids import is_ulid
from everlog.stores.file.disk import (
    errors_mapped,
    mapped,
    open_directory,
    open_file,
    sync_directory,
)

MOUNTS = "/proc/self/mountinfo"
_DIRECTORIES = ("sessions", "tmp", "trash")
# flock and O_APPEND do not hold there.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "ceph"})


class Root:
    """The directory of a file store."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._text = str(path)
        self._durable = durable
        self._settled = False

    def exists(self) -> bool:
        """Whether there are sessions yet."""
        return os.path.isdir(f"{self._text}/sessions")

    def check(self, mounts: str = MOUNTS) -> None:
        """Refuse a root that is another user's or on a network; tighten what holds the sessions.

        The root itself may be any directory, so its mode is left alone.
        """
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            raise StoreFailedError(f"{self.path} is not a directory")
        if status.st_uid != os.geteuid():
            raise StoreFailedError(
                f"{self.path} belongs to another user (uid {status.st_uid})",
                hint="choose a directory of your own with --root",
            )
        kind = _file_system(self.path, mounts)
        if kind in _NETWORK:
            raise StoreFailedError(
                f"{self.path} is on a network file system ({kind}), where locks do not hold",
                hint="choose a directory on a local disk",
            )
        if not self.exists():
            return
        with errors_mapped(f"tightening the modes in {self.path}"):
            sessions = self._open("sessions")
            try:
                if os.fstat(sessions).st_mode & 0o077:
                    os.fchmod(sessions, 0o700)
            finally:
                os.close(sessions)

    def prepare(self) -> None:
        """Make the root and its directories if they are missing, durably."""
        if self._settled and self._prepared():
            return
        with errors_mapped(f"making {self.path}"):
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            for name in _DIRECTORIES:
                with suppress(FileExistsError):
                    os.mkdir(self.path / name, mode=0o700)
        self.check()
        self.settle()

    def settle(self) -> None:
        """Make the names on the way to the sessions durable, once for this store.

        Also those that are there already: who made them may have been killed before it synced
        them, and what is acknowledged in them must not vanish with them.
        """
        if self._settled or not self._durable:
            return
        with errors_mapped(f"syncing {self.path}"):
            for above in (self.path, *self.path.absolute().parents):
                try:
                    with self._directory(above) as descriptor:
                        sync_directory(descriptor)
                except PermissionError:
                    break  # not ours to look into, so nobody of ours made it
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.EROFS) or above == self.path:
                        raise
        self._settled = True

    def settle_session(self, directory: int) -> None:
        """Make a session that is there durable as such, whoever made it."""
        self.settle()
        if self._durable:
            with (
                errors_mapped("syncing the directory of sessions"),
                self.within("sessions") as sessions,
            ):
                sync_directory(directory)
                sync_directory(sessions)

    def _prepared(self) -> bool:
        return all(os.path.isdir(f"{self._text}/{name}") for name in _DIRECTORIES)

    @contextmanager
    def _directory(self, path: Path) -> Iterator[int]:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def within(self, name: str) -> Iterator[int]:
        """A descriptor of `sessions`, `tmp` or `trash`."""
        descriptor = self._open(name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        root = os.open(self._text, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return open_directory(name, root)
        finally:
            os.close(root)

    def open_session(self, session: str, beneath: int | None = None) -> int:
        """A descriptor of a session's directory. InvalidIdError before anything is touched.

        `beneath` is `sessions`, for who opens many and has it open already.
        """
        check_id(session)
        try:
            if beneath is not None:
                return open_directory(session, beneath)
            sessions = self._open("sessions")
            try:
                return open_directory(session, sessions)
            finally:
                os.close(sessions)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise NotFoundError(f"there is no session {session}", session=session) from error
            raise mapped(error, f"opening session {session}", session=session) from error

    def has(self, session: str) -> bool:
        """Whether a session's directory is there."""
        return is_ulid(session) and os.path.isdir(f"{self._text}/sessions/{session}")

    def file_path(self, session: str, name: str) -> str:
        """Where a session's file lies, for a look at its size; opening goes by `open_session`."""
        return f"{self._text}/sessions/{session}/{name}"

    def stage(self, session: str, build: Callable[[int], None]) -> None:
        """Make a session whole in `tmp`, then let it appear by one rename."""
        self.prepare()
        with (
            errors_mapped(f"making session {session}", session=session),
            self.within("tmp") as staging,
            self.within("sessions") as sessions,
        ):
            # Its own name: what a crash left of an attempt must not stand in the way of the next.
            stage = f"{session}.{os.getpid()}.{os.urandom(4).hex()}"
            os.mkdir(stage, mode=0o700, dir_fd=staging)
            directory = open_directory(stage, staging)
            try:
                build(directory)
                if self._durable:
                    sync_directory(directory)
                _appear(stage, staging, session, sessions)
                if self._durable:
                    sync_directory(sessions)
            except BaseException:
                with suppress(OSError):
                    _empty(directory)
                for name, place in ((stage, staging), (session, sessions)):
                    with suppress(OSError):
                        os.rmdir(name, dir_fd=place)
                raise
            finally:
                os.close(directory)

    def forget_stages(self, session: str) -> None:
        """Remove what processes that are gone left of their attempts to make a session."""
        self.prepare()
        with errors_mapped(f"making session {session}"), self.within("tmp") as staging:
            for name in os.listdir(staging):
                owner = name.split(".")[1:2]
                if name[:27] != f"{session}." or not owner or _runs(owner[0]):
                    continue
                directory = open_directory(name, staging)
                try:
                    _empty(directory)
                    os.rmdir(name, dir_fd=staging)
                finally:
                    os.close(directory)

    def is_here(self, session: str, directory: int) -> bool:
        """Whether an open directory still is the session of that id."""
        try:
            there = os.stat(f"{self._text}/sessions/{session}", follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(directory))

    def discard(self, session: str, directory: int) -> None:
        """Move a session to the trash, durably, or not at all; then unlink it.

        It is gone with the move. What cannot be unlinked stays in the trash.
        """
        self.prepare()
        with (
            errors_mapped(f"deleting session {session}", session=session),
            self.within("sessions") as sessions,
            self.within("trash") as trash,
        ):
            grave = f"{session}.{os.getpid()}.{os.urandom(4).hex()}"
            os.rename(session, grave, src_dir_fd=sessions, dst_dir_fd=trash)
            try:
                if self._durable:
                    sync_directory(trash)
                    sync_directory(sessions)
            except OSError:
                os.rename(grave, session, src_dir_fd=trash, dst_dir_fd=sessions)
                raise
            with suppress(OSError):
                _empty(directory)
                os.rmdir(grave, dir_fd=trash)

    def changed_at(self) -> int:
        """When a session last came or went, in ns; 0 if there is no root yet."""
        try:
            return os.stat(f"{self._text}/sessions", follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def ids(self) -> list[str]:
        """The ids of all sessions on disk; links and other names are passed over."""
        try:
            with self.within("sessions") as sessions, os.scandir(sessions) as entries:
                return [
                    entry.name
                    for entry in entries
                    if is_ulid(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise mapped(error, f"reading {self.path / 'sessions'}") from error

    def leftovers(self) -> list[str]:
        """What crashes left in `tmp` and `trash`."""
        found = []
        for name in ("tmp", "trash"):
            with suppress(FileNotFoundError):
                found += [f"{name}/{entry}" for entry in sorted(os.listdir(self.path / name))]
        return found

    def open_lock(self, name: str) -> int:
        """A descriptor of a lock file in the root."""
        with errors_mapped(f"opening {self.path / name}"), self._directory(self.path) as root:
            return open_file(name, os.O_RDWR | os.O_CREAT, root)


def _appear(stage: str, staging: int, session: str, sessions: int) -> None:
    """ConflictError if another process has made the same session meanwhile."""
    try:
        os.rename(stage, session, src_dir_fd=staging, dst_dir_fd=sessions)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise ConflictError(f"there is a session {session} already", session=session) from error


def check_id(session: str) -> None:
    """Raise InvalidIdError unless the text is a session id."""
    if not is_ulid(session):
        raise InvalidIdError(
            f"not a session id: {session[:60]!r}", hint="ids are 26 characters, 0-9 and A-Z"
        )


def _runs(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        pass
    return True


def _empty(directory: int) -> None:
    """Remove everything in a directory; links are removed, not followed."""
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if is_directory:
            inner = open_directory(name, directory)
            try:
                _empty(inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def _file_system(path: Path, mounts: str) -> str:
    """The kind of file system a path is on, as far as the system tells."""
    try:
        device = os.stat(path).st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        with open(mounts, encoding="utf-8", errors="replace") as table:
            for row in table:
                fields = row.split()
                if fields[2] == wanted:
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass
    return ""


def legacy_files(*directories: Path) -> list[Path]:
    """The files of some directories that may be old sessions, by name."""
    found: list[Path] = []
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                found += [
                    directory / entry.name
                    for entry in entries
                    if _is_legacy(entry.name) and entry.is_file(follow_symlinks=False)
                ]
        except OSError:  # what cannot be looked at has none that could be imported
            continue
    return sorted(found)


def _is_legacy(name: str) -> bool:
    return name.endswith(".json") and not name.endswith(".meta.json")
