"""Names of sessions: how one is found, and how a key or alias changes hands.

A key has numbered chats: sessions that were made with it, the newest or last resumed of which
holds it. A session without a key is a chat of its agent and sender, whose pair is held the same
way, as a name that nobody can type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everlog.errors import ConflictError, InvalidIdError, NotFoundError
from everlog.log.fold import apply
from everlog.log.metadata_changes import is_name
from everlog.model import Metadata

Holder = Callable[[str], tuple[str, int] | None]  # session and generation

_PREFIX = re.compile(r"[0-9A-HJKMNP-TV-Z]{6,26}")
_NAMED = ("agent:", "sk_")  # what a key or alias of ours begins with


def find(name: str, holder: Holder, starting_with: Callable[[str], Sequence[str]]) -> str:
    """The id behind a key, an alias, or an unambiguous beginning of an id."""
    if not is_name(name):
        raise InvalidIdError(f"not a session id or name: {name[:60]!r}")
    held = holder(name)
    if held is not None:
        return held[0]
    if _PREFIX.fullmatch(name):
        found = starting_with(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise ConflictError(f"several sessions begin with {name}", hint="give more characters")
    elif not name.startswith(_NAMED):
        raise InvalidIdError(
            f"not a session id or name: {name[:60]!r}",
            hint="ids are 26 characters, 0-9 and A-Z; the first 6 or more serve too",
        )
    raise NotFoundError(f"there is no session {name}", session=name)


def changes_names(facts: Mapping[str, Any]) -> bool:
    """Whether facts set or take back a key or aliases."""
    return "key" in facts or "aliases" in facts


def numbered(
    facts: Mapping[str, Any], blank: Metadata, holder: Holder, highest: Callable[[str], int]
) -> dict[str, Any]:
    """The facts of a new session with its number as a chat, and its claim to be the current one."""
    made = apply(blank, dict(facts))
    given = dict(facts)
    if made.chat is None:
        given["chat"] = highest(made.thread) + 1
    if not made.key:
        given["current"] = _above(holder(made.thread))
    return given


def resumed(held: Metadata, holder: Holder) -> dict[str, Any]:
    """What makes a session the current chat of its key or pair; nothing if it is already.

    The aliases come along that the chat which was current has taken from this one.
    """
    other = holder(held.thread)
    if other is not None and other[0] == held.id:
        return {}
    if not held.key:
        return {"current": _above(other)}
    generations = dict(held.generations)
    for name in held.names:
        claim = holder(name)
        if claim is None or other is None or claim[0] == other[0]:
            generations[name] = _above(claim)
    return {"generations": generations}


def _above(other: tuple[str, int] | None) -> int:
    return 1 + (other[1] if other else 0)


def with_claims(
    facts: Mapping[str, Any], held: Metadata, holder: Holder, *, unless_held: bool = False
) -> dict[str, Any]:
    """The facts and a generation for each name that the session has after them.

    A generation is kept where the session has the name already, and above the holder's else;
    `unless_held`, an alias that another session has is not among them.
    """
    key, aliases = facts.get("key", held.key), facts.get("aliases", held.aliases) or ()
    generations = {}
    kept = []
    for name in filter(None, (key, *aliases)):
        other = holder(name)
        mine = held.generations.get(name, 0)
        if other is not None and other[0] != held.id and unless_held and name != key:
            continue
        keeps = other is not None and other[0] == held.id and mine
        generations[name] = mine if keeps else 1 + max(other[1] if other else 0, mine)
        if name in aliases:
            kept.append(name)
    made = {**facts, "generations": generations}
    return made | {"aliases": kept} if "aliases" in facts else made
