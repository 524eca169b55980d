"""Programs that continue their conversation from before entries that we appended meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everlog.interop.formats.claude import FORMAT as claude
from everlog.interop.formats.pi import FORMAT as pi
from everlog.model import ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.foreign.foreign_directories import PI, SESSIONS, made
from tests.formats.claude_session import ID
from tests.formats.claude_session import Session as Transcript


def texts(session: Session) -> list[str]:
    return [message.text for message in session.live().messages]


def reports(store: Store) -> list[str]:
    port: Any = store.port
    return list(port.reports)


class Claude:
    """Claude Code, waiting for its model after a prompt."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.file = self.root / f"{ID}.jsonl"
        self.root.mkdir()
        self.transcript = Transcript()
        self.transcript.user("first")
        self.transcript.answer("one")
        self.transcript.user("second")
        self._write("w")

    def _write(self, mode: str) -> None:
        with self.file.open(mode) as file:
            file.writelines(json.dumps(item) + "\n" for item in self.transcript.objects)
        self.transcript.objects.clear()

    def answer(self, text: str) -> None:
        """Append an answer to the entry that it knows as the last one."""
        self.transcript.answer(text)
        self._write("a")


@pytest.fixture
def program(tmp_path: Path) -> Claude:
    return Claude(tmp_path)


@pytest.fixture
def store(program: Claude, tmp_path: Path) -> Iterator[Store]:
    with open_foreign_store(program.root, tmp_path / "home", claude) as opened:
        yield opened


def fresh(program: Claude, tmp_path: Path) -> list[str]:
    """Return what a store shows that sees the directory for the first time."""
    with open_foreign_store(program.root, tmp_path / "fresh", claude) as opened:
        return texts(opened.session(ID))


def test_records_of_a_running_turn_are_written_again_behind_the_answer(
    program: Claude, store: Store, tmp_path: Path
) -> None:
    session = store.session(ID)
    before = program.file.read_bytes()
    with session.lease() as lease:
        session.append(user("ours"), lease=lease)
        program.answer("two")
        assert texts(session) == ["first", "one", "second", "two", "ours"]
        session.append(assistant("our answer"), lease=lease)
    expected = ["first", "one", "second", "two", "ours", "our answer"]
    assert texts(session) == expected == fresh(program, tmp_path)
    assert program.file.read_bytes().startswith(before)
    assert reports(store) == []


def test_each_continuation_of_the_program_is_followed_while_the_turn_runs(
    program: Claude, store: Store, tmp_path: Path
) -> None:
    session = store.session(ID)
    with session.lease() as lease:
        session.append(user("ours"), lease=lease)
        for number in range(3):
            program.answer(f"more {number}")
            assert texts(session)[-1] == "ours"
    assert fresh(program, tmp_path) == ["first", "one", "second", "more 0", "more 1", "more 2", "ours"]


def test_a_call_and_its_result_move_together(program: Claude, store: Store, tmp_path: Path) -> None:
    session = store.session(ID)
    with session.lease() as lease:
        session.append(user("look"), lease=lease)
        session.append(assistant([ToolCall("c1", "read", {"path": "a"})]), lease=lease)
        session.append(tool_result("c1", "content of a"), lease=lease)
        program.answer("two")
        session.append(assistant("I have read it"), lease=lease)
    expected = ["first", "one", "second", "two", "look", "", "content of a", "I have read it"]
    assert texts(session) == expected == fresh(program, tmp_path)


def test_records_that_no_running_turn_appended_are_reported_once_and_stay_in_the_file(
    program: Claude, store: Store
) -> None:
    session = store.session(ID)
    session.append(user("ours"))
    program.answer("two")
    for _ in range(2):
        assert texts(session) == ["first", "one", "second", "two"]
    (report,) = reports(store)
    assert "from before 1 records of ours" in report
    assert b'"ours"' in program.file.read_bytes()


def test_what_the_program_itself_left_is_not_reported(program: Claude, store: Store) -> None:
    session = store.session(ID)
    assert texts(session) == ["first", "one", "second"]
    program.transcript.leaf = None
    program.transcript.user("asked anew")
    program.answer("answered anew")
    assert texts(session) == ["asked anew", "answered anew"]
    assert reports(store) == []


def test_pi_continues_from_before_our_entry(tmp_path: Path) -> None:
    files, session_id = SESSIONS["pi"]
    root = made(tmp_path / "root", files)
    file = root / f"{PI}.jsonl"
    leaf = json.loads(file.read_bytes().splitlines()[-1])["id"]
    entry = {
        "type": "message",
        "id": "feed0001",
        "parentId": leaf,
        "timestamp": "2026-01-05T10:00:00.000Z",
        "message": {"role": "user", "content": "theirs", "timestamp": 1767607200000},
    }
    with open_foreign_store(root, tmp_path / "home", pi) as store:
        session = store.session(session_id)
        before = texts(session)
        with session.lease() as lease:
            session.append(user("ours"), lease=lease)
            with file.open("a") as opened:
                opened.write(json.dumps(entry) + "\n")
        assert texts(session) == [*before, "theirs", "ours"]
    with open_foreign_store(root, tmp_path / "fresh", pi) as store:
        assert texts(store.session(session_id)) == [*before, "theirs", "ours"]
