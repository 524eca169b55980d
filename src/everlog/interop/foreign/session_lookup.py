"""Finding foreign sessions by their names, and by whom they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import InvalidIdError, NotFoundError, UnsupportedError
from everlog.identity.key import own_aliases
from everlog.interop.foreign.session_opener import SessionOpener
from everlog.interop.foreign.transcript_row import TranscriptRow
from everlog.interop.formats.format_types import SessionNames
from everlog.model import Metadata, pair
from everlog.ports import Chats
from everlog.stores import rules
from everlog.stores.file.json_file import JsonFile

_CREATION_LOCK = "the making of sessions"  # names a lock file: must not change


class Promotion(msgspec.Struct, frozen=True):
    """A history that was copied to another session, or is being copied."""

    to: str
    done: bool = False


class RoutingState(msgspec.Struct, frozen=True):
    """The state of routing that the files of a directory have no place for. Not derived: it must not be deleted."""

    current: dict[str, str] = {}  # key or pair → the session that was resumed or begun as its current one
    threads: dict[str, str] = {}  # later session of a key → the key
    senders: dict[str, str] = {}  # pair → channel, account and id that the sender is known by
    promoted: dict[str, Promotion] = {}  # legacy name → where its history went


class SessionLookup(SessionOpener):
    """The sessions of one foreign directory, found by name."""

    def load_state(self) -> RoutingState:
        """Return what the files have no place for."""
        state = self._state_file().load(RoutingState())
        promoted: JsonFile[dict[str, str]] = JsonFile(
            self._home / "promoted.json", dict[str, str]
        )  # of earlier versions
        earlier = {name: Promotion(key, done=True) for name, key in promoted.load({}).items()}
        return replace(state, promoted={**earlier, **state.promoted}) if earlier else state

    def save_state(self, state: RoutingState) -> None:
        """Replace it, with the names locked. Durable on return."""
        self._state_file().save(state)

    def _state_file(self) -> JsonFile[RoutingState]:
        return JsonFile(self._companion_directory / "current.json", RoutingState)

    @contextmanager
    def names_locked(self) -> Iterator[None]:
        """Hold the lock under which sessions are made, and their names found and given."""
        with self._file_lock(_CREATION_LOCK, "session creation"):
            yield

    def session_names(self, format: str = "") -> list[SessionNames]:
        """Return what each session is found by, oldest first; with `format`, only its sessions."""
        rows = self._catalogue.sessions().items()
        return [
            _names(session, row) for session, row in rows if not row.is_child and (not format or row.format == format)
        ]

    def resolve(self, name: str, *, prefix: bool = False) -> str:
        """Return the id behind an id, key or alias; with `prefix`, also behind its beginning."""
        try:
            self._find_row(name)
            return name
        except (NotFoundError, InvalidIdError):
            pass
        sessions = self._catalogue.sessions()

        def ids_with_prefix(letters: str) -> list[str]:
            ids = (session for session, row in sessions.items() if not row.is_child or ":" in letters)
            return [session for session in ids if session.startswith(letters)]

        def holder(key: str) -> tuple[str, int] | None:
            session = self._find_holder(key) or self._find_derived(key) or self._find_file(key)
            return None if session is None else (session, 0)

        return rules.resolve_name(name, holder, ids_with_prefix if prefix else None)

    def _find_derived(self, name: str) -> str | None:
        """Return the session whose id was derived from a caller's, or None."""
        sessions = self._catalogue.sessions()
        for format in self._formats if name else ():
            with suppress(UnsupportedError):
                if derived := format.name_fields(name).get("id"):
                    names = (session for session in sessions if format.has_name(session, derived))
                    if (session := next(names, None)) is not None:
                        return session
        return None

    def _find_file(self, name: str) -> str | None:
        """Return the session in the file with this name, which its program shows; never used as a path."""
        if not name.endswith(".jsonl"):
            return None
        return next((session for session, row in self._catalogue.sessions().items() if row.path == name), None)

    def _find_holder(self, name: str) -> str | None:
        """Return the session with exactly this id, key or alias, or None."""
        if name in self._catalogue.sessions():
            return name
        found = (
            format.find_holder(name, self.session_names(format.NAME)) for format in (self._formats if name else ())
        )
        return next((session for session in found if session is not None), None)

    def chats(self, thread: str) -> Chats | None:
        """Return the chats of an agent and a sender, or of a key, or None."""
        sessions = self._catalogue.sessions()
        candidates = [
            ((row.scan.chat or 0, row.modified_ns), session)
            for session, row in sessions.items()
            if not row.is_child and thread in (row.scan.key, row.session_row(session).metadata.thread)
        ]
        marked = self.load_state().current.get(thread)
        marked = marked if marked in sessions else None
        if not candidates:
            return None if marked is None else Chats(marked, marked, 1)
        (highest, _), newest = max(candidates)
        return Chats(marked or newest, newest, highest)

    def resume(self, session: str) -> Metadata:
        """Make a session the current one of its key or pair, until another is resumed or a new one begun here."""
        metadata = self.metadata(session)
        with self.names_locked():
            state = self.load_state()
            thread = state.threads.get(session, metadata.thread)
            if state.current.get(thread) != session:
                self.save_state(replace(state, current={**state.current, thread: session}))
        return metadata

    def begin(self, created: Metadata, fields: Mapping[str, Any]) -> None:
        """Let a new session be the current one, with the names locked.

        One to which its format gave a key is found by its agent and sender in `fields` all the same.
        """
        state, thread = self.load_state(), created.thread
        current = {name: session for name, session in state.current.items() if name != thread}
        threads = dict(state.threads)
        if fields:
            threads[created.id] = thread = pair(fields.get("agent") or "main", fields.get("sender") or "user")
            current[thread] = created.id
        if (current, threads) != (state.current, state.threads):
            self.save_state(replace(state, current=current, threads=threads))

    def forget_route(self, session: str) -> None:
        """Remove what is kept of a deleted session; that a history was promoted stays known."""
        with self.names_locked():
            state = self.load_state()
            current = {thread: name for thread, name in state.current.items() if name != session}
            threads = {name: thread for name, thread in state.threads.items() if name != session}
            if (current, threads) != (state.current, state.threads):
                self.save_state(replace(state, current=current, threads=threads))

    def main_format_name(self) -> str:
        """Return the format of new sessions: the only one of the directory; empty if there are several."""
        if len(self._formats) == 1:
            return self._formats[0].NAME
        if not self._detects_format:
            return ""
        present = {row.format for row in self._catalogue.sessions().values() if row.format}
        return present.pop() if len(present) == 1 else ""


def _names(session: str, row: TranscriptRow) -> SessionNames:
    scan = row.scan
    return SessionNames(
        id=session,
        agent=scan.agent or "main",
        sender=scan.sender or "user",
        key=scan.key,
        program_id=scan.program_id,
        aliases=own_aliases(scan.key, scan.aliases),
        listed=scan.aliases,
        scope=scan.scope,
        chat=scan.chat,
        modified_ns=row.modified_ns,
    )


def names_of(sessions: Sequence[SessionNames], session: str) -> SessionNames:
    """Return what a session is found by."""
    return next(item for item in sessions if item.id == session)
