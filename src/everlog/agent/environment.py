"""The environment injected into every run: subagents, recalled memory, system and instructions.

    <agents>         the subagents that may be asked, if there are any
    <recall>         matching notes from memory, if there are any
    <environment>    system, date, working directory
    <instructions>   AGENTS.md and CLAUDE.md, from the top of the file system down to the
                     working directory

The working directory is the client's and comes with the message. Files are read again for every
run; a file that cannot be read is skipped.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from everlog.agent.hooks import Hook
from everlog.context.fence import Origin, block, fence
from everlog.model import Message, user
from everlog.session import Session

INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md")
MAX_FILE_BYTES = 40_000  # per file; a longer one is truncated
# Returns the text that memory holds for a conversation, or an empty string.
Recall = Callable[[str, Session, Sequence[Message]], str]

_CUT_NOTE = "\n[the rest of the file was left out]"


class EnvironmentHook(Hook):
    """Hook that injects the environment blocks."""

    def __init__(self, members: Mapping[str, str] | None = None, recall: Recall | None = None) -> None:
        self._members = dict(members or {})  # name → description
        self._recall = recall

    def on_before_run(self, agent: str, session: Session, messages: Sequence[Message]) -> list[Message]:
        """Return the blocks; the working directory is that of the last user message."""
        cwd = next((m.cwd for m in reversed(messages) if m.role == "user"), None)
        recalled = self._recall(agent, session, messages) if self._recall else ""
        blocks = [
            agents_block(self._members),
            block("recall", fence(recalled, Origin.RECALL)) if recalled else "",
            environment_block(cwd),
            instructions_block(cwd),
        ]
        return [user(text) for text in blocks if text]


def agents_block(members: Mapping[str, str]) -> str:
    """Return the list of subagents, or an empty string."""
    if not members:
        return ""
    lines = (f"- {name}: {text or 'no description'}" for name, text in members.items())
    return block("agents", *(fence(line, Origin.SUBAGENT) for line in lines))


def environment_block(cwd: str | None) -> str:
    """Return system, date and working directory; no time of day, so that the text is cacheable."""
    lines = [f"system: {platform.system()} {platform.machine()}", f"date: {date.today()}"]
    if cwd:
        lines.append(f"working_directory: {cwd}")
    return block("environment", *(fence(line, Origin.DIRECTORY) for line in lines))


def instructions_block(cwd: str | None) -> str:
    """Return the instruction files from the root directory down to the working directory."""
    files = list(_read_instruction_files(Path(cwd))) if cwd and cwd.startswith("/") else []
    if not files:
        return ""
    parts = (
        block("file", fence(text, Origin.INSTRUCTIONS), path=fence(str(path), Origin.DIRECTORY)) for path, text in files
    )
    return block("instructions", *parts)


def _read_instruction_files(cwd: Path) -> Iterator[tuple[Path, str]]:
    for folder in reversed((cwd, *cwd.parents)):
        for name in INSTRUCTION_FILES:
            path = folder / name
            try:
                with path.open("rb") as file:
                    text = file.read(MAX_FILE_BYTES + 1)
            except (OSError, ValueError):
                continue
            suffix = _CUT_NOTE if len(text) > MAX_FILE_BYTES else ""
            yield path, text[:MAX_FILE_BYTES].decode(errors="replace").strip() + suffix
