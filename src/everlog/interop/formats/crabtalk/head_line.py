"""The metadata line of CrabTalk's files, and files that have lost it.

CrabTalk takes the first line for the metadata whatever it is, and cannot load a file in which it is
not. When a turn ends it rewrites that line. So lines may be appended behind any complete first line,
but not to an empty file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from everlog.ids import epoch_ms, timestamp
from everlog.interop.formats.crabtalk.lines import encode_json
from everlog.interop.formats.crabtalk.names import FileName, parse_name, without_title
from everlog.interop.formats.format_types import Head, Line
from everlog.interop.formats.jsonl import parse_object, text_of

DEFAULT_SENDER = "user"
META_DEFAULTS = {"agent": "", "created_by": "", "created_at": "", "title": "", "uptime_secs": 0}
_REQUIRED_KEYS = ("agent", "created_by", "created_at")


def is_meta(value: Mapping[str, Any]) -> bool:
    """Return whether an object is the metadata line."""
    return all(isinstance(value.get(key), str) for key in _REQUIRED_KEYS) and "role" not in value


def parse_meta(meta_bytes: bytes | None) -> dict[str, Any]:
    """Parse the first line; empty if it is not a metadata line."""
    value = parse_object(meta_bytes)[0] if meta_bytes else None
    return value if value is not None and is_meta(value) else {}


def created_time(meta: Mapping[str, Any]) -> str:
    """Return the creation time in the metadata line; empty if it has none."""
    created_ms = epoch_ms(text_of(meta, "created_at"))
    return timestamp(created_ms / 1000) if created_ms is not None and created_ms > 0 else ""


def find_head(lines: Iterable[Line]) -> Head:
    """Return the metadata line with blank lines and one damaged line before it.

    If there is none: the first line, unless it is part of the conversation.
    """
    start: list[Line] = []
    is_damaged = False
    for line in lines:
        start.append(line)
        if not line.data.strip(b" \t\r"):
            continue
        value = parse_object(line.data)[0] or {}
        if is_meta(value):
            return Head(tuple(start), line.data)
        if is_damaged or is_conversation(value):
            break
        is_damaged = True
    if not start or is_conversation(parse_object(start[0].data)[0] or {}):
        return Head((), None)
    return Head((start[0],), start[0].data)


def is_conversation(value: Mapping[str, Any]) -> bool:
    """Return whether an object is a message or a compaction marker."""
    return isinstance(value.get("role"), str) or isinstance(value.get("compact"), str)


def missing_head(stem: str, now: str) -> bytes:
    """Return a metadata line with what the name of the file says."""
    name = parse_name(stem)
    values = (name.agent, name.sender or DEFAULT_SENDER, format_time(now), name.title, 0)
    return encode_json(dict(zip(META_DEFAULTS, values, strict=True)))


def format_time(text: str) -> str:
    """Format a time as CrabTalk does: without a zero fraction, and UTC as an offset."""
    return text.removesuffix("Z").removesuffix(".000") + "+00:00" if text.endswith("Z") else text.replace(".000+", "+")


def name_of(stem: str, meta: Mapping[str, Any]) -> FileName:
    """Return the parts of a file name; the metadata says how long the first two are."""
    return parse_name(stem, text_of(meta, "agent"), text_of(meta, "created_by") or DEFAULT_SENDER)


def session_id_of(stem: str, meta_bytes: bytes | None) -> str:
    """Return the id of the session in a file with this name."""
    return without_title(stem, name_of(stem, parse_meta(meta_bytes)))
