"""PicoClaw's session format: `.jsonl` with one message per line, and a `.meta.json` file.

    {"role":"user","content":"hello","created_at":"2026-06-13T08:00:00.123456789Z"}

    {"key": …, "summary": …, "skip": 2, "count": 5, "created_at": …, "updated_at": …,
     "scope": …, "aliases": […]}                    (indented, no final newline)

The first `skip` lines are no longer part of the conversation: the summary stands for them, or, if
there is none, they are hidden. PicoClaw may remove them from the file, so ids are derived from a
line's content, not from its number. Bytes are those of Go's `encoding/json`; times are kept as text,
because they have nanoseconds.
"""

from __future__ import annotations

from everlog.interop.formats.file_names import stem_as_id as session_id_of
from everlog.interop.formats.format_types import Match, content_fingerprint
from everlog.interop.formats.jsonl import head_objects
from everlog.interop.formats.live_format import ListingScan, MetadataLocation
from everlog.interop.formats.picoclaw.entry_builder import build_session, encode_metadata, encode_record, name_fields
from everlog.interop.formats.picoclaw.export import PicoClawExport
from everlog.interop.formats.picoclaw.history_edits import encode_history, reclaim_lines, truncate
from everlog.interop.formats.picoclaw.lines import (
    MAX_READABLE_BYTES,
    NAME,
    PICOCLAW_KEYS,
    encode_message_line,
    lowercase_keys,
)
from everlog.interop.formats.picoclaw.meta_file import file_stem
from everlog.interop.formats.picoclaw.meta_file import is_stem as is_id
from everlog.interop.formats.picoclaw.reader import META_EVENT, READING
from everlog.model import Message

__all__ = [
    "ANCESTOR_FILE",
    "IS_REWRITTEN",
    "KEYS",
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


METADATA_LOCATION: MetadataLocation = "file"
PART_BYTES = 0
TOTAL_BYTES = 0
LINE_BYTES = MAX_READABLE_BYTES
ANCESTOR_FILE = ""
IS_REWRITTEN = True
KEYS = frozenset({"reasoning_content", "tool_call_id", *PICOCLAW_KEYS})


read, read_tail, read_all, scan_listing = READING
write = PicoClawExport.export


def recognises(path: str, head: bytes) -> Match:
    """Return whether a file has messages that only PicoClaw writes, or is named like its keys."""
    if not path.endswith(".jsonl"):
        return Match.NO
    has_key_name = path.rpartition("/")[2].startswith(("sk_v1_", "agent_"))
    best = Match.NO
    for value in map(lowercase_keys, head_objects(head)):
        if "type" in value or "created_by" in value:
            # The first line of another format. After a message of PicoClaw's it is only an
            # unknown line.
            return best
        if not isinstance(value.get("role"), str) or not isinstance(value.get("content") or "", str):
            continue
        if any(key in value for key in PICOCLAW_KEYS):
            return Match.SURE
        if has_key_name or "tool_calls" in value or "tool_call_id" in value:
            best = Match.POSSIBLE
    return best


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return content_fingerprint(message)


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return no command: PicoClaw continues a session when its chat goes on."""
    return ()
