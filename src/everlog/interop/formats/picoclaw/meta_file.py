"""PicoClaw's second file, `<stem>.meta.json`: what it says, and how it is written anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everlog.ids import epoch_ms
from everlog.interop.formats.jsonl import parse, text_of
from everlog.interop.formats.picoclaw.go_json import TIME, dump

ENDING = ".meta.json"
NEVER = "0001-01-01T00:00:00Z"

_ORDER: dict[str, Any] = {
    "key": "",
    "summary": "",
    "skip": 0,
    "count": 0,
    "created_at": NEVER,
    "updated_at": NEVER,
}
_LAST = ("scope", "aliases")  # only if they say something


def stem(key: str) -> str:
    """The name of the files of a session, without their endings."""
    return re.sub(r"[:/\\]", "_", key)


def is_stem(text: str) -> bool:
    """Whether both files can be named so."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    plain = not text.startswith(".") and not any(one in text for one in "/\\:\0")
    return bool(text) and plain and size <= 255 - len(ENDING)


def fault(value: Mapping[str, Any]) -> str:
    """What PicoClaw could not read in it; empty if there is nothing."""
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
        found = value.get(key)
        if found is not None and (not isinstance(found, kind) or isinstance(found, bool)):
            return f"{key} is not of its type"
    for key in ("created_at", "updated_at"):
        if value.get(key) is not None and not TIME.fullmatch(value[key]):
            return f"{key} is not a time"
    if not all(isinstance(one, str) for one in value.get("aliases") or []):
        return "aliases are not all text"
    return ""


def about(data: bytes | None) -> dict[str, Any] | None:
    """What it says; None if it is missing or damaged."""
    value = parse(data)[0] if data else None
    return None if value is None or fault(value) else value


def skip_of(value: Mapping[str, Any]) -> int:
    """How many lines are no part of the conversation any more."""
    return max(value.get("skip") or 0, 0)


def stamp(text: str) -> str:
    """A time, if it is one after 1970."""
    return text if (epoch_ms(text) or 0) > 0 else ""


def facts(meta: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What it says of the session, in our names."""
    made: dict[str, Any] = {"key": text_of(meta, "key") or name}
    scope = meta.get("scope")
    if scope:
        made["scope"] = scope
        if text_of(scope, "agent_id"):
            made["agent"] = scope["agent_id"]
    if meta.get("aliases"):
        made["aliases"] = list(meta["aliases"])
    return made


def anew(old: Mapping[str, Any], **changes: Any) -> bytes:
    """It with some values changed; keys that we do not know stay, and each in its place.

    A key that is new gets the place that PicoClaw gives it.
    """
    value = {**_ORDER, **old, **changes}
    for key in _LAST:
        if key in changes and not changes[key]:
            del value[key]
    if not value.keys() <= old.keys():
        known = (*_ORDER, *_LAST)
        rest = [key for key in value if key not in known]
        return dump({key: value[key] for key in (*known, *rest) if key in value}, 2)
    return dump({key: value[key] for key in old if key in value}, 2)


def dated(old: Mapping[str, Any], now: str) -> dict[str, str]:
    """The times of a change; a session without a beginning begins with it."""
    if not now:
        return {}
    began = text_of(old, "created_at") or NEVER
    return {"created_at": now if began == NEVER else began, "updated_at": now}
