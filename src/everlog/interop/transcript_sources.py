"""Foreign transcripts on disk: finding them, and reading one with all that belongs to it."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from everlog.interop.directory_walk import FoundFile, walk
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import MAX_LINE_BYTES, Line
from everlog.interop.formats.recognition import COMPANIONS, detect, explain_refusal, read_head
from everlog.log import scan
from everlog.ports import SkippedFile

ENDINGS = (".jsonl", ".json")
MAX_ANCESTORS = 5  # folders above a transcript in which a file of its program is looked for
CHUNK, LONGEST_CHUNK = 1 << 16, 1 << 20


class FileSource:
    """A transcript on disk, with its parts, its metadata file and its folder."""

    def __init__(self, path: Path, *, has_parts: bool = True) -> None:
        self.path = path
        self._has_parts = has_parts
        self.name = path.name.rpartition(".")[0]
        self.modified_ms = int(path.stat().st_mtime * 1000)

    def paths(self) -> Sequence[str]:
        """Return the transcript, its parts, its metadata file, and the files in its folder."""
        folder = self.path.parent
        paths = [self.path.name]
        pattern = f"{_escape_glob(self.name)}_part*{self.path.suffix}"
        parts = (path.name for path in (folder.glob(pattern) if self._has_parts else ()))
        paths += sorted(parts, key=lambda name: (len(name), name))
        metadata = f"{self.name}.meta.json"
        paths += [metadata] if (folder / metadata).is_file() else []
        nested = sorted((folder / self.name).rglob("*")) if (folder / self.name).is_dir() else []
        paths += [path.relative_to(folder).as_posix() for path in nested if path.is_file() and not path.is_symlink()]
        return paths

    def lines(self, path: str) -> Iterator[Line]:
        """Yield the lines of one file. A line above MAX_LINE_BYTES is cut off."""
        with (self.path.parent / path).open("rb") as file:
            remainder, start = b"", 0
            while chunk := file.read(min(max(CHUNK, len(remainder)), LONGEST_CHUNK)):
                lines = scan.split(remainder + chunk)
                remainder = lines.pop()
                for line in lines:
                    yield Line(start, line)
                    start += len(line) + 1
                if len(remainder) > MAX_LINE_BYTES:
                    skipped = _skip_to_newline(file)
                    yield Line(start, remainder, ended=skipped >= 0)
                    start, remainder = file.tell(), b""
            if remainder:
                yield Line(start, remainder, ended=False)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return (self.path.parent / path).read_bytes()

    def find_ancestor(self, name: str) -> bytes | None:
        """Return the nearest file with this name in the folders above."""
        path = ancestor_path(self.path.parent, name)
        return None if path is None else path.read_bytes()

    def find_related(self, part: str) -> bytes | None:
        """Return another transcript of the tree by a part of its file name."""
        return read_related(self.path.parent, part)


def ancestor_path(folder: Path, name: str) -> Path | None:
    """Return the path of the nearest file with this name above a folder, or None."""
    above = (parent / name for parent in islice(folder.absolute().parents, MAX_ANCESTORS))
    return next((path for path in above if path.is_file()), None)


def read_related(folder: Path, part: str) -> bytes | None:
    """Return a transcript of the same tree by a part of its file name, or None."""
    # A tree by date is searched from its top, any other folder alone.
    parents = (folder.absolute(), *folder.absolute().parents)
    top = next(parent for parent in parents if not parent.name.isdecimal())
    return next((path.read_bytes() for path in sorted(top.rglob(f"*{_escape_glob(part)}*"))), None)


def _skip_to_newline(file: Any) -> int:
    """Seek to after the next newline; return -1 if there is none."""
    while chunk := file.read(CHUNK):
        newline: int = chunk.find(b"\n")
        if newline >= 0:
            file.seek(newline + 1 - len(chunk), os.SEEK_CUR)
            return newline
    return -1


def _escape_glob(name: str) -> str:
    """Return a glob pattern that matches only this name."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def find_files(paths: Iterable[Path], formats: Sequence[ForeignFormat] = ()) -> tuple[list[Path], list[SkippedFile]]:
    """Return the possible transcripts among files and in folders, and all other files.

    Metadata files and files in a session's own folder are neither: they belong to their transcript.
    Nor are its further parts, if its format has parts; without `formats`, all have.
    """
    files: list[Path] = []
    skipped: list[SkippedFile] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        for entry in walk(path, ENDINGS):
            if isinstance(entry, FoundFile) and entry.name not in COMPANIONS:
                # What a subagent wrote comes with its session.
                if not entry.parent and not (entry.part_of and _has_parts(path / entry.part_of, formats)):
                    files.append(path / entry.path)
            elif isinstance(entry, FoundFile):
                skipped.append(SkippedFile(str(path / entry.path), explain_file(path / entry.path, ())))
            else:
                skipped.append(SkippedFile(str(path / entry.path), entry.reason or explain_file(path / entry.path, ())))
    return files, skipped


def _has_parts(first: Path, formats: Sequence[ForeignFormat]) -> bool:
    """Return whether a transcript may go on in further files."""
    with suppress(OSError):
        format = detect_format(first, formats)
        return not formats or (format is not None and format.PART_BYTES > 0)
    return False


def detect_format(path: Path, formats: Sequence[ForeignFormat]) -> ForeignFormat | None:
    """Detect the format of a file from its content; None if no format recognises it.

    OSError for anything but a regular file: reading a pipe would wait for its writer.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    with path.open("rb") as file:
        return detect(path.name, read_head(file), formats)


def explain_file(path: Path, formats: Sequence[ForeignFormat]) -> str:
    """Return why a file is not a session of these formats."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return explain_refusal(path.name, read_head(file), formats)
    except OSError as error:
        return error.strerror or str(error)
