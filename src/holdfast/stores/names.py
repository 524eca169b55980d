"""Names of sessions: how one is found, and how a key or alias changes hands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from holdfast.errors import Conflict, InvalidId, NotFound
from holdfast.log.facts import is_name

Holder = Callable[[str], tuple[str, int] | None]  # session and generation

_PREFIX = re.compile(r"[0-9A-HJKMNP-TV-Z]{6,26}")
_NAMED = ("agent:", "sk_")  # what a key or alias of ours begins with


def find(name: str, holder: Holder, starting_with: Callable[[str], Sequence[str]]) -> str:
    """The id behind a key, an alias, or an unambiguous beginning of an id."""
    if not is_name(name):
        raise InvalidId(f"not a session id or name: {name[:60]!r}")
    held = holder(name)
    if held is not None:
        return held[0]
    if _PREFIX.fullmatch(name):
        found = starting_with(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise Conflict(f"several sessions begin with {name}", hint="give more characters")
    elif not name.startswith(_NAMED):
        raise InvalidId(
            f"not a session id or name: {name[:60]!r}",
            hint="ids are 26 characters, 0-9 and A-Z; the first 6 or more serve too",
        )
    raise NotFound(f"there is no session {name}", session=name)


def claims(
    session: str, names: Sequence[str], held: Mapping[str, int], holder: Holder
) -> dict[str, int]:
    """The generation of each name: kept where the session has it, above the holder's else."""
    made = {}
    for name in names:
        other = holder(name)
        if other is not None and other[0] == session and name in held:
            made[name] = held[name]
        else:
            made[name] = 1 + max(other[1] if other else 0, held.get(name, 0))
    return made
