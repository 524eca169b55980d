"""Metadata that a caller sets: checked before it becomes a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.log.fold import from_builtins
from everlog.log.line_codec import clean
from everlog.model import SETTABLE

# The others are the store's to count.
_GIVEN = SETTABLE - {"generations", "current", "promotedFrom", "promotedTo"}
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,500}")


def check_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts in a form that every reader will take, or FormatError naming the wrong one."""
    for key in facts:
        if key not in _GIVEN:
            raise FormatError(f"there is no metadata {key!r}", hint=f"one of {sorted(_GIVEN)}")
    given = {key: clean(value) for key, value in facts.items()}
    kept = {key: value for key, value in given.items() if value is not None}
    try:
        from_builtins({"id": "", **kept})
        msgspec.json.encode(kept)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"not valid metadata: {error}") from error
    for name in (given.get("key"), *(given.get("aliases") or ())):
        if name is not None and not is_name(name):
            raise FormatError(f"not a name: {name[:60]!r}", hint="1 to 500 printable characters")
    if "aliases" in kept:
        given["aliases"] = list(dict.fromkeys(kept["aliases"]))
    return given


def is_name(text: str) -> bool:
    """Whether a text may be a key or an alias."""
    return _NAME.fullmatch(text) is not None
