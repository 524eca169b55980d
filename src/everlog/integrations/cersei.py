"""Cersei's `MemoryManager`, as far as it handles sessions.

Transcripts are in the directory of the project, in Cersei's format; those of Claude Code in that
directory are listed and loaded too. Unlike Cersei's own loading, this one returns summaries in the
place of the messages that they cover.
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
from everlog.ids import TimestampSource, UuidGenerator
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.formats.cersei import FORMAT
from everlog.interop.formats.cersei.entries import member_id, message_entry, read_messages
from everlog.interop.formats.format_types import FileEdit
from everlog.model import Message, assistant, user
from everlog.session import Session, Store

PROJECTS_DIRECTORY = "~/.claude/projects"
MAX_MESSAGES_PER_ENTRY = 100
UNLIMITED_TOKENS = 1 << 40  # the caller fits a loaded session to a model
MessageLike = str | Message | Mapping[str, Any]  # text, a Message, or an object of Cersei's


class SessionInfo(msgspec.Struct, frozen=True):
    """A session in a listing."""

    id: str
    created_at: str
    message_count: int
    model: str


class MemoryManager:
    """The sessions of one project.

    `sessions_dir` replaces the project's directory in `~/.claude/projects`. `home` is everlog's
    directory for derived files.
    """

    def __init__(
        self,
        project_root: str | os.PathLike[str],
        *,
        sessions_dir: str | os.PathLike[str] | None = None,
        home: str | os.PathLike[str] = DEFAULT_ROOT,
    ) -> None:
        self.project_root = Path(project_root).expanduser().resolve()
        self.sessions_dir = self._find_directory(sessions_dir)
        self.sessions_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store: Store = open_store(self.sessions_dir, dialect="auto", home=home)
        foreign = self._store.port.capability(ForeignStore)
        assert foreign is not None
        self._foreign = foreign
        self._now = TimestampSource(time.time)
        self._new_uuid = UuidGenerator()

    def _find_directory(self, sessions_dir: str | os.PathLike[str] | None) -> Path:
        """Return the first existing one of Cersei's three names for the directory, or the first."""
        if sessions_dir is not None:
            return Path(sessions_dir).expanduser()
        projects = Path(PROJECTS_DIRECTORY).expanduser()
        candidates = [projects / name for name in FORMAT.project_directory(str(self.project_root))]
        return next((candidate for candidate in candidates if candidate.is_dir()), candidates[0])

    # --- writing

    def write_user_message(self, session_id: str, message: MessageLike) -> str:
        """Append a user message and return the uuid of its entry."""
        return self._append(session_id, _to_message(message, "user"))

    def write_assistant_message(self, session_id: str, message: MessageLike, parent: str | None = None) -> str:
        """Append an answer and return the uuid of its entry.

        `parent` is the entry that it answers, by default the last user entry.
        """
        answer = _to_message(message, "assistant")
        if parent is None:
            return self._append(session_id, answer)
        timed = replace(answer, timestamp=answer.timestamp or self._now())
        uuid = timed.id or self._new_uuid()

        def make_edit(mirror: Mirror) -> FileEdit:
            entry = message_entry(timed, uuid, parent, session_id, str(self.project_root))
            return FileEdit(lines=(msgspec.json.encode(entry),))

        self._foreign.apply(self._open_session(session_id).id, make_edit)
        return uuid

    def tombstone_entry(self, session_id: str, uuid: str) -> None:
        """Delete an entry: it stays in the file, but is no longer part of the conversation."""
        session = Session(self._store, session_id)
        ids = {member_id(uuid, number) for number in range(MAX_MESSAGES_PER_ENTRY)}
        seqs = [message.seq for message in session.messages() if message.id in ids]
        if not seqs:
            raise NotFoundError(f"session {session_id} has no entry {uuid}", session=session_id)
        session.tombstone(*seqs)

    def _append(self, session_id: str, message: Message) -> str:
        located = message if message.cwd else replace(message, cwd=str(self.project_root))
        return self._open_session(session_id).append(located).id

    def _open_session(self, session_id: str) -> Session:
        """Return the session; create it if there is none."""
        if not FORMAT.is_id(session_id):
            raise InvalidIdError(f"not a session id: {session_id[:60]!r}", hint="an id must be usable as a file name")
        return Session(self._store, self._foreign.open_or_create(session_id, "cersei", session_id))

    # --- reading

    def load_session_messages(self, session_id: str) -> list[Message]:
        """Return what a model would be sent: the last summary, and the messages after it."""
        try:
            return list(Session(self._store, session_id).context(window=UNLIMITED_TOKENS).messages)
        except (NotFoundError, InvalidIdError):
            return []

    def list_sessions(self) -> list[SessionInfo]:
        """Return all sessions, newest first; the parts of a session count as one."""
        return [
            SessionInfo(metadata.id, metadata.created_at, metadata.message_count, metadata.model)
            for metadata in (row.metadata for row in self._store.walk())
        ]

    def session_path(self, session_id: str) -> Path:
        """Return the path of the first part of a session, existing or not."""
        try:
            return self.all_part_paths(session_id)[0]
        except (NotFoundError, InvalidIdError):
            return self.sessions_dir / f"{session_id}.jsonl"

    def all_part_paths(self, session_id: str) -> list[Path]:
        """Return the files of a session, in order."""
        return list(self._foreign.paths(session_id))

    def total_session_size(self, session_id: str) -> int:
        """Return the size of all parts in bytes."""
        return sum(part.bytes for part in self._foreign.parts(session_id))

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _to_message(source: MessageLike, role: Literal["user", "assistant"]) -> Message:
    if isinstance(source, str):
        return user(source) if role == "user" else assistant(source)
    if not isinstance(source, Message):
        messages = read_messages(source, "", "")
        if len(messages) != 1:
            raise FormatError("not a message of Cersei's with a role and content")
        source = messages[0]
    if (source.role == "assistant") != (role == "assistant"):
        raise FormatError(f"expected a message of the {role}, not of role {source.role!r}")
    return source
