"""Cersei's `MemoryManager`, as far as it keeps sessions.

Transcripts lie in the directory of the project, in Cersei's format; those of Claude Code, which lie
in the same one, are listed and loaded too. What its own loading leaves out is given back: a summary
stands for what it covers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
from msgspec.structs import replace

from everlog.app import DEFAULT_ROOT, open_store
from everlog.errors import FormatError, InvalidIdError, NotFoundError
from everlog.ids import Stamps, Uuids
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.formats.cersei import is_id, project_directory
from everlog.interop.formats.cersei.entries import member_id, message_entry, messages_in
from everlog.interop.formats.live_format import Added
from everlog.model import Message, assistant, user
from everlog.session import Session, Store

PROJECTS = "~/.claude/projects"
MEMBERS = 100  # messages of one entry, at the most
ANY = 1 << 40  # tokens: whoever loads a session fits it to a model himself
Given = str | Message | Mapping[str, Any]  # a text, a message of ours, or an object of Cersei's


class SessionInfo(msgspec.Struct, frozen=True):
    """A session as a list shows it."""

    id: str
    created_at: str
    message_count: int
    model: str


class MemoryManager:
    """The sessions of one project.

    `sessions_dir`: where they are, instead of the project's directory in `~/.claude/projects`.
    `home`: where everlog keeps what is derived.
    """

    def __init__(
        self,
        project_root: str | os.PathLike[str],
        *,
        sessions_dir: str | os.PathLike[str] | None = None,
        home: str | os.PathLike[str] = DEFAULT_ROOT,
    ) -> None:
        self.project_root = Path(project_root).expanduser().resolve()
        self.sessions_dir = self._directory(sessions_dir)
        self.sessions_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store: Store = open_store(self.sessions_dir, dialect="auto", home=home)
        assert isinstance(self._store.port, ForeignStore)
        self._live = self._store.port
        self._now = Stamps(time.time)
        self._new_uuid = Uuids()

    def _directory(self, given: str | os.PathLike[str] | None) -> Path:
        """The one that is there, of the three that Cersei itself has names for; else the first."""
        if given is not None:
            return Path(given).expanduser()
        projects = Path(PROJECTS).expanduser()
        names = [projects / name for name in project_directory(str(self.project_root))]
        return next((one for one in names if one.is_dir()), names[0])

    # --- writing

    def write_user_message(self, session_id: str, message: Given) -> str:
        """Add what the user said; returns the uuid of its entry."""
        return self._append(session_id, _message(message, "user"))

    def write_assistant_message(
        self, session_id: str, message: Given, parent: str | None = None
    ) -> str:
        """Add an answer; `parent` is the entry that it answers, by default the user's last."""
        made = _message(message, "assistant")
        if parent is None:
            return self._append(session_id, made)
        own = replace(made, timestamp=made.timestamp or self._now())
        uuid = own.id or self._new_uuid()

        def line(mirror: Mirror) -> Added:
            entry = message_entry(own, uuid, parent, session_id, str(self.project_root))
            return Added(lines=(msgspec.json.encode(entry),))

        self._live.put(self._session(session_id).id, line)
        return uuid

    def tombstone_entry(self, session_id: str, uuid: str) -> None:
        """Delete an entry: it stays in the file, and is no part of the conversation any more."""
        session = Session(self._store, session_id)
        names = {member_id(uuid, number) for number in range(MEMBERS)}
        seqs = [one.seq for one in session.messages() if one.id in names]
        if not seqs:
            raise NotFoundError(f"session {session_id} has no entry {uuid}", session=session_id)
        session.tombstone(*seqs)

    def _append(self, session_id: str, message: Message) -> str:
        own = message if message.cwd else replace(message, cwd=str(self.project_root))
        return self._session(session_id).append(own).id

    def _session(self, session_id: str) -> Session:
        """The session, made if there is none."""
        if not is_id(session_id):
            raise InvalidIdError(f"not a session id: {session_id[:60]!r}", hint="it names a file")
        return Session(self._store, self._live.made(session_id, "cersei", session_id))

    # --- reading

    def load_session_messages(self, session_id: str) -> list[Message]:
        """What a model would be sent: the last summary, and the messages since."""
        try:
            return list(Session(self._store, session_id).context(window=ANY).messages)
        except (NotFoundError, InvalidIdError):
            return []

    def list_sessions(self) -> list[SessionInfo]:
        """All sessions, newest first; a session in parts is one."""
        return [
            SessionInfo(one.id, one.created_at, one.message_count, one.model)
            for one in (row.metadata for row in self._store.walk())
        ]

    def session_path(self, session_id: str) -> Path:
        """Where the first part of a session is, or would be."""
        try:
            return self.all_part_paths(session_id)[0]
        except (NotFoundError, InvalidIdError):
            return self.sessions_dir / f"{session_id}.jsonl"

    def all_part_paths(self, session_id: str) -> list[Path]:
        """The files of a session, in order."""
        return list(self._live.paths(session_id))

    def total_session_size(self, session_id: str) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self._live.parts(session_id))

    def close(self) -> None:
        """Give back all descriptors."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _message(given: Given, role: Literal["user", "assistant"]) -> Message:
    if isinstance(given, str):
        return user(given) if role == "user" else assistant(given)
    if not isinstance(given, Message):
        made = messages_in(given, "", "")
        if len(made) != 1:
            raise FormatError("not a message of Cersei's with a role and a content")
        given = made[0]
    if (given.role == "assistant") != (role == "assistant"):
        raise FormatError(f"a message of the role {given.role!r} is not one of the {role}'s")
    return given
