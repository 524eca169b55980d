"""Detecting which program wrote a file, and saying why a file is not a session."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeVar

from everlog.interop.formats.foreign_format import ForeignFormat
from everlog.interop.formats.format_types import MAX_LINE_BYTES, Match
from everlog.interop.formats.jsonl import head_objects

HEAD_BYTES = 64 * 1024  # the least that is read from a file to detect its format
_NEAREST_KEYS = 2  # that a line must share with a format to be near it
_PAGE = re.compile(rb"# [^\n]*\n\nsession `[0-9A-Z]{26}` |<!doctype html>")
_NOT_READ = ", which everlog does not read"
_KEY = re.compile(rb'"([A-Za-z_]{1,40})"\s*:')

F = TypeVar("F", bound=ForeignFormat)

# Files that programs keep beside their transcripts.
COMPANIONS = {
    "session_index.jsonl": "the names of Codex's threads",
    "history.jsonl": "the typed prompts of a program, without its answers",
    "projects.json": "Gemini CLI's list of projects",
    "logs.json": "the typed prompts of Gemini CLI, without its answers",
    ".project_root": "the directory of a Gemini CLI project",
    "sessions-index.json": "Claude Code's list of sessions",
    "index.json": "a program's list of sessions",
}
# Keys of its first objects → what a file is.
_LOOKALIKES: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"mapping", "current_node"}), f"a ChatGPT export{_NOT_READ} yet"),
    (frozenset({"mapping", "author", "children"}), f"a ChatGPT export{_NOT_READ} yet"),
    (frozenset({"chat_messages", "uuid"}), f"a Claude.ai export{_NOT_READ} yet"),
    (frozenset({"header", "title", "titleUrl"}), f"a Google Takeout activity list{_NOT_READ}"),
    (frozenset({"runSettings", "chunkedPrompt"}), f"an AI Studio prompt{_NOT_READ}"),
    (frozenset({"requests", "responderUsername"}), f"a chat of VS Code Copilot{_NOT_READ}"),
    (frozenset({"working_dir", "description"}), f"a goose session{_NOT_READ} yet"),
    (frozenset({"__openclaw"}), f"an OpenClaw session{_NOT_READ} yet"),
    (frozenset({"info", "messages"}), f"an opencode export{_NOT_READ} yet"),
    (frozenset({"recordType", "seq"}), "a session of everlog's own layout, which everlog import reads"),
    (frozenset({"createdAt", "lastMessageAt", "messageCount"}), "the metadata of a session of everlog's own layout"),
    (frozenset({"archive_name", "archived_at"}), f"a session of a later CrabTalk{_NOT_READ} yet"),
)
_BINARY = {b"SQLite format 3\0": "an SQLite database", b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "a gzip file"}


def read_head(file: IO[bytes]) -> bytes:
    """Return the beginning of a file, with its first line whole."""
    head = file.read(HEAD_BYTES)
    while b"\n" not in head.lstrip(b"\n\r \0") and len(head) < MAX_LINE_BYTES:
        more = file.read(max(len(head), HEAD_BYTES))
        if not more:
            break
        head += more
    return head


def detect(path: str, head: bytes, formats: Sequence[ForeignFormat]) -> ForeignFormat | None:
    """Return the format that is the most sure of a file; None if none recognises it."""
    best, best_match = None, Match.NO
    for format in formats:
        match = format.recognises(path, head)
        if match > best_match:
            best, best_match = format, match
    return best


def explain_refusal(path: str, head: bytes, formats: Sequence[ForeignFormat]) -> str:
    """Return why a file is not a session that can be used in place: what it is, or what it is near to."""
    if (format := detect(path, head, formats)) is not None:
        return f"a {format.NAME} session, which everlog import reads"
    if path in COMPANIONS:
        return COMPANIONS[path]
    if not head:
        return "an empty file"
    for start, name in _BINARY.items():
        if head.startswith(start):
            return f"{name}{_NOT_READ} as sessions"
    if not head.strip(b"\0"):
        return "nothing but NUL bytes"
    if _PAGE.match(head):
        return "a page to read: of a session of everlog, import an export as native or json"
    if re.match(rb"\s*# aider chat started at ", head):
        return f"an aider history{_NOT_READ} yet"
    objects = list(_first_objects(head))
    if not objects:
        return "not a session in a known format: no line of it is a JSON object"
    for value in objects:
        if name := _lookalike(value):
            return name
    return f"not a session in a known format{_describe_nearest(objects, formats)}"


def _first_objects(head: bytes) -> Sequence[Mapping[str, Any]]:
    """Return the objects in the first lines; of any other JSON text its first keys, at all levels."""
    lines = list(head_objects(head))
    if lines or not head.lstrip().startswith((b"{", b"[")):
        return lines
    keys = [key.decode() for key in _KEY.findall(head[:HEAD_BYTES])]
    return [dict.fromkeys(keys)] if keys else []


def _lookalike(value: Mapping[str, Any]) -> str:
    """Return what other program's file an object is from; empty if from none that is known."""
    for keys, name in _LOOKALIKES:
        if keys <= value.keys():
            return name
    message = value.get("message")
    if isinstance(message, dict) and "parts" in message and "sessionId" in value:
        return f"a Qwen Code session{_NOT_READ} yet"
    if isinstance(message, dict) and "role" in value and "type" not in value:
        return f"a Cursor transcript{_NOT_READ} yet"
    kind = value.get("type")
    if isinstance(kind, str) and kind.startswith("session.") and isinstance(value.get("data"), dict):
        return f"a Copilot CLI session{_NOT_READ} yet"
    return ""


def _describe_nearest(objects: Sequence[Mapping[str, Any]], formats: Sequence[ForeignFormat]) -> str:
    keys = set().union(*(value.keys() for value in objects))
    shared = {format.NAME: len(keys & format.KEYS) for format in formats}
    nearest = max(shared, key=lambda name: shared[name], default="")
    return f"; the nearest is {nearest}" if shared.get(nearest, 0) >= _NEAREST_KEYS else ""
