"""Sessions of other programs in a chat: only read, until their user says to continue here."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlog.session import Store
from tests.cli.runner import run_process
from tests.foreign.foreign_directories import cersei_file, crabtalk_file, made
from tests.terminal.chat_driver import Start, begin, wait_for_prompt
from tests.terminal.conftest import CONFIG


@pytest.fixture
def file(root: Path, tmp_path: Path) -> Path:
    """A session of Cersei that may be written to; beside it is one of CrabTalk that may not."""
    made(tmp_path / "cersei", {"s-1.jsonl": cersei_file("s-1")})
    made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file(title="Crabs")})
    stores = f'[[stores]]\nlocation = "cersei:{tmp_path}/cersei"\nmode = "write"\n'
    stores += f'[[stores]]\nlocation = "crabtalk:{tmp_path}/crab"\n'
    (root / "config.toml").write_text(CONFIG + stores)
    return tmp_path / "cersei" / "s-1.jsonl"


def test_a_session_of_another_program_is_continued_after_its_user_agrees(terminal: Start, file: Path) -> None:
    before = file.read_bytes()
    screen = begin(terminal, "--resume", "s-1", columns=200)
    notice = "This is a session of cersei. Nothing is written to its file before you say so."
    for text in (notice, "cd /w && abstract --resume s-1", "/copy", f"offline answers, and writes to {file}"):
        assert text in screen.everything
    screen.say("!say too soon")
    screen.wait_until(lambda: screen.everything.count(notice) == 2, "the notice again")
    wait_for_prompt(screen, "!say too soon")
    screen.press("ctrl c")
    wait_for_prompt(screen)
    screen.say("/help")
    screen.wait_for("Ctrl+D leaves")
    assert "  /continue" in screen.everything and "  /rewind" in screen.everything
    assert "  /fork" not in screen.everything and "  /title" not in screen.everything, "Cersei has no place for them"
    wait_for_prompt(screen)
    screen.say("/fork")
    screen.wait_for("this session of cersei cannot be forked")
    wait_for_prompt(screen)
    assert file.read_bytes() == before
    screen.say("/continue")
    screen.wait_for("Continue here? (y/N)")
    screen.say("n")
    screen.wait_for("nothing is written")
    wait_for_prompt(screen)
    screen.say("/continue")
    screen.wait_until(lambda: screen.everything.count("Continue here? (y/N)") == 2, "the question again")
    screen.say("y")
    screen.wait_for(f"continuing in {file}")
    wait_for_prompt(screen)
    assert file.read_bytes() == before
    screen.say("!say from here")
    screen.wait_for("\nfrom here", "✓")
    wait_for_prompt(screen)
    added = file.read_bytes().removeprefix(before)
    assert added.count(b"from here") == 2 and b"too soon" not in added


def test_what_is_only_read_can_be_copied(terminal: Start, file: Path, tmp_path: Path, store: Store) -> None:
    crab = tmp_path / "crab" / "crab_user_1.jsonl"
    before = crab.read_bytes()
    screen = begin(terminal, "--resume", "crab_user_1", columns=200)
    assert "which is only read here" in screen.everything and "/continue" not in screen.everything
    screen.say("hello?")
    screen.wait_for("is only read here and cannot be continued")
    wait_for_prompt(screen, "hello?")
    screen.press("ctrl c")
    screen.say("/copy")
    screen.wait_for("a copy of crab_user_1", "Crabs · 01")
    wait_for_prompt(screen)
    screen.say("!say ours")
    screen.wait_for("\nours", "✓")
    wait_for_prompt(screen)
    assert crab.read_bytes() == before
    (copy,) = store.list()
    assert copy.metadata.message_count == 4 and copy.metadata.title == "Crabs"


def test_a_single_prompt_needs_an_option(root: Path, file: Path) -> None:
    before = file.read_bytes()
    refused = run_process(root, "chat", "--resume", "s-1", "-p", "!say hello")
    assert refused.code == 1 and "--continue-here" in refused.err and str(file) in refused.err
    assert file.read_bytes() == before
    answered = run_process(root, "chat", "--resume", "s-1", "--continue-here", "-p", "!say hello")
    assert (answered.code, answered.out) == (0, "hello\n")
    assert file.read_bytes().removeprefix(before).count(b"hello") == 2
