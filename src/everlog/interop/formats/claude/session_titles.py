"""The title of a session, by Claude Code's rule: the first of these that exists.

The last title set by the user, the last one set by the model, the last prompt, the last summary,
the first prompt that is more than a command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from everlog.interop.formats.claude.records import JsonObject, content_blocks, is_inserted, texts_of

MAX_LENGTH = 200  # characters
TITLE_KEYS = {"custom-title": "customTitle", "ai-title": "aiTitle", "last-prompt": "lastPrompt", "summary": "summary"}
_JUNK = re.compile(r"\s*(<local-command-stdout>|<session-start-hook>|<tick>|<goal>|\[Request interrupted by user)")
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>", re.DOTALL)


class Titles(msgspec.Struct, omit_defaults=True, rename={"by_kind": "found"}):
    """Candidates for the title of a session, collected from its records. Stays small."""

    by_kind: dict[str, str] = {}  # record type → its last title
    prompt: str = ""
    command: str = ""

    def add(self, value: JsonObject, *, is_subagent: bool) -> None:
        """Add the next record."""
        kind = value.get("type")
        if kind == "user":
            if not self.prompt:
                prompt, command = _find_prompt(value, is_subagent)
                self.prompt = _shorten(prompt)
                self.command = self.command or _shorten(command)
        elif isinstance(kind, str) and kind in TITLE_KEYS:
            text = value.get(TITLE_KEYS[kind])
            if isinstance(text, str) and text.strip():
                self.by_kind[kind] = _shorten(text)

    def best(self) -> str:
        """Return the title; empty if there is none."""
        titles = (self.by_kind[kind] for kind in TITLE_KEYS if kind in self.by_kind)
        return next(titles, self.prompt or self.command)


def find_title(values: Iterable[JsonObject], *, is_subagent: bool) -> str:
    """Return the title in the records of a file; empty if there is none."""
    titles = Titles()
    for value in values:
        titles.add(value, is_subagent=is_subagent)
    return titles.best()


def _find_prompt(value: JsonObject, is_subagent: bool) -> tuple[str, str]:
    """Return the user's prompt in a record, or else its command."""
    if value.get("isMeta") or value.get("teamName") or value.get("isCompactSummary"):
        return "", ""
    is_result = any(block.get("type") == "tool_result" for block in content_blocks(value))
    if is_result or (value.get("isSidechain") and not is_subagent):
        return "", ""
    for text in texts_of(value):
        command = _COMMAND.search(text)
        if command:
            return "", command[1]
        if text.strip() and not _JUNK.match(text) and not is_inserted(text):
            return text, ""
    return "", ""


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH].rstrip() + "…"
