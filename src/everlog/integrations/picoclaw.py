"""PicoClaw's `SessionStore`, on its own directory of `.jsonl` and `.meta.json` files.

What it does differently, on purpose: errors are raised, not swallowed; two keys that would share a
file are told apart; `save` archives the lines that it takes out; a history that was promoted or
cleared is not promoted again; of several sessions with one alias the oldest has it.
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
from everlog.ids import Stamps
from everlog.interop.foreign.foreign_store import ForeignStore
from everlog.interop.foreign.mirrored_session import Mirror
from everlog.interop.formats.live_format import Added
from everlog.interop.formats.picoclaw import history_set, stem, truncate
from everlog.interop.formats.picoclaw.go_json import go_time
from everlog.interop.formats.picoclaw.messages import read_message
from everlog.interop.formats.picoclaw.meta_file import ENDING, about, anew, dated
from everlog.model import Message, assistant, user
from everlog.session import Session
from everlog.stores.file.json_file import Notebook

Given = Message | Mapping[str, Any]  # a message of ours, or an object of PicoClaw's


class SessionStore:
    """The sessions of one directory, by their keys."""

    def __init__(
        self, directory: str | os.PathLike[str], *, home: str | os.PathLike[str] = DEFAULT_ROOT
    ) -> None:
        path = Path(directory).expanduser()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store = open_store(path, dialect="picoclaw", home=home)
        assert isinstance(self._store.port, ForeignStore)
        self._live = self._store.port
        self._now = Stamps(time.time)

    # --- adding

    def add_message(self, key: str, role: str, content: str) -> None:
        """Add a text that the user or the assistant said."""
        makers = {"user": user, "assistant": assistant}
        if role not in makers:
            raise FormatError(f"a text of the role {role!r}", hint="give the whole message")
        self._made(key).append(makers[role](content))

    def add_full_message(self, key: str, message: Given) -> None:
        """Add a message with everything that it has."""
        self._made(key).append(self._message(message))

    def _message(self, given: Given) -> Message:
        made = given if isinstance(given, Message) else read_message(given, self._now())
        if not isinstance(made, Message):
            raise FormatError("not a message that PicoClaw keeps")
        return made

    def _found(self, key: str) -> Session | None:
        """The session of a key. ConflictError if its file is that of another key."""
        try:
            self._live.parts(stem(key))
            session = Session(self._store, stem(key))
        except (NotFoundError, InvalidIdError):
            return None
        known = (about(self._live.beside(session.id)) or {}).get("key") or key
        if known not in (key, stem(key)):  # the latter: made anew after it was lost
            raise ConflictError(f"the file of {key!r} is that of {known!r}", hint="use another key")
        return session

    def _made(self, key: str) -> Session:
        found = self._found(key)
        if found is not None:
            return found
        return Session(self._store, self._live.made(stem(key), "picoclaw", key))

    # --- the history and its summary

    def get_history(self, key: str) -> list[Message]:
        """The messages that are shown."""
        session = self._found(key)
        return list(session.live().messages) if session is not None else []

    def set_history(self, key: str, messages: Sequence[Given]) -> None:
        """Put another history in the place of the one that is there; the summary stays."""
        session = self._made(key)
        made = [self._message(one) for one in messages]
        transcript, beside = history_set(made, self._live.beside(session.id), self._now(), key)
        self._live.overwrite(session.id, transcript, beside)

    def get_summary(self, key: str) -> str:
        """The summary of what is not shown any more; empty if there is none."""
        if self._found(key) is None:
            return ""
        found = (about(self._live.beside(stem(key))) or {}).get("summary")
        return found if isinstance(found, str) else ""

    def set_summary(self, key: str, summary: str) -> None:
        """Write the summary anew."""
        session = self._found(key)
        if session is None:
            raise NotFoundError(f"there is no session {key}", session=key)

        def change(mirror: Mirror) -> Added:
            old = about(mirror.log().where.beside) or {"key": key}
            now = dated(old, go_time(self._now()))
            return Added(files={ENDING: anew(old, summary=summary, **now)})

        self._live.put(session.id, change)

    def truncate_history(self, key: str, keep_last: int) -> None:
        """Show only the last messages from now on; none if `keep_last` is 0."""
        session = self._found(key)
        if session is not None:
            self._live.put(
                session.id,
                lambda mirror: truncate(mirror.notes, mirror.log(), keep_last, self._now()),
            )

    def save(self, key: str) -> None:
        """Take lines that are not shown any more out of the file, after archiving them."""
        session = self._found(key)
        if session is not None:
            session.reclaim()

    # --- names

    def list_sessions(self) -> list[str]:
        """The keys of all sessions."""
        return sorted(row.metadata.key or row.id for row in self._store.walk())

    def resolve_session_key(self, key: str) -> str:
        """The key of the session that a name stands for; the name itself if nobody has it."""
        rows = [row.metadata for row in self._store.walk()]
        own = [one for one in rows if key in (one.key, one.id)]
        holders = sorted(
            (one for one in rows if key in one.aliases), key=lambda one: (one.created_at, one.id)
        )
        found = next(iter(own or holders), None)
        return key if found is None else found.key or found.id

    def ensure_session_metadata(
        self, key: str, scope: Mapping[str, Any] | None, aliases: Sequence[str]
    ) -> None:
        """Say whose session it is, and under which older names it was kept.

        A session that never had a message takes the history over that lies under the first of
        them that has one; once for each of both.
        """
        session = self._made(key)
        names = [one for one in dict.fromkeys(aliases) if one != key]
        session.update(scope=dict(scope) if scope else None, aliases=names)
        if next(self._live.read(session.id), None) is not None:
            return
        older = (one for one in names if not _is_main(one) and stem(one) != session.id)
        for alias in older:
            if self._promote(alias, session, key):
                return

    def _promote(self, alias: str, session: Session, key: str) -> bool:
        source = self._found(alias)
        if source is None:
            return False
        with self._live.exclusively("promotion") as home:
            notebook: Notebook[dict[str, str]] = Notebook(home / "promoted.json", dict[str, str])
            known = notebook.load({})
            messages, summary = self.get_history(alias), self.get_summary(alias)
            if known.get(alias, key) != key or not (messages or summary):
                return False
            notebook.save({**known, alias: key})
            session.append_many([replace(one, id="", seq=0, line=b"") for one in messages])
            if summary:
                self.set_summary(key, summary)
        return True

    def close(self) -> None:
        """Give back all descriptors."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _is_main(alias: str) -> bool:
    """Whether a name is that of a main session, which every message of its agent has."""
    parts = alias.split(":")
    agent = parts[1] if len(parts) == 3 else ""
    return (bool(agent) and alias == main_alias(agent)) or alias == main_key("main")
