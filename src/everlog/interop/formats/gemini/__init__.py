"""Gemini CLI's chats, read only. There are three forms:

    ~/.gemini/tmp/<project>/.project_root            the directory of a project
    ~/.gemini/tmp/<project>/chats/session-<time>-<id>.jsonl
        {"sessionId": …}  {"id": …, "type": "user", …}  {"$set": {…}}  {"$rewindTo": id}
    session-<time>-<id>.json     older, one document: {"sessionId", "projectHash", "messages": […]}
    checkpoint-<name>.json       what `/chat save` writes: a list of {"role", "parts"}

A file of lines is an edit log. A document, which is only imported, is read as such a log.
"""

from __future__ import annotations

import re

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import (
    ForeignSession,
    ListingScan,
    Match,
    Source,
    content_fingerprint,
    split_lines,
)
from everlog.interop.formats.gemini.documents import DocumentReader, match_document
from everlog.interop.formats.gemini.messages import NAME
from everlog.interop.formats.gemini.reader import GeminiReader
from everlog.interop.formats.jsonl import parse_records
from everlog.interop.formats.session_reader import Detail, read_session
from everlog.model import PROGRAM, Message

_FILE_NAME = re.compile(r"session-\d{4}-\d\d-\d\dT\d\d-\d\d-[0-9a-f]{8}\.jsonl")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class GeminiFormat(ForeignFormat):
    """Gemini CLI's chats. A session is named by its file; the program's own id is in its first line."""

    NAME = NAME
    KEYS = frozenset({"projectHash", "$set", "$rewindTo", "toolCalls", "displayContent"})
    READER = GeminiReader
    ANCESTOR_FILE = ".project_root"

    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file is a chat, by its lines, or by its name if they are damaged."""
        if path.endswith(".json"):
            return match_document(head)
        if not path.endswith(".jsonl") or not head:
            return Match.NO
        best = Match.POSSIBLE if _FILE_NAME.fullmatch(path.rpartition("/")[2]) else Match.NO
        for row in parse_records(split_lines(head)):
            value = row.value or {}
            if isinstance(value.get("sessionId"), str) and "projectHash" in value:
                return Match.SURE
            if "uuid" in value or "sessionId" in value or "payload" in value:
                return Match.NO  # Claude Code, Qwen Code, Codex
            is_answer = value.get("type") == "gemini" and isinstance(value.get("id"), str)
            if is_answer or isinstance(value.get("$set"), dict) or isinstance(value.get("$rewindTo"), str):
                best = Match.POSSIBLE
        return best

    def is_id(self, text: str) -> bool:
        """Return whether a text can be the id of a session: its file's name, or its program's id."""
        return _FILE_NAME.fullmatch(f"{text}.jsonl") is not None or _UUID.fullmatch(text) is not None

    def fingerprint(self, message: Message) -> str:
        """Return what identifies a message in every copy of its session."""
        # What the program writes into each file of a chat has the same id, and a text of its time.
        return message.id.partition("~")[0] if message.sender == PROGRAM else content_fingerprint(message)

    def resume_command(self, facts: ListingScan, path: str) -> tuple[str, ...]:
        """Return the command that continues the chat in Gemini CLI; it only knows its own ids."""
        return ("gemini", "--resume", facts.program_id) if facts.program_id else ()

    def read(self, source: Source) -> ForeignSession:
        """Read a session, from lines or from a document."""
        transcript, parts = self.open_source(source)
        reader = GeminiReader if source.paths()[0].endswith(".jsonl") else DocumentReader
        return read_session(reader(transcript, Detail.FULL, whole=True), parts)


FORMAT = GeminiFormat()
