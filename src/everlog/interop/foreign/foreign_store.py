"""The foreign store: the store port on a directory of another program's sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from msgspec.structs import replace

from everlog.errors import EverlogError, NotFoundError, StoreFailedError, UnsupportedError
from everlog.interop.directory_walk import METADATA_ENDING
from everlog.interop.foreign import vanished_sessions
from everlog.interop.foreign.foreign_catalogue import Progress
from everlog.interop.foreign.foreign_files import ForeignFiles
from everlog.interop.foreign.foreign_lease import ForeignLease
from everlog.interop.foreign.foreign_routing import ForeignRouting
from everlog.interop.foreign.mirrored_session import Mirror, working_directory
from everlog.interop.foreign.session_lookup import SessionLookup
from everlog.interop.foreign.session_opener import companion_alias, mirror_key
from everlog.interop.foreign.transcript_files import ENDING
from everlog.interop.foreign.turn_lines import TurnLines
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import FileEdit
from everlog.model import MARKERS, AnyRecord, Damaged, Entry, Event, Message, Metadata, Part, pair
from everlog.ports import (
    DirectoryBacked,
    FileBacked,
    Filter,
    Order,
    Page,
    Permitting,
    Purgeable,
    Reclaimable,
    Reporting,
    Routing,
    SessionAccess,
    SessionRow,
    SkippedFile,
    UsageReport,
)
from everlog.ports.listing import MAX_PAGE, make_page, matcher
from everlog.stores import rules
from everlog.stores.file import disk

if TYPE_CHECKING:
    from everlog.index.search.search_index import SearchIndex

T = TypeVar("T")

IMPORT_HINT = "import the session (everlog import) and continue it there"


class ForeignStore(SessionLookup, Reporting, Reclaimable, DirectoryBacked, FileBacked, Permitting, Purgeable):
    """Sessions of other programs, each in its own format, in one directory."""

    lease_type = ForeignLease

    def capability(self, kind: type[T]) -> T | None:
        """Return the store itself if it has a capability, or what finds the session of a message."""
        return cast("T", ForeignRouting(self)) if kind is Routing else super().capability(kind)

    # --- writing

    def create(
        self, facts: Mapping[str, Any] | None = None, *, unless_held: bool = False, at: int | None = None
    ) -> Metadata:
        """Create an empty session, in a file that its program accepts as its own."""
        fields = {key: value for key, value in (facts or {}).items() if value is not None}
        with self.names_locked():
            name = rules.exclusive_name(fields) if unless_held else ""
            holder = self._find_holder(name) or self._find_derived(name)
            if holder is not None:
                return self.metadata(holder)
            if not (format_name := self.main_format_name()):
                raise UnsupportedError(
                    "a new session needs a format", hint=f"name it with the directory: --store pi:{self._root}"
                )
            format = self.format(format_name)
            if name and "key" not in fields:  # an id of the caller's
                del fields["aliases"]
                fields |= format.name_fields(name)
            created = self._create_in(format, fields)
            is_unnamed = created.key is not None and not fields.get("key")
            self.begin(created, fields if is_unnamed else {})
            return created

    def open_or_create(self, session: str, format: str, key: str) -> str:
        """Return the session with this id; create it in the given format if there is none."""
        with self.names_locked():
            if self._catalogue.find(session) is not None:
                return session
            return self._create_in(self.format(format), {"key": key}).id

    def create_in_format(self, format: ForeignFormat, metadata: Mapping[str, Any]) -> str:
        """Create a session, with the names locked, and return its id."""
        return self._create_in(format, metadata).id

    def _create_in(self, format: ForeignFormat, metadata: Mapping[str, Any]) -> Metadata:
        named = {} if metadata.get("key") else format.unnamed_fields(metadata)
        fields = {"cwd": working_directory(), **metadata, **named}
        agent, sender = fields.get("agent", "main"), fields.get("sender", "user")
        chats = self.chats(pair(agent, sender))
        fields.setdefault("chat", chats.highest + 1 if chats else 1)
        folder = self._folder_for(format, fields["cwd"])
        new_session = format.build_session(fields, self._now(), lambda stem: self._stem_exists(folder, stem))
        if folder:
            with disk.map_errors(f"creating {self._root / folder}"):
                (self._root / folder).mkdir(mode=0o700, exist_ok=True)
        files = ForeignFiles(self._root, folder, new_session.stem, format, self.reports.append)
        files.create(new_session.edit)
        self._catalogue.add_created(folder, new_session.stem, format)
        return self.metadata(new_session.session_id)

    def _folder_for(self, format: ForeignFormat, cwd: str) -> str:
        """Return the folder for a new session: its project's, if the root has such folders."""
        names = format.project_directory(cwd)
        if not names:
            return ""
        folders = {row.folder for row in self._catalogue.sessions().values() if not row.is_child}
        is_nested = "" not in folders if folders else self._root.name == "projects"
        return names[0] if is_nested else ""

    def _stem_exists(self, folder: str, stem: str) -> bool:
        rows = self._catalogue.sessions().values()
        return os.path.lexists(self._root / folder / f"{stem}{ENDING}") or any(
            row.folder == folder and row.stem.startswith(f"{stem}_") for row in rows
        )

    def _check_whole_file(self, session: str, operation: str) -> None:
        if self._find_row(session).branch:
            raise UnsupportedError(
                f"session {session} is inside the file of another one and cannot be {operation} by itself",
                hint=IMPORT_HINT,
            )

    def skipped_files(self) -> Sequence[SkippedFile]:
        """Return every file in the directory that is not taken as a session, with the reason."""
        return self._catalogue.skipped_files()

    def access(self, session: str) -> SessionAccess:
        """Return what the session's file can hold, as far as it was read."""
        row = self._find_row(session)
        format, files = self.format(row.format), self._catalogue.files(row)
        with self._mutex:
            mirror = self._mirrors.get(session)
        actions = format.actions(row.scan.state if mirror is None else mirror.state)
        if row.branch:  # inside the file of another session
            actions = frozenset()
        file = self._root / row.folder / files.part_name(max(len(row.sizes), 1))
        return SessionAccess(actions=actions, program=format.NAME, file=str(file))

    def transcript(self, session: str) -> tuple[ForeignFormat, Path]:
        """Return the format and the file of a session; UnsupportedError if it is inside another one's."""
        row = self._find_row(session)
        if row.branch:
            raise UnsupportedError(f"session {session} is inside the file of another one", hint="copy that one")
        return self.format(row.format), self._root / row.path

    def rescan(self) -> None:
        """Look at the directory again, after files were made in it."""
        self._catalogue.rescan()

    @property
    def root(self) -> Path:
        """The directory."""
        return self._root

    def _append(self, session: str, call: rules.AppendCall) -> list[AnyRecord]:
        if not all(isinstance(item.record, Event) for item in call.prepared):
            self._check_whole_file(session, "continued")
        with self._locked_mirror(session) as mirror:
            if call.lease is not None:  # it may have been released while we waited for the file
                rules.check_lease(session, call.lease, self.lease_type)
            stem = mirror.files.stem
            stored = mirror.append(call, self.reports.append)
        if mirror.files.stem != stem:
            self._catalogue.rescan()
        return stored

    def update(self, session: str, changes: Mapping[str, Any], *, unless_held: bool = False) -> Metadata:
        """Change metadata that the session's format can hold; UnsupportedError for the rest."""
        if changes:
            self._check_whole_file(session, "changed")
            with self._locked_mirror(session) as mirror:
                stem = mirror.files.stem
                mirror.change_metadata(dict(changes))
            if mirror.files.stem != stem:
                self._catalogue.rescan()
        return self.metadata(session)

    def apply(self, session: str, make_edit: Callable[[Mirror], FileEdit]) -> None:
        """Apply a format-specific edit to a session's files."""
        with self._locked_mirror(session) as mirror:
            mirror.edit(lambda: make_edit(mirror))

    def reclaim(self, session: str) -> int:
        """Remove the lines that the session's program skips and return the bytes freed.

        The files are backed up before.
        """
        with self.lease(session), self._locked_mirror(session) as mirror:
            before, stamp = mirror.files.read_content()
            meta_bytes = mirror.files.info(session).meta_bytes
            after, meta, removed = mirror.format.reclaim_lines(before, meta_bytes, self._now())
            if not removed:
                return 0
            self._back_up([self._root / path for path in mirror.files.paths()])
            # In PicoClaw's order: a crash in between shows the lines again and loses none.
            mirror.apply(FileEdit(files={METADATA_ENDING: meta}), {METADATA_ENDING: meta_bytes})
            mirror.files.overwrite(after, stamp)
            mirror.apply(FileEdit())
            return len(before) - len(after)

    def overwrite(self, session: str, transcript: bytes, meta_bytes: bytes) -> None:
        """Replace a session's history, as PicoClaw's SetHistory does."""
        with self._locked_mirror(session) as mirror:
            mirror.files.rewrite(FileEdit(files={METADATA_ENDING: meta_bytes}))
            mirror.files.overwrite(transcript)
            mirror.apply(FileEdit())

    def delete(self, session: str) -> int:
        """Delete a session's files and everything derived from them; return how many parts it had."""
        self._check_whole_file(session, "deleted")
        with self.lease(session), self._locked_mirror(session) as mirror:
            rows = self._catalogue.with_children(session)
            parts = mirror.files.remove()
            mirror.companion.delete()
        self._catalogue.rescan()
        for row in rows.values():
            self._companion(row).delete()
            if (mirrored := self._find_mirror(row)) is not None:
                self._mirror_store.delete(mirrored)
        self._forget(rows)
        self.forget_route(session)
        return parts

    def is_untouched(self, session: str) -> bool:
        """Return whether a session never had a message, as far as it is known here."""
        return not any(isinstance(entry, (Message, *MARKERS)) for entry in self.tail(session))

    def purge(self) -> int:
        """Remove what is derived from sessions whose files are gone; return how many there were."""
        self._adopt_old_mirrors()
        sessions, skipped = self._catalogue.sessions(), self._catalogue.skipped_files()
        if not vanished_sessions.is_complete(self._root, self._home, sessions.values(), skipped):
            return 0
        for row in sessions.values():  # it takes over the companion of a session that has moved
            self._companion(row)
        keys, names = self._mirror_keys(), {companion_alias(row) for row in sessions.values()}
        removed: set[str] = set()
        for store, moved in ((self._companion_store, names), (self._mirror_store, set[str]())):
            found = list(vanished_sessions.find_vanished(store, keys, moved, skipped))
            removed |= vanished_sessions.delete_all(store, found)
        self._index.drop_missing(sessions)
        return len(removed)

    def _forget(self, sessions: Iterable[str]) -> None:
        """Remove sessions from all that is in memory or in an index."""
        names = list(sessions)
        with self._mutex:
            for name in names:
                self._mirrors.pop(name, None)
        self._index.drop(names)

    # --- reading

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        """Catch up with the file and return the records above a seq, lazily."""
        return self._current_mirror(session).read(after, limit)

    def tail(self, session: str) -> Iterator[Entry]:
        """Catch up with the file and return all records, newest first, lazily."""
        return self._current_mirror(session).tail()

    def metadata(self, session: str) -> Metadata:
        """Return the metadata in the file, with the turns and usage that the mirror knows."""
        found = self._find_row(session)
        mirrored = self._current_mirror(session).metadata
        listed = (self._catalogue.current(session) or found).session_row(session).metadata
        return replace(
            listed,
            uptime_secs=mirrored.uptime_secs,
            metrics=replace(mirrored.metrics, session_id=session),
            spent=mirrored.spent,
            spending=mirrored.spending,
            run=mirrored.run,
            waiting=mirrored.waiting,
            through=mirrored.through,
        )

    def _page(self, criteria: Filter, limit: int, cursor: str | None, order: Order) -> Page:
        if criteria.unfinished:
            return make_page(self._unfinished_rows(criteria), limit, cursor, order)
        matches = matcher(criteria)
        sessions = self._catalogue.sessions().items()
        rows = (row for name, item in sessions if not item.is_child and matches(row := item.session_row(name)))
        return make_page(rows, limit, cursor, order)

    def transcripts(self) -> Mapping[str, str]:
        """Return the path of every session in the last listing, relative to the root."""
        return {session: row.path for session, row in self._catalogue.last_sessions().items()}

    def has(self, session: str) -> bool:
        """Return whether the last scan found a session with this id; the directory is scanned once for it."""
        try:
            return session in (self._catalogue.last_sessions() or self._catalogue.sessions())
        except (StoreFailedError, NotFoundError):
            return False

    def sessions_in(self, directories: Collection[str]) -> frozenset[str]:
        """Return the sessions whose working directory is one of these."""
        wanted = {os.path.normpath(directory) for directory in directories}
        try:
            rows = self._catalogue.sessions()
        except (StoreFailedError, NotFoundError):  # reported when it is searched
            rows = self._catalogue.last_sessions()
        return frozenset(
            name for name, row in rows.items() if row.scan.cwd and os.path.normpath(row.scan.cwd) in wanted
        )

    def was_listed(self, session: str) -> bool:
        """Return whether the last listing had a session with this id."""
        return self._catalogue.has_seen(session)

    def _unfinished_rows(self, criteria: Filter) -> Iterator[SessionRow]:
        """Yield the sessions with unfinished turns, which only companions know."""
        self._adopt_old_mirrors()
        sessions = {mirror_key(row): (name, row) for name, row in self._catalogue.sessions().items()}
        matches = matcher(criteria)
        for unfinished in self._companion_store.list(Filter(unfinished=True), limit=MAX_PAGE):
            name, found = sessions.get(unfinished.metadata.key or "", ("", None))
            if found is not None:
                row = replace(found.session_row(name), metadata=self.metadata(name))
                if matches(row):
                    yield row

    def catch_up(self, progress: Progress | None = None) -> int:
        """Index the new lines of all files, and return in how many sessions there were any."""
        return self._index.catch_up(self._catalogue.sessions(), progress)

    def query_index(self, ask: Callable[[SearchIndex], T], default: T) -> T:
        """Return what a function finds in the search index."""
        return self._index.query_search(ask)

    def _read_new_lines(self, progress: Progress | None) -> None:
        self.catch_up(progress)

    def _usage(self, criteria: Filter, days: tuple[str, str], spenders: int) -> UsageReport:
        sessions = self._catalogue.sessions()
        self._index.catch_up(sessions, only=self._mirrors)  # what is open costs nothing to count
        return self._index.usage(sessions, criteria, days, spenders)

    def lease(self, session: str) -> ForeignLease:
        """Acquire the turn lease. Raises SessionBusyError if another turn holds it; never waits."""
        mirror, turn = self._open_mirror(session), TurnLines()
        lease = self._mirror_store.lease(mirror.session)
        mirror.turns.append(turn)
        return ForeignLease(session, lease, lambda: self._end_turn(session, turn))

    def paths(self, session: str) -> Sequence[Path]:
        """Return the paths of a session's files."""
        files = self._catalogue.files(self._find_row(session))
        return [self._root / path for path in files.paths()]

    def meta_bytes(self, session: str) -> bytes | None:
        """Return the metadata that the session's program rewrites each time, or None."""
        return self._catalogue.files(self._find_row(session)).info(session).meta_bytes

    @contextmanager
    def exclusively(self, operation: str) -> Iterator[Path]:
        """Lock an operation against other processes of ours, and give our home directory."""
        with self._file_lock(operation):
            yield self._home

    def parts(self, session: str) -> tuple[Part, ...]:
        """Return the files of a session's transcript; they have no seqs."""
        files = self._catalogue.files(self._find_row(session))
        return tuple(Part(files.part_name(number), size, None, None) for number, size in enumerate(files.sizes(), 1))

    def verify(self, session: str) -> tuple[Damaged, ...]:
        """Return the bytes in the files that are not records, and the damage in the companion."""
        from everlog.interop.transcript_sources import FileSource  # noqa: PLC0415 - rarely needed

        row = self._find_row(session)
        format = self.format(row.format)
        with disk.map_errors(f"reading {row.path}"):
            read = format.read(FileSource(self._root / row.path, has_parts=format.PART_BYTES > 0))
        damaged = [
            Damaged(file=damage.path, start=damage.start, end=damage.end, problem=damage.problem)
            for item in (read, *read.children)
            for damage in item.damage
        ]
        return (*damaged, *self._companion(row).verify())

    # --- not supported by these formats

    def fork(self, session: str, at: int | None = None) -> Metadata:
        """Raise UnsupportedError."""
        self._find_row(session)
        _unsupported("forks", "import the session (everlog import) and fork it there")

    def promote(self, session: str, to: str, *, seq: int) -> bool:
        """Raise UnsupportedError."""
        _unsupported("promoting a history to another session", IMPORT_HINT)

    def repair(self, session: str) -> tuple[str, ...]:
        """Do nothing: foreign lines are not ours to repair, and an append ends a torn one."""
        self._find_row(session)
        return ()

    def close(self) -> None:
        """Write the uptime of the turns to the files, and close all descriptors."""
        for session, mirror in list(self._mirrors.items()):
            if round(mirror.unsaved_seconds) and mirror.format.HAS_UPTIME:
                try:
                    self.update(session, {"uptimeSecs": round(mirror.unsaved_seconds)})
                    mirror.unsaved_seconds = 0.0
                except EverlogError as error:
                    self.reports.append(f"the uptime of {session} was not saved: {error.message}")
            with suppress(EverlogError):  # they tell nothing that the file or an event does not
                mirror.companion.flush()
        self._mirror_store.close()
        self._companion_store.close()
        self._index.close()
        self._catalogue.close()


def _unsupported(feature: str, hint: str) -> NoReturn:
    raise UnsupportedError(f"the files of other programs do not support {feature}", hint=hint)
