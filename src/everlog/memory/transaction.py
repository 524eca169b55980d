"""Several files changed as one: after a crash all of them are old, or all are new.

    .plan-staged/   manifest.json, old/N, new/N: everything written and synced here first
    .plan/          the same, renamed: this rename decides
    .history/ID/    the same again, when the files are in place; what an undo needs

Before the first rename a crash leaves the old files, and recovery throws the stage away. After it
recovery puts the new ones in place, as often as it takes. Whoever calls holds the directory's
lock. A file that a person changed between a crash and the recovery stays theirs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from everlog.errors import FormatError
from everlog.stores.file.disk import get, open_directory, put, sync_directory

STAGED, DECIDED, HISTORY = ".plan-staged", ".plan", ".history"
_KEPT = 50  # entries of the history


class Swap(NamedTuple):
    """One file: its bytes before and after; None where there is no such file."""

    path: str
    old: bytes | None
    new: bytes | None


class _Item(msgspec.Struct, frozen=True):
    path: str
    old: bool
    new: bool


class Manifest(msgspec.Struct, frozen=True):
    """What one entry of the history tells."""

    at: float  # Unix time
    report: str
    items: tuple[_Item, ...] = ()
    undoes: str = ""  # the entry that this one took back


class Entry(NamedTuple):
    """An entry of the history."""

    id: str
    manifest: Manifest


def commit(folder: int, swaps: Sequence[Swap], at: float, report: str, undoes: str = "") -> str:
    """Make all changes, or none; returns the id of the entry. Durable on return.

    An error after the decision (a full disk) leaves it to be finished by whoever recovers next.
    """
    items = tuple(_Item(one.path, one.old is not None, one.new is not None) for one in swaps)
    os.mkdir(STAGED, 0o700, dir_fd=folder)
    stage = open_directory(STAGED, folder)
    try:
        for side in ("old", "new"):
            os.mkdir(side, 0o700, dir_fd=stage)
            inside = open_directory(side, stage)
            try:
                for number, one in enumerate(swaps):
                    content = one.old if side == "old" else one.new
                    if content is not None:
                        put(str(number), content, inside, durable=True)
                sync_directory(inside)
            finally:
                os.close(inside)
        manifest = Manifest(at, report, items, undoes)
        put("manifest.json", msgspec.json.encode(manifest), stage, durable=True)
    finally:
        os.close(stage)
    os.rename(STAGED, DECIDED, src_dir_fd=folder, dst_dir_fd=folder)
    sync_directory(folder)
    return _finish(folder)


def recover(folder: int) -> bool:
    """Undo or finish what a crash interrupted; whether something was finished."""
    _discard(folder)
    try:
        os.stat(DECIDED, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    _finish(folder)
    return True


def history(folder: int) -> list[Entry]:
    """What was done, oldest first."""
    try:
        past = open_directory(HISTORY, folder)
    except FileNotFoundError:
        return []
    try:
        found: list[Entry] = []
        for name in sorted(one for one in os.listdir(past) if one.isdigit()):
            inside = open_directory(name, past)
            try:
                found.append(Entry(name, _manifest(inside)))
            finally:
                os.close(inside)
        return found
    finally:
        os.close(past)


def swaps_of(folder: int, entry: Entry) -> list[Swap]:
    """The bytes that an entry of the history keeps."""
    past = open_directory(HISTORY, folder)
    try:
        inside = open_directory(entry.id, past)
        try:
            return _swaps(inside, entry.manifest)
        finally:
            os.close(inside)
    finally:
        os.close(past)


# --- files below the directory --------------------------------------------------------------


def current(folder: int, path: str) -> bytes | None:
    """What a file says now, or None; no symlink on the way to it is followed."""
    try:
        inside, name = _parent(folder, path)
    except FileNotFoundError:
        return None
    try:
        return get(name, inside)
    except FileNotFoundError:
        return None
    finally:
        os.close(inside)


def place(folder: int, path: str, content: bytes | None) -> None:
    """Put one file in place, or take it away. Durable on return."""
    try:
        inside, name = _parent(folder, path, create=content is not None)
    except FileNotFoundError:
        return
    try:
        if content is not None:
            put(name, content, inside, durable=True)
            return
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=inside)
        sync_directory(inside)
    finally:
        os.close(inside)


def _parent(folder: int, path: str, *, create: bool = False) -> tuple[int, str]:
    *above, name = path.split("/")
    inside = os.dup(folder)
    for part in above:
        outer = inside
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=outer)
                    sync_directory(outer)
            inside = open_directory(part, outer)
        finally:
            os.close(outer)
    return inside, name


# --- the steps ------------------------------------------------------------------------------


def _finish(folder: int) -> str:
    """From the decision on: files in place, then the entry into the history."""
    decided = open_directory(DECIDED, folder)
    try:
        for one in _swaps(decided, _manifest(decided)):
            if current(folder, one.path) == one.old:  # else it is new already, or a person's
                place(folder, one.path, one.new)
    finally:
        os.close(decided)
    with suppress(FileExistsError):
        os.mkdir(HISTORY, 0o700, dir_fd=folder)
    past = open_directory(HISTORY, folder)
    try:
        known = sorted(one for one in os.listdir(past) if one.isdigit())
        made = f"{int(known[-1]) + 1 if known else 1:06d}"
        os.rename(DECIDED, made, src_dir_fd=folder, dst_dir_fd=past)
        sync_directory(past)
        sync_directory(folder)
        for name in known[: max(len(known) + 1 - _KEPT, 0)]:
            os.rename(name, STAGED, src_dir_fd=past, dst_dir_fd=folder)
            _discard(folder)
    finally:
        os.close(past)
    return made


def _manifest(inside: int) -> Manifest:
    try:
        return msgspec.json.decode(get("manifest.json", inside), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        hint = f"move {DECIDED} or the entry of {HISTORY} out of the way"
        raise FormatError(f"a manifest cannot be read: {error}", hint=hint) from error


def _swaps(inside: int, manifest: Manifest) -> list[Swap]:
    sides = [open_directory(side, inside) for side in ("old", "new")]
    try:
        return [
            Swap(
                item.path,
                get(str(number), sides[0]) if item.old else None,
                get(str(number), sides[1]) if item.new else None,
            )
            for number, item in enumerate(manifest.items)
        ]
    finally:
        for side in sides:
            os.close(side)


def _discard(folder: int) -> None:
    """Take the stage away, which nothing depends on."""
    try:
        stage = open_directory(STAGED, folder)
    except FileNotFoundError:
        return
    try:
        _empty(stage)
    finally:
        os.close(stage)
    os.rmdir(STAGED, dir_fd=folder)


def _empty(inside: int) -> None:
    for name in os.listdir(inside):
        if stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
            below = open_directory(name, inside)
            try:
                _empty(below)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=inside)
        else:
            os.unlink(name, dir_fd=inside)
