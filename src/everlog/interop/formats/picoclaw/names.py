"""PicoClaw's names: which session a key, an alias or a message belongs to.

    1  the session with the key: canonical, `sk_v1_…`
    2  a session that lists the key among its aliases
    3  a new one, which takes over the history of a session under one of its legacy names

PicoClaw lists `agent:NAME:main` among the aliases of every session of the agent; here it names the
main session only. An alias that several sessions list names none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from everlog.errors import FormatError
from everlog.identity.key import KEY_PREFIX, is_of_main, main_agent, main_key, session_key
from everlog.identity.key_text import agent_id
from everlog.identity.scope import Scope, signature
from everlog.interop.formats.foreign_format import find_by_alias
from everlog.interop.formats.format_types import SessionNames
from everlog.interop.formats.picoclaw.meta_file import file_stem
from everlog.ports import Route

_SCOPE_VERSION = 1


def find_holder(name: str, sessions: Sequence[SessionNames]) -> str | None:
    """Return the session with a name, as PicoClaw resolves it: a name like a path is an alias first."""
    if any(session.id == name for session in sessions):
        return name
    if agent := main_agent(name):
        return _find_main(agent, sessions)
    if any(character in name for character in ":/\\"):
        return find_by_alias(name, sessions) or find_by_key(name, sessions)
    # The session of another scope is not that of this key, whatever it lists.
    return find_by_key(name, sessions) or find_by_alias(
        name, [session for session in sessions if name not in session.aliases or not _is_canonical(session)]
    )


def _is_canonical(session: SessionNames) -> bool:
    """Return whether the key of a session is that of its scope."""
    try:
        return session_key(signature(msgspec.convert(session.scope, Scope))) == session.key
    except (msgspec.ValidationError, FormatError, KeyError):
        return False


def find_by_key(key: str, sessions: Sequence[SessionNames]) -> str | None:
    """Return the session with a key, or the one in its file, if that says nothing else."""
    by_key = next((session.id for session in sessions if session.key == key), None)
    if by_key is not None or any(character in key.removeprefix(KEY_PREFIX) for character in "_/\\"):
        return by_key  # other keys may have the same file name
    stem = file_stem(key)
    return next((session.id for session in sessions if session.id == session.key == stem), None)


def _find_main(agent: str, sessions: Sequence[SessionNames]) -> str | None:
    name = f"agent:{agent}:main"
    return find_by_key(main_key(agent), sessions) or find_by_key(name, sessions)


def find_session(route: Route, sessions: Sequence[SessionNames]) -> str | None:
    """Return the session that a message goes to; None: a new one."""
    return _find_main(route.agent, sessions) if route.is_main else find_holder(route.key, sessions)


def route_fields(route: Route, number: int) -> dict[str, Any]:
    """Return the metadata of a new session; a later one of a key has a key that is derived from it."""
    if number > 1:
        return {"key": session_key(f"{route.key}|chat={number}"), "scope": route.scope or None}
    return {"key": route.key, "scope": route.scope or None, "aliases": list(route.aliases) if route.is_main else None}


def route_changes(
    route: Route, session: SessionNames, sessions: Sequence[SessionNames], superseded: Collection[str]
) -> dict[str, Any]:
    """Return the scope and the aliases that a message brings to its session.

    It claims only what no other session lists or has as its key, unless that one was promoted to it.
    """
    if route.is_explicit or route.key != session.key:
        return {}
    listed = {name for other in sessions if other.id != session.id for name in other.aliases}
    wanted = dict.fromkeys((*route.aliases, *([route.name] if route.name else ())))
    free = [name for name in wanted if name in superseded or find_by_key(name, sessions) in (None, session.id)]
    new = [name for name in free if name not in session.listed and name not in listed]
    changes: dict[str, Any] = {}
    if new:
        changes["aliases"] = [*session.listed, *new]
    if route.scope and session.scope != route.scope:
        changes["scope"] = route.scope
    return changes


def promotable(route: Route, sessions: Sequence[SessionNames]) -> list[tuple[str, str]]:
    """Return the legacy sessions under the aliases of a route.

    Never a main session, and none whose name another session lists: its history is that one's.
    """
    if route.is_explicit or route.is_main:
        return []
    listed = {name for session in sessions if session.key != route.key for name in session.aliases}
    names = (name for name in route.aliases if not is_of_main(name) and name not in listed)
    found = [(name, find_by_key(name, sessions)) for name in names]
    return [(name, session) for name, session in found if session is not None and not name.startswith(KEY_PREFIX)]


def unnamed_fields(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key and the scope of a chat that nobody named, as PicoClaw's own page begins one."""
    agent = agent_id(metadata.get("agent") or "main")
    values = {"chat": f"direct:pico:{uuid4()}"}
    scope: dict[str, Any] = {"version": _SCOPE_VERSION, "agent_id": agent, "channel": "pico", "account": "default"}
    key = session_key(f"v={_SCOPE_VERSION}|agent={agent}|channel=pico|account=default|chat={values['chat']}")
    return {"key": key, "scope": {**scope, "dimensions": ["chat"], "values": values}}
