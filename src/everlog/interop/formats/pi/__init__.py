"""pi's session format: a tree of entries in one file, versions 1 to 3.

    {"type":"session","version":3,"id":"…","timestamp":"…","cwd":"…"}
    {"type":"message","id":"0a1b2c3d","parentId":null,"timestamp":"…","message":{…}}

The last entry is the leaf, and the path from it to the root is the conversation; messages on other
branches are hidden. pi rewrites a file of version 1 or 2 in place as version 3, with new ids: it
stays one session, by the id in its header and the content and times of its messages. An entry is
preserved with its record under `pi`, without the content that the record has itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ListingScan, Match, TailState
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.pi.entries import NAME
from everlog.interop.formats.pi.entry_builder import build_session, encode_metadata, encode_record, name_fields
from everlog.interop.formats.pi.export import PiExport
from everlog.interop.formats.pi.new_entries import VERSION
from everlog.interop.formats.pi.reader import PiReader
from everlog.ports import Action

_MAX_VERSION = 3  # OpenClaw writes 4
_FILE_NAME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}-[0-9]{3}Z_[^/]+\.jsonl\Z")
_ENTRY_TYPES = frozenset(
    (
        *("message", "model_change", "thinking_level_change", "compaction", "branch_summary", "custom"),
        *("custom_message", "label", "session_info", "usage", "context_edit"),
    )
)
_FOREIGN_KEYS = frozenset(("uuid", "parentUuid", "sessionId", "session_id", "payload", "$set", "kind"))


class PiFormat(ForeignFormat):
    """pi's sessions. Ids of messages change in a migration: content and time identify them."""

    NAME = NAME
    KEYS = frozenset(("parentId", "firstKeptEntryId", "thinkingLevel", "modelId", "parentSession", "customType"))
    READER = PiReader
    EXPORT = PiExport
    HAS_BRANCHES = True
    ACTIONS = frozenset(("append", "rename", "compact", "hide", "delete"))
    encode_record = staticmethod(encode_record)
    encode_metadata = staticmethod(encode_metadata)
    name_fields = staticmethod(name_fields)
    build_session = staticmethod(build_session)

    def has_name(self, session: str, name: str) -> bool:
        """Return whether a session has an id, which ends the name of its file: the time precedes it."""
        return name in (session, session.rpartition("_")[2])

    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file has pi's header or entries, or is a damaged file with such a name."""
        if not path.endswith(".jsonl"):
            return Match.NO
        is_first, has_entries = True, False
        for value in head_objects(head):
            if value.get("type") == "session":
                version = value.get("version")
                if _FOREIGN_KEYS & value.keys() or (type(version) is int and version > _MAX_VERSION):
                    return Match.NO
                if is_first and isinstance(value.get("id"), str) and isinstance(value.get("timestamp"), str):
                    return Match.SURE
                has_entries = has_entries or "id" in value or "cwd" in value
            elif _is_entry(value):
                has_entries = True
            elif _FOREIGN_KEYS & value.keys():
                return Match.NO
            is_first = False
        is_damaged = is_first and bool(head.strip(b"\n")) and _FILE_NAME.search(path) is not None
        return Match.POSSIBLE if has_entries or is_damaged else Match.NO

    def actions(self, state: TailState) -> frozenset[Action]:
        """Return what a file can hold: an old one nothing, and deletions only one of a version that knows them."""
        if state.get("version", VERSION) != VERSION:
            return frozenset(("delete",))
        return self.ACTIONS if state.get("edits") else frozenset(self.ACTIONS - {"hide"})

    def resume_command(self, facts: ListingScan, path: str) -> tuple[str, ...]:
        """Return the command that continues the session in its own program."""
        return ("pi", "--session", path)


def _is_entry(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _ENTRY_TYPES or _FOREIGN_KEYS - {"kind"} & value.keys():
        return False
    if isinstance(value.get("id"), str) and "parentId" in value:
        return "__openclaw" not in value
    message = value.get("message")  # version 1
    return isinstance(value.get("timestamp"), str) and isinstance(message, dict) and "role" in message


FORMAT = PiFormat()
