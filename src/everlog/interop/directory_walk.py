"""Walking a directory of foreign sessions: every file is a possible transcript, part of one, or skipped.

What belongs to a transcript is not named: its further parts, its metadata file, and the folder with
its name. Everything else is, with the reason if the place or the kind of the file is one; whether a
possible transcript is one, its content tells. Symbolic links are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from everlog.errors import StoreFailedError
from everlog.ports import SkippedFile

MAX_DEPTH = 8  # folders below the root
METADATA_ENDING = ".meta.json"
_PART = re.compile(r"_part[0-9]+$")
_SESSION_FOLDERS = ("subagents", "tool-results")  # their files belong to a session
Stamp = tuple[int, int, int]  # inode, size and mtime of a file


class FoundFile(NamedTuple):
    """A possible transcript."""

    folder: str  # relative to the root
    name: str
    stamp_of: Callable[[str], Stamp | None]  # of a file in the same folder; None if there is none

    @property
    def path(self) -> str:
        """Path relative to the root."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


def walk(root: Path, endings: Collection[str]) -> Iterator[FoundFile | SkippedFile]:
    """Yield the files of a directory, folder by folder, in the order of their names.

    Possible transcripts have one of the `endings`. A skipped file has an empty reason if only its
    content can tell why it is none.
    """
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                children = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if folder:
                if not isinstance(error, FileNotFoundError):  # removed meanwhile
                    yield SkippedFile(f"{folder}/", f"the folder cannot be read: {error.strerror}")
                continue
            raise StoreFailedError(f"{root} cannot be read: {error.strerror}") from error
        names = {entry.name: entry for entry in children if not entry.is_dir(follow_symlinks=False)}
        inner: list[tuple[str, int]] = []
        for entry in children:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if not _is_text(entry.name):
                yield SkippedFile(os.fsencode(path).decode("utf-8", "replace"), "its name is not UTF-8")
            elif entry.is_dir(follow_symlinks=False):
                if entry.name in _SESSION_FOLDERS or any(f"{entry.name}{ending}" in names for ending in endings):
                    continue
                if entry.name.startswith("."):
                    yield SkippedFile(f"{path}/", "a hidden folder")
                elif depth >= MAX_DEPTH:
                    yield SkippedFile(f"{path}/", f"more than {MAX_DEPTH} folders deep")
                else:
                    inner.append((path, depth + 1))
            elif entry.is_symlink():
                yield SkippedFile(path, "a symbolic link")
            elif not entry.is_file(follow_symlinks=False):
                yield SkippedFile(path, "not a regular file")
            elif not _is_owned(entry.name, names):
                is_possible = entry.name.endswith(tuple(endings)) and not entry.name.endswith(METADATA_ENDING)
                yield FoundFile(folder, entry.name, partial(_stamp, names)) if is_possible else SkippedFile(path, "")
        folders += reversed(inner)


def _is_owned(name: str, names: Mapping[str, object]) -> bool:
    """Return whether a file belongs to a transcript beside it: a further part, or its metadata."""
    stem, dot, ending = name.rpartition(".")
    part = _PART.search(stem)
    if part is not None and f"{stem[: part.start()]}{dot}{ending}" in names:
        return True
    return name.endswith(METADATA_ENDING) and f"{name.removesuffix(METADATA_ENDING)}.jsonl" in names


def _is_text(name: str) -> bool:
    """Return whether a name is UTF-8; other names cannot be session ids."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stamp(names: Mapping[str, os.DirEntry[str]], name: str) -> Stamp | None:
    entry = names.get(name)
    if entry is None or not entry.is_file(follow_symlinks=False):
        return None
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
