"""PicoClaw's session files: `.jsonl` with one message per line, and `.meta.json` beside it.

    {"role":"user","content":"hello","created_at":"2026-06-13T08:00:00.123456789Z"}

    {"key": …, "summary": …, "skip": 2, "count": 5, "created_at": …, "updated_at": …,
     "scope": …, "aliases": […]}                    (indented, no final newline)

The first `skip` lines are no part of the conversation any more: the summary stands for them, or,
if there is none, they are hidden. PicoClaw may take them out of the file, so ids of a session that
is read as a whole follow from what a line says and not from its number; who follows a file begins
again then, and numbers do. Bytes are those of Go's `encoding/json`; times are text, for they have
nanoseconds.
"""

from __future__ import annotations

from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.picoclaw.entry_builder import begin, change, extend
from everlog.interop.formats.picoclaw.history_edits import history_set, reclaimed, truncate
from everlog.interop.formats.picoclaw.lines import NAME, READABLE, THEIRS, lowered, message_line
from everlog.interop.formats.picoclaw.meta_file import stem
from everlog.interop.formats.picoclaw.reader import META, read
from everlog.interop.formats.picoclaw.tail_reader import (
    BESIDE,
    LINE_BYTES,
    PART_BYTES,
    TOTAL_BYTES,
    follow,
    glance,
    is_id,
    name_of,
    whole,
)
from everlog.interop.formats.picoclaw.writer import write

__all__ = [
    "BESIDE",
    "LINE_BYTES",
    "META",
    "NAME",
    "PART_BYTES",
    "READABLE",
    "TOTAL_BYTES",
    "begin",
    "change",
    "extend",
    "follow",
    "glance",
    "history_set",
    "is_id",
    "message_line",
    "name_of",
    "read",
    "reclaimed",
    "recognises",
    "stem",
    "truncate",
    "whole",
    "write",
]


def recognises(path: str, head: bytes) -> bool:
    """Whether a file has messages in it that only PicoClaw writes, or is named by a key of its."""
    if not path.endswith(".jsonl"):
        return False
    named = path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))
    found = False
    for value in map(lowered, head_objects(head)):
        if "type" in value or "created_by" in value:
            # An entry of the others, or CrabTalk's first line: all of theirs begin so. Behind a
            # message of PicoClaw's it is something that we do not know.
            return found
        if not isinstance(value.get("role"), str):
            continue
        if not isinstance(value.get("content") or "", str):
            return False
        found = found or named or any(key in value for key in (*THEIRS, "tool_calls"))
    return found
