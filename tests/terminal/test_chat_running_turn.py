"""Sessions that are entered while a turn of theirs is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.session import Store
from tests.daemon.running_daemon import Daemon
from tests.providers.fake_server import Answer, FakeServer
from tests.terminal.chat_driver import Start, begin, only_session, stops, use_server, wait_for_prompt
from tests.terminal.terminal import Terminal

Serve = Callable[..., Daemon]

UNDER_WAY = "… running · Ctrl+C stops it"


def leave(screen: Terminal) -> None:
    """End a conversation whose turn goes on."""
    screen.press("ctrl d")
    assert screen.wait_for_end() == 0
    assert "the running turn continues in the daemon" in screen.everything


def test_a_turn_that_ran_before_the_chat_is_seen_and_ctrl_c_stops_it(
    terminal: Start, daemon: Serve, store: Store
) -> None:
    daemon()
    first = begin(terminal)
    first.say("!wait 60")
    first.wait_for("Ctrl+C stops it")
    leave(first)
    second = begin(terminal)
    assert "a turn is running (Ctrl+C stops it)" in second.everything
    second.wait_for(UNDER_WAY)
    leave(second)
    third = begin(terminal)
    third.press("ctrl c")
    third.wait_for("stopped; the text so far is kept")
    third.wait_until(lambda: UNDER_WAY not in third.text, "rest")
    assert stops(only_session(store)) == ["cancelled"]
    third.say("!say still here")
    third.wait_for("\nstill here", "✓")


@pytest.mark.parametrize("place", ["here", "daemon"])
def test_a_turn_of_a_session_that_is_resumed_is_seen_and_ctrl_c_stops_it(
    terminal: Start, daemon: Serve, store: Store, place: str
) -> None:
    if place == "daemon":
        daemon()
    screen = begin(terminal)
    session = only_session(store)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    screen.say("/new")
    screen.wait_until(lambda: screen.everything.count("New session") == 2, "the next session")
    wait_for_prompt(screen)
    assert "Ctrl+C stops it" not in screen.text
    screen.say(f"/resume {session.id}")
    screen.wait_for("a turn is running", UNDER_WAY)
    screen.press("ctrl c")
    screen.wait_for("stopped; the text so far is kept")
    assert stops(session) == ["cancelled"]


def test_a_terminal_that_shows_only_lines_stops_it_too(terminal: Start, daemon: Serve, store: Store) -> None:
    serving = daemon()
    made = store.create()
    with serving.client() as client:
        client.submit(made.id, "!wait 60")
    screen = terminal("chat", TERM="dumb")
    screen.wait_for("a turn is running (Ctrl+C stops it)", ">")
    screen.press("ctrl c")
    screen.wait_for("stopped; the text so far is kept")


def test_an_answer_that_is_joined_in_the_middle_is_shown_whole_and_once(
    terminal: Start, daemon: Serve, root: Path, half: tuple[threading.Event, Answer]
) -> None:
    going_on, answer = half
    with FakeServer(answer) as server:
        use_server(root, server)
        daemon()
        first = begin(terminal)
        first.say("write something")
        first.wait_for("- the ta")
        leave(first)
        second = begin(terminal)
        second.wait_for("its answer is shown when it is complete")
        going_on.set()
        second.wait_for("✓")
        wait_for_prompt(second)
        for text in ("A heading", "The first paragraph.", " • the tail of a list", "The last"):
            assert second.everything.count(text) == 1
        said = [second.everything.index(text) for text in ("a turn is running", "A heading", "The last")]
        assert said == sorted(said)


def test_an_answer_that_is_joined_and_stopped_shows_what_was_said(
    terminal: Start, daemon: Serve, root: Path, half: tuple[threading.Event, Answer]
) -> None:
    with FakeServer(half[1]) as server:
        use_server(root, server)
        daemon()
        first = begin(terminal)
        first.say("write something")
        first.wait_for("- the ta")
        leave(first)
        second = begin(terminal)
        second.press("ctrl c")
        second.wait_for("stopped; the text so far is kept")
        assert second.everything.count("The first paragraph.") == 1
        assert second.everything.index("The first") < second.everything.index("stopped;")
