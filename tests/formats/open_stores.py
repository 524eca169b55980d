"""Directories of other programs as a live store has them, for tests from end to end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everlog.agent.agent import Agent
from everlog.app import open_store
from everlog.model import Message
from everlog.session import Session, Store
from everlog.settings import CompactionSettings
from everlog.testing import ScriptedModel
from tests.foreign.foreign_directories import made

SUMMARY = (
    "## Goal\nfinish\n\n## Constraints & Preferences\n- none\n\n## Progress\n### Done\n- [x] some\n"
    "### In Progress\n- [ ] rest\n### Blocked\n- none\n\n## Key Decisions\n- **x**: y\n\n"
    "## Next Steps\n1. go on\n\n## Critical Context\n- none"
)
# A context is too large above 24,000 tokens, and a summary call takes it whole.
SMALL = CompactionSettings(window=48_000, reserve_tokens=24_000, keep_recent_tokens=1_024)
LONG = "many words of a long story " * 400  # about 2,700 tokens


class Place:
    """A directory of another program, and homes of ours to see it from."""

    def __init__(self, top: Path, dialect: str, files: Mapping[str, bytes]) -> None:
        self.root = made(top / "theirs", files)
        self.root.mkdir(parents=True, exist_ok=True)
        self.dialect = dialect
        self._top = top
        self._homes = 0

    def opened(self, home: str = "home") -> Store:
        """A live store on it."""
        return open_store(f"{self.dialect}:{self.root}", home=self._top / home)

    def anew(self) -> Store:
        """One of a process that was never here."""
        self._homes += 1
        return self.opened(f"home-{self._homes}")

    def data(self, name: str) -> bytes:
        """A file as it is."""
        return (self.root / name).read_bytes()


def texts(session: Session) -> list[str]:
    """What was said."""
    return [one.text for one in session.messages()]


def run(session: Session, model: ScriptedModel, prompt: str = "go", **agent: Any) -> Message:
    """One turn."""
    return asyncio.run(Agent(session.store, model, **agent).run(prompt, session=session))
