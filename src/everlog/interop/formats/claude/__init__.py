"""Claude Code's transcripts.

    <session>.jsonl                               the conversation, and auxiliary records
    <session>/subagents/**/agent-<id>.jsonl       the transcripts of its subagents
    <session>/tool-results/*.txt                  the full text of large results

Every line becomes an item, in file order: user and assistant records become messages, a compaction
a summary, everything else an event. `chain` determines which messages are the conversation; the
others are hidden, not dropped.

One `reader` serves imports, live views and listings; `append` encodes records for appends and exports.
"""

from __future__ import annotations

from everlog.interop.formats.claude import subagents
from everlog.interop.formats.claude.append import build_session, encode_metadata, encode_record, is_id, name_fields
from everlog.interop.formats.claude.entry_builder import is_uuid
from everlog.interop.formats.claude.export import ClaudeExport
from everlog.interop.formats.claude.projects import project_directory
from everlog.interop.formats.claude.reader import NAME, TranscriptReader
from everlog.interop.formats.claude.recognition import KEYS, recognises
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ForeignSession, ListingScan, Source
from everlog.model import Message


class ClaudeFormat(ForeignFormat):
    """Claude Code's transcripts."""

    NAME = NAME
    KEYS = KEYS
    READER = TranscriptReader
    EXPORT = ClaudeExport
    HAS_BRANCHES = True
    recognises = staticmethod(recognises)
    is_id = staticmethod(is_id)
    project_directory = staticmethod(project_directory)
    encode_record = staticmethod(encode_record)
    encode_metadata = staticmethod(encode_metadata)
    name_fields = staticmethod(name_fields)
    build_session = staticmethod(build_session)

    def read(self, source: Source) -> ForeignSession:
        """Read a session with the sessions of its subagents."""
        return subagents.read(source, *self.open_source(source))

    def fingerprint(self, message: Message) -> str:
        """Return what identifies a message in every copy of its session."""
        return message.id

    def resume_command(self, facts: ListingScan, path: str) -> tuple[str, ...]:
        """Return the command that continues the session in its own program; that of a subagent continues its parent."""
        folder, _, name = path.replace("\\", "/").rpartition("/")
        owner = folder.partition("/subagents")[0].rpartition("/")[2]
        candidates = (facts.parent, facts.program_id, name.partition(".")[0], owner)
        session_id = next((candidate for candidate in candidates if is_uuid(candidate)), "")
        return ("claude", "--resume", session_id) if session_id else ()


FORMAT = ClaudeFormat()
