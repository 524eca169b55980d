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

from everlog.app import open_store
from everlog.errors import FormatError
from everlog.ids import TimestampSource
from everlog.interop.foreign.foreign_routing import ForeignRouting
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.formats.format_types import FileEdit
from everlog.interop.formats.picoclaw import FORMAT
from everlog.interop.formats.picoclaw.go_json import format_go_time
from everlog.interop.formats.picoclaw.history_edits import encode_history, truncate
from everlog.interop.formats.picoclaw.messages import read_message
from everlog.interop.formats.picoclaw.meta_file import ENDING, change_times, encode_meta, parse_meta
from everlog.model import Message, assistant, user
from everlog.ports import Reporting, Route, Routing
from everlog.promotion import routing_of
from everlog.session import Session

MessageLike = Message | Mapping[str, Any]  # a Message, or an object of PicoClaw's


class SessionStore:
    """The sessions of one directory, by their keys."""

    def __init__(self, directory: str | os.PathLike[str], *, home: str | os.PathLike[str] | None = None) -> None:
        path = Path(directory).expanduser()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store = open_store(f"picoclaw:{path}", home=home)
        routing_of(self._store.port).prepare()  # legacy sessions become newer ones, as when PicoClaw starts
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
        """Return the session with a key or an alias, or None."""
        session = FORMAT.find_holder(key, self._foreign.session_names(FORMAT.NAME))
        return None if session is None else Session(self._store, session)

    def _open_session(self, key: str) -> Session:
        """Return the session with a key or an alias, made if need be; ConflictError if its file has another key."""
        return self._find_session(key) or Session(self._store, self._foreign.create({"key": key}, unless_held=True).id)

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
        session = self._find_session(key)
        if session is None:
            return ""
        summary = (parse_meta(self._foreign.meta_bytes(session.id)) or {}).get("summary")
        return summary if isinstance(summary, str) else ""

    def set_summary(self, key: str, summary: str) -> None:
        """Replace the summary; a session that is not there is made, as PicoClaw does it."""
        session = self._open_session(key)

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
        session = self._find_session(key)
        return key if session is None else session.metadata.key or session.id

    def ensure_session_metadata(self, key: str, scope: Mapping[str, Any] | None, aliases: Sequence[str]) -> None:
        """Set the scope and the aliases of a session.

        A session that never had a message takes over the history of the first alias that has one;
        a history is promoted only once, and a session receives one only once.
        """
        session = self._open_session(key)
        names = [alias for alias in dict.fromkeys(aliases) if alias != key]
        session.update(scope=dict(scope) if scope else None, aliases=names)
        routing = self._foreign.capability(Routing)
        assert isinstance(routing, ForeignRouting)
        sessions = self._foreign.session_names(FORMAT.NAME)
        route = Route(agent="main", key=session.metadata.key or key, aliases=tuple(names))
        routing.promote_first(session.id, route.key, FORMAT.promotable(route, sessions))

    @property
    def reports(self) -> list[str]:
        """Reports of damage, and of legacy files that were not converted."""
        reporting = self._store.port.capability(Reporting)
        return [] if reporting is None else list(reporting.reports)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
