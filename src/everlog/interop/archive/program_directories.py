"""The directories in which known programs keep their sessions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def default_directories(home: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the folders of Claude Code, Codex, pi, CrabTalk and PicoClaw, also missing ones."""
    claude = environment.get("CLAUDE_CONFIG_DIR")
    return [
        (Path(claude) if claude else home / ".claude") / "projects",
        home / ".codex" / "sessions",
        home / ".pi" / "agent" / "sessions",
        home / ".crabtalk" / "sessions",
        home / ".picoclaw" / "workspace" / "sessions",
    ]
