"""CrabTalk's session format: a metadata line, then messages and compaction markers.

    {"agent":"crab","created_by":"user","created_at":"…","title":"","uptime_secs":42}
    {"role":"user","content":"hello"}
    {"compact":"Summary of the conversation so far…"}

Lines have no ids and no times: an item's id is derived from the number of its line. A line in
CrabTalk's own form is rebuilt from the record; any other line is preserved with it. Without a
metadata line, agent, sender, number and title are those in the name of the file.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from everlog.ids import timestamp
from everlog.interop.formats.crabtalk.entry_builder import build_session, encode_metadata, encode_record, name_fields
from everlog.interop.formats.crabtalk.export import CrabTalkExport
from everlog.interop.formats.crabtalk.head_line import (
    find_head,
    is_conversation,
    missing_head,
    parse_meta,
    session_id_of,
)
from everlog.interop.formats.crabtalk.lines import NAME, ROLES
from everlog.interop.formats.crabtalk.names import find_session, is_id, parse_name, thread
from everlog.interop.formats.crabtalk.reader import CrabTalkReader
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ForeignSession, Match, Source, content_fingerprint, split_lines
from everlog.interop.formats.jsonl import head_objects
from everlog.model import Message
from everlog.ports import Route

_MESSAGE_KEYS = frozenset({"role", "content", "reasoning_content", "name", "tool_call_id", "tool_calls", "agent"})


class CrabTalkFormat(ForeignFormat):
    """CrabTalk's sessions; it continues the latest one of an agent and a sender by itself."""

    NAME = NAME
    KEYS = frozenset({"created_by", "uptime_secs", "compact", "reasoning_content", "tool_call_id"})
    READER = CrabTalkReader
    EXPORT = CrabTalkExport
    ACTIONS = frozenset(("append", "rename", "compact", "delete"))
    METADATA_LOCATION = "head"
    HAS_UPTIME = True
    DIMENSIONS = ("sender",)
    DEFAULT_AGENT = "crab"
    thread = staticmethod(thread)
    find_session = staticmethod(find_session)
    is_id = staticmethod(is_id)
    session_id_of = staticmethod(session_id_of)
    find_head = staticmethod(find_head)
    missing_head = staticmethod(missing_head)
    encode_record = staticmethod(encode_record)
    encode_metadata = staticmethod(encode_metadata)
    name_fields = staticmethod(name_fields)
    build_session = staticmethod(build_session)

    def route_fields(self, route: Route, number: int) -> dict[str, Any]:
        """Return the metadata of a new session: its number is the next one of its agent and sender."""
        return {"agent": route.agent, "sender": route.sender}

    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file begins with a metadata line, or has lost it and is named as CrabTalk does."""
        if not path.endswith(".jsonl"):
            return Match.NO
        stem = path.rpartition("/")[2].removesuffix(".jsonl")
        if parse_meta(find_head(split_lines(head)).meta_bytes):
            return Match.SURE
        if parse_name(stem).chat is None or stem.startswith(("agent_", "sk_v1_")):  # PicoClaw's
            return Match.NO
        is_empty = True
        for value in head_objects(head):
            if "type" in value:
                return Match.NO
            is_odd = not isinstance(value.get("content") or "", str)
            if is_conversation(value) and not is_odd:
                is_message = value.get("role") in (*ROLES, "system") and value.keys() <= _MESSAGE_KEYS
                return Match.POSSIBLE if is_message or isinstance(value.get("compact"), str) else Match.NO
            is_empty = False
        start = head.strip(b"\0 \t\r\n")
        beginning = b'{"agent":"'  # of a torn metadata line
        return (
            Match.POSSIBLE if is_empty and start[: len(beginning)] in (beginning, beginning[: len(start)]) else Match.NO
        )

    def read(self, source: Source) -> ForeignSession:
        """Read a session; its last message gets the time of the file, which is when it was written."""
        session = super().read(source)
        items = list(session.items)
        last = max((index for index, item in enumerate(items) if isinstance(item, Message)), default=None)
        if last is None or source.modified_ms <= 0:
            return session
        item: Any = items[last]
        items[last] = replace(item, timestamp=timestamp(source.modified_ms / 1000))
        return replace(session, items=tuple(items))

    def fingerprint(self, message: Message) -> str:
        """Return what identifies a message in every copy of its session."""
        return content_fingerprint(message, with_time=False)


FORMAT = CrabTalkFormat()
