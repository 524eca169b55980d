"""Codex's rollouts, read only.

    ~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl
    ~/.codex/session_index.jsonl          the names of threads
    {"timestamp": …, "ordinal": 7, "type": "response_item", "payload": {"type": "message", …}}

Response items, which are the model's input and output, are the conversation. Event messages repeat
it and are stored as events. What Codex adds in the user's name is a message of the program. Old
files have the payload as the line, and a first line without a type. A fork or a reverted thread
begins with a reference to another file, whose messages are read as its own.
"""

from __future__ import annotations

import re
from typing import Any

from everlog.interop.formats.codex.blocks import NAME
from everlog.interop.formats.codex.reader import CodexReader, unwrap
from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import ListingScan, Match, split_lines
from everlog.interop.formats.jsonl import parse_records

_LINE_TYPES = frozenset(
    {"session_meta", "response_item", "event_msg", "turn_context", "compacted", "world_state", "token_usage_record"}
)
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_FILE_NAME = re.compile(rf"rollout-[0-9T-]+-{_UUID}(?:_{_UUID})?\.jsonl")
_FIRST_LINE = re.compile(rb'\s*\{[^{}]{0,200}"type"\s*:\s*"session_meta"\s*,\s*"payload"\s*:\s*\{')


class CodexFormat(ForeignFormat):
    """Codex's rollouts."""

    NAME = NAME
    KEYS = frozenset({"payload", "ordinal", "record_type"})
    READER = CodexReader
    ANCESTOR_FILE = "session_index.jsonl"

    def recognises(self, path: str, head: bytes) -> Match:
        """Return whether a file is a rollout, by its lines, or by its name if they are damaged."""
        if not path.endswith(".jsonl") or not head:
            return Match.NO
        is_named = bool(_FILE_NAME.fullmatch(path.rpartition("/")[2]))
        if _FIRST_LINE.match(head):
            return Match.SURE
        has_others = False
        for row in parse_records(split_lines(head)):
            if row.value is None:
                continue
            if _is_rollout_line(row.value):
                return Match.POSSIBLE if row.start or has_others else Match.SURE
            has_others = has_others or not (is_named and unwrap(row.value)[0] == "response_item")
        return Match.POSSIBLE if is_named and not has_others else Match.NO

    def is_id(self, text: str) -> bool:
        """Return whether a text can be the id of a thread."""
        return re.fullmatch(_UUID, text) is not None

    def session_id_of(self, stem: str, meta_bytes: bytes | None) -> str:
        """Return the id at the end of a file's name: that of the thread, or of the file after a revert."""
        match = re.search(rf"{_UUID}\Z", stem)
        return match[0] if match else stem

    def resume_command(self, facts: ListingScan, path: str) -> tuple[str, ...]:
        """Return the command that continues the thread in Codex."""
        stem = path.rpartition("/")[2].removesuffix(".jsonl")
        return ("codex", "resume", facts.program_id or self.session_id_of(stem, None))


def _is_rollout_line(value: dict[str, Any]) -> bool:
    kind = value.get("type")
    if kind is None:  # the first line of an old file
        return isinstance(value.get("id"), str) and "instructions" in value and "git" in value
    return isinstance(kind, str) and kind in _LINE_TYPES and isinstance(value.get("payload"), dict)


FORMAT = CodexFormat()
