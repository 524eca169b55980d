"""The archive's folder: open for any number of readers, or for one run that writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from everlog.errors import NotFoundError
from everlog.interop.archive.archive_state import ArchiveState
from everlog.interop.archive.manifest import Manifests
from everlog.interop.archive.objects import Objects, require_zstandard
from everlog.stores.file.disk import lock, map_errors, open_directory, open_file, sync_directory, unlock
from everlog.stores.file.layout import Root

NAME = "archive"
_FOLDERS = ("objects", "manifests", "tmp")


class ArchiveFolder:
    """An open archive."""

    def __init__(self, objects: Objects, manifests: Manifests, state: ArchiveState, identity: tuple[int, int]) -> None:
        self.objects = objects
        self.manifests = manifests
        self.state = state
        self.identity = identity  # device and inode, so that a run does not archive the archive


@contextmanager
def open_archive(root: Path) -> Iterator[ArchiveFolder]:
    """Open the archive of a root for reading; NotFoundError if there is none."""
    require_zstandard()
    with ExitStack() as stack:
        try:
            with map_errors(f"opening {root / NAME}"):
                top, objects, manifests = _open(root, stack, "objects", "manifests")
        except NotFoundError as error:
            raise NotFoundError(f"nothing is archived in {root}", hint="everlog archive creates an archive") from error
        yield _make_folder(root, top, Objects(objects), Manifests(manifests), stack)


@contextmanager
def open_for_writing(root: Path, *, recheck: bool = False) -> Iterator[ArchiveFolder]:
    """Open the archive of a root for writing, or create it; SessionBusyError if a run is active."""
    require_zstandard()
    Root(root, durable=True).prepare()
    with ExitStack() as stack:
        with map_errors(f"opening {root / NAME}"):
            _create_directories(root)
            top, objects, manifests, tmp = _open(root, stack, *_FOLDERS)
            lock_file = open_file("lock", os.O_RDWR | os.O_CREAT, top)
            stack.callback(os.close, lock_file)
        lock(lock_file, 0, "the archive")
        stack.callback(unlock, lock_file)
        with map_errors(f"clearing {root / NAME}"):
            _remove_temporary(manifests, tmp)
        writable = Objects(objects, tmp, recheck=recheck)
        yield _make_folder(root, top, writable, Manifests(manifests), stack)


def _make_folder(root: Path, top: int, objects: Objects, manifests: Manifests, stack: ExitStack) -> ArchiveFolder:
    state = ArchiveState(str(root / NAME), manifests)
    stack.callback(state.close)
    status = os.fstat(top)
    return ArchiveFolder(objects, manifests, state, (status.st_dev, status.st_ino))


def _create_directories(root: Path) -> None:
    is_new = False
    for path in (root / NAME, *(root / NAME / name for name in _FOLDERS)):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
            is_new = True
    if is_new:
        for path in (root / NAME, root):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_directory(descriptor)
            finally:
                os.close(descriptor)


def _open(root: Path, stack: ExitStack, *names: str) -> list[int]:
    """Open the archive and folders in it, and return their descriptors."""
    # The root itself may be a symlink: the user chose it.
    root_descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        top = open_directory(NAME, root_descriptor)
    finally:
        os.close(root_descriptor)
    stack.callback(os.close, top)
    descriptors = [top]
    for name in names:
        descriptors.append(open_directory(name, top))
        stack.callback(os.close, descriptors[-1])
    return descriptors


def _remove_temporary(manifests: int, tmp: int) -> None:
    """Remove files that a killed run left half written."""
    for name in os.listdir(tmp):
        os.unlink(name, dir_fd=tmp)
    for name in os.listdir(manifests):
        if name.endswith(".tmp"):
            os.unlink(name, dir_fd=manifests)
