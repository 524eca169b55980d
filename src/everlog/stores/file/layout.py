"""The layout of a root, and how sessions are created and deleted in it.

{root}/sessions/{ULID}/     session.jsonl, session_part2.jsonl …, metadata.json,
                            lock, turn.lock, torn.<part>.<offset>, damaged.<part>.<offset>
{root}/tmp/                 sessions being created; renamed into sessions/ when complete
{root}/trash/               sessions being deleted
{root}/index.db             a projection; may be deleted at any time
{root}/names.lock           held while a key or alias moves between sessions
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from everlog.errors import ConflictError, StoreFailedError
from everlog.ids import is_ulid
from everlog.stores import rules
from everlog.stores.file.disk import (
    OpenDescriptor,
    check_writable,
    is_read_only,
    is_running,
    map_error,
    map_errors,
    open_directory,
    open_file,
    opened_directory,
    remove_contents,
    restrict_mode,
    sync_directory,
)

MOUNTS = "/proc/self/mountinfo"
_DIRECTORIES = ("sessions", "tmp", "trash")
# flock and O_APPEND are not reliable there.
_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "ceph"})


class Root:
    """The directory of a file store."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self.path = path
        self._text = str(path)
        self._durable = durable
        self._is_synced = False

    def exists(self) -> bool:
        """Return whether there is a session of ours; other programs too have a folder `sessions`."""
        try:
            with os.scandir(f"{self._text}/sessions") as entries:
                return any(is_ulid(entry.name) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # whoever reads it reports the problem

    def check(self, mounts: str = MOUNTS) -> None:
        """Refuse a root of another user or on a network; restrict the mode of `sessions`.

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
                hint="choose a directory of your own with --home or --store",
            )
        kind = _file_system(self.path, mounts)
        if kind in _NETWORK:
            raise StoreFailedError(
                f"{self.path} is on a network file system ({kind}), where locks are not reliable",
                hint="choose a directory on a local disk",
            )
        if self.exists() and not is_read_only(self.path):
            self._restrict_mode()

    def _restrict_mode(self) -> None:
        with map_errors(f"restricting the modes in {self.path}"), self.open_subdirectory("sessions") as sessions:
            restrict_mode(sessions)

    def prepare(self) -> None:
        """Create the root and its directories if they are missing, durably."""
        self.check_writable()
        if self._is_synced and self._has_directories():
            return
        with map_errors(f"creating {self.path}"):
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            for name in _DIRECTORIES:
                with suppress(FileExistsError):
                    os.mkdir(self.path / name, mode=0o700)
        self.check()
        self._restrict_mode()
        self.sync_path()

    def sync_path(self) -> None:
        """Make every directory on the path to the sessions durable, once for this store.

        Also existing ones: the process that created them may have been killed before it synced
        them, and acknowledged records in them must not vanish with them.
        """
        self.check_writable()
        if self._is_synced:
            return
        parents = (self.path, *self.path.absolute().parents) if self._durable else ()
        with map_errors(f"syncing {self.path}"):
            for path in parents:
                try:
                    with self._open_path(path) as descriptor:
                        sync_directory(descriptor)
                except PermissionError:
                    break  # not accessible to us, so not created by us
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.EROFS) or path == self.path:
                        raise
        self._is_synced = True

    def sync_session(self, directory: int) -> None:
        """Make the directory of an existing session durable, whoever created it."""
        self.sync_path()
        if self._durable:
            with map_errors("syncing the directory of sessions"), self.open_subdirectory("sessions") as sessions:
                sync_directory(directory)
                sync_directory(sessions)

    def check_writable(self) -> None:
        """Refuse a root on a read-only file system."""
        check_writable(self.path)

    def _has_directories(self) -> bool:
        return all(os.path.isdir(f"{self._text}/{name}") for name in _DIRECTORIES)

    def _open_path(self, path: Path) -> AbstractContextManager[int]:
        return OpenDescriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def open_subdirectory(self, name: str) -> AbstractContextManager[int]:
        """Return a block with a descriptor of `sessions`, `tmp` or `trash`."""
        with self._open_path(self.path) as root:
            return opened_directory(name, root)

    def open_session(self, session: str, parent: int | None = None) -> int:
        """Return a descriptor of a session's directory. InvalidIdError before any file access.

        `parent` is a descriptor of `sessions`, for a caller that opens many.
        """
        rules.check_id(session)
        try:
            if parent is not None:
                return open_directory(session, parent)
            with self.open_subdirectory("sessions") as sessions:
                return open_directory(session, sessions)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise rules.no_session(session) from error
            raise map_error(error, f"opening session {session}", session=session) from error

    def has_session(self, session: str) -> bool:
        """Return whether a session's directory exists."""
        return is_ulid(session) and os.path.isdir(f"{self._text}/sessions/{session}")

    def file_path(self, session: str, name: str) -> str:
        """Return the path of a session's file, for stat only; `open_session` is for opening."""
        return f"{self._text}/sessions/{session}/{name}"

    def stage(self, session: str, build: Callable[[int], None]) -> None:
        """Build a complete session in `tmp`, then publish it by one rename."""
        self.prepare()
        with (
            map_errors(f"creating session {session}", session=session),
            self.open_subdirectory("tmp") as staging,
            self.open_subdirectory("sessions") as sessions,
        ):
            # A unique name: the remains of a crashed attempt must not block the next one.
            stage = f"{session}.{os.getpid()}.{os.urandom(4).hex()}"
            os.mkdir(stage, mode=0o700, dir_fd=staging)
            with opened_directory(stage, staging) as directory:
                try:
                    build(directory)
                    if self._durable:
                        sync_directory(directory)
                    _publish(stage, staging, session, sessions)
                    if self._durable:
                        sync_directory(sessions)
                except BaseException:
                    with suppress(OSError):
                        remove_contents(directory)
                    for name, parent in ((stage, staging), (session, sessions)):
                        with suppress(OSError):
                            os.rmdir(name, dir_fd=parent)
                    raise

    def remove_stale_stages(self, session: str) -> None:
        """Remove what dead processes left of their attempts to create a session."""
        self.prepare()
        with map_errors(f"creating session {session}"):
            self._remove_left("tmp", f"{session}.")

    def remove_leftovers(self) -> int:
        """Remove what dead processes left in `tmp` and `trash`; return how many directories."""
        count = 0
        for place in ("tmp", "trash"):
            with suppress(OSError):
                count += self._remove_left(place)
        return count

    def _remove_left(self, place: str, prefix: str = "") -> int:
        """Remove what dead processes left in `tmp` or `trash`; return how many directories."""
        count = 0
        with self.open_subdirectory(place) as parent:
            for name in os.listdir(parent):
                owner = name.split(".")[1:2]
                if not name.startswith(prefix) or not owner or is_running(owner[0]):
                    continue
                with opened_directory(name, parent) as directory:
                    remove_contents(directory)
                    os.rmdir(name, dir_fd=parent)
                count += 1
        return count

    def is_session_directory(self, session: str, directory: int) -> bool:
        """Return whether an open directory still is the session of that id."""
        try:
            status = os.stat(f"{self._text}/sessions/{session}", follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(directory))

    def discard(self, session: str, directory: int) -> None:
        """Move a session to the trash, durably, or not at all; then unlink it.

        It is deleted with the move. What cannot be unlinked stays in the trash until the next
        deletion, which also removes what dead processes left: it may have the text of this session.
        """
        self.prepare()
        with (
            map_errors(f"deleting session {session}", session=session),
            self.open_subdirectory("sessions") as sessions,
            self.open_subdirectory("trash") as trash,
        ):
            trash_name = f"{session}.{os.getpid()}.{os.urandom(4).hex()}"
            os.rename(session, trash_name, src_dir_fd=sessions, dst_dir_fd=trash)
            try:
                if self._durable:
                    sync_directory(trash)
                    sync_directory(sessions)
            except OSError:
                os.rename(trash_name, session, src_dir_fd=trash, dst_dir_fd=sessions)
                raise
            with suppress(OSError):
                remove_contents(directory)
                os.rmdir(trash_name, dir_fd=trash)
            self.remove_leftovers()

    def changed_at(self) -> int:
        """Return when a session was last added or removed, in ns; 0 if there is no root yet."""
        try:
            return os.stat(f"{self._text}/sessions", follow_symlinks=False).st_mtime_ns
        except OSError:
            return 0

    def ids(self) -> list[str]:
        """Return the ids of all sessions on disk; links and other names are skipped."""
        try:
            with self.open_subdirectory("sessions") as sessions, os.scandir(sessions) as entries:
                return [entry.name for entry in entries if is_ulid(entry.name) and entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise map_error(error, f"reading {self.path / 'sessions'}") from error

    def leftovers(self) -> list[str]:
        """Return what crashes left in `tmp` and `trash`."""
        names = []
        for name in ("tmp", "trash"):
            with suppress(FileNotFoundError):
                names += [f"{name}/{entry}" for entry in sorted(os.listdir(self.path / name))]
        return names

    def open_lock(self, name: str) -> int:
        """Return a descriptor of a lock file in the root."""
        with map_errors(f"opening {self.path / name}"), self._open_path(self.path) as root:
            return open_file(name, os.O_RDWR | os.O_CREAT, root)


def _publish(stage: str, staging: int, session: str, sessions: int) -> None:
    """Rename a stage; ConflictError if another process created the session meanwhile."""
    try:
        os.rename(stage, session, src_dir_fd=staging, dst_dir_fd=sessions)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise ConflictError(f"session {session} already exists", session=session) from error


def _file_system(path: Path, mounts: str) -> str:
    """Return the type of the file system of a path; empty if unknown."""
    try:
        device = os.stat(path).st_dev
        device_number = f"{os.major(device)}:{os.minor(device)}"
        with open(mounts, encoding="utf-8", errors="replace") as table:
            for row in table:
                fields = row.split()
                if fields[2] == device_number:
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass
    return ""


def legacy_files(*directories: Path) -> list[Path]:
    """Return the files of some directories that may be legacy sessions, by name."""
    files: list[Path] = []
    for directory in directories:
        with suppress(OSError):  # an unreadable directory has nothing to import
            files += [path for path in directory.iterdir() if _is_legacy(path.name) and _is_plain_file(path)]
    return sorted(files)


def _is_legacy(name: str) -> bool:
    return name.endswith(".json") and not name.endswith(".meta.json")


def _is_plain_file(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)
