"""The catalogue of a foreign directory: its sessions, and what a listing shows of each.

A listing stats all files and reads only the lines that were added since the last one. The results
are cached in `index.db`, so that the next process does not read the files again.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from everlog.errors import EverlogError, StoreFailedError
from everlog.ids import epoch_ms, timestamp
from everlog.index.foreign_transcripts import ForeignTranscripts
from everlog.interop.foreign.foreign_files import ForeignFiles
from everlog.interop.foreign.transcript_files import ENDING, ReadPosition, Signature, Stamp, signature
from everlog.interop.formats.live_format import ListingScan, LiveFormat
from everlog.interop.formats.recognition import detect, read_head
from everlog.model import Metadata
from everlog.ports import SessionRow
from everlog.stores.file.disk import map_errors
from everlog.stores.file.log_tail import Report

MAX_DEPTH = 8  # folders below the root
Progress = Callable[[int, int], None]

_PART = re.compile(r"_part[0-9]+$")
_SESSION_FOLDERS = ("subagents", "tool-results")  # their files belong to a session
_BATCH = 200


class TranscriptRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cached facts about one transcript."""

    folder: str
    stem: str
    format: str = msgspec.field(default="", name="dialect")  # empty: not recognised
    # If so, the formats that were tried.
    tried_formats: tuple[str, ...] = msgspec.field(default=(), name="tried")
    name: str = ""  # the session's id, unless other files have the same
    stamps: Signature = ()  # of the files when they were last read
    position: ReadPosition = msgspec.field(default=ReadPosition(), name="trail")
    sizes: tuple[int, ...] = ()
    scan: ListingScan = msgspec.field(default=ListingScan(), name="glance")
    # Whether another file of the folder has the same session id.
    has_shared_name: bool = msgspec.field(default=False, name="twin")

    @property
    def path(self) -> str:
        """Path of the transcript, relative to the root."""
        return f"{self.folder}/{self.stem}{ENDING}" if self.folder else f"{self.stem}{ENDING}"

    @property
    def modified_ns(self) -> int:
        """Time of the last write to the files, in ns."""
        return max((stamp[2] for stamp in self.stamps), default=0)

    def session_row(self, session: str) -> SessionRow:
        """Return the session as a listing shows it."""
        scan, modified = self.scan, self.modified_ns / 1e9
        last = _normalize_time(scan.last) or (timestamp(modified) if scan.messages else "")
        metadata = Metadata(
            id=session,
            title=scan.title or None,
            created_at=_normalize_time(scan.created) or timestamp(modified),
            last_message_at=last,
            model=scan.model,
            message_count=scan.messages,
            source=self.format,
            agent=scan.agent or "main",
            sender=scan.sender or "user",
            key=scan.key or None,
            aliases=scan.aliases,
            scope=scan.scope,
            chat=scan.chat,
            extra={"cwd": scan.cwd} if scan.cwd else {},
        )
        return SessionRow(metadata, sum(self.sizes), max(len(self.sizes), 1))


def _normalize_time(text: str) -> str:
    """Return a time in the native notation, or an empty string if it is not a time."""
    if len(text) == len("2026-01-05T09:00:00.000Z") and text.endswith("Z"):
        return text
    time_ms = epoch_ms(text)
    return "" if time_ms is None else timestamp(time_ms / 1000)


_decode = msgspec.msgpack.Decoder(TranscriptRow).decode
_encode = msgspec.msgpack.Encoder().encode


class ForeignCatalogue:
    """The sessions of one foreign directory, shared by all threads of a process."""

    def __init__(
        self, root: Path, formats: Sequence[LiveFormat], index: Path, report: Report, progress: Progress | None = None
    ) -> None:
        self._root = root
        self._formats = {format.NAME: format for format in formats}
        self._transcripts = ForeignTranscripts(index, report)
        self._report = report
        self._progress = progress
        self._lock = threading.Lock()
        self._rows: dict[str, TranscriptRow] | None = None  # by path
        self._sessions: dict[str, TranscriptRow] = {}  # by id

    def sessions(self) -> Mapping[str, TranscriptRow]:
        """Scan the directory and return all its sessions by id."""
        with self._lock:
            self._scan()
            return self._sessions

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
            refreshed = self._refresh_row(row, self._stamps(row))
            if refreshed is not row and refreshed is not None:
                self._save({row.path: replace(refreshed, has_shared_name=False)}, ())
                self._sessions[session] = refreshed
            return refreshed or row

    def has_seen(self, session: str) -> bool:
        """Return whether the last scan found this session."""
        return session in self._sessions

    def files(self, row: TranscriptRow) -> ForeignFiles:
        """Return the files of a session."""
        format = self._formats[row.format]
        return ForeignFiles(self._root, row.folder, row.stem, format, self._report)

    def rescan(self) -> None:
        """Scan the directory again, after we created, deleted or renamed a file."""
        with self._lock:
            self._scan()

    def add_created(self, folder: str, stem: str, format: LiveFormat) -> None:
        """Add a new session, whose content does not reveal its format yet."""
        with self._lock:
            self._scan()
            row = TranscriptRow(folder=folder, stem=stem, format=format.NAME)
            refreshed = self._refresh_row(row, self._stamps(row))
            if refreshed is not None:
                self._save({refreshed.path: refreshed}, ())
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
        transcripts = list(_walk(self._root))
        for done, (folder, stem, stamps) in enumerate(transcripts, 1):
            path = f"{folder}/{stem}{ENDING}" if folder else f"{stem}{ENDING}"
            cached = self._rows.get(path)
            row = self._refresh_row(cached or TranscriptRow(folder=folder, stem=stem), stamps)
            if row is None:
                continue
            rows[path] = row
            if row is not cached:
                changed[path] = row
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
                    if row.format in self._formats or row.tried_formats == tuple(self._formats):
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
        if stamps == row.stamps:
            return row if stamps else None
        try:
            format = self._formats.get(row.format) or self._detect_format(row)
            if format is None:
                return replace(row, format="", tried_formats=tuple(self._formats), stamps=stamps)
            identified = replace(row, format=format.NAME)
            return self._scan_listing(identified, self.files(identified), format, stamps)
        except EverlogError as error:
            if os.path.lexists(self._root / row.path):
                self._report(f"{row.path} cannot be listed: {error.message}")
            return None

    def _detect_format(self, row: TranscriptRow) -> LiveFormat | None:
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
        self, row: TranscriptRow, files: ForeignFiles, format: LiveFormat, stamps: Signature
    ) -> TranscriptRow:
        with map_errors(f"reading {row.path}"):
            is_rewritten = not files.is_unchanged_before(row.position)
            new_lines = files.new_lines(ReadPosition() if is_rewritten else row.position)
            transcript = files.info(row.name)
            meta_bytes = transcript.meta_bytes
            old_scan = ListingScan() if is_rewritten else row.scan
            scan = format.scan_listing(old_scan, new_lines, transcript)
            chat_of = getattr(format, "chat_of", None)  # only CrabTalk's names have a number
            if chat_of is not None:
                scan = replace(scan, chat=chat_of(row.stem, meta_bytes))
            return replace(
                row,
                name=format.session_id_of(row.stem, meta_bytes),
                stamps=stamps,
                position=new_lines.position,
                sizes=tuple(files.sizes()),
                scan=scan,
            )

    def _assign_ids(self) -> None:
        """Assign ids to all sessions: of several with one name, the newest has it as its id."""
        assert self._rows is not None
        rows = [row for row in self._rows.values() if row.format and not row.scan.skip]
        names = Counter((row.folder, row.name) for row in rows)
        if len(names) < len(rows):
            rows = [replace(row, has_shared_name=names[row.folder, row.name] > 1) for row in rows]
        rows.sort(key=lambda row: (row.modified_ns, row.path))
        sessions: dict[str, TranscriptRow] = {}
        for row in rows:
            older = sessions.get(row.name)
            if older is not None:
                sessions[f"{older.folder.replace('/', ':')}:{older.stem}"] = older
            sessions[row.name] = row
        self._sessions = sessions


def _walk(root: Path) -> Iterator[tuple[str, str, Signature]]:
    """Yield folder, stem and signature of each possible transcript; symlinks are not followed."""
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                children = [(item.name, item.is_dir(follow_symlinks=False), item) for item in entries]
        except OSError as error:
            if folder:
                continue  # removed meanwhile, or not readable
            raise StoreFailedError(f"{root} cannot be read: {error.strerror}") from error
        names = {name: entry for name, is_folder, entry in children if not is_folder}
        stamp = partial(_stamp, names)
        for name, is_folder, _ in children:
            if is_folder:
                is_owned = name in _SESSION_FOLDERS or f"{name}{ENDING}" in names
                is_hidden = is_owned or name.startswith(".")
                if not is_hidden and depth < MAX_DEPTH and _is_text(name):
                    folders.append((f"{folder}/{name}" if folder else name, depth + 1))
            elif name.endswith(ENDING) and _is_text(name):
                stem = name.removesuffix(ENDING)
                part = _PART.search(stem)
                if part and f"{stem[: part.start()]}{ENDING}" in names:
                    continue
                if stamps := signature(stem, stamp):
                    yield folder, stem, stamps


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
