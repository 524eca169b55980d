"""Where the programs whose sessions we read keep them. Credentials lie beside, so whole homes are never named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from everlog.interop.locations import home_name

# Those of the programs, not ours.
VARIABLES = (
    "CLAUDE_CONFIG_DIR",
    "CERSEI_MEMORY_PATH_OVERRIDE",
    "CODEX_HOME",
    "GEMINI_CLI_HOME",
    "PI_CODING_AGENT_DIR",
    "PI_CODING_AGENT_SESSION_DIR",
    "PICOCLAW_HOME",
)


def default_sources(home: Path, environment: Mapping[str, str]) -> list[Path]:
    """Return the folders and files with the sessions of each program, also missing ones."""

    def moved(variable: str) -> list[Path]:
        value = environment.get(variable, "")
        if value == "~" or value.startswith("~/"):
            return [home / value[2:]]
        return [Path(value)] if value else []

    def place(variable: str, usual: Path) -> Path:
        return next(iter(moved(variable)), usual)

    codex = place("CODEX_HOME", home / ".codex")
    gemini = place("GEMINI_CLI_HOME", home) / ".gemini"
    picoclaw = place("PICOCLAW_HOME", home / ".picoclaw")
    sources = [
        place("CLAUDE_CONFIG_DIR", home / ".claude") / "projects",
        home / ".claude" / "projects",  # Cersei's too, wherever Claude Code has its own
        *moved("CERSEI_MEMORY_PATH_OVERRIDE"),
        codex / "sessions",
        codex / "archived_sessions",
        codex / "session_index.jsonl",  # the names that users gave
        gemini / "tmp",  # chats, and the project that each folder belongs to
        gemini / "projects.json",
        place("PI_CODING_AGENT_DIR", home / ".pi" / "agent") / "sessions",
        *moved("PI_CODING_AGENT_SESSION_DIR"),
        home / ".crabtalk" / "sessions",
        picoclaw / "workspace" / "sessions",
        *sorted(picoclaw.glob("workspace-*/sessions")),  # of agents with a name
    ]
    return list(dict.fromkeys(sources))


def with_companions(home: Path, sources: Sequence[Path]) -> list[Path]:
    """Return the sources, and the folders of our home with the companions of their sessions."""
    companions = (home / "companion" / home_name(source) for source in sources)
    return [*sources, *(folder for folder in companions if folder.is_dir())]
