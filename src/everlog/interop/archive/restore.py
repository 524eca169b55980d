"""Restoring files of the archive, below a folder and nowhere else.

The path of a file becomes a path below the folder. Each folder of it is opened without following
symlinks, no file is overwritten, and a file gets its name only when it is complete and its SHA-256
is right.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from everlog.errors import ConflictError, EverlogError, InvalidIdError, LogDamagedError, NotFoundError, StoreFullError
from everlog.interop.archive import archive_folder
from everlog.interop.archive.archive_listing import matcher
from everlog.interop.archive.archive_state import ArchiveState, Version
from everlog.interop.archive.objects import Objects
from everlog.interop.archive.source_scan import Problem, display_path
from everlog.stores.file.disk import map_errors, open_directory, sync, write_all

_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class RestoreReport(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of a restore."""

    files: list[str] = msgspec.field(default_factory=list)
    bytes: int = 0
    links: int = 0  # that match; they are not restored
    problems: list[Problem] = msgspec.field(default_factory=list)


def restore(
    root: Path,
    output: Path,
    patterns: Sequence[str] = (),
    *,
    at: str | None = None,
    version: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> RestoreReport:
    """Restore matching files as they were at a time, or versions by a prefix of their SHA-256.

    Raises NotFoundError if nothing matches, and ConflictError, before anything is written, if a
    file exists already.
    """
    with archive_folder.open_archive(root) as archive:
        report = RestoreReport()
        versions = _choose_versions(archive.state, patterns, at, version, report)
        if not versions:
            raise NotFoundError("nothing in the archive matches", hint="everlog archive list shows its content")
        split_paths = [_split_path(item.path) for item in versions]
        for names in split_paths:
            target = os.path.join(os.fsencode(output), *names)
            if os.path.lexists(target):
                raise ConflictError(f"{display_path(target)} already exists", hint="give another --output")
        with map_errors(f"creating {output}"):
            os.makedirs(output, 0o700, exist_ok=True)
            top = os.open(output, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        total = sum(item.size for item in versions)
        bytes_done = 0
        try:
            for item, names in zip(versions, split_paths, strict=True):
                target = os.path.join(os.fsencode(output), *names)
                try:
                    with map_errors(f"writing {display_path(target)}"):
                        _write_version(archive.objects, item, names, top)
                    report.files.append(display_path(target))
                    report.bytes += item.size
                except StoreFullError:
                    raise
                except EverlogError as error:
                    report.problems.append(Problem(display_path(item.path), str(error)))
                bytes_done += item.size
                if progress is not None:
                    progress(bytes_done, total)
        finally:
            os.close(top)
        return report


def _choose_versions(
    state: ArchiveState, patterns: Sequence[str], at: str | None, digest_prefix: str, report: RestoreReport
) -> list[Version]:
    """Choose the newest suitable version of each matching file."""
    matches = matcher(patterns)
    versions = []
    for path, path_state in sorted(state.entries_below(b"/").items()):
        if not matches(path):
            continue
        report.links += path_state.target is not None
        matching = [
            candidate
            for candidate in state.versions(path)
            if (at is None or candidate.archived_at <= at) and candidate.sha256.startswith(digest_prefix.lower())
        ]
        versions += matching[-1:]
    return versions


def _split_path(path: bytes) -> list[bytes]:
    """Split a path of the archive into names; InvalidIdError if one could lead upward."""
    names = [name for name in path.split(b"/") if name]
    if not names or any(name in (b".", b"..") or b"\0" in name for name in names):
        raise InvalidIdError(f"{display_path(path)!r} is not a path that can be restored")
    return names


def _write_version(objects: Objects, version: Version, names: Sequence[bytes], top: int) -> None:
    folder = os.dup(top)
    try:
        for name in names[:-1]:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            inner = open_directory(os.fsdecode(name), folder)
            os.close(folder)
            folder = inner
        _write_file(objects, version, names[-1], folder)
    finally:
        os.close(folder)


def _write_file(objects: Objects, version: Version, name: bytes, folder: int) -> None:
    temporary = f".everlog-restore.{os.getpid()}"  # a longer name might not fit
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            digest = sha256()
            for chunk in version.chunks:
                data = objects.get(chunk.object, chunk.size)
                digest.update(data)
                write_all(descriptor, data)
            if digest.hexdigest() != version.sha256:
                raise LogDamagedError("its chunks do not add up to the archived file")
            os.fchmod(descriptor, version.mode & 0o700 | 0o600)
            os.utime(descriptor, ns=(version.mtime_ns, version.mtime_ns))
            sync(descriptor)
        finally:
            os.close(descriptor)
        _link_to_name(temporary, name, folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)


def _link_to_name(temporary: str, name: bytes, folder: int) -> None:
    """Give a file its name by a hard link, which, unlike a rename, replaces no other file."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError as error:
        raise ConflictError("the file already exists") from error
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
