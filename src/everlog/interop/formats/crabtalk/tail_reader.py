"""CrabTalk's sessions read where they lie. The notes are how many lines there were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.crabtalk.lines import ROLES, created, is_meta, read_message
from everlog.interop.formats.crabtalk.names import ROOM, parse_name, untitled
from everlog.interop.formats.format_types import Line, Summary, made_id
from everlog.interop.formats.jsonl import parse, text_of
from everlog.interop.formats.live_format import Beside, Followed, Glance, Notes, Said, Where
from everlog.model import Message

BESIDE: Beside = "head"
PART_BYTES = 0
TOTAL_BYTES = 0
LINE_BYTES = 0
UPTIME = True  # its first line says how long turns took

SENDER = "user"  # where nobody says another


# --- names ----------------------------------------------------------------------------------


def is_id(text: str) -> bool:
    """Whether a text can be the id of a session: the name of its file, without its title."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    plain = not text.startswith(".") and "/" not in text and "\0" not in text
    return plain and "_" in text and size <= ROOM


def name_of(stem: str, beside: bytes | None) -> str:
    """The id of the session in a file of this name."""
    meta = meta_of(beside)
    named = parse_name(stem, text_of(meta, "agent"), text_of(meta, "created_by") or SENDER)
    return untitled(stem, named)


def chat_of(stem: str, beside: bytes | None) -> int | None:
    """The number of the session among those of its agent and sender."""
    meta = meta_of(beside)
    return parse_name(stem, text_of(meta, "agent"), text_of(meta, "created_by") or SENDER).chat


def meta_of(beside: bytes | None) -> dict[str, Any]:
    """What the first line says; empty if it is not the line about the session."""
    value = parse(beside)[0] if beside else None
    return value if value is not None and is_meta(value) else {}


# --- reading --------------------------------------------------------------------------------


def follow(notes: Notes, lines: Iterable[Line], where: Where) -> Followed:
    """The items of new lines. They have no times: all are of when the session was made."""
    at = created(meta_of(where.beside))
    number = notes.get("lines", 0)
    items: list[Said] = []
    for line in lines:
        number += 1
        item = _said(line.data, made_id(where.name, number), at)
        if item is not None:
            items.append(item)
    return Followed(items, {"lines": number})


def whole(lines: Iterable[Line], where: Where) -> Followed:
    """The items of a whole session."""
    return follow({}, lines, where)


def _said(data: bytes, name: str, at: str) -> Said | None:
    """What a line says; None for a system prompt, an unknown kind, and damage."""
    value = parse(data)[0]
    if value is None:
        return None
    if isinstance(value.get("compact"), str):
        return Summary(id=name, text=value["compact"], timestamp=at)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        return None
    try:
        return read_message(value, name, at)
    except FormatError:
        return None


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str = ""
    arguments: str = ""


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    function: _Function
    id: str = ""
    type: str = ""


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A line as CrabTalk writes its messages. What is of this form is one for `follow` too."""

    role: str
    content: str = ""
    reasoning_content: str = ""
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[_Call, ...] = ()


_plain = msgspec.json.Decoder(_Plain)


def glance(seen: Glance, lines: Iterable[Line], beside: bytes | None) -> Glance:
    """What a listing shows, after some further lines."""
    messages = seen.messages + sum(_is_message(line.data) for line in lines)
    meta = meta_of(beside)
    if not meta:
        return replace(seen, messages=messages)
    return replace(
        seen,
        messages=messages,
        title=text_of(meta, "title"),
        created=created(meta),
        agent=text_of(meta, "agent"),
        sender=text_of(meta, "created_by") or SENDER,
    )


def _is_message(data: bytes) -> bool:
    try:
        return _plain.decode(data).role in ROLES
    except (ValueError, RecursionError):
        return isinstance(_said(data, "", ""), Message)
