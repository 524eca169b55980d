"""What every run is told of its surroundings: where it works, with whom, and by which rules.

    <agents>         the agents that it may ask, if there are any
    <recall>         what a memory has to say to this, if there is one
    <environment>    system, date, working directory
    <instructions>   AGENTS.md and CLAUDE.md, from the top of the file system down to the
                     working directory

The working directory is the client's, as it came with the message. Files are read anew for every
run; one that cannot be read is left out.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

from everlog.agent.hooks import Hook
from everlog.model import Message, user
from everlog.session import Session

FILES = ("AGENTS.md", "CLAUDE.md")
FILE_BYTES = 40_000  # of one file; what is longer is cut
# What a memory finds for a conversation; empty if nothing.
Recall = Callable[[str, Session, Sequence[Message]], str]

_CUT = "\n[the rest of the file was left out]"


class Surroundings(Hook):
    """Injects these blocks."""

    def __init__(
        self, members: Mapping[str, str] | None = None, recall: Recall | None = None
    ) -> None:
        self._members = dict(members or {})  # name → what it is for
        self._recall = recall

    def on_before_run(
        self, agent: str, session: Session, messages: Sequence[Message]
    ) -> list[Message]:
        """The blocks for a run whose working directory came with the last message."""
        cwd = next((one.cwd for one in reversed(messages) if one.role == "user"), None)
        recalled = self._recall(agent, session, messages) if self._recall else ""
        blocks = [
            agents(self._members),
            f"<recall>\n{recalled}\n</recall>" if recalled else "",
            environment(cwd),
            instructions(cwd),
        ]
        return [user(block) for block in blocks if block]


def agents(members: Mapping[str, str]) -> str:
    """The agents that may be asked."""
    if not members:
        return ""
    lines = [f"- {name}: {about or 'no description'}" for name, about in members.items()]
    return "\n".join(("<agents>", *lines, "</agents>"))


def environment(cwd: str | None) -> str:
    """The system, the date and the working directory; no clock, so that the text stays the same."""
    lines = [f"system: {platform.system()} {platform.machine()}", f"date: {date.today()}"]
    if cwd:
        lines.append(f"working_directory: {cwd}")
    return "\n".join(("<environment>", *lines, "</environment>"))


def instructions(cwd: str | None) -> str:
    """The instruction files on the way down to the working directory."""
    found = list(_read(Path(cwd))) if cwd and cwd.startswith("/") else []
    if not found:
        return ""
    parts = [f'<file path="{path}">\n{text}\n</file>' for path, text in found]
    return "\n".join(("<instructions>", *parts, "</instructions>"))


def _read(cwd: Path) -> Iterator[tuple[Path, str]]:
    for folder in reversed((cwd, *cwd.parents)):
        for name in FILES:
            path = folder / name
            try:
                with path.open("rb") as opened:
                    text = opened.read(FILE_BYTES + 1)
            except (OSError, ValueError):
                continue
            cut = _CUT if len(text) > FILE_BYTES else ""
            yield path, text[:FILE_BYTES].decode(errors="replace").strip() + cut
