"""Metadata changes by callers, checked before they become a record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from everlog.errors import FormatError
from everlog.log.fold import from_builtins
from everlog.log.line_codec import replace_surrogates
from everlog.model import SETTABLE

# The others are set by the store.
_CALLER_KEYS = SETTABLE - {"generations", "current", "promotedFrom", "promotedTo"}
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,500}")


def check_metadata(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields in a form that every reader accepts; FormatError names the invalid one."""
    for key in fields:
        if key not in _CALLER_KEYS:
            raise FormatError(f"unknown metadata key {key!r}", hint=f"one of {sorted(_CALLER_KEYS)}")
    cleaned = {key: replace_surrogates(value) for key, value in fields.items()}
    values = {key: value for key, value in cleaned.items() if value is not None}
    try:
        from_builtins({"id": "", **values})
        msgspec.json.encode(values)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise FormatError(f"not valid metadata: {error}") from error
    for name in (cleaned.get("key"), *(cleaned.get("aliases") or ())):
        if name is not None and not is_name(name):
            raise FormatError(f"not a valid name: {name[:60]!r}", hint="1 to 500 printable characters")
    if "aliases" in values:
        cleaned["aliases"] = list(dict.fromkeys(values["aliases"]))
    return cleaned


def is_name(text: str) -> bool:
    """Return whether a text may be a key or an alias."""
    return _NAME.fullmatch(text) is not None
