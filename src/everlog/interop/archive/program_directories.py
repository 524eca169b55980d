"""Where the programs that we know keep their sessions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def usual_places(home: Path, environment: Mapping[str, str]) -> list[Path]:
    """The folders of Claude Code, Codex, pi, CrabTalk and PicoClaw, whether they exist or not."""
    claude = environment.get("CLAUDE_CONFIG_DIR")
    return [
        (Path(claude) if claude else home / ".claude") / "projects",
        home / ".codex" / "sessions",
        home / ".pi" / "agent" / "sessions",
        home / ".crabtalk" / "sessions",
        home / ".picoclaw" / "workspace" / "sessions",
    ]
