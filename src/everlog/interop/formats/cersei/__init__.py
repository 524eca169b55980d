"""Cersei's transcripts: one entry per line, in parts `S.jsonl`, `S_part2.jsonl`, …

    {"type":"user","uuid":"…","timestamp":"…","session_id":"S","cwd":"…","message":{…},
     "is_sidechain":false}

They lie in the directory of Claude Code's and are not in its format: keys are snake_case. Files
of `JsonlMemory`, which hold the bare `message` objects, are read and written too. An entry stays
with its record under `cersei`, without the content that the record has itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everlog.interop.formats.cersei.blocks import NAME
from everlog.interop.formats.cersei.entry_builder import extend
from everlog.interop.formats.cersei.listing_scan import glance
from everlog.interop.formats.cersei.reader import read
from everlog.interop.formats.cersei.tail_reader import (
    BESIDE,
    LINE_BYTES,
    TOTAL_BYTES,
    begin,
    change,
    follow,
    is_id,
    name_of,
    whole,
)
from everlog.interop.formats.cersei.writer import PART_BYTES, write
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.rust_alphanumeric import is_alphanumeric

__all__ = [
    "BESIDE",
    "LINE_BYTES",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "begin",
    "change",
    "extend",
    "follow",
    "glance",
    "is_id",
    "name_of",
    "project_directory",
    "read",
    "recognises",
    "whole",
    "write",
]

_ROLES = ("user", "assistant", "system")
_TYPES = (*_ROLES, "summary", "tombstone")
_BARE = frozenset(("role", "content", "id", "metadata"))


def recognises(path: str, head: bytes) -> bool:
    """Whether a file has Cersei's entries, or bare messages that no other program writes so."""
    if not path.endswith(".jsonl"):
        return False
    found = False
    for value in head_objects(head):
        if value.get("type") in _TYPES or "sessionId" in value or "parentUuid" in value:
            return not found and _is_entry(value)
        if "type" in value:
            continue  # of another version, perhaps: the next one decides
        if not _is_bare(value):
            return False
        found = True
    return found and not path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))


def _is_entry(value: Mapping[str, Any]) -> bool:
    if value.get("type") not in _TYPES or "sessionId" in value or "parentUuid" in value:
        return False  # those are Claude Code's
    if value["type"] == "tombstone":
        return isinstance(value.get("deleted_uuid"), str)
    return isinstance(value.get("uuid"), str) and isinstance(value.get("session_id"), str)


def _is_bare(value: Mapping[str, Any]) -> bool:
    return (
        value.get("role") in _ROLES
        and _BARE.issuperset(value)
        and isinstance(value.get("content"), str | list)
    )


def project_directory(path: str) -> tuple[str, ...]:
    """The names a project's directory may have: the library's, the command's, the manual's."""
    library = "".join(one if is_alphanumeric(one) or one in "-_." else "_" for one in path)
    dashes = re.sub(r"[/\\:]", "-", path)
    return library, dashes.strip("-"), dashes
