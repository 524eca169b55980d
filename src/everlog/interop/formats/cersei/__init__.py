"""Cersei's transcripts: one entry per line, in parts `S.jsonl`, `S_part2.jsonl`, …

    {"type":"user","uuid":"…","timestamp":"…","session_id":"S","cwd":"…","message":{…},
     "is_sidechain":false}

They are in Claude Code's directory but not in its format: keys are snake_case. Files of
`JsonlMemory`, which contain the bare `message` objects, are read and written too. A record
preserves its entry under `cersei`, without the content that the record itself has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everlog.interop.formats.cersei.blocks import NAME
from everlog.interop.formats.cersei.entry_builder import (
    TOTAL_BYTES,
    build_session,
    encode_metadata,
    encode_record,
    name_fields,
)
from everlog.interop.formats.cersei.export import PART_BYTES, CerseiExport
from everlog.interop.formats.cersei.reader import CerseiReader
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ListingScan, Match, TailState, content_fingerprint
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.rust_alphanumeric import is_alphanumeric
from everlog.model import Message
from everlog.ports import Action

_ROLES = ("user", "assistant", "system")
_TYPES = (*_ROLES, "summary", "tombstone")
_BARE_KEYS = frozenset(("role", "content", "id", "metadata"))
# Of Claude Code's transcripts, and of its output (`--output-format stream-json`).
_CLAUDE_KEYS = frozenset(("sessionId", "parentUuid", "leafUuid", "subtype", "parent_tool_use_id"))


class CerseiFormat(ForeignFormat):
    """Cersei's transcripts, also bare messages."""

    NAME = NAME
    KEYS = frozenset(("session_id", "parent_uuid", "is_sidechain", "messages_compacted", "deleted_uuid"))
    READER = CerseiReader
    EXPORT = CerseiExport
    ACTIONS = frozenset(("append", "compact", "hide", "rewind", "delete"))
    PART_BYTES = PART_BYTES
    TOTAL_BYTES = TOTAL_BYTES
    encode_record = staticmethod(encode_record)
    encode_metadata = staticmethod(encode_metadata)
    name_fields = staticmethod(name_fields)
    build_session = staticmethod(build_session)

    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file has Cersei entries, or bare messages as Cersei writes them."""
        if not path.endswith(".jsonl"):
            return Match.NO
        is_first, bare, others = True, 0, 0
        for value in head_objects(head):
            if _CLAUDE_KEYS & value.keys():
                return Match.NO
            if _is_entry(value):
                return Match.SURE if is_first else Match.POSSIBLE
            if "type" in value:
                others += 1  # perhaps an odd line, or of another version: the next one decides
            elif not _is_bare(value):
                return Match.NO
            else:
                bare += isinstance(value["content"], str) or all(isinstance(block, dict) for block in value["content"])
            is_first = False
        is_named_by_key = path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))
        return Match.POSSIBLE if bare > others and not is_named_by_key else Match.NO

    def fingerprint(self, message: Message) -> str:
        """Return what identifies a message in every copy of its session."""
        return content_fingerprint(message, with_time=False)

    def resume_command(self, facts: ListingScan, path: str) -> tuple[str, ...]:
        """Return the command that continues the session in its own program, by the name of its file."""
        return ("abstract", "--resume", path.rpartition("/")[2].removesuffix(".jsonl"))

    def actions(self, state: TailState) -> frozenset[Action]:
        """Return what a file can hold: one of bare messages takes messages only."""
        return frozenset(("append", "delete")) if state.get("bare") else self.ACTIONS

    def project_directory(self, cwd: str) -> tuple[str, ...]:
        """Return possible names of a project's directory: by the library, command and manual."""
        library = "".join(character if is_alphanumeric(character) or character in "-_." else "_" for character in cwd)
        dashes = re.sub(r"[/\\:]", "-", cwd)
        return library, dashes.strip("-"), dashes


def _is_entry(value: Mapping[str, Any]) -> bool:
    if value.get("type") not in _TYPES:
        return False
    if value["type"] == "tombstone":
        return isinstance(value.get("deleted_uuid"), str)
    return all(isinstance(value.get(key), str) for key in ("uuid", "session_id", "timestamp"))


def _is_bare(value: Mapping[str, Any]) -> bool:
    return value.get("role") in _ROLES and _BARE_KEYS.issuperset(value) and isinstance(value.get("content"), str | list)


FORMAT = CerseiFormat()
