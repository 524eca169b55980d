"""Where the programs whose sessions we read keep them, and that a run takes them from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.app import FORMATS
from everlog.interop.archive.archive_listing import list_archive
from everlog.interop.archive.backup import copy
from everlog.interop.archive.program_directories import VARIABLES, default_sources

HOME = Path("/home/me")
DOCS = Path(__file__).parents[2] / "docs"

# One session of each format, relative to the home, and what belongs to it.
SESSIONS = {
    "claude": (".claude/projects/-work/a.jsonl", ".claude/projects/-work/a/subagents/agent-1.jsonl"),
    "cersei": (".claude/projects/_work/b.jsonl",),
    "codex": (
        ".codex/sessions/2026/01/01/rollout-1.jsonl",
        ".codex/archived_sessions/rollout-2.jsonl.zst",
        ".codex/session_index.jsonl",
    ),
    "gemini": (".gemini/tmp/work/chats/session-1.jsonl", ".gemini/tmp/work/.project_root", ".gemini/projects.json"),
    "pi": (".pi/agent/sessions/--work--/1_a.jsonl",),
    "crabtalk": (".crabtalk/sessions/crab_user_1.jsonl", ".crabtalk/sessions/crab_user_2/step-000001"),
    "picoclaw": (
        ".picoclaw/workspace/sessions/k.jsonl",
        ".picoclaw/workspace/sessions/k.meta.json",
        ".picoclaw/workspace-helper/sessions/k.jsonl",
    ),
}
SECRETS = (".codex/auth.json", ".gemini/oauth_creds.json", ".pi/agent/auth.json", ".claude/.credentials.json")


def plant(home: Path) -> list[str]:
    """Make the files of every program below a home; return those that are sessions."""
    sessions = [name for names in SESSIONS.values() for name in names]
    for name in (*sessions, *SECRETS):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    return sorted(sessions)


def archived(root: Path, home: Path) -> list[str]:
    rows = list_archive(root, ["*"], limit=100).files
    return sorted(str(Path(row.path).relative_to(home.resolve())) for row in rows)


def test_sessions_of_every_format_are_archived_and_no_credentials(tmp_path: Path) -> None:
    assert SESSIONS.keys() == set(FORMATS)
    home = tmp_path / "home"
    sessions = plant(home)
    report = copy(tmp_path / "root", default_sources(home, {}), skip_missing=True)
    assert report.problems == []
    assert archived(tmp_path / "root", home) == sessions


def test_a_file_that_its_program_deleted_is_marked_by_the_next_run(tmp_path: Path) -> None:
    home, root = tmp_path / "home", tmp_path / "root"
    plant(home)
    copy(root, default_sources(home, {}), skip_missing=True)
    (home / ".codex" / "session_index.jsonl").unlink()
    assert copy(root, default_sources(home, {}), skip_missing=True).gone == 1


@pytest.mark.parametrize(
    ("variable", "place", "instead"),
    [
        ("CLAUDE_CONFIG_DIR", "/x/projects", None),  # Cersei does not know it
        ("CERSEI_MEMORY_PATH_OVERRIDE", "/x", None),
        ("CODEX_HOME", "/x/sessions", HOME / ".codex" / "sessions"),
        ("CODEX_HOME", "/x/archived_sessions", HOME / ".codex" / "archived_sessions"),
        ("CODEX_HOME", "/x/session_index.jsonl", HOME / ".codex" / "session_index.jsonl"),
        ("GEMINI_CLI_HOME", "/x/.gemini/tmp", HOME / ".gemini" / "tmp"),
        ("GEMINI_CLI_HOME", "/x/.gemini/projects.json", HOME / ".gemini" / "projects.json"),
        ("PI_CODING_AGENT_DIR", "/x/sessions", HOME / ".pi" / "agent" / "sessions"),
        ("PI_CODING_AGENT_SESSION_DIR", "/x", None),  # what was there before it was set stays there
        ("PICOCLAW_HOME", "/x/workspace/sessions", HOME / ".picoclaw" / "workspace" / "sessions"),
    ],
)
def test_a_variable_of_a_program_moves_its_sessions(variable: str, place: str, instead: Path | None) -> None:
    usual, moved = default_sources(HOME, {}), default_sources(HOME, {variable: "/x"})
    assert Path(place) in moved and Path(place) not in usual
    if instead is None:
        assert set(usual) <= set(moved)
    else:
        assert instead in usual and instead not in moved
    assert default_sources(HOME, {variable: ""}) == usual


def test_a_tilde_in_a_variable_is_the_home() -> None:
    assert HOME / "sub" / "sessions" in default_sources(HOME, {"PI_CODING_AGENT_DIR": "~/sub"})
    assert HOME / "sessions" in default_sources(HOME, {"PI_CODING_AGENT_DIR": "~"})


def test_the_documentation_names_every_place_and_variable() -> None:
    page = (DOCS / "archive.md").read_text(encoding="utf-8")
    places = [f"~/{path.relative_to(HOME).as_posix()}" for path in default_sources(HOME, {})]
    for name in (*(f"${variable}" for variable in VARIABLES), *places):
        assert f"`{name}`" in page
