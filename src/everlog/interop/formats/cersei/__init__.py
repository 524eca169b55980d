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
from everlog.interop.formats.cersei.entry_builder import encode_record
from everlog.interop.formats.cersei.listing_scan import scan_listing
from everlog.interop.formats.cersei.reader import read
from everlog.interop.formats.cersei.tail_reader import (
    LINE_BYTES,
    METADATA_LOCATION,
    TOTAL_BYTES,
    build_session,
    encode_metadata,
    is_id,
    name_fields,
    read_all,
    read_tail,
    session_id_of,
)
from everlog.interop.formats.cersei.writer import PART_BYTES, write
from everlog.interop.formats.format_types import content_fingerprint
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.live_format import ListingScan
from everlog.interop.formats.rust_alphanumeric import is_alphanumeric
from everlog.model import Message

__all__ = [
    "ANCESTOR_FILE",
    "IS_REWRITTEN",
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

_ROLES = ("user", "assistant", "system")
_TYPES = (*_ROLES, "summary", "tombstone")
_BARE_KEYS = frozenset(("role", "content", "id", "metadata"))


def recognises(path: str, head: bytes) -> bool:
    """Return whether a file has Cersei entries, or bare messages as only Cersei writes them."""
    if not path.endswith(".jsonl"):
        return False
    has_bare_message = False
    for value in head_objects(head):
        if value.get("type") in _TYPES or "sessionId" in value or "parentUuid" in value:
            return not has_bare_message and _is_entry(value)
        if "type" in value:
            continue  # perhaps another version: the next entry decides
        if not _is_bare(value):
            return False
        has_bare_message = True
    return has_bare_message and not path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))


def _is_entry(value: Mapping[str, Any]) -> bool:
    if value.get("type") not in _TYPES or "sessionId" in value or "parentUuid" in value:
        return False  # Claude Code's
    if value["type"] == "tombstone":
        return isinstance(value.get("deleted_uuid"), str)
    return isinstance(value.get("uuid"), str) and isinstance(value.get("session_id"), str)


def _is_bare(value: Mapping[str, Any]) -> bool:
    return value.get("role") in _ROLES and _BARE_KEYS.issuperset(value) and isinstance(value.get("content"), str | list)


def project_directory(path: str) -> tuple[str, ...]:
    """Return possible names of a project's directory: by the library, command and manual."""
    library = "".join(character if is_alphanumeric(character) or character in "-_." else "_" for character in path)
    dashes = re.sub(r"[/\\:]", "-", path)
    return library, dashes.strip("-"), dashes


KEYS: frozenset[str] = frozenset()
ANCESTOR_FILE = ""
IS_REWRITTEN = False


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return content_fingerprint(message, with_time=False)


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return the command that continues the session in its own program."""
    return ("abstract", "--resume", facts.program_id) if facts.program_id else ()
