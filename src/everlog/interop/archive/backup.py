"""Copying new and changed files of the sources into the archive.

A file with the size, mtime and inode of the last run is not opened. The others are read by this
thread and stored by a few more. A commit, every so often, syncs the names of the objects, then
writes a manifest, then updates the state.
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
from everlog.interop.archive.archive_state import PathState, Version
from everlog.interop.archive.chunks import FileContent, read_file, store_block
from everlog.interop.archive.manifest import Chunk, Entry, File, Gone, Link, Source, path_fields
from everlog.interop.archive.source_scan import Problem, ScanResult, display_path, scan_source
from everlog.stores.file.disk import map_errors

COMMIT_BYTES = 256 << 20
COMMIT_FILES = 2_000
THREADS = 4  # may be more than there are cores: a thread that syncs only waits
MAX_PENDING_BLOCKS = 8  # that are held in memory

Progress = Callable[[int, int], None]


class BackupReport(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of a run."""

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
    skip_missing: bool = False,
    reread: bool = False,
    clock: Callable[[], float] = time.time,
    progress: Progress | None = None,
) -> BackupReport:
    """Archive files and folders; a source that is missing must have been archived before.

    With `skip_missing`, other missing sources are no error either. With `reread`, every file is
    read, and objects that are missing or damaged in the archive are written again.
    """
    paths = _resolve_sources(sources)
    if not skip_missing:
        _check_sources(root, paths)
    elif not any(map(os.path.lexists, paths)) and not (root / archive_folder.NAME).exists():
        return BackupReport()
    with archive_folder.open_for_writing(root, recheck=reread) as archive:
        run = _BackupRun(archive, reread, clock)
        try:
            run.copy(paths, progress)
        finally:
            run.close()
        return run.report


def _resolve_sources(sources: Iterable[Path]) -> list[bytes]:
    """Return the real paths of the sources, without those inside another."""
    paths: list[bytes] = []
    for path in sorted({os.path.realpath(os.fsencode(source)) for source in sources}):
        if not any(path.startswith(parent.rstrip(b"/") + b"/") for parent in paths):
            paths.append(path)
    return paths


def _check_sources(root: Path, paths: Sequence[bytes]) -> None:
    """Raise NotFoundError for a source that does not exist and was never archived."""
    for path in paths:
        if os.path.lexists(path):
            continue
        try:
            with archive_folder.open_archive(root) as archive:
                archived = archive.state.entries_below(path)
        except NotFoundError:
            archived = {}
        if not archived:
            raise NotFoundError(f"{display_path(path)}: no such file or folder")


class _FileToRead(NamedTuple):
    """A file that must be read."""

    path: bytes
    size: int
    path_state: PathState | None  # of this path
    base_state: PathState | None  # of the file before, perhaps under another name


class _BackupRun:
    """One run, which holds the archive's lock."""

    def __init__(self, archive: archive_folder.ArchiveFolder, reread: bool, clock: Callable[[], float]) -> None:
        self.report = BackupReport()
        self._archive = archive
        self._reread = reread
        self._clock = clock
        self._pool = ThreadPoolExecutor(THREADS, "archive")
        self._slots = Semaphore(MAX_PENDING_BLOCKS)
        self._entries: list[Entry] = []
        self._uncommitted: list[tuple[_FileToRead, FileContent, Version | None]] = []
        self._bytes = 0  # of uncommitted files
        self._last = archive.state.last_manifest()
        self._digest: str | None = None  # of the last manifest

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)

    def copy(self, paths: Sequence[bytes], progress: Progress | None) -> None:
        """Copy the sources."""
        recorded = {path for path, _ in self._archive.state.sources()}
        to_read: list[_FileToRead] = []
        for source in paths:
            scan = scan_source(source, self._archive.identity)
            archived = self._archive.state.entries_below(source)
            if os.path.lexists(source) or archived:
                self.report.sources.append(display_path(source))
                if source not in recorded:
                    self._entries.append(Source(**path_fields(source)))
            to_read += self._compare(scan, archived)
        total = sum(item.size for item in to_read)

        def on_block() -> None:
            if progress is not None:
                progress(min(self.report.bytes_read, total), total)

        for item in to_read:
            self._read_file(item, on_block)
        self._commit()
        self.report.bytes_written = self._archive.objects.written

    def _compare(self, scan: ScanResult, archived: dict[bytes, PathState]) -> list[_FileToRead]:
        """Record links and missing files, and return the files that must be read."""
        self.report.files += len(scan.files)
        self.report.links += len(scan.links)
        self.report.special += len(scan.special)
        self.report.problems += scan.problems
        for path, target in scan.links.items():
            before = archived.get(path)
            if before is None or before.target != target or before.gone_since:
                self._entries.append(Link(**path_fields(path), **path_fields(target, "target")))
        present = scan.files.keys() | scan.links.keys()
        moved: dict[int, PathState] = {}  # by inode: a renamed file is compared with its old state
        for path, before in archived.items():
            if before.gone_since is None and path not in present and scan.covers(path):
                self._entries.append(Gone(**path_fields(path)))
                self.report.gone += 1
                moved[before.inode] = before
        to_read = []
        for path, status in sorted(scan.files.items()):
            before = archived.get(path)
            if before is None or before.target is not None:
                to_read.append(_FileToRead(path, status.size, None, moved.get(status.inode)))
            elif self._reread or before.gone_since or before[:3] != status:
                to_read.append(_FileToRead(path, status.size, before, before))
        return to_read

    def _read_file(self, item: _FileToRead, on_block: Callable[[], object]) -> None:
        old_version: Version | None = None
        if item.base_state is not None and item.base_state.version is not None:
            old_version = self._archive.state.version(item.base_state.version)

        def submit(data: memoryview, old_chunks: Sequence[Chunk]) -> Future[list[Chunk]]:
            self._slots.acquire()
            self.report.bytes_read += len(data)
            on_block()
            return self._pool.submit(self._store_block, data, old_chunks)

        try:
            content = read_file(item.path, old_version.chunks if old_version else (), submit)
        except (FileNotFoundError, NotADirectoryError):
            return  # removed meanwhile: the next run records it
        except OSError as error:
            self._add_problem(item.path, error.strerror or str(error))
            return
        except EverlogError as error:
            self._add_problem(item.path, str(error))
            return
        is_changed = old_version is not None and content.sha256 != old_version.sha256
        self.report.new += item.path_state is None
        self.report.changed += item.path_state is not None and is_changed
        self._uncommitted.append((item, content, old_version))
        self._bytes += content.stat.size
        if self._bytes >= COMMIT_BYTES or len(self._uncommitted) >= COMMIT_FILES:
            self._commit()

    def _add_problem(self, path: bytes, problem: str) -> None:
        self.report.problems.append(Problem(display_path(path), problem))

    def _store_block(self, data: memoryview, old_chunks: Sequence[Chunk]) -> list[Chunk]:
        try:
            with map_errors("writing to the archive"):
                put = self._archive.objects.put
                return store_block(data, old_chunks, put, recheck=self._reread)
        finally:
            self._slots.release()

    def _commit(self) -> None:
        """Sync the objects, then write the manifest that names them, then update the state."""
        for item, content, old_version in self._uncommitted:
            chunks = tuple(chunk for block in content.blocks for chunk in block.result())
            old, state = old_version, item.path_state
            is_same = old and (content.sha256, chunks) == (old.sha256, old.chunks)
            if is_same and state and state[:3] == content.stat and not state.gone_since:
                continue  # read again and unchanged
            self._entries.append(
                File(
                    **path_fields(item.path),
                    size=content.stat.size,
                    mtime_ns=content.stat.mtime_ns,
                    inode=content.stat.inode,
                    mode=content.mode,
                    sha256=content.sha256,
                    chunks=chunks,
                )
            )
        self._uncommitted, self._bytes = [], 0
        if not self._entries:
            return
        manifests = self._archive.manifests
        with map_errors("writing to the archive"):
            self._archive.objects.sync_names()
            if self._digest is None:
                self._digest = manifests.read(self._last).digest if self._last else ""
            at = timestamp(self._clock())
            manifest = manifests.write(self._last + 1, at, self._entries, self._digest)
        self._last, self._digest = manifest.number, manifest.digest
        self._entries = []
        self._archive.state.apply(manifest)
