"""The archive's folder: opened to be read by anybody, or to be written by one run at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from everlog.errors import NotFoundError
from everlog.interop.archive.archive_state import State
from everlog.interop.archive.manifest import Manifests
from everlog.interop.archive.objects import Objects, need_zstandard
from everlog.stores.file.disk import (
    errors_mapped,
    lock,
    open_directory,
    open_file,
    sync_directory,
    unlock,
)
from everlog.stores.file.layout import Root

NAME = "archive"
_FOLDERS = ("objects", "manifests", "tmp")


class Folder:
    """An open archive."""

    def __init__(
        self, objects: Objects, manifests: Manifests, state: State, identity: tuple[int, int]
    ) -> None:
        self.objects = objects
        self.manifests = manifests
        self.state = state
        self.identity = identity  # device and inode: it must not archive itself


@contextmanager
def opened(root: Path) -> Iterator[Folder]:
    """The archive of a root, to be read; NotFoundError if there is none."""
    need_zstandard()
    with ExitStack() as stack:
        try:
            with errors_mapped(f"opening {root / NAME}"):
                here, objects, manifests = _open(root, stack, "objects", "manifests")
        except NotFoundError as error:
            raise NotFoundError(
                f"nothing is archived in {root}", hint="everlog archive makes an archive"
            ) from error
        yield _folder(root, here, Objects(objects), Manifests(manifests), stack)


@contextmanager
def opened_for_writing(root: Path, *, recheck: bool = False) -> Iterator[Folder]:
    """The archive of a root, made if it is missing; SessionBusyError if another run writes to it."""
    need_zstandard()
    Root(root, durable=True).prepare()
    with ExitStack() as stack:
        with errors_mapped(f"opening {root / NAME}"):
            _make(root)
            here, objects, manifests, tmp = _open(root, stack, *_FOLDERS)
            held = open_file("lock", os.O_RDWR | os.O_CREAT, here)
            stack.callback(os.close, held)
        lock(held, 0, "the archive")
        stack.callback(unlock, held)
        with errors_mapped(f"clearing {root / NAME}"):
            _clear(manifests, tmp)
        writable = Objects(objects, tmp, recheck=recheck)
        yield _folder(root, here, writable, Manifests(manifests), stack)


def _folder(
    root: Path, here: int, objects: Objects, manifests: Manifests, stack: ExitStack
) -> Folder:
    state = State(str(root / NAME), manifests)
    stack.callback(state.close)
    status = os.fstat(here)
    return Folder(objects, manifests, state, (status.st_dev, status.st_ino))


def _make(root: Path) -> None:
    made = False
    for path in (root / NAME, *(root / NAME / name for name in _FOLDERS)):
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
            made = True
    if made:
        for path in (root / NAME, root):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sync_directory(descriptor)
            finally:
                os.close(descriptor)


def _open(root: Path, stack: ExitStack, *names: str) -> list[int]:
    """Descriptors of the archive and of folders in it."""
    # The root itself may be a link: the user chose it.
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        here = open_directory(NAME, top)
    finally:
        os.close(top)
    stack.callback(os.close, here)
    descriptors = [here]
    for name in names:
        descriptors.append(open_directory(name, here))
        stack.callback(os.close, descriptors[-1])
    return descriptors


def _clear(manifests: int, tmp: int) -> None:
    """Remove what a killed run left half written."""
    for name in os.listdir(tmp):
        os.unlink(name, dir_fd=tmp)
    for name in os.listdir(manifests):
        if name.endswith(".tmp"):
            os.unlink(name, dir_fd=manifests)
