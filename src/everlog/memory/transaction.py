"""Atomic changes of several files: after a crash all of them are old, or all are new.

    .plan-staged/   manifest.json, old/N, new/N: everything is written and synced here first
    .plan/          the same directory, renamed: this rename is the commit
    .history/ID/    the same directory, when the files are in place; undo reads it. A change that
                    forgets a text gets none, and takes along every entry that has the text

A crash before the first rename leaves the old files, and recovery discards the stage. After it,
recovery puts the new files in place, as often as necessary. All of it needs the directory's lock.
A file that a person changed between a crash and the recovery keeps that change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from everlog.errors import FormatError, StoreFailedError, StoreFullError
from everlog.stores.file import disk

STAGED, COMMITTED, HISTORY = ".plan-staged", ".plan", ".history"
_LOCK_FILE = ".lock"
_MAX_HISTORY = 50  # entries


class Swap(NamedTuple):
    """The bytes of one file before and after; None where the file does not exist."""

    path: str
    old: bytes | None
    new: bytes | None


class _Item(msgspec.Struct, frozen=True):
    path: str
    old: bool
    new: bool


class Manifest(msgspec.Struct, frozen=True):
    """The metadata of one history entry."""

    at: float  # Unix time
    report: str
    items: tuple[_Item, ...] = ()
    undoes: str = ""  # the entry that this one undid
    forgets: tuple[str, ...] = ()  # texts that are to stay nowhere, only until the change is finished


class HistoryEntry(NamedTuple):
    """An entry of the history."""

    id: str
    manifest: Manifest
    undone: bool  # by a later entry


@contextmanager
def open_locked(path: Path, lock_seconds: float) -> Iterator[int]:
    """Open and lock a directory, created if needed, and finish what a crash interrupted."""
    disk.check_writable(path)
    with disk.map_errors(f"memory {path.name}"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            disk.opened_directory(os.fspath(path)) as folder,
            disk.opened_file(_LOCK_FILE, os.O_RDWR | os.O_CREAT, folder) as lock_file,
        ):
            disk.lock(lock_file, lock_seconds, f"the memory {path.name}")
            recover(folder)
            yield folder


@contextmanager
def open_readable(path: Path, lock_seconds: float) -> Iterator[int]:
    """Open a directory as `open_locked` does; on a full or read-only disk as it is, without a lock."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(open_locked(path, lock_seconds))
        except (StoreFullError, StoreFailedError):
            stack.enter_context(disk.map_errors(f"memory {path.name}"))
            folder = stack.enter_context(disk.opened_directory(os.fspath(path)))
        yield folder


def commit(
    folder: int, swaps: Sequence[Swap], time: float, report: str, *, undoes: str = "", forgets: Sequence[str] = ()
) -> str:
    """Apply all changes or none, and return the id of the history entry. Durable on return.

    With texts that it `forgets`, the change has no entry, and no older entry has one of them.

    After an error past the commit point (a full disk) the next recovery completes the transaction.
    """
    items = tuple(_Item(swap.path, swap.old is not None, swap.new is not None) for swap in swaps)
    os.mkdir(STAGED, 0o700, dir_fd=folder)
    with disk.opened_directory(STAGED, folder) as stage:
        for side in ("old", "new"):
            os.mkdir(side, 0o700, dir_fd=stage)
            with disk.opened_directory(side, stage) as side_folder:
                for number, swap in enumerate(swaps):
                    content = swap.old if side == "old" else swap.new
                    if content is not None:
                        disk.replace_small_file(str(number), content, side_folder, durable=True)
                disk.sync_directory(side_folder)
        manifest = msgspec.json.encode(Manifest(time, report, items, undoes, tuple(forgets)))
        disk.replace_small_file("manifest.json", manifest, stage, durable=True)
    os.rename(STAGED, COMMITTED, src_dir_fd=folder, dst_dir_fd=folder)
    disk.sync_directory(folder)
    return _finish(folder)


def recover(folder: int) -> None:
    """Roll back or complete an interrupted transaction."""
    _discard_stage(folder)
    try:
        os.stat(COMMITTED, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    _finish(folder)


def read_history(folder: int) -> list[HistoryEntry]:
    """Return the history, oldest first."""
    manifests: dict[str, Manifest] = {}
    with suppress(FileNotFoundError), disk.opened_directory(HISTORY, folder) as history_folder:
        for name in _entry_ids(history_folder):
            with disk.opened_directory(name, history_folder) as entry_folder:
                manifests[name] = _read_manifest(entry_folder)
    undone = {manifest.undoes for manifest in manifests.values()}
    return [HistoryEntry(name, manifest, name in undone) for name, manifest in manifests.items()]


def load_swaps(folder: int, entry: HistoryEntry) -> list[Swap]:
    """Return the file contents that a history entry keeps."""
    with disk.opened_directory(HISTORY, folder) as history, disk.opened_directory(entry.id, history) as entry_folder:
        return _read_swaps(entry_folder, entry.manifest)


# --- files below the directory --------------------------------------------------------------


def read_file(folder: int, path: str) -> bytes | None:
    """Return the content of a file, or None; no symlink on the way is followed."""
    try:
        with _parent(folder, path) as (parent, name):
            return disk.read_small_file(name, parent)
    except FileNotFoundError:
        return None


def replace_file(folder: int, path: str, content: bytes | None) -> None:
    """Write one file, or remove it. Durable on return."""
    if content is not None:
        with _parent(folder, path, create=True) as (parent, name):
            disk.replace_small_file(name, content, parent, durable=True)
        return
    with suppress(FileNotFoundError), _parent(folder, path) as (parent, name):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        disk.sync_directory(parent)


@contextmanager
def _parent(folder: int, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Open the directory of a file, each component by its name."""
    first, _, remainder = path.partition("/")
    if not remainder:
        yield folder, first
        return
    if create:
        with suppress(FileExistsError):
            os.mkdir(first, 0o700, dir_fd=folder)
            disk.sync_directory(folder)
    with disk.opened_directory(first, folder) as subfolder, _parent(subfolder, remainder, create=create) as parent:
        yield parent


# --- the steps ------------------------------------------------------------------------------


def _finish(folder: int) -> str:
    """Complete a committed transaction: put the files in place, then move it to the history."""
    with disk.opened_directory(COMMITTED, folder) as committed:
        manifest = _read_manifest(committed)
        for swap in _read_swaps(committed, manifest):
            if read_file(folder, swap.path) == swap.old:  # else it is new, or a person's
                replace_file(folder, swap.path, swap.new)
    if manifest.forgets:
        _drop_entries(folder, [text.encode("utf-8", "surrogateescape") for text in manifest.forgets])
        _move_to_stage(folder, COMMITTED, folder)
        return ""
    with suppress(FileExistsError):
        os.mkdir(HISTORY, 0o700, dir_fd=folder)
    with disk.opened_directory(HISTORY, folder) as history_folder:
        ids = _entry_ids(history_folder)
        entry_id = f"{int(ids[-1]) + 1 if ids else 1:06d}"
        os.rename(COMMITTED, entry_id, src_dir_fd=folder, dst_dir_fd=history_folder)
        disk.sync_directory(history_folder)
        disk.sync_directory(folder)
        for name in ids[: max(len(ids) + 1 - _MAX_HISTORY, 0)]:
            _move_to_stage(folder, name, history_folder)
    return entry_id


def _drop_entries(folder: int, texts: Sequence[bytes]) -> None:
    """Remove all entries of the history that have one of these texts."""
    with suppress(FileNotFoundError), disk.opened_directory(HISTORY, folder) as history_folder:
        for name in _entry_ids(history_folder):
            with disk.opened_directory(name, history_folder) as entry_folder:
                manifest = _read_manifest(entry_folder)
                swaps = _read_swaps(entry_folder, manifest)
            contents = [content for swap in swaps for content in (swap.old, swap.new) if content is not None]
            contents += [
                manifest.report.encode("utf-8", "surrogateescape"),
                *(os.fsencode(swap.path) for swap in swaps),
            ]
            if any(text in content for text in texts for content in contents):
                _move_to_stage(folder, name, history_folder)
        disk.sync_directory(history_folder)


def _move_to_stage(folder: int, name: str, parent: int) -> None:
    """Remove a directory by way of the stage, so that no half of it is ever taken for whole."""
    os.rename(name, STAGED, src_dir_fd=parent, dst_dir_fd=folder)
    _discard_stage(folder)
    disk.sync_directory(folder)


def _entry_ids(history_folder: int) -> list[str]:
    return sorted(name for name in os.listdir(history_folder) if name.isdigit())


def _read_manifest(entry_folder: int) -> Manifest:
    try:
        return msgspec.json.decode(disk.read_small_file("manifest.json", entry_folder), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        hint = f"move {COMMITTED} or the entry in {HISTORY} elsewhere"
        raise FormatError(f"cannot read a manifest: {error}", hint=hint) from error


def _read_swaps(entry_folder: int, manifest: Manifest) -> list[Swap]:
    with disk.opened_directory("old", entry_folder) as old, disk.opened_directory("new", entry_folder) as new:
        return [
            Swap(
                item.path,
                disk.read_small_file(str(number), old) if item.old else None,
                disk.read_small_file(str(number), new) if item.new else None,
            )
            for number, item in enumerate(manifest.items)
        ]


def _discard_stage(folder: int) -> None:
    """Remove the stage, on which nothing depends."""
    with suppress(FileNotFoundError):
        with disk.opened_directory(STAGED, folder) as stage:
            disk.remove_contents(stage)
        os.rmdir(STAGED, dir_fd=folder)
