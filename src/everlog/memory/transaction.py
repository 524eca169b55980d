"""Atomic changes of several files: after a crash all of them are old, or all are new.

    .plan-staged/   manifest.json, old/N, new/N: everything is written and synced here first
    .plan/          the same directory, renamed: this rename is the commit
    .history/ID/    the same directory, when the files are in place; undo reads it

A crash before the first rename leaves the old files, and recovery discards the stage. After it,
recovery puts the new files in place, as often as necessary. The caller holds the directory's lock.
A file that a person changed between a crash and the recovery keeps that change.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from everlog.errors import FormatError
from everlog.stores.file.disk import open_directory, read_small_file, replace_small_file, sync_directory

STAGED, COMMITTED, HISTORY = ".plan-staged", ".plan", ".history"
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


class HistoryEntry(NamedTuple):
    """An entry of the history."""

    id: str
    manifest: Manifest


def commit(folder: int, swaps: Sequence[Swap], time: float, report: str, undoes: str = "") -> str:
    """Apply all changes or none, and return the id of the history entry. Durable on return.

    After an error past the commit point (a full disk) the next recovery completes the transaction.
    """
    items = tuple(_Item(swap.path, swap.old is not None, swap.new is not None) for swap in swaps)
    os.mkdir(STAGED, 0o700, dir_fd=folder)
    stage = open_directory(STAGED, folder)
    try:
        for side in ("old", "new"):
            os.mkdir(side, 0o700, dir_fd=stage)
            side_folder = open_directory(side, stage)
            try:
                for number, swap in enumerate(swaps):
                    content = swap.old if side == "old" else swap.new
                    if content is not None:
                        replace_small_file(str(number), content, side_folder, durable=True)
                sync_directory(side_folder)
            finally:
                os.close(side_folder)
        manifest = Manifest(time, report, items, undoes)
        replace_small_file("manifest.json", msgspec.json.encode(manifest), stage, durable=True)
    finally:
        os.close(stage)
    os.rename(STAGED, COMMITTED, src_dir_fd=folder, dst_dir_fd=folder)
    sync_directory(folder)
    return _finish(folder)


def recover(folder: int) -> bool:
    """Roll back or complete an interrupted transaction; returns whether one was completed."""
    _discard_stage(folder)
    try:
        os.stat(COMMITTED, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    _finish(folder)
    return True


def read_history(folder: int) -> list[HistoryEntry]:
    """Return the history, oldest first."""
    try:
        history_folder = open_directory(HISTORY, folder)
    except FileNotFoundError:
        return []
    try:
        entries: list[HistoryEntry] = []
        for name in sorted(name for name in os.listdir(history_folder) if name.isdigit()):
            entry_folder = open_directory(name, history_folder)
            try:
                entries.append(HistoryEntry(name, _read_manifest(entry_folder)))
            finally:
                os.close(entry_folder)
        return entries
    finally:
        os.close(history_folder)


def load_swaps(folder: int, entry: HistoryEntry) -> list[Swap]:
    """Return the file contents that a history entry keeps."""
    history_folder = open_directory(HISTORY, folder)
    try:
        entry_folder = open_directory(entry.id, history_folder)
        try:
            return _read_swaps(entry_folder, entry.manifest)
        finally:
            os.close(entry_folder)
    finally:
        os.close(history_folder)


# --- files below the directory --------------------------------------------------------------


def read_file(folder: int, path: str) -> bytes | None:
    """Return the content of a file, or None; no symlink on the way is followed."""
    try:
        parent, name = _parent(folder, path)
    except FileNotFoundError:
        return None
    try:
        return read_small_file(name, parent)
    except FileNotFoundError:
        return None
    finally:
        os.close(parent)


def replace_file(folder: int, path: str, content: bytes | None) -> None:
    """Write one file, or remove it. Durable on return."""
    try:
        parent, name = _parent(folder, path, create=content is not None)
    except FileNotFoundError:
        return
    try:
        if content is not None:
            replace_small_file(name, content, parent, durable=True)
            return
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        sync_directory(parent)
    finally:
        os.close(parent)


def _parent(folder: int, path: str, *, create: bool = False) -> tuple[int, str]:
    *parents, name = path.split("/")
    parent = os.dup(folder)
    for part in parents:
        outer = parent
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=outer)
                    sync_directory(outer)
            parent = open_directory(part, outer)
        finally:
            os.close(outer)
    return parent, name


# --- the steps ------------------------------------------------------------------------------


def _finish(folder: int) -> str:
    """Complete a committed transaction: put the files in place, then move it to the history."""
    committed = open_directory(COMMITTED, folder)
    try:
        for swap in _read_swaps(committed, _read_manifest(committed)):
            if read_file(folder, swap.path) == swap.old:  # else it is new, or a person's
                replace_file(folder, swap.path, swap.new)
    finally:
        os.close(committed)
    with suppress(FileExistsError):
        os.mkdir(HISTORY, 0o700, dir_fd=folder)
    history_folder = open_directory(HISTORY, folder)
    try:
        ids = sorted(name for name in os.listdir(history_folder) if name.isdigit())
        entry_id = f"{int(ids[-1]) + 1 if ids else 1:06d}"
        os.rename(COMMITTED, entry_id, src_dir_fd=folder, dst_dir_fd=history_folder)
        sync_directory(history_folder)
        sync_directory(folder)
        for name in ids[: max(len(ids) + 1 - _MAX_HISTORY, 0)]:
            os.rename(name, STAGED, src_dir_fd=history_folder, dst_dir_fd=folder)
            _discard_stage(folder)
    finally:
        os.close(history_folder)
    return entry_id


def _read_manifest(entry_folder: int) -> Manifest:
    try:
        return msgspec.json.decode(read_small_file("manifest.json", entry_folder), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        hint = f"move {COMMITTED} or the entry in {HISTORY} elsewhere"
        raise FormatError(f"cannot read a manifest: {error}", hint=hint) from error


def _read_swaps(entry_folder: int, manifest: Manifest) -> list[Swap]:
    sides = [open_directory(side, entry_folder) for side in ("old", "new")]
    try:
        return [
            Swap(
                item.path,
                read_small_file(str(number), sides[0]) if item.old else None,
                read_small_file(str(number), sides[1]) if item.new else None,
            )
            for number, item in enumerate(manifest.items)
        ]
    finally:
        for side in sides:
            os.close(side)


def _discard_stage(folder: int) -> None:
    """Remove the stage, on which nothing depends."""
    try:
        stage = open_directory(STAGED, folder)
    except FileNotFoundError:
        return
    try:
        _remove_contents(stage)
    finally:
        os.close(stage)
    os.rmdir(STAGED, dir_fd=folder)


def _remove_contents(folder: int) -> None:
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            subfolder = open_directory(name, folder)
            try:
                _remove_contents(subfolder)
            finally:
                os.close(subfolder)
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
