"""Cersei's MemoryManager on its own files, and the defects of its own one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.errors import FormatError, InvalidIdError, NotFoundError, StoreFullError
from everlog.integrations.cersei import MemoryManager
from everlog.interop.formats.cersei import FORMAT as cersei
from everlog.model import Compaction, assistant, tool_result, user
from everlog.session import Session
from tests.foreign.foreign_directories import cersei_file
from tests.formats.round_trips import golden


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[MemoryManager]:
    project = tmp_path / "project"
    project.mkdir()
    with MemoryManager(project, sessions_dir=tmp_path / "s", home=tmp_path / "home") as made:
        yield made


def lines(manager: MemoryManager, session: str) -> list[dict[str, object]]:
    """All entries, as Cersei's own loader would parse them."""
    data = b"".join(path.read_bytes() for path in manager.all_part_paths(session))
    return [json.loads(line) for line in data.splitlines()]


def loaded(manager: MemoryManager, session: str) -> list[object]:
    """What Cersei's own loader gives: no tombstoned entry, no summary."""
    entries = lines(manager, session)
    gone = {one.get("deleted_uuid") for one in entries if one["type"] == "tombstone"}
    said = [one for one in entries if one["type"] in ("user", "assistant", "system")]
    return [one["message"]["content"] for one in said if one["uuid"] not in gone]  # type: ignore[index]


def test_a_conversation_is_written_as_cersei_writes_it(manager: MemoryManager) -> None:
    asked = manager.write_user_message("s-1", "please build an index of the summary")
    answered = manager.write_assistant_message("s-1", "Done.", asked)
    first, second = lines(manager, "s-1")
    assert list(first) == [
        "type", "uuid", "timestamp", "session_id", "cwd", "message", "is_sidechain",
    ]  # fmt: skip
    assert list(second)[:3] == ["type", "uuid", "parent_uuid"]
    assert (first["uuid"], second["uuid"], second["parent_uuid"]) == (asked, answered, asked)
    assert first["cwd"] == second["cwd"] == str(manager.project_root)
    # Stored as it was said: no hint is appended to what mentions a summary or an index.
    assert first["message"] == {"role": "user", "content": "please build an index of the summary"}


def test_a_later_process_sees_what_was_said(manager: MemoryManager, tmp_path: Path) -> None:
    manager.write_user_message("s-1", "one")
    manager.write_assistant_message("s-1", "two")
    with MemoryManager(tmp_path, sessions_dir=manager.sessions_dir, home=tmp_path / "x") as other:
        assert [one.text for one in other.load_session_messages("s-1")] == ["one", "two"]
        (info,) = other.list_sessions()
    assert (info.id, info.message_count) == ("s-1", 2)
    assert info.created_at


def test_an_answer_without_a_parent_belongs_to_the_last_user_entry(manager: MemoryManager) -> None:
    manager.write_user_message("s-1", "one")
    asked = manager.write_user_message("s-1", "two")
    manager.write_assistant_message("s-1", "three")
    assert lines(manager, "s-1")[-1]["parent_uuid"] == asked


def test_a_tombstone_hides_an_entry_and_keeps_it_in_the_file(manager: MemoryManager) -> None:
    gone = manager.write_user_message("s-1", "forget this")
    manager.write_user_message("s-1", "but not this")
    manager.tombstone_entry("s-1", gone)
    assert [one.text for one in manager.load_session_messages("s-1")] == ["but not this"]
    assert loaded(manager, "s-1") == ["but not this"]
    assert b"forget this" in manager.session_path("s-1").read_bytes()
    with pytest.raises(NotFoundError):
        manager.tombstone_entry("s-1", "00000000-0000-4000-8000-000000000000")


def test_a_summary_is_shown_on_load_and_nothing_is_destroyed(manager: MemoryManager) -> None:
    for text in ("one", "two", "three"):
        manager.write_user_message("s-1", text)
    session = Session(manager._store, "s-1")
    session.append(Compaction(first_kept_seq=3, summary="They counted."))
    manager.write_user_message("s-1", "four")
    shown = [one.text for one in manager.load_session_messages("s-1")]
    assert "They counted." in shown[0]
    assert shown[1:] == ["three", "four"]
    assert loaded(manager, "s-1") == ["one", "two", "three", "four"]


def test_a_session_in_parts_is_one_row_with_the_right_count(manager: MemoryManager) -> None:
    whole = golden("cersei", "7d1f0a52-58c1-4e0e-9d67-2b1f6f0e9a01")
    for name, data in whole.files.items():
        (manager.sessions_dir / name).write_bytes(data)
    third = cersei_file(whole.name).replace(b"00000001-", b"00000011-")
    (manager.sessions_dir / f"{whole.name}_part3.jsonl").write_bytes(third.replace(b"hello", b"3"))
    (info,) = manager.list_sessions()
    paths = manager.all_part_paths(whole.name)
    assert [path.name.removeprefix(whole.name) for path in paths] == [
        ".jsonl", "_part2.jsonl", "_part3.jsonl",
    ]  # fmt: skip
    assert manager.total_session_size(whole.name) == sum(p.stat().st_size for p in paths)
    session = Session(manager._store, whole.name)
    assert info.message_count == session.metadata.message_count
    assert session.messages()[-2].text == "3"


@pytest.mark.slow
def test_a_session_rolls_over_and_is_refused_before_it_cannot_be_loaded(manager: MemoryManager) -> None:
    def fill(name: str) -> None:
        """Make a part as long as it may be, with nothing in it."""
        path = manager.sessions_dir / name
        room = 49_999_990 - (path.stat().st_size if path.exists() else 0)
        with path.open("ab") as opened:
            opened.write(b" " * (room - 1) + b"\n")

    manager.write_user_message("s-1", "one")
    fill("s-1.jsonl")
    manager.write_user_message("s-1", "two")
    assert [path.name for path in manager.all_part_paths("s-1")] == [
        "s-1.jsonl", "s-1_part2.jsonl",
    ]  # fmt: skip
    for name in ("s-1_part2.jsonl", "s-1_part3.jsonl", "s-1_part4.jsonl"):
        fill(name)
    with pytest.raises(StoreFullError, match="200000000"):
        manager.write_user_message("s-1", "three")
    assert len(manager.all_part_paths("s-1")) == 4
    assert [one.text for one in manager.load_session_messages("s-1")] == ["one", "two"]


def test_sessions_of_claude_code_in_the_same_directory_are_loaded(manager: MemoryManager) -> None:
    name = "3f1c7f0e-5c1a-4d0b-9a52-0c8f6a3b1d01"
    for path, data in golden("claude", name).files.items():
        (manager.sessions_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (manager.sessions_dir / path).write_bytes(data)
    manager.write_user_message("s-1", "one")
    assert {one.id for one in manager.list_sessions()} == {name, "s-1"}
    assert len(manager.load_session_messages(name)) > 1


def test_bare_message_files_are_read_and_continued(manager: MemoryManager) -> None:
    bare = golden("cersei", "bare")
    (manager.sessions_dir / "bare.jsonl").write_bytes(bare.files["bare.jsonl"])
    before = [one.text for one in manager.load_session_messages("bare")]
    manager.write_user_message("bare", "one more")
    assert [one.text for one in manager.load_session_messages("bare")] == [*before, "one more"]
    last = manager.session_path("bare").read_bytes().splitlines()[-1]
    assert json.loads(last) == {"role": "user", "content": "one more"}


def test_the_directory_of_the_project_is_found_under_any_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / "my project"
    project.mkdir()
    library, command, manual = cersei.project_directory(str(project))
    for name in (manual, command, library):  # the more usual one wins once it is there
        (tmp_path / ".claude" / "projects" / name).mkdir(parents=True)
        with MemoryManager(project, home=tmp_path / "home") as made:
            assert made.sessions_dir.name == name


def test_nonsense_is_refused_and_writes_nothing(manager: MemoryManager) -> None:
    for bad in ("../x", "a/b", "", ".hidden", "x_part2"):
        with pytest.raises((InvalidIdError, NotFoundError, FormatError)):
            manager.write_user_message(bad, "x")
    with pytest.raises(FormatError):
        manager.write_user_message("s-1", assistant("x"))
    with pytest.raises(FormatError):
        manager.write_user_message("s-1", {"role": "user"})
    assert list(manager.sessions_dir.iterdir()) == []
    assert manager.load_session_messages("nobody") == []


def test_tool_calls_and_results_keep_their_form(manager: MemoryManager) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
    manager.write_user_message("s-1", "look")
    manager.write_assistant_message("s-1", {"role": "assistant", "content": [call]})
    manager.write_user_message("s-1", tool_result("t1", "a.py"))
    manager.write_user_message("s-1", user("thanks"))
    _, second, third, _ = lines(manager, "s-1")
    assert second["message"]["content"] == [call]  # type: ignore[index]
    assert third["message"]["content"][0]["tool_use_id"] == "t1"  # type: ignore[index]
    shown = manager.load_session_messages("s-1")
    assert [one.role for one in shown] == ["user", "assistant", "toolResult", "user"]


def test_an_id_that_another_begins_with_is_a_session_of_its_own(manager: MemoryManager) -> None:
    manager.write_user_message("session-10", "ten")
    manager.write_user_message("session-1", "one")
    assert [one.text for one in manager.load_session_messages("session-10")] == ["ten"]
    assert [one.text for one in manager.load_session_messages("session-1")] == ["one"]
    with pytest.raises(NotFoundError):
        manager.tombstone_entry("session", "nobody")
