"""PicoClaw's `SessionStore`, on its own directory of `.jsonl` and `.meta.json` files.

Deliberate differences: errors are raised, not swallowed; two keys that would share a file are told
apart; `save` archives the lines that it removes; a history that was promoted or cleared is not
promoted again; of several sessions with the same alias, the oldest has it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from everlog.app import DEFAULT_ROOT, open_store
from everlog.errors import ConflictError, FormatError, InvalidIdError, NotFoundError
from everlog.identity.key import main_alias, main_key
from everlog.ids import TimestampSource
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.formats.format_types import FileEdit
from everlog.interop.formats.picoclaw.go_json import format_go_time
from everlog.interop.formats.picoclaw.history_edits import encode_history, truncate
from everlog.interop.formats.picoclaw.messages import read_message
from everlog.interop.formats.picoclaw.meta_file import ENDING, change_times, encode_meta, file_stem, parse_meta
from everlog.model import Message, assistant, user
from everlog.session import Session
from everlog.stores.file.json_file import JsonFile

MessageLike = Message | Mapping[str, Any]  # a Message, or an object of PicoClaw's


class SessionStore:
    """The sessions of one directory, by their keys."""

    def __init__(self, directory: str | os.PathLike[str], *, home: str | os.PathLike[str] = DEFAULT_ROOT) -> None:
        path = Path(directory).expanduser()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store = open_store(path, dialect="picoclaw", home=home)
        foreign = self._store.port.capability(ForeignStore)
        assert foreign is not None
        self._foreign = foreign
        self._now = TimestampSource(time.time)

    # --- adding

    def add_message(self, key: str, role: str, content: str) -> None:
        """Append a text of the user or the assistant."""
        if role not in ("user", "assistant"):
            raise FormatError(f"not a role for a text: {role!r}", hint="use add_full_message")
        message = user(content) if role == "user" else assistant(content)
        self._open_session(key).append(message)

    def add_full_message(self, key: str, message: MessageLike) -> None:
        """Append a whole message."""
        self._open_session(key).append(self._to_message(message))

    def _to_message(self, source: MessageLike) -> Message:
        record = source if isinstance(source, Message) else read_message(source, self._now())
        if not isinstance(record, Message):
            raise FormatError("not a message that PicoClaw stores")
        return record

    def _find_session(self, key: str) -> Session | None:
        """Return the session of a key, or None; ConflictError if its file has another key."""
        try:
            self._foreign.parts(file_stem(key))
            session = Session(self._store, file_stem(key))
        except (NotFoundError, InvalidIdError):
            return None
        file_key = (parse_meta(self._foreign.meta_bytes(session.id)) or {}).get("key") or key
        if file_key not in (key, file_stem(key)):  # the stem, if the metadata file was rebuilt
            raise ConflictError(f"the file of {key!r} belongs to {file_key!r}", hint="use another key")
        return session

    def _open_session(self, key: str) -> Session:
        session = self._find_session(key)
        if session is not None:
            return session
        return Session(self._store, self._foreign.open_or_create(file_stem(key), "picoclaw", key))

    # --- the history and its summary

    def get_history(self, key: str) -> list[Message]:
        """Return the messages that are shown."""
        session = self._find_session(key)
        return list(session.live().messages) if session is not None else []

    def set_history(self, key: str, messages: Sequence[MessageLike]) -> None:
        """Replace the history; the summary stays."""
        session = self._open_session(key)
        history = [self._to_message(message) for message in messages]
        transcript, meta = encode_history(history, self._foreign.meta_bytes(session.id), self._now(), key)
        self._foreign.overwrite(session.id, transcript, meta)

    def get_summary(self, key: str) -> str:
        """Return the summary of messages that are no longer shown; empty if there is none."""
        if self._find_session(key) is None:
            return ""
        summary = (parse_meta(self._foreign.meta_bytes(file_stem(key))) or {}).get("summary")
        return summary if isinstance(summary, str) else ""

    def set_summary(self, key: str, summary: str) -> None:
        """Replace the summary."""
        session = self._find_session(key)
        if session is None:
            raise NotFoundError(f"there is no session {key}", session=key)

        def make_edit(mirror: Mirror) -> FileEdit:
            meta = parse_meta(mirror.log().transcript.meta_bytes) or {"key": key}
            times = change_times(meta, format_go_time(self._now()))
            return FileEdit(files={ENDING: encode_meta(meta, summary=summary, **times)})

        self._foreign.apply(session.id, make_edit)

    def truncate_history(self, key: str, keep_last: int) -> None:
        """Show only the last messages from now on; none if `keep_last` is 0."""
        session = self._find_session(key)
        if session is not None:
            self._foreign.apply(session.id, lambda mirror: truncate(mirror.state, mirror.log(), keep_last, self._now()))

    def save(self, key: str) -> None:
        """Archive the lines that are not shown any more, and remove them from the file."""
        session = self._find_session(key)
        if session is not None:
            session.reclaim()

    # --- names

    def list_sessions(self) -> list[str]:
        """Return the keys of all sessions."""
        return sorted(row.metadata.key or row.id for row in self._store.walk())

    def resolve_session_key(self, key: str) -> str:
        """Return the key of the session with this key, id or alias; `key` itself if none has."""
        rows = [row.metadata for row in self._store.walk()]
        exact = [row for row in rows if key in (row.key, row.id)]
        aliased = (row for row in rows if key in row.aliases)
        holders = sorted(aliased, key=lambda row: (row.created_at, row.id))
        holder = next(iter(exact or holders), None)
        return key if holder is None else holder.key or holder.id

    def ensure_session_metadata(self, key: str, scope: Mapping[str, Any] | None, aliases: Sequence[str]) -> None:
        """Set the scope and the aliases of a session.

        A session that never had a message takes over the history of the first alias that has one;
        a history is promoted only once, and a session receives one only once.
        """
        session = self._open_session(key)
        names = [alias for alias in dict.fromkeys(aliases) if alias != key]
        session.update(scope=dict(scope) if scope else None, aliases=names)
        if next(self._foreign.read(session.id), None) is not None:
            return
        older = (alias for alias in names if not _is_main(alias) and file_stem(alias) != session.id)
        for alias in older:
            if self._promote(alias, session, key):
                return

    def _promote(self, alias: str, session: Session, key: str) -> bool:
        source = self._find_session(alias)
        if source is None:
            return False
        with self._foreign.exclusively("promotion") as home:
            promotions: JsonFile[dict[str, str]] = JsonFile(home / "promoted.json", dict[str, str])
            promoted = promotions.load({})
            messages, summary = self.get_history(alias), self.get_summary(alias)
            if promoted.get(alias, key) != key or not (messages or summary):
                return False
            promotions.save({**promoted, alias: key})
            session.append_many([replace(message, id="", seq=0, line=b"") for message in messages])
            if summary:
                self.set_summary(key, summary)
        return True

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _is_main(alias: str) -> bool:
    """Return whether an alias is that of a main session, which all messages of its agent have."""
    parts = alias.split(":")
    agent = parts[1] if len(parts) == 3 else ""
    return (bool(agent) and alias == main_alias(agent)) or alias == main_key("main")
