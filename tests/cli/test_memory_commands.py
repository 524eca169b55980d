"""`everlog memory …`: every command, what it refuses, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.memory.file_memory import memory_path, project_key
from everlog.memory.memory_directory import MemoryDirectory
from everlog.memory.notes import Note
from everlog.model import user
from everlog.session import Session
from tests.cli.runner import Cli, run_on_terminal


@pytest.fixture
def memories(root: Path) -> MemoryDirectory:
    """The memory of the agent main."""
    return MemoryDirectory(memory_path(root, agent="main"))


def test_a_note_is_added_shown_and_found(cli: Cli, memories: MemoryDirectory) -> None:
    made = cli("memory", "add", "The staging host is blue.", "--category", "project", "--json")
    assert (made.code, made.json) == (0, {"file": "the-staging-host-is-blue.md"})
    (note,) = memories.notes()
    assert not note.generated, "no dream rewrites what a person wrote"
    assert Note(note.text).category == "project"
    shown = cli("memory", "show").out
    assert "- [The staging host is blue.](the-staging-host-is-blue.md)" in shown
    assert "today" in shown and "a person" in shown
    told = cli("memory", "show", "--json").json
    assert told["memory"] == "memory/main" and told["facts"] == 0
    assert [one["file"] for one in told["notes"]] == ["the-staging-host-is-blue.md"]
    found = cli("memory", "search", "which", "host", "--json").json
    assert [one["text"] for one in found["notes"]] == ["The staging host is blue."]
    assert found["sessions"]["results"] == []


def test_a_note_has_the_name_and_the_description_that_it_is_given(cli: Cli, memories: MemoryDirectory) -> None:
    cli("memory", "add", "line one\nline two", "--name", "My / note", "--description", "two lines")
    (note,) = memories.notes()
    assert note.path == "my-note.md"
    assert Note(note.text).body == "line one\nline two"
    assert Note(note.text).description == "two lines"


def test_the_same_fact_is_not_written_twice(cli: Cli, memories: MemoryDirectory) -> None:
    first = cli("memory", "add", "The staging host is blue.").out
    assert cli("memory", "add", "the staging host is BLUE").out == first
    assert len(memories.notes()) == 1


def test_search_finds_what_was_said_in_sessions_too(cli: Cli, session: Session) -> None:
    session.append(user("the sourdough needs rest"))
    assert session.id in cli("memory", "search", "sourdough").out
    nothing = cli("memory", "search", "zanzibar")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no matches" in nothing.err


def test_an_empty_memory_is_told(cli: Cli, root: Path) -> None:
    shown = cli("memory", "show")
    assert (shown.code, shown.out) == (0, "") and "empty" in shown.err
    assert not (root / "memory").exists(), "looking makes nothing"


def test_a_note_is_changed_to_what_is_piped_in(cli: Cli, memories: MemoryDirectory) -> None:
    cli("memory", "add", "The staging host is blue.")
    done = cli("memory", "edit", "The staging host is blue.", stdin=b"It is green now.\n")
    assert done.code == 0
    assert memories.read("the-staging-host-is-blue.md") == "It is green now.\n"
    assert "It is green now." in cli("memory", "show").out
    empty = cli("memory", "edit", "the-staging-host-is-blue.md", stdin=b" \n")
    assert empty.code == 1 and "empty" in empty.err
    assert memories.read("the-staging-host-is-blue.md") == "It is green now.\n"


def test_on_a_terminal_a_note_is_changed_in_the_editor(
    cli: Cli, root: Path, memories: MemoryDirectory, tmp_path: Path
) -> None:
    cli("memory", "add", "The staging host is blue.")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/blue/red/ "$1"\n')
    editor.chmod(0o700)
    name = "the-staging-host-is-blue.md"
    done = run_on_terminal(root, "memory", "edit", name, EDITOR=str(editor), VISUAL="")
    assert done.code == 0, done.out
    assert "is red." in (memories.read(name) or "")
    editor.write_text("#!/bin/sh\ntrue\n")
    again = run_on_terminal(root, "memory", "edit", name, EDITOR=str(editor), VISUAL="")
    assert "was not changed" in again.out


def test_a_session_of_any_length_is_looked_through(cli: Cli, session: Session, memories: MemoryDirectory) -> None:
    session.append(user("I prefer tabs over spaces. How are you?"))
    done = cli("memory", "extract", session.id, "--json").json
    assert done["finder"] == "rules" and done["sessionId"] == session.id
    (fact,) = done["facts"]
    assert (fact["category"], fact["seq"]) == ("preference", 1)
    assert memories.known_facts() == ["The user prefers tabs over spaces."]
    again = cli("memory", "extract", session.id)
    assert (again.code, again.out) == (0, "") and "no new facts" in again.err


def test_a_dream_waits_for_its_gates_unless_it_is_forced(cli: Cli, session: Session, memories: MemoryDirectory) -> None:
    session.append(user("I prefer tabs over spaces."))
    cli("memory", "extract", session.id)
    refused = cli("memory", "dream")
    assert (refused.code, memories.notes()) == (0, [])
    assert refused.out.startswith("not due: 1 of 5 new sessions")
    assert cli("memory", "dream", "--json").json["dreamed"] is False
    planned = cli("memory", "dream", "--dry-run", "--json").json
    assert planned["dreamed"] is False and len(planned["changes"]) == 3
    assert memories.notes() == []
    done = cli("memory", "dream", "--force", "--json").json
    assert done["dreamed"] and done["changes"] == planned["changes"]
    assert len(memories.notes()) == 1
    late = cli("memory", "dream").out
    assert late.startswith("not due: 0.0 of 24 hours")


def test_what_was_done_last_is_taken_back(cli: Cli, session: Session, memories: MemoryDirectory) -> None:
    session.append(user("I prefer tabs over spaces."))
    cli("memory", "extract", session.id)
    before = {one.path: one.text for one in memories.files()}
    cli("memory", "dream", "--force")
    assert "undone:" in cli("memory", "undo").out
    assert {one.path: one.text for one in memories.files()} == before
    nothing = cli("memory", "undo")
    assert nothing.code == 1 and "nothing to undo" in nothing.err
    cli("memory", "add", "The staging host is blue.")
    assert cli("memory", "undo", "--json").json["files"]
    assert memories.notes() == []


def test_an_undo_over_an_edit_is_refused(cli: Cli, memories: MemoryDirectory) -> None:
    cli("memory", "add", "The staging host is blue.")
    memories.put("the-staging-host-is-blue.md", "by hand\n", by_person=True)
    refused = cli("memory", "undo")
    assert refused.code == 1 and "edited since" in refused.err
    assert memories.read("the-staging-host-is-blue.md") == "by hand\n"


def test_clearing_names_what_it_deletes_and_asks(
    cli: Cli, root: Path, memories: MemoryDirectory, session: Session
) -> None:
    cli("memory", "add", "The staging host is blue.")
    stranger = memories.path / "picture.png"
    stranger.write_bytes(b"png")
    refused = cli("memory", "clear")
    assert refused.code == 2 and "--yes" in refused.err
    declined = run_on_terminal(root, "memory", "clear", typed=b"n\n")
    assert declined.code == 1 and "the-staging-host-is-blue.md" in declined.out
    assert len(memories.notes()) == 1
    done = run_on_terminal(root, "memory", "clear", typed=b"y\n")
    assert done.code == 0 and "deleted the-staging-host-is-blue.md" in done.out
    assert memories.files() == [] and stranger.exists()
    assert cli("sessions", "show", session.id).code == 0
    empty = cli("memory", "clear", "--yes", "--json")
    assert empty.json == {"deleted": []}


def test_agents_and_projects_have_memories_of_their_own(
    cli: Cli, root: Path, tmp_path: Path, memories: MemoryDirectory
) -> None:
    cli("memory", "add", "of the digger", "--agent", "digger")
    folder = tmp_path / "project"
    cli("memory", "add", "of the project", "--project", str(folder))
    assert memories.files() == []
    assert (root / "memory" / "digger" / "of-the-digger.md").exists()
    assert (root / "memory" / "projects" / project_key(str(folder)) / "of-the-project.md").exists()
    assert "of the project" in cli("memory", "show", "--project", str(folder)).out
    assert cli("memory", "dream", "--force", "--project", str(folder)).code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("memory", "show", "--agent", "../x"), 1),
        (("memory", "show", "--agent", "projects"), 1),
        (("memory", "show", "--agent", ""), 1),
        (("memory", "add", "  "), 1),
        (("memory", "add"), 2),
        (("memory", "add", "x", "--category", "gossip"), 2),
        (("memory", "edit", "../../config.toml"), 1),
        (("memory", "edit", "nothing.md"), 1),
        (("memory", "extract", "nobody"), 1),
        (("memory", "search"), 2),
        (("memory", "dreem"), 2),
    ],
)
def test_nonsense_is_refused_in_one_line(cli: Cli, root: Path, arguments: tuple[str, ...], code: int) -> None:
    done = cli(*arguments, stdin=b"text")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("everlog: ") and done.err.count("\n") == 1
    assert not (root / "memory").exists()
