"""Reading new lines of CrabTalk's sessions. The state is the number of lines so far."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from everlog.errors import FormatError
from everlog.interop.formats.crabtalk.lines import ROLES, created_time, is_meta, read_message
from everlog.interop.formats.crabtalk.names import MAX_STEM_BYTES, parse_name, without_title
from everlog.interop.formats.format_types import Line, Summary, derive_id
from everlog.interop.formats.jsonl import parse_object, text_of
from everlog.interop.formats.live_format import (
    ConversationItem,
    ListingScan,
    MetadataLocation,
    TailResult,
    TailState,
    TranscriptInfo,
)
from everlog.model import Message

METADATA_LOCATION: MetadataLocation = "head"
PART_BYTES = 0
TOTAL_BYTES = 0
LINE_BYTES = 0
HAS_UPTIME = True  # the metadata line has the total duration of turns

DEFAULT_SENDER = "user"


# --- names ----------------------------------------------------------------------------------


def is_id(text: str) -> bool:
    """Return whether a text can be a session id: the stem of a file name, without a title."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    is_plain = not text.startswith(".") and "/" not in text and "\0" not in text
    return is_plain and "_" in text and size <= MAX_STEM_BYTES


def session_id_of(stem: str, meta_bytes: bytes | None) -> str:
    """Return the id of the session in a file with this name."""
    meta = parse_meta(meta_bytes)
    name = parse_name(stem, text_of(meta, "agent"), text_of(meta, "created_by") or DEFAULT_SENDER)
    return without_title(stem, name)


def chat_of(stem: str, meta_bytes: bytes | None) -> int | None:
    """Return the number of the session among those of its agent and sender, or None."""
    meta = parse_meta(meta_bytes)
    sender = text_of(meta, "created_by") or DEFAULT_SENDER
    return parse_name(stem, text_of(meta, "agent"), sender).chat


def parse_meta(meta_bytes: bytes | None) -> dict[str, Any]:
    """Parse the first line; empty if it is not a metadata line."""
    value = parse_object(meta_bytes)[0] if meta_bytes else None
    return value if value is not None and is_meta(value) else {}


# --- reading --------------------------------------------------------------------------------


def read_tail(state: TailState, lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
    """Return the items of new lines; as lines have no times, all get the creation time."""
    timestamp = created_time(parse_meta(transcript.meta_bytes))
    number = state.get("lines", 0)
    items: list[ConversationItem] = []
    for line in lines:
        number += 1
        item = _read_item(line.data, derive_id(transcript.session_id, number), timestamp)
        if item is not None:
            items.append(item)
    return TailResult(items, {"lines": number})


def read_all(lines: Iterable[Line], transcript: TranscriptInfo) -> TailResult:
    """Return the items of a whole session."""
    return read_tail({}, lines, transcript)


def _read_item(data: bytes, item_id: str, timestamp: str) -> ConversationItem | None:
    """Return the item of a line; None for a system prompt, an unknown type, or damage."""
    value = parse_object(data)[0]
    if value is None:
        return None
    if isinstance(value.get("compact"), str):
        return Summary(id=item_id, text=value["compact"], timestamp=timestamp)
    role = value.get("role")
    if not isinstance(role, str) or role not in ROLES:
        return None
    try:
        return read_message(value, item_id, timestamp)
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
    """A line as CrabTalk writes its messages; `read_tail` always accepts this form."""

    role: str
    content: str = ""
    reasoning_content: str = ""
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[_Call, ...] = ()


_plain = msgspec.json.Decoder(_Plain)


def scan_listing(scan: ListingScan, lines: Iterable[Line], transcript: TranscriptInfo) -> ListingScan:
    """Continue a listing scan over further lines."""
    messages = scan.messages + sum(_is_message(line.data) for line in lines)
    meta = parse_meta(transcript.meta_bytes)
    if not meta:
        return replace(scan, messages=messages)
    return replace(
        scan,
        messages=messages,
        title=text_of(meta, "title"),
        created=created_time(meta),
        agent=text_of(meta, "agent"),
        sender=text_of(meta, "created_by") or DEFAULT_SENDER,
    )


def _is_message(data: bytes) -> bool:
    try:
        return _plain.decode(data).role in ROLES
    except (ValueError, RecursionError):
        return isinstance(_read_item(data, "", ""), Message)
