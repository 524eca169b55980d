"""The catalogue of a foreign directory: its sessions, and what a listing shows of each.

A listing stats all files and reads only the lines that were added since the last one. The results
are cached in `index.db`, so that the next process does not read the files again.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError
from everlog.index.foreign_transcripts import ForeignTranscripts
from everlog.interop.directory_walk import FoundFile, Stamp, walk
from everlog.interop.foreign.foreign_files import ForeignFiles
from everlog.interop.foreign.transcript_files import ENDING, ReadPosition, Signature, signature, stamp_of
from everlog.interop.foreign.transcript_row import TranscriptRow, normalize_time
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ListingScan
from everlog.interop.formats.recognition import detect, read_head
from everlog.interop.transcript_sources import ancestor_path, explain_file
from everlog.ports import SkippedFile
from everlog.stores.file.disk import map_errors
from everlog.stores.file.log_tail import Report

Progress = Callable[[int, int], None]

_BATCH = 200
_VERSION = 2  # of the rows in the index: others are not used


_decode = msgspec.msgpack.Decoder(TranscriptRow).decode
_encode = msgspec.msgpack.Encoder().encode


class ForeignCatalogue:
    """The sessions of one foreign directory, shared by all threads of a process."""

    def __init__(
        self,
        root: Path,
        formats: Sequence[ForeignFormat],
        index: Path,
        report: Report,
        progress: Progress | None = None,
    ) -> None:
        self._root = root
        self._formats = {format.NAME: format for format in formats}
        self._transcripts = ForeignTranscripts(index, report)
        self._report = report
        self._progress = progress
        self._lock = threading.Lock()
        self._rows: dict[str, TranscriptRow] | None = None  # by key
        self._sessions: dict[str, TranscriptRow] = {}  # by id
        self._others: list[SkippedFile] = []  # files that cannot be transcripts
        self._unreadable: dict[str, str] = {}  # path → problem
        self._ancestors: dict[tuple[str, str], Stamp | None] = {}  # of files above folders, in one scan

    def sessions(self) -> Mapping[str, TranscriptRow]:
        """Scan the directory and return all its sessions by id."""
        with self._lock:
            self._scan()
            return self._sessions

    def skipped_files(self) -> list[SkippedFile]:
        """Scan the directory and return every file that is not taken as a session, with the reason."""
        with self._lock:
            self._scan()
            rows = list((self._rows or {}).values())
        skipped = [SkippedFile(path, problem) for path, problem in self._unreadable.items()]
        formats = tuple(self._formats.values())
        for path, reason in (*((file.path, file.reason) for file in self._others), *_refused_rows(rows)):
            skipped.append(SkippedFile(path, reason or explain_file(self._root / path, formats)))
        return sorted(skipped, key=lambda file: file.path)

    def find(self, session: str) -> TranscriptRow | None:
        """Return a session, or None. The directory is scanned only if its file has moved."""
        with self._lock:
            return self._find(session)

    def _find(self, session: str) -> TranscriptRow | None:
        row = self._sessions.get(session)
        if row is None or not os.path.lexists(self._root / row.path):
            self._scan()
            row = self._sessions.get(session)
        return row

    def current(self, session: str) -> TranscriptRow | None:
        """Refresh one session and return it, or None; no other file is read."""
        with self._lock:
            row = self._find(session)
            if row is None:
                return None
            self._ancestors = {}
            refreshed = self._refresh_row(row, self._stamps(row))
            if refreshed is None or refreshed is row:
                return row
            self._save({row.key: replace(refreshed, has_shared_name=False, agents=(), parent_id="")}, ())
            self._sessions[session] = refreshed
            return refreshed

    def with_children(self, session: str) -> dict[str, TranscriptRow]:
        """Return a session and those that it started, and so on, by id."""
        with self._lock:
            self._scan()
            found = {session: self._sessions[session]} if session in self._sessions else {}
            for name, row in self._sessions.items():  # a parent comes before its children
                if row.parent_id in found:
                    found[name] = row
            return found

    def last_sessions(self) -> Mapping[str, TranscriptRow]:
        """Return the sessions that the last scan found, by id."""
        return self._sessions

    def has_seen(self, session: str) -> bool:
        """Return whether the last scan found this session."""
        return session in self._sessions

    def files(self, row: TranscriptRow) -> ForeignFiles:
        """Return the files of a session."""
        format = self._formats[row.format]
        return ForeignFiles(self._root, row.folder, row.stem, format, self._report, branch=row.branch)

    def rescan(self) -> None:
        """Scan the directory again, after we created, deleted or renamed a file."""
        with self._lock:
            self._scan()

    def add_created(self, folder: str, stem: str, format: ForeignFormat) -> None:
        """Add a new session, whose content does not reveal its format yet."""
        with self._lock:
            self._scan()
            row = TranscriptRow(folder=folder, stem=stem, version=_VERSION, format=format.NAME)
            refreshed = self._refresh_row(row, self._stamps(row))
            if refreshed is not None:
                self._save({refreshed.key: refreshed}, ())
                self._assign_ids()

    def reset_after_fork(self) -> None:
        """Replace the lock in a forked child, which may not have the thread that holds it."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the index database."""
        self._transcripts.database.close()

    # --- scanning

    def _scan(self) -> None:
        if self._rows is None:
            self._rows = self._load()
        rows: dict[str, TranscriptRow] = {}
        changed: dict[str, TranscriptRow] = {}
        entries = list(walk(self._root, (ENDING,)))
        self._others = [entry for entry in entries if isinstance(entry, SkippedFile)]
        self._unreadable, self._ancestors = {}, {}
        transcripts = [entry for entry in entries if isinstance(entry, FoundFile)]
        for done, file in enumerate(transcripts, 1):
            stem = file.name.removesuffix(ENDING)
            stamps = signature(stem, file.stamp_of)
            first = rows.get(file.part_of)  # comes before its parts
            if not stamps or (first is not None and first.format and self._formats[first.format].PART_BYTES):
                continue  # removed meanwhile, or a further part
            pending = [TranscriptRow(folder=file.folder, stem=stem, version=_VERSION, parent=file.parent)]
            while pending:
                fresh = pending.pop()
                cached = self._rows.get(fresh.key)
                row = self._refresh_row(cached or fresh, stamps)
                if row is None:
                    continue
                rows[row.key] = row
                if not row.branch:
                    pending = [replace(fresh, branch=branch, format=row.format) for branch in row.scan.branches]
                if row is not cached:
                    changed[row.key] = row
                    self._report_progress(done, len(transcripts), len(changed))
            if len(changed) >= _BATCH:
                self._save(changed, ())
                changed = {}
        removed = self._rows.keys() - rows.keys()
        if changed or removed or not self._sessions:
            self._save(changed, removed)
            self._assign_ids()

    def _report_progress(self, done: int, total: int, changed: int) -> None:
        if self._progress is not None and (done == total or changed % 20 == 0):
            self._progress(done, total)

    def _load(self) -> dict[str, TranscriptRow]:
        rows: dict[str, TranscriptRow] = {}
        try:
            for path, data in self._transcripts.load().items():
                try:
                    row = _decode(data)
                    is_current = row.version == _VERSION
                    if is_current and (row.format in self._formats or row.tried_formats == tuple(self._formats)):
                        rows[path] = row
                except (msgspec.DecodeError, UnicodeError):
                    continue  # written by another version: the file is scanned again
        except EverlogError as error:
            self._report(f"the cached listing of {self._root} cannot be read: {error.message}")
        return rows

    def _save(self, changed: Mapping[str, TranscriptRow], removed: set[str] | tuple[()]) -> None:
        assert self._rows is not None
        self._rows.update(changed)
        for path in removed:
            self._rows.pop(path, None)
        if changed or removed:
            try:
                encoded = ((path, _encode(row)) for path, row in changed.items())
                self._transcripts.put(encoded, removed)
            except EverlogError as error:
                self._report(f"the index is out of date: {error.message}")

    def _stamps(self, row: TranscriptRow) -> Signature:
        with suppress(EverlogError):
            return self.files(row).signature()
        return ()

    def _refresh_row(self, row: TranscriptRow, stamps: Signature) -> TranscriptRow | None:
        """Return the current row: the same object if unchanged, None if the file is gone."""
        if stamps == row.stamps and self._ancestor_stamp(row) == row.ancestor:
            return row if stamps else None
        try:
            format = self._formats.get(row.format) or self._detect_format(row)
            if format is None:
                return replace(row, format="", tried_formats=tuple(self._formats), stamps=stamps)
            identified = replace(row, format=format.NAME)
            return self._scan_listing(identified, self.files(identified), format, stamps)
        except EverlogError as error:
            if os.path.lexists(self._root / row.path):
                self._unreadable[row.path] = error.message
                self._report(f"{row.path} cannot be listed: {error.message}")
            return None

    def _ancestor_stamp(self, row: TranscriptRow) -> Stamp | None:
        format = self._formats.get(row.format)
        if format is None or not format.ANCESTOR_FILE:
            return None
        key = row.folder, format.ANCESTOR_FILE
        if key not in self._ancestors:
            path = ancestor_path(self._root / row.folder, format.ANCESTOR_FILE)
            with suppress(OSError):
                self._ancestors[key] = None if path is None else stamp_of(path.stat())
        return self._ancestors.get(key)

    def _detect_format(self, row: TranscriptRow) -> ForeignFormat | None:
        """Detect the format of a file from its content."""
        path = self._root / row.path
        with (
            map_errors(f"reading {row.path}"),
            open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file,
        ):
            head = read_head(file)
        formats = list(self._formats.values())
        if not head and len(formats) == 1:
            return formats[0]
        return detect(path.name, head, formats)

    def _scan_listing(
        self, row: TranscriptRow, files: ForeignFiles, format: ForeignFormat, stamps: Signature
    ) -> TranscriptRow:
        with map_errors(f"reading {row.path}"):
            is_rewritten = not files.is_unchanged_before(row.position, row.stamps, stamps)
            other = self._detect_format(row) if is_rewritten else None
            if other is not None and other is not format:  # another program's file has the name now
                new = TranscriptRow(folder=row.folder, stem=row.stem, version=_VERSION, format=other.NAME)
                new = replace(new, parent=row.parent, branch=row.branch)
                return self._scan_listing(new, self.files(new), other, stamps)
            new_lines = files.new_lines(ReadPosition() if is_rewritten else row.position)
            transcript = files.info(row.name)
            meta_bytes = transcript.meta_bytes
            name = row.name if row.is_child else format.session_id_of(row.stem, meta_bytes)
            transcript = transcript._replace(session_id=name)
            old_scan = ListingScan() if is_rewritten else row.scan
            scan = format.scan_listing(old_scan, new_lines, transcript)
            return replace(
                row,
                name=name,
                resume=format.resume_command(scan, str(self._root / row.path)),
                stamps=stamps,
                ancestor=self._ancestor_stamp(row),
                position=new_lines.position,
                sizes=tuple(files.sizes()),
                scan=scan,
            )

    def _assign_ids(self) -> None:
        """Assign ids to all sessions: of several with one name, the one created first has it as its id.

        So an id never goes from one conversation to another when one of them grows. A session that
        another one started has that one's id before its own.
        """
        assert self._rows is not None
        listed = [row for row in self._rows.values() if row.format and (row.is_child or not row.scan.skip)]
        rows = [row for row in listed if not row.is_child]
        names = Counter((row.folder, row.name) for row in rows)
        if len(names) < len(rows):
            rows = [replace(row, has_shared_name=names[row.folder, row.name] > 1) for row in rows]
        rows.sort(key=lambda row: (normalize_time(row.scan.created), row.path))
        sessions: dict[str, TranscriptRow] = {}
        for row in rows:
            session = row.name if row.name not in sessions else f"{row.folder.replace('/', ':')}:{row.stem}"
            sessions[session] = row
        self._add_children([row for row in listed if row.is_child], sessions)
        self._sessions = sessions

    @staticmethod
    def _add_children(children: Sequence[TranscriptRow], sessions: dict[str, TranscriptRow]) -> None:
        ids = {row.path: session for session, row in sessions.items()} if children else {}
        agents: dict[str, list[str]] = {}
        for row in sorted(children, key=lambda row: row.key):
            parent = ids.get(row.parent or row.path, row.scan.parent)
            parent = parent if parent in sessions else ""
            name, folder = row.branch or row.stem, row.folder.replace("/", ":")
            session = f"{parent or folder}:{name}"
            if session in sessions:  # a file of the same name in another folder
                session = f"{folder}:{name}"
            sessions[session] = replace(row, name=session, parent_id=parent)
            if parent:
                agents.setdefault(parent, []).append(session)
        for parent, started in agents.items():
            sessions[parent] = replace(sessions[parent], agents=tuple(started))


def _refused_rows(rows: Sequence[TranscriptRow]) -> Sequence[tuple[str, str]]:
    """Return the files that no format recognises, or that are no sessions of their own."""
    refused = [(row.path, "") for row in rows if not row.format]
    skipped = [
        (row.path, f"no messages of its own, but part of another {row.format} session")
        for row in rows
        if row.format and row.scan.skip and not row.is_child
    ]
    return [*refused, *skipped]
