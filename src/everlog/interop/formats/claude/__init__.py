"""Claude Code's transcripts.

    <session>.jsonl                               the conversation, and auxiliary records
    <session>/subagents/**/agent-<id>.jsonl       the transcripts of its subagents
    <session>/tool-results/*.txt                  the full text of large results

Every line becomes an item, in file order: user and assistant records become messages, a compaction
a summary, everything else an event. `chain` determines which messages are the conversation; the
others are hidden, not dropped.

One `reader` serves imports, live views and listings; `append` and `writer` extend and write
transcripts.
"""

from __future__ import annotations

from everlog.interop.formats.claude.append import (
    build_session,
    encode_metadata,
    encode_record,
    is_id,
    name_fields,
    session_id_of,
)
from everlog.interop.formats.claude.entry_builder import is_uuid
from everlog.interop.formats.claude.export import ClaudeExport
from everlog.interop.formats.claude.projects import project_directory
from everlog.interop.formats.claude.reader import NAME, READING
from everlog.interop.formats.claude.recognition import KEYS, recognises
from everlog.interop.formats.claude.subagents import read
from everlog.interop.formats.live_format import ListingScan, MetadataLocation
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

METADATA_LOCATION: MetadataLocation = ""
PART_BYTES = TOTAL_BYTES = LINE_BYTES = 0
ANCESTOR_FILE = ""
IS_REWRITTEN = False

_, read_tail, read_all, scan_listing = READING
write = ClaudeExport.export


def fingerprint(message: Message) -> str:
    """Return what identifies a message in every copy of its session."""
    return message.id


def resume_command(facts: ListingScan, path: str) -> tuple[str, ...]:
    """Return the command that continues the session in its own program; that of a subagent continues its parent."""
    folder, _, name = path.replace("\\", "/").rpartition("/")
    owner = folder.partition("/subagents")[0].rpartition("/")[2]
    candidates = (facts.parent, facts.program_id, name.partition(".")[0], owner)
    session_id = next((candidate for candidate in candidates if is_uuid(candidate)), "")
    return ("claude", "--resume", session_id) if session_id else ()
