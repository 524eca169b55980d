"""Walking a directory of foreign sessions: every file is a possible transcript, part of one, or skipped.

What belongs to a transcript is not named: its metadata file, and what is in the folder with its
name; but possible transcripts in that folder are, as those of its subagents if they
are in `subagents`. Everything else is named, with the reason if the place or the kind of the file
is one; whether a possible transcript is one, its content tells. Symbolic links are not followed.
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
_SUBAGENTS = "subagents"  # folder in that of a session
_OWNER_ENDING = ".jsonl"  # of a transcript that may have a folder with its name
Stamp = tuple[int, int, int]  # inode, size and mtime of a file


class FoundFile(NamedTuple):
    """A possible transcript."""

    folder: str  # relative to the root
    name: str
    stamp_of: Callable[[str], Stamp | None]  # of a file in the same folder; None if there is none
    parent: str = ""  # path of the transcript whose subagent it is
    part_of: str = ""  # path of the transcript that it continues by its name, if the format has parts

    @property
    def path(self) -> str:
        """Path relative to the root."""
        return f"{self.folder}/{self.name}" if self.folder else self.name


def walk(root: Path, endings: Collection[str]) -> Iterator[FoundFile | SkippedFile]:
    """Yield the files of a directory, folder by folder, in the order of their names.

    Possible transcripts have one of the `endings`. A skipped file has an empty reason if only its
    content can tell why it is none.
    """
    folders = [("", 0, "", "")]
    while folders:
        folder, depth, owner, parent = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                children = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if not folder:
                raise StoreFailedError(f"{root} cannot be read: {error.strerror}") from error
            if not isinstance(error, FileNotFoundError):  # removed meanwhile
                yield SkippedFile(f"{folder}/", f"the folder cannot be read: {error.strerror}")
            continue
        names = {entry.name: entry for entry in children if not entry.is_dir(follow_symlinks=False)}
        inner: list[tuple[str, int, str, str]] = []
        kinds = (_OWNER_ENDING,) if owner else tuple(endings)
        for entry in children:
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name in names:
                is_transcript = entry.name.endswith(kinds) and not entry.name.endswith(METADATA_ENDING)
                if reason := _refusal(entry):
                    yield SkippedFile(os.fsencode(path).decode("utf-8", "replace"), reason)
                elif is_transcript:
                    first = _first_part(entry.name, names)
                    part_of = f"{folder}/{first}" if folder and first else first
                    yield FoundFile(folder, entry.name, partial(_stamp, names), parent, part_of)
                elif not owner and not _is_metadata(entry.name, names):
                    yield SkippedFile(path, "")
            elif not _is_text(entry.name) or entry.name.startswith(".") or depth >= MAX_DEPTH:
                reason = "a hidden folder" if entry.name.startswith(".") else f"more than {MAX_DEPTH} folders deep"
                reason = reason if _is_text(entry.name) else "its name is not UTF-8"
                yield SkippedFile(os.fsencode(f"{path}/").decode("utf-8", "replace"), reason)
            elif owner == f"{folder}{_OWNER_ENDING}" and entry.name == _SUBAGENTS:
                inner.append((path, depth + 1, owner, owner))
            elif f"{entry.name}{_OWNER_ENDING}" in names:
                inner.append((path, depth + 1, path + _OWNER_ENDING, parent))
            else:
                inner.append((path, depth + 1, owner, parent))
        folders += reversed(inner)


def _refusal(entry: os.DirEntry[str]) -> str:
    """Return why a file cannot be read, whatever is in it; empty if it can be."""
    if not _is_text(entry.name):
        return "its name is not UTF-8"
    if entry.is_symlink():
        return "a symbolic link"
    return "" if entry.is_file(follow_symlinks=False) else "not a regular file"


def _first_part(name: str, names: Mapping[str, object]) -> str:
    """Return the name of the transcript that a file continues by its name; empty if there is none."""
    stem, dot, ending = name.rpartition(".")
    part = _PART.search(stem)
    first = "" if part is None else f"{stem[: part.start()]}{dot}{ending}"
    return first if first in names else ""


def _is_metadata(name: str, names: Mapping[str, object]) -> bool:
    """Return whether a file is the metadata of a transcript beside it."""
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
