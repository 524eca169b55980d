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
    LINE_BYTES,
    METADATA_LOCATION,
    TOTAL_BYTES,
    build_session,
    encode_metadata,
    encode_record,
    name_fields,
)
from everlog.interop.formats.cersei.export import PART_BYTES, CerseiExport
from everlog.interop.formats.cersei.reader import READING
from everlog.interop.formats.file_names import is_stem as is_id
from everlog.interop.formats.file_names import stem_as_id as session_id_of
from everlog.interop.formats.format_types import Match, content_fingerprint
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.live_format import ListingScan
from everlog.interop.formats.rust_alphanumeric import is_alphanumeric
from everlog.model import Message

__all__ = [
    "ANCESTOR_FILE",
    "IS_REWRITTEN",
    "KEYS",
    "LINE_BYTES",
    "METADATA_LOCATION",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "build_session",
    "encode_metadata",
    "encode_record",
    "fingerprint",
    "is_id",
    "name_fields",
    "project_directory",
    "read",
    "read_all",
    "read_tail",
    "recognises",
    "resume_command",
    "scan_listing",
    "session_id_of",
    "write",
]

ANCESTOR_FILE = ""
IS_REWRITTEN = False
KEYS = frozenset(("session_id", "parent_uuid", "is_sidechain", "messages_compacted", "deleted_uuid"))

_ROLES = ("user", "assistant", "system")
_TYPES = (*_ROLES, "summary", "tombstone")
_BARE_KEYS = frozenset(("role", "content", "id", "metadata"))
# Of Claude Code's transcripts, and of its output (`--output-format stream-json`).
_CLAUDE_KEYS = frozenset(("sessionId", "parentUuid", "leafUuid", "subtype", "parent_tool_use_id"))

read, read_tail, read_all, scan_listing = READING
write = CerseiExport.export


def recognises(path: str, head: bytes) -> Match:
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


def _is_entry(value: Mapping[str, Any]) -> bool:
    if value.get("type") not in _TYPES:
        return False
    if value["type"] == "tombstone":
        return isinstance(value.get("deleted_uuid"), str)
    return all(isinstance(value.get(key), str) for key in ("uuid", "session_id", "timestamp"))


def _is_bare(value: Mapping[str, Any]) -> bool:
    return value.get("role") in _ROLES and _BARE_KEYS.issuperset(value) and isinstance(value.get("content"), str | list)


def project_directory(path: str) -> tuple[str, ...]:
    """Return possible names of a project's directory: by the library, command and manual."""
    library = "".join(character if is_alphanumeric(character) or character in "-_." else "_" for character in path)
    dashes = re.sub(r"[/\\:]", "-", path)
    return library, dashes.strip("-"), dashes


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return content_fingerprint(message, with_time=False)


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return the command that continues the session in its own program, by the name of its file."""
    return ("abstract", "--resume", path.rpartition("/")[2].removesuffix(".jsonl"))
