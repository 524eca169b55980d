"""Session names: how a session is found by name, and how a key or alias moves to another.

A key has numbered chats: sessions created with it, of which the newest or last resumed one holds
it. A session without a key is a chat of its agent and sender, whose pair is held in the same way,
as a name that nobody can type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everlog.errors import ConflictError, InvalidIdError, NotFoundError
from everlog.log.fold import apply_changes
from everlog.log.metadata_changes import is_name
from everlog.model import Metadata

HolderLookup = Callable[[str], tuple[str, int] | None]  # session and generation

MIN_PREFIX = 6  # characters of an id that are enough to find it


def resolve_name(name: str, holder: HolderLookup, ids_with_prefix: Callable[[str], Sequence[str]] | None = None) -> str:
    """Return the id behind a key or an alias or, if prefixes serve, the first letters of an id."""
    if not is_name(name):
        raise InvalidIdError(f"not a session id or name: {name[:60]!r}", hint="1 to 500 printable characters")
    claim = holder(name)
    if claim is not None:
        return claim[0]
    if ids_with_prefix is not None and len(name) >= MIN_PREFIX:
        ids = ids_with_prefix(name)
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise ConflictError(f"several sessions begin with {name}", hint="give more characters")
    raise NotFoundError(f"there is no session {name}", session=name)


def exclusive_name(fields: Mapping[str, Any]) -> str:
    """Return the name by which `create(unless_held=True)` finds a session: key or first alias."""
    return fields.get("key") or next(iter(fields.get("aliases") or ()), "")


def changes_names(fields: Mapping[str, Any]) -> bool:
    """Return whether fields set or remove a key or aliases."""
    return "key" in fields or "aliases" in fields


def with_chat_number(
    fields: Mapping[str, Any], blank: Metadata, holder: HolderLookup, highest_chat: Callable[[str], int]
) -> dict[str, Any]:
    """Return the fields of a new session with its chat number and its claim to be current."""
    metadata = apply_changes(blank, dict(fields))
    result = dict(fields)
    if metadata.chat is None:
        result["chat"] = highest_chat(metadata.thread) + 1
    if not metadata.key:
        result["current"] = _next_generation(holder(metadata.thread))
    return result


def resume_changes(metadata: Metadata, holder: HolderLookup) -> dict[str, Any]:
    """Return the changes that make a session the current chat of its key or pair, if any.

    They include the aliases that the current chat has taken from this session.
    """
    current = holder(metadata.thread)
    if current is not None and current[0] == metadata.id:
        return {}
    if not metadata.key:
        return {"current": _next_generation(current)}
    generations = dict(metadata.generations)
    for name in metadata.names:
        claim = holder(name)
        if claim is None or current is None or claim[0] == current[0]:
            generations[name] = _next_generation(claim)
    return {"generations": generations}


def _next_generation(claim: tuple[str, int] | None) -> int:
    return 1 + (claim[1] if claim else 0)


def with_name_claims(
    fields: Mapping[str, Any], metadata: Metadata, holder: HolderLookup, *, unless_held: bool = False
) -> dict[str, Any]:
    """Return the fields and a generation for each name that the session has with them.

    A generation is kept if the session holds the name already, else it is above the holder's.
    With `unless_held`, aliases that another session holds are left out.
    """
    key, aliases = fields.get("key", metadata.key), fields.get("aliases", metadata.aliases) or ()
    generations = {}
    kept_aliases = []
    for name in filter(None, (key, *aliases)):
        claim = holder(name)
        generation = metadata.generations.get(name, 0)
        if claim is not None and claim[0] != metadata.id and unless_held and name != key:
            continue
        is_holder = claim is not None and claim[0] == metadata.id and generation
        highest = max(claim[1] if claim else 0, generation)
        generations[name] = generation if is_holder else 1 + highest
        if name in aliases:
            kept_aliases.append(name)
    result = {**fields, "generations": generations}
    return result | {"aliases": kept_aliases} if "aliases" in fields else result
