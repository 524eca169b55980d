"""Which sessions a foreign directory holds, and what a listing shows of each.

A listing looks at the names and times of all files and reads what grew, from where it was read to
the last time. What it knows is kept in `index.db`, so the next process reads nothing again.
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
from everlog.index.foreign_transcripts import Transcripts
from everlog.interop.foreign.foreign_files import Files
from everlog.interop.foreign.transcript_files import ENDING, Signature, Stamp, Trail, signature
from everlog.interop.formats.live_format import Glance, LiveFormat
from everlog.model import Metadata
from everlog.ports import SessionRow
from everlog.stores.file.disk import errors_mapped
from everlog.stores.file.log_tail import Report

HEAD = 64 * 1024  # bytes by which a file is recognised
DEEPEST = 8  # folders below the root
Progress = Callable[[int, int], None]

_PART = re.compile(r"_part[0-9]+$")
_BESIDE = ("subagents", "tool-results")  # what is in them belongs to a session
_BATCH = 200


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one transcript."""

    folder: str
    stem: str
    dialect: str = ""  # empty: of a kind that is not known
    tried: tuple[str, ...] = ()  # if so: the dialects that do not know it
    name: str = ""  # the session's id, unless others have the same
    stamps: Signature = ()  # what it was known by
    trail: Trail = Trail()
    sizes: tuple[int, ...] = ()
    glance: Glance = Glance()
    twin: bool = False  # another file of the folder has its name

    @property
    def path(self) -> str:
        """Where it is, relative to the root."""
        return f"{self.folder}/{self.stem}{ENDING}" if self.folder else f"{self.stem}{ENDING}"

    @property
    def changed(self) -> int:
        """When the file was last written, in ns."""
        return max((stamp[2] for stamp in self.stamps), default=0)

    def listed(self, session: str) -> SessionRow:
        """The session as a listing shows it."""
        seen = self.glance
        last = _time(seen.last) or (timestamp(self.changed / 1e9) if seen.messages else "")
        metadata = Metadata(
            id=session,
            name=seen.title or None,
            created_at=_time(seen.created) or timestamp(self.changed / 1e9),
            last_message_at=last,
            model=seen.model,
            message_count=seen.messages,
            source=self.dialect,
            agent=seen.agent or "main",
            sender=seen.sender or "user",
            key=seen.key or None,
            aliases=seen.aliases,
            scope=seen.scope,
            chat=seen.chat,
            extra={"cwd": seen.cwd} if seen.cwd else {},
        )
        return SessionRow(metadata, sum(self.sizes), max(len(self.sizes), 1))


def _time(text: str) -> str:
    """A time as ours are written; empty if it is none."""
    if len(text) == len("2026-01-05T09:00:00.000Z") and text.endswith("Z"):
        return text
    moment = epoch_ms(text)
    return "" if moment is None else timestamp(moment / 1000)


_decode = msgspec.msgpack.Decoder(Row).decode
_encode = msgspec.msgpack.Encoder().encode


class Catalogue:
    """The sessions of one directory, for all threads of a process."""

    def __init__(
        self,
        root: Path,
        dialects: Sequence[LiveFormat],
        index: Path,
        report: Report,
        progress: Progress | None = None,
    ) -> None:
        self._root = root
        self._dialects = {one.NAME: one for one in dialects}
        self._transcripts = Transcripts(index, report)
        self._report = report
        self._progress = progress
        self._lock = threading.Lock()
        self._rows: dict[str, Row] | None = None  # by path
        self._sessions: dict[str, Row] = {}  # by id

    def sessions(self) -> Mapping[str, Row]:
        """All sessions as they are now, by id."""
        with self._lock:
            self._look()
            return self._sessions

    def find(self, session: str) -> Row | None:
        """One session; the directory is looked at only if it is not where it was."""
        with self._lock:
            return self._found(session)

    def _found(self, session: str) -> Row | None:
        row = self._sessions.get(session)
        if row is None or not os.path.lexists(self._root / row.path):
            self._look()
            row = self._sessions.get(session)
        return row

    def current(self, session: str) -> Row | None:
        """One session as it is now; no other file is looked at."""
        with self._lock:
            row = self._found(session)
            if row is None:
                return None
            new = self._refreshed(row, self._stamps(row))
            if new is not row and new is not None:
                self._save({row.path: replace(new, twin=False)}, ())
                self._sessions[session] = new
            return new or row

    def knows(self, session: str) -> bool:
        """Whether there was such a session when the directory was last looked at."""
        return session in self._sessions

    def files(self, row: Row) -> Files:
        """The files of a session."""
        return Files(self._root, row.folder, row.stem, self._dialects[row.dialect], self._report)

    def moved(self) -> None:
        """A file of ours came, went or was renamed."""
        with self._lock:
            self._look()

    def made(self, folder: str, stem: str, dialect: LiveFormat) -> None:
        """A session was made that its content does not tell apart yet."""
        with self._lock:
            self._look()
            row = Row(folder=folder, stem=stem, dialect=dialect.NAME)
            new = self._refreshed(row, self._stamps(row))
            if new is not None:
                self._save({new.path: new}, ())
                self._name()

    def forked(self) -> None:
        """In a child: the lock may belong to a thread that is not here."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Give the connection back."""
        self._transcripts.database.close()

    # --- looking

    def _look(self) -> None:
        if self._rows is None:
            self._rows = self._load()
        found: dict[str, Row] = {}
        changed: dict[str, Row] = {}
        names = list(_walk(self._root))
        for done, (folder, stem, stamps) in enumerate(names, 1):
            path = f"{folder}/{stem}{ENDING}" if folder else f"{stem}{ENDING}"
            known = self._rows.get(path)
            row = self._refreshed(known or Row(folder=folder, stem=stem), stamps)
            if row is None:
                continue
            found[path] = row
            if row is not known:
                changed[path] = row
                self._tell(done, len(names), len(changed))
            if len(changed) >= _BATCH:
                self._save(changed, ())
                changed = {}
        gone = self._rows.keys() - found.keys()
        if changed or gone or not self._sessions:
            self._save(changed, gone)
            self._name()

    def _tell(self, done: int, total: int, changed: int) -> None:
        if self._progress is not None and (done == total or changed % 20 == 0):
            self._progress(done, total)

    def _load(self) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        try:
            for path, data in self._transcripts.load().items():
                try:
                    row = _decode(data)
                    if row.dialect in self._dialects or row.tried == tuple(self._dialects):
                        rows[path] = row
                except (msgspec.DecodeError, UnicodeError):
                    continue  # of another version: it is looked at again
        except EverlogError as error:
            self._report(f"what was known of {self._root} cannot be read: {error.message}")
        return rows

    def _save(self, changed: Mapping[str, Row], gone: set[str] | tuple[()]) -> None:
        assert self._rows is not None
        self._rows.update(changed)
        for path in gone:
            self._rows.pop(path, None)
        if changed or gone:
            try:
                self._transcripts.put(((path, _encode(row)) for path, row in changed.items()), gone)
            except EverlogError as error:
                self._report(f"the index is behind: {error.message}")

    def _stamps(self, row: Row) -> Signature:
        with suppress(EverlogError):
            return self.files(row).signature()
        return ()

    def _refreshed(self, row: Row, stamps: Signature) -> Row | None:
        """A row that is true now: the same one if nothing changed; None if the file is gone."""
        if stamps == row.stamps:
            return row if stamps else None
        try:
            dialect = self._dialects.get(row.dialect) or self._recognised(row)
            if dialect is None:
                return replace(row, dialect="", tried=tuple(self._dialects), stamps=stamps)
            named = replace(row, dialect=dialect.NAME)
            return self._glanced(named, self.files(named), dialect, stamps)
        except EverlogError as error:
            if os.path.lexists(self._root / row.path):
                self._report(f"{row.path} cannot be listed: {error.message}")
            return None

    def _recognised(self, row: Row) -> LiveFormat | None:
        """The dialect of a file, by what is in it."""
        path = self._root / row.path
        with (
            errors_mapped(f"reading {row.path}"),
            open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened,
        ):
            head = opened.read(HEAD)
        known = list(self._dialects.values())
        if not head and len(known) == 1:
            return known[0]
        return next((one for one in known if one.recognises(path.name, head)), None)

    def _glanced(self, row: Row, files: Files, dialect: LiveFormat, stamps: Signature) -> Row:
        with errors_mapped(f"reading {row.path}"):
            whole = not files.holds(row.trail)
            grown = files.grown(Trail() if whole else row.trail)
            where = files.where("")
            glance = dialect.glance(Glance() if whole else row.glance, grown, where.beside)
            chat_of = getattr(dialect, "chat_of", None)  # only CrabTalk's names have a number
            if chat_of is not None:
                glance = replace(glance, chat=chat_of(row.stem, where.beside))
            return replace(
                row,
                name=dialect.name_of(row.stem, where.beside),
                stamps=stamps,
                trail=grown.trail,
                sizes=tuple(files.sizes()),
                glance=glance,
            )

    def _name(self) -> None:
        """Give every session its id: of those with one name, the newest has it for its own."""
        assert self._rows is not None
        rows = [row for row in self._rows.values() if row.dialect and not row.glance.skip]
        names = Counter((row.folder, row.name) for row in rows)
        if len(names) < len(rows):
            rows = [replace(row, twin=names[row.folder, row.name] > 1) for row in rows]
        rows.sort(key=lambda row: (row.changed, row.path))
        named: dict[str, Row] = {}
        for row in rows:
            older = named.get(row.name)
            if older is not None:
                named[f"{older.folder.replace('/', ':')}:{older.stem}"] = older
            named[row.name] = row
        self._sessions = named


def _walk(root: Path) -> Iterator[tuple[str, str, Signature]]:
    """Folder, stem and signature of each file that may be a transcript; no link is followed."""
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            with os.scandir(root / folder) as entries:
                found = [(one.name, one.is_dir(follow_symlinks=False), one) for one in entries]
        except OSError as error:
            if folder:
                continue  # gone, or not ours to look into
            raise StoreFailedError(f"{root} cannot be looked into: {error.strerror}") from error
        names = {name: entry for name, is_folder, entry in found if not is_folder}
        stamp = partial(_stamp, names)
        for name, is_folder, _ in found:
            if is_folder:
                own = name in _BESIDE or f"{name}{ENDING}" in names
                if not own and not name.startswith(".") and depth < DEEPEST and _is_text(name):
                    folders.append((f"{folder}/{name}" if folder else name, depth + 1))
            elif name.endswith(ENDING) and _is_text(name):
                stem = name.removesuffix(ENDING)
                part = _PART.search(stem)
                if part and f"{stem[: part.start()]}{ENDING}" in names:
                    continue
                if stamps := signature(stem, stamp):
                    yield folder, stem, stamps


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8: others can be no id of a session."""
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
