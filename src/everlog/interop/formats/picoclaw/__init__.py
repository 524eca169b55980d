"""PicoClaw's session format: `.jsonl` with one message per line, and a `.meta.json` file.

    {"role":"user","content":"hello","created_at":"2026-06-13T08:00:00.123456789Z"}

    {"key": …, "summary": …, "skip": 2, "count": 5, "created_at": …, "updated_at": …,
     "scope": …, "aliases": […]}                    (indented, no final newline)

The first `skip` lines are no longer part of the conversation: the summary stands for them, or, if
there is none, they are hidden. PicoClaw may remove them from the file, so ids in a session that is
read whole are derived from a line's content, not from its number. A mirror starts over when that
happens, so there ids are derived from numbers. Bytes are those of Go's `encoding/json`; times are
kept as text, because they have nanoseconds.
"""

from __future__ import annotations

from everlog.interop.formats.format_types import content_fingerprint
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.live_format import ListingScan
from everlog.interop.formats.picoclaw.entry_builder import build_session, encode_metadata, encode_record, name_fields
from everlog.interop.formats.picoclaw.history_edits import encode_history, reclaim_lines, truncate
from everlog.interop.formats.picoclaw.lines import (
    MAX_READABLE_BYTES,
    NAME,
    PICOCLAW_KEYS,
    encode_message_line,
    lowercase_keys,
)
from everlog.interop.formats.picoclaw.meta_file import file_stem
from everlog.interop.formats.picoclaw.reader import META_EVENT, read
from everlog.interop.formats.picoclaw.tail_reader import (
    LINE_BYTES,
    METADATA_LOCATION,
    PART_BYTES,
    TOTAL_BYTES,
    is_id,
    read_all,
    read_tail,
    scan_listing,
    session_id_of,
)
from everlog.interop.formats.picoclaw.writer import write
from everlog.model import Message

__all__ = [
    "ANCESTOR_FILE",
    "IS_REWRITTEN",
    "LINE_BYTES",
    "MAX_READABLE_BYTES",
    "METADATA_LOCATION",
    "META_EVENT",
    "NAME",
    "PART_BYTES",
    "TOTAL_BYTES",
    "build_session",
    "encode_history",
    "encode_message_line",
    "encode_metadata",
    "encode_record",
    "file_stem",
    "fingerprint",
    "is_id",
    "name_fields",
    "read",
    "read_all",
    "read_tail",
    "reclaim_lines",
    "recognises",
    "resume_command",
    "scan_listing",
    "session_id_of",
    "truncate",
    "write",
]


def recognises(path: str, head: bytes) -> bool:
    """Return whether a file has messages that only PicoClaw writes, or is named like its keys."""
    if not path.endswith(".jsonl"):
        return False
    has_key_name = path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))
    is_match = False
    for value in map(lowercase_keys, head_objects(head)):
        if "type" in value or "created_by" in value:
            # The first line of another format. After a message of PicoClaw's it is only an
            # unknown line.
            return is_match
        if not isinstance(value.get("role"), str):
            continue
        if not isinstance(value.get("content") or "", str):
            return False
        has_keys = any(key in value for key in (*PICOCLAW_KEYS, "tool_calls"))
        is_match = is_match or has_key_name or has_keys
    return is_match


KEYS: frozenset[str] = frozenset()
ANCESTOR_FILE = ""
IS_REWRITTEN = True


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return content_fingerprint(message)


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return the command that continues the session in its own program."""
    return ()
