"""Copy what has changed in the sources into the archive.

A file whose size, time and inode are those of the last run is not opened. The others are read by
this thread and stored by a few more. Every so often what is stored is committed: the names of the
objects are synced, then a manifest is written, then the state follows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import NamedTuple

import msgspec

from everlog.errors import EverlogError, NotFoundError
from everlog.ids import timestamp
from everlog.interop.archive import archive_folder
from everlog.interop.archive.archive_state import Known, Version
from everlog.interop.archive.chunks import Taken, keep_block, take
from everlog.interop.archive.manifest import Entry, File, Gone, Link, Piece, Source, named
from everlog.interop.archive.source_scan import Found, Problem, find, shown
from everlog.stores.file.disk import errors_mapped

COMMIT_BYTES = 256 << 20
COMMIT_FILES = 2_000
THREADS = 4  # more than there may be cores: a thread that syncs only waits
AHEAD = 8  # blocks in memory

Progress = Callable[[int, int], None]


class Copied(msgspec.Struct, kw_only=True, rename="camel"):
    """What a run did."""

    sources: list[str] = msgspec.field(default_factory=list)
    files: int = 0  # in the sources
    new: int = 0
    changed: int = 0
    gone: int = 0  # since the last run
    links: int = 0  # not followed
    special: int = 0  # FIFOs, sockets and devices, skipped
    bytes_read: int = 0
    bytes_written: int = 0  # of objects, compressed
    problems: list[Problem] = msgspec.field(default_factory=list)


def copy(
    root: Path,
    sources: Sequence[Path],
    *,
    usual: bool = False,
    again: bool = False,
    clock: Callable[[], float] = time.time,
    progress: Progress | None = None,
) -> Copied:
    """Archive files and folders; a source that is missing must have been archived before.

    `usual`: sources that never were there are no error. `again`: read every file, and write anew
    what the archive lacks of it.
    """
    places = _places(sources)
    if not usual:
        _need(root, places)
    elif not any(map(os.path.lexists, places)) and not (root / archive_folder.NAME).exists():
        return Copied()
    with archive_folder.opened_for_writing(root, recheck=again) as opened:
        run = _Run(opened, again, clock)
        try:
            run.copy(places, progress)
        finally:
            run.close()
        return run.done


def _places(sources: Iterable[Path]) -> list[bytes]:
    """Where the sources really are; none of them is within another."""
    places: list[bytes] = []
    for place in sorted({os.path.realpath(os.fsencode(source)) for source in sources}):
        if not any(place.startswith(one.rstrip(b"/") + b"/") for one in places):
            places.append(place)
    return places


def _need(root: Path, places: Sequence[bytes]) -> None:
    """Refuse a source that neither is there nor was, before anything is made."""
    for place in places:
        if os.path.lexists(place):
            continue
        try:
            with archive_folder.opened(root) as opened:
                known = opened.state.beneath(place)
        except NotFoundError:
            known = {}
        if not known:
            raise NotFoundError(f"{shown(place)}: there is no such file or folder")


class _Todo(NamedTuple):
    """A file that must be read."""

    path: bytes
    size: int
    known: Known | None  # of the same path
    like: Known | None  # what it was before, perhaps under another name


class _Run:
    """One run that has the archive for itself."""

    def __init__(
        self, opened: archive_folder.Folder, again: bool, clock: Callable[[], float]
    ) -> None:
        self.done = Copied()
        self._archive = opened
        self._again = again
        self._clock = clock
        self._pool = ThreadPoolExecutor(THREADS, "archive")
        self._room = Semaphore(AHEAD)
        self._entries: list[Entry] = []
        self._taken: list[tuple[_Todo, Taken, Version | None]] = []
        self._bytes = 0  # of files that are taken and not committed
        self._last = opened.state.last()
        self._digest: str | None = None  # of the last manifest

    def close(self) -> None:
        """Stop what still runs."""
        self._pool.shutdown(cancel_futures=True)

    def copy(self, places: Sequence[bytes], progress: Progress | None) -> None:
        """Copy the sources."""
        told = {path for path, _ in self._archive.state.sources()}
        todo: list[_Todo] = []
        for place in places:
            found = find(place, self._archive.identity)
            known = self._archive.state.beneath(place)
            if os.path.lexists(place) or known:
                self.done.sources.append(shown(place))
                if place not in told:
                    self._entries.append(Source(**named(place)))
            todo += self._compare(found, known)
        total = sum(one.size for one in todo)
        for one in todo:
            self._take(one, lambda: progress and progress(min(self.done.bytes_read, total), total))
        self._commit()
        self.done.bytes_written = self._archive.objects.written

    def _compare(self, found: Found, known: dict[bytes, Known]) -> list[_Todo]:
        """Note links and what is gone; the files that must be read."""
        self.done.files += len(found.files)
        self.done.links += len(found.links)
        self.done.special += len(found.special)
        self.done.problems += found.problems
        for path, target in found.links.items():
            before = known.get(path)
            if before is None or before.target != target or before.gone:
                self._entries.append(Link(**named(path), **named(target, "target")))
        there = found.files.keys() | found.links.keys()
        moved: dict[int, Known] = {}  # by inode: a renamed file is compared with what it was
        for path, before in known.items():
            if before.gone is None and path not in there and found.knows(path):
                self._entries.append(Gone(**named(path)))
                self.done.gone += 1
                moved[before.inode] = before
        todo = []
        for path, seen in sorted(found.files.items()):
            before = known.get(path)
            if before is None or before.target is not None:
                todo.append(_Todo(path, seen.size, None, moved.get(seen.inode)))
            elif self._again or before.gone or before[:3] != seen:
                todo.append(_Todo(path, seen.size, before, before))
        return todo

    def _take(self, todo: _Todo, tell: Callable[[], object]) -> None:
        old: Version | None = None
        if todo.like is not None and todo.like.version is not None:
            old = self._archive.state.version(todo.like.version)

        def submit(data: memoryview, pieces: Sequence[Piece]) -> Future[list[Piece]]:
            self._room.acquire()
            self.done.bytes_read += len(data)
            tell()
            return self._pool.submit(self._keep, data, pieces)

        try:
            taken = take(todo.path, old.pieces if old else (), submit)
        except (FileNotFoundError, NotADirectoryError):
            return  # removed meanwhile: the next run sees it
        except OSError as error:
            self._failed(todo.path, error.strerror or str(error))
            return
        except EverlogError as error:
            self._failed(todo.path, str(error))
            return
        self.done.new += todo.known is None
        self.done.changed += (
            todo.known is not None and old is not None and taken.sha256 != old.sha256
        )
        self._taken.append((todo, taken, old))
        self._bytes += taken.seen.size
        if self._bytes >= COMMIT_BYTES or len(self._taken) >= COMMIT_FILES:
            self._commit()

    def _failed(self, path: bytes, problem: str) -> None:
        self.done.problems.append(Problem(shown(path), problem))

    def _keep(self, data: memoryview, old: Sequence[Piece]) -> list[Piece]:
        try:
            with errors_mapped("writing to the archive"):
                return keep_block(data, old, self._archive.objects.put, recheck=self._again)
        finally:
            self._room.release()

    def _commit(self) -> None:
        """Objects first, then the manifest that names them, then the state, which is a cache."""
        for todo, taken, old in self._taken:
            pieces = tuple(piece for block in taken.blocks for piece in block.result())
            known = todo.known
            same = old and (taken.sha256, pieces) == (old.sha256, old.pieces)
            if same and known and known[:3] == taken.seen and not known.gone:
                continue  # read again and found as it was
            self._entries.append(
                File(
                    **named(todo.path),
                    size=taken.seen.size,
                    mtime_ns=taken.seen.mtime_ns,
                    inode=taken.seen.inode,
                    mode=taken.mode,
                    sha256=taken.sha256,
                    pieces=pieces,
                )
            )
        self._taken, self._bytes = [], 0
        if not self._entries:
            return
        manifests = self._archive.manifests
        with errors_mapped("writing to the archive"):
            self._archive.objects.settle()
            if self._digest is None:
                self._digest = manifests.read(self._last).digest if self._last else ""
            at = timestamp(self._clock())
            written = manifests.write(self._last + 1, at, self._entries, self._digest)
        self._last, self._digest = written.number, written.digest
        self._entries = []
        self._archive.state.apply(written)
