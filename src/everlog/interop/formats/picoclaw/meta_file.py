"""PicoClaw's metadata file, `<stem>.meta.json`: parsing and encoding it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everlog.ids import epoch_ms
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.interop.formats.picoclaw.go_json import TIME_PATTERN, encode_go_json

ENDING = ".meta.json"
ZERO_TIME = "0001-01-01T00:00:00Z"

_DEFAULTS: dict[str, Any] = {
    "key": "",
    "summary": "",
    "skip": 0,
    "count": 0,
    "created_at": ZERO_TIME,
    "updated_at": ZERO_TIME,
}
_OPTIONAL_KEYS = ("scope", "aliases")  # omitted if they are empty


def file_stem(key: str) -> str:
    """Return the name of a session's files, without their endings."""
    return re.sub(r"[:/\\]", "_", key)


def is_stem(text: str) -> bool:
    """Return whether both files can have this name."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    is_plain = not text.startswith(".") and not any(character in text for character in "/\\:\0")
    return bool(text) and is_plain and size <= 255 - len(ENDING)


def find_fault(value: Mapping[str, Any]) -> str:
    """Describe what PicoClaw could not read in the file; empty if there is nothing."""
    for key, kind in (
        ("key", str),
        ("summary", str),
        ("skip", int),
        ("count", int),
        ("created_at", str),
        ("updated_at", str),
        ("scope", dict),
        ("aliases", list),
    ):
        item = value.get(key)
        if item is not None and (not isinstance(item, kind) or isinstance(item, bool)):
            return f"{key} has the wrong type"
    for key in ("created_at", "updated_at"):
        if value.get(key) is not None and not TIME_PATTERN.fullmatch(value[key]):
            return f"{key} is not a time"
    if not all(isinstance(alias, str) for alias in value.get("aliases") or []):
        return "aliases are not all text"
    return ""


def parse_meta(data: bytes | None) -> dict[str, Any] | None:
    """Parse the file; None if it is missing or damaged."""
    value = parse_object(data)[0] if data else None
    return None if value is None or find_fault(value) else value


def skip_count(value: Mapping[str, Any]) -> int:
    """Return how many lines are no longer part of the conversation."""
    return max(value.get("skip") or 0, 0)


def valid_time(text: str) -> str:
    """Return a time, or an empty string if it is not one after 1970."""
    return text if (epoch_ms(text) or 0) > 0 else ""


def scope_agent(meta: Mapping[str, Any]) -> str:
    """Return the agent in the scope; empty if there is none."""
    return text_of(meta.get("scope") or {}, "agent_id")


def encode_meta(old: Mapping[str, Any], **changes: Any) -> bytes:
    """Encode the file with some values changed; unknown keys stay, and the order is kept.

    With a new key, PicoClaw's own order is used.
    """
    value = {**_DEFAULTS, **old, **changes}
    for key in _OPTIONAL_KEYS:
        if key in changes and not changes[key]:
            del value[key]
    if not value.keys() <= old.keys():
        ordered = (*_DEFAULTS, *_OPTIONAL_KEYS)
        extra = [key for key in value if key not in ordered]
        return encode_go_json({key: value[key] for key in (*ordered, *extra) if key in value}, 2)
    return encode_go_json({key: value[key] for key in old if key in value}, 2)


def change_times(old: Mapping[str, Any], now: str) -> dict[str, str]:
    """Return the times after a change; a session without a creation time gets `now`."""
    if not now:
        return {}
    created = text_of(old, "created_at") or ZERO_TIME
    return {"created_at": now if created == ZERO_TIME else created, "updated_at": now}
