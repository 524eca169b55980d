"""What a conversation bears: nonsense, a session that goes, a disk that will not have it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import everlog
from everlog.app import open_store
from everlog.session import Store
from tests.cli.runner import environment, run_process
from tests.daemon.running_daemon import Daemon
from tests.terminal.chat_driver import Start, begin, only_session, wait_for_prompt

Serve = Callable[..., Daemon]


@pytest.fixture(params=["here", "daemon"])
def place(request: pytest.FixtureRequest, daemon: Serve) -> Daemon | None:
    """Where turns run."""
    return daemon() if request.param == "daemon" else None


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_history_that_cannot_be_kept_does_not_disturb(terminal: Start, root: Path, kind: str) -> None:
    (root / "run").mkdir()
    kept = root / "run" / "chat_history"
    kept.mkdir() if kind == "folder" else kept.symlink_to(root / "elsewhere")
    screen = begin(terminal)
    screen.say("!say hello")
    screen.wait_for("\nhello", "✓")
    wait_for_prompt(screen)
    screen.press("up")
    screen.wait_until(lambda: screen.text.count("› !say hello") == 2, "what was typed before")
    assert "Traceback" not in screen.everything
    assert not (root / "elsewhere").exists()


def test_nonsense_after_a_command_is_a_line_and_the_chat_goes_on(terminal: Start) -> None:
    screen = begin(terminal)
    for text, answer in (
        ("/export a\0b", "✗ the file name is invalid"),
        ("/expand " + "9" * 5_000, "✗ /expand takes the number"),
        ("/expand some", "✗ /expand takes the number"),
        ("/fork #" + "9" * 5_000, "✗ /fork takes the number"),
    ):
        before = screen.everything.count(answer)
        screen.paste(text)
        screen.press("enter")
        screen.wait_until(lambda: screen.everything.count(answer) > before, answer)  # noqa: B023
        wait_for_prompt(screen)
    screen.say("!say still here")
    screen.wait_for("\nstill here")


def test_bytes_that_are_no_text_are_shown_as_they_are_stored(terminal: Start, store: Store) -> None:
    screen = begin(terminal)
    screen.send(b"!say one\xff two\r")
    screen.wait_for("› !say one\ufffd two", "\none\ufffd two", "✓")
    assert only_session(store).messages()[0].text == "!say one\ufffd two"


def test_a_session_that_was_deleted_is_told_of_and_new_starts_the_next(
    terminal: Start, store: Store, place: Daemon | None
) -> None:
    screen = begin(terminal, "--agent", "poet", "--sender", "ada")
    screen.say("!say hello")
    screen.wait_for("\nhello", "✓")
    wait_for_prompt(screen)
    if place is not None:
        with place.client() as client:
            client.delete(only_session(store).id)
    else:
        only_session(store).delete()
    screen.wait_for("✗ the session was deleted (/new starts a new session")
    screen.say("!say lost")
    screen.wait_until(lambda: screen.everything.count("/new starts a new session") == 2)
    screen.press("ctrl c")
    wait_for_prompt(screen)
    screen.say("/new")
    screen.wait_until(lambda: screen.everything.count("New session") == 2)
    wait_for_prompt(screen)
    screen.say("!say found")
    screen.wait_for("\nfound")
    metadata = only_session(store).metadata
    assert (metadata.agent, metadata.sender) == ("poet", "ada")


def test_a_message_that_another_chat_answers_is_shown_with_its_answer(terminal: Start) -> None:
    first, second = begin(terminal), begin(terminal)
    first.say("!wait 60")
    first.wait_for("Ctrl+C stops it")
    second.say("!say from the second")
    second.wait_for("queued: 1")
    first.press("ctrl c")
    second.wait_for("› !say from the second", "\nfrom the second", "✓")
    assert second.everything.index("› !say from the second") < second.everything.index("\nfrom the second")


@pytest.mark.parametrize(("model", "code"), [("nonsense", 2), (":x", 2), ("no-such-provider:x", 1)])
def test_a_model_that_cannot_be_is_refused_and_not_kept(
    root: Path, store: Store, place: Daemon | None, model: str, code: int
) -> None:
    refused = run_process(root, "chat", "--model", model, "-p", "!say none")
    assert refused.code == code and refused.err.count("\n") == 1 and refused.out == ""
    assert store.list().total == 0, "no session is made for it"
    assert run_process(root, "chat", "-p", "!say one").code == 0
    refused = run_process(root, "chat", "--model", model, "-p", "!say two")
    assert refused.code == code and refused.err.count("\n") == 1 and refused.out == ""
    assert run_process(root, "chat", "-p", "!say three").out == "three\n"
    assert [one.text for one in only_session(store).messages()][::2] == ["!say one", "!say three"]


def test_a_session_is_not_resumed_for_a_model_that_cannot_be_used(
    root: Path, store: Store, place: Daemon | None
) -> None:
    old, new = store.create(), store.create()
    refused = run_process(root, "chat", "--resume", old.id, "--model", "no-such:x", "-p", "hello")
    assert refused.code == 1 and "no provider 'no-such'" in refused.err
    assert store.current().id == new.id  # type: ignore[union-attr]
    taken = run_process(root, "chat", "--resume", old.id, "--model", "offline", "-p", "!say fine")
    assert taken.out == "fine\n"
    assert (old.metadata.model, old.metadata.model_chosen) == ("offline", True)
    assert store.current().id == old.id  # type: ignore[union-attr]


def test_words_that_are_not_utf_8_are_one_line(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "everlog", "chat", "--agent", b"\xff", "-p", "hello"],
        env=environment(root),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, b"everlog: the arguments are not valid UTF-8\n")


def test_a_terminal_without_a_keyboard_is_no_conversation(root: Path) -> None:
    outer, inner = os.openpty()
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m everlog chat <&-"],
        env=environment(root),
        stdout=inner,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(inner)
    os.close(outer)
    assert done.returncode == 2
    assert b"a chat needs a terminal" in done.stderr


def test_the_files_of_another_program_are_gone_on_with_where_they_lie(root: Path, store: Store, tmp_path: Path) -> None:
    store.create(title="Of our own").append(everlog.user("not this one"))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with open_store(f"claude:{theirs}", home=root) as live:
        session = live.create()
        session.append(everlog.user("from over there"))
        session.append(everlog.assistant("indeed"))
    there = ("--store", f"auto:{theirs}")
    for options in ((), ("--resume",), ("--resume", session.id)):
        done = run_process(root, "chat", *there, *options, "-p", "!say hello")
        assert (done.out, done.code) == ("hello\n", 0)
    with open_store(f"claude:{theirs}", home=root) as live:
        assert len(live.session(session.id).messages()) == 8
    named = run_process(root, "chat", *there, "--model", "offline", "-p", "!say again")
    assert named.out == "again\n", "the one that answers in any case"
    refused = run_process(root, "chat", *there, "--new", "-p", "hello")
    assert refused.code == 1 and "a new session needs a format" in refused.err
    assert run_process(root, "chat", "--store", f"claude:{theirs}", "--new", "-p", "!say new").out == "new\n"
    assert len(list(theirs.glob("*.jsonl"))) == 2
    assert store.list().total == 1, "nothing of it went to the root"
