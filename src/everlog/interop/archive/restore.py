"""Write files of the archive back, below a folder and nowhere else.

The path of a file becomes a path below the folder. Each step of it is opened by name without
following links, no file is written over, and a file has its name only when all of it is there
and has its SHA-256.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from everlog.errors import (
    ConflictError,
    EverlogError,
    InvalidIdError,
    LogDamagedError,
    NotFoundError,
    StoreFullError,
)
from everlog.interop.archive import archive_folder
from everlog.interop.archive.archive_listing import matcher
from everlog.interop.archive.archive_state import State, Version
from everlog.interop.archive.objects import Objects
from everlog.interop.archive.source_scan import Problem, shown
from everlog.stores.file.disk import errors_mapped, open_directory, sync, write_all

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class Restored(msgspec.Struct, kw_only=True, rename="camel"):
    """What was written."""

    files: list[str] = msgspec.field(default_factory=list)
    bytes: int = 0
    links: int = 0  # that match and are not made
    problems: list[Problem] = msgspec.field(default_factory=list)


def restore(
    root: Path,
    output: Path,
    patterns: Sequence[str] = (),
    *,
    at: str | None = None,
    version: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Restored:
    """Write back what matches, as it was at a time, or a version by its SHA-256's beginning.

    NotFoundError if nothing matches; ConflictError, before anything is written, if a file is there.
    """
    with archive_folder.opened(root) as opened:
        done = Restored()
        chosen = _choose(opened.state, patterns, at, version, done)
        if not chosen:
            raise NotFoundError(
                "nothing in the archive matches", hint="everlog archive list shows it"
            )
        steps = [_steps(one.path) for one in chosen]
        for way in steps:
            target = os.path.join(os.fsencode(output), *way)
            if os.path.lexists(target):
                raise ConflictError(
                    f"{shown(target)} is there already", hint="give another --output"
                )
        with errors_mapped(f"making {output}"):
            os.makedirs(output, 0o700, exist_ok=True)
            top = os.open(output, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        total = sum(one.size for one in chosen)
        read = 0
        try:
            for one, way in zip(chosen, steps, strict=True):
                target = os.path.join(os.fsencode(output), *way)
                try:
                    with errors_mapped(f"writing {shown(target)}"):
                        _write(opened.objects, one, way, top)
                    done.files.append(shown(target))
                    done.bytes += one.size
                except StoreFullError:
                    raise
                except EverlogError as error:
                    done.problems.append(Problem(shown(one.path), str(error)))
                read += one.size
                if progress is not None:
                    progress(read, total)
        finally:
            os.close(top)
        return done


def _choose(
    state: State, patterns: Sequence[str], at: str | None, version: str, done: Restored
) -> list[Version]:
    """The version of each matching file that is asked for."""
    matches = matcher(patterns)
    chosen = []
    for path, known in sorted(state.beneath(b"/").items()):
        if not matches(path):
            continue
        done.links += known.target is not None
        fitting = [
            one
            for one in state.versions(path)
            if (at is None or one.at <= at) and one.sha256.startswith(version.lower())
        ]
        chosen += fitting[-1:]
    return chosen


def _steps(path: bytes) -> list[bytes]:
    """A path of the archive as names that lead downward only."""
    steps = [step for step in path.split(b"/") if step]
    if not steps or any(step in (b".", b"..") or b"\0" in step for step in steps):
        raise InvalidIdError(f"{shown(path)!r} is not a path that can be restored")
    return steps


def _write(objects: Objects, version: Version, steps: Sequence[bytes], top: int) -> None:
    here = os.dup(top)
    try:
        for step in steps[:-1]:
            with suppress(FileExistsError):
                os.mkdir(step, 0o700, dir_fd=here)
            below = open_directory(os.fsdecode(step), here)
            os.close(here)
            here = below
        _write_file(objects, version, steps[-1], here)
    finally:
        os.close(here)


def _write_file(objects: Objects, version: Version, name: bytes, here: int) -> None:
    temporary = f".everlog-restore.{os.getpid()}"  # a name of any length would be too long
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=here)
    try:
        try:
            whole = sha256()
            for piece in version.pieces:
                data = objects.get(piece.object, piece.size)
                whole.update(data)
                write_all(descriptor, data)
            if whole.hexdigest() != version.sha256:
                raise LogDamagedError("its pieces do not make the file that was archived")
            os.fchmod(descriptor, version.mode & 0o700 | 0o600)
            os.utime(descriptor, ns=(version.mtime_ns, version.mtime_ns))
            sync(descriptor)
        finally:
            os.close(descriptor)
        _name(temporary, name, here)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=here)


def _name(temporary: str, name: bytes, here: int) -> None:
    """Give a file its name; unlike a rename, a link takes nobody else's away."""
    try:
        os.link(temporary, name, src_dir_fd=here, dst_dir_fd=here, follow_symlinks=False)
    except FileExistsError as error:
        raise ConflictError("it is there already") from error
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.rename(temporary, name, src_dir_fd=here, dst_dir_fd=here)
