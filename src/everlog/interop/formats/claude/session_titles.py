"""What Claude Code calls a session: the first of these that there is.

The last title that a person gave, the last one that the model gave, the last prompt, the last
summary, the first prompt that is more than a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from everlog.interop.formats.claude.chain import content_blocks, is_aside

LONGEST = 200  # characters
GIVEN = {
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


class Titles(msgspec.Struct, omit_defaults=True):
    """What a session may be called, as far as its records were seen. It stays small."""

    found: dict[str, str] = {}  # type of record → the last title of that kind
    prompt: str = ""
    command: str = ""

    def add(self, value: Mapping[str, Any], *, inner: bool) -> None:
        """Take in the next record."""
        kind = value.get("type")
        if kind == "user":
            if not self.prompt:
                prompt, command = _prompt(value, inner)
                self.prompt = _short(prompt)
                self.command = self.command or _short(command)
        elif isinstance(kind, str) and kind in GIVEN:
            text = value.get(GIVEN[kind])
            if isinstance(text, str) and text.strip():
                self.found[kind] = _short(text)

    def best(self) -> str:
        """The title; empty if there is none."""
        given = (self.found[kind] for kind in GIVEN if kind in self.found)
        return next(given, self.prompt or self.command)


def title(values: Iterable[Mapping[str, Any]], *, inner: bool) -> str:
    """The title in the records of a file; empty if there is none."""
    titles = Titles()
    for value in values:
        titles.add(value, inner=inner)
    return titles.best()


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
