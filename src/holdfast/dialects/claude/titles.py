"""What Claude Code calls a session: the first of these that there is.

The last title that a person gave, the last one that the model gave, the last prompt, the last
summary, the first prompt that is more than a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.dialects.claude.chain import content_blocks, is_aside

LONGEST = 200  # characters
_GIVEN = {
    "custom-title": "customTitle",
    "ai-title": "aiTitle",
    "last-prompt": "lastPrompt",
    "summary": "summary",
}
_JUNK = re.compile(
    r"\s*(<local-command-stdout>|<session-start-hook>|<tick>|<goal>|\[Request interrupted by user)"
    r"|\s*(<ide_(opened_file|selection)>.*?</ide_\3>\s*)+\Z",
    re.DOTALL,
)
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>", re.DOTALL)


def title(values: Iterable[Mapping[str, Any]], *, inner: bool) -> str:
    """The title in the records of a file; empty if there is none."""
    found: dict[str, str] = {}
    prompt = command = ""
    for value in values:
        kind = value.get("type")
        if kind == "user":
            if not prompt:
                prompt, named = _prompt(value, inner)
                command = command or named
        elif isinstance(kind, str) and kind in _GIVEN:
            text = value.get(_GIVEN[kind])
            if isinstance(text, str) and text.strip():
                found[kind] = text
    for given in _GIVEN:
        if given in found:
            return _short(found[given])
    return _short(prompt or command)


def _prompt(value: Mapping[str, Any], inner: bool) -> tuple[str, str]:
    """What a person said in a record, and which command was given instead."""
    if is_aside(value, inner=inner) or value.get("isCompactSummary"):
        return "", ""
    message = value.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    texts = [content] if isinstance(content, str) else []
    for block in content_blocks(value):
        if block.get("type") == "tool_result":
            return "", ""
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
    for text in texts:
        command = _COMMAND.search(text)
        if command:
            return "", command[1]
        if text.strip() and not _JUNK.match(text):
            return text, ""
    return "", ""


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip() + "…"
