"""Conversations beside one another, without a daemon: what others say, and what is left behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import everlog
from everlog.session import Store
from tests.terminal.chat_driver import Start, begin, only_session, stops, wait_for_prompt
from tests.terminal.conftest import CONFIG
from tests.terminal.terminal import Terminal


def bar(screen: Terminal) -> int:
    """How many tokens the line below the input tells."""
    found = re.search(r"([0-9,]+) of [0-9,]+ tokens", screen.text.rpartition("\n")[2])
    return int(found[1].replace(",", "")) if found else -1


def test_two_chats_on_one_session_see_each_other_and_nothing_twice(terminal: Start) -> None:
    first, second = begin(terminal), begin(terminal)
    said = ("one", "two", "three", "four")
    for word, here, there in zip(said, (first, second) * 2, (second, first) * 2, strict=True):
        here.say(f"!say word {word}")
        for screen in (here, there):
            screen.wait_for(f"› !say word {word}", f"\nword {word}")
            wait_for_prompt(screen)
    for screen in (first, second):
        for word in said:
            assert screen.everything.count(f"› !say word {word}") == 1
            assert screen.everything.count(f"\nword {word}") == 1


def test_a_message_that_waited_and_was_answered_elsewhere_is_shown_in_order_and_once(terminal: Start) -> None:
    first, second = begin(terminal), begin(terminal)
    first.say("!wait 60")
    first.wait_for("Ctrl+C stops it")
    second.wait_for("› !wait 60")
    second.say("!say from the second")
    second.wait_for("queued: 1")
    first.press("ctrl c")
    second.wait_for("› !say from the second", "\nfrom the second", "✓")
    wait_for_prompt(second)
    first.say("!say at last")
    second.wait_for("\nat last")  # so it has looked behind all of the above
    shown = second.everything
    assert shown.count("› !say from the second") == shown.count("\nfrom the second") == 1
    assert shown.index("› !say from") < shown.index("\nfrom the second") < shown.index("\nat last")


def test_what_a_program_changes_is_shown_and_the_bar_follows(terminal: Start, store: Store) -> None:
    session = store.create(title="Fix the tests")
    session.append(everlog.user("why is it red?"))
    session.append(everlog.assistant("the clock"))
    screen = begin(terminal)
    before = bar(screen)
    session.append(everlog.user("and blue? " * 200))
    screen.wait_for("› and blue?")
    screen.wait_until(lambda: bar(screen) > before, "more tokens")
    session.rewind(2)
    screen.wait_for("· the session was rewound to #2")
    screen.wait_until(lambda: bar(screen) == before, "as many tokens as before")


def test_the_bar_follows_a_rewind_and_a_compaction(terminal: Start, store: Store) -> None:
    session = store.create(title="Fix the tests")
    for number in range(30):
        session.append(everlog.user(f"question {number}: " + "why " * 400))
        session.append(everlog.assistant(f"answer {number}: " + "because " * 400))
    screen = begin(terminal)
    full = bar(screen)
    screen.say("/rewind #58")
    screen.wait_for("rewound to #58")
    screen.wait_until(lambda: 0 < bar(screen) < full, "fewer tokens after a rewind")
    rewound = bar(screen)
    screen.say("/compact")
    screen.wait_for("compacted ")
    screen.wait_until(lambda: 0 < bar(screen) < rewound, "fewer tokens after a compaction")


@pytest.mark.parametrize("said", ["!wait 60", "!fail denied"])
def test_the_bar_follows_a_turn_that_has_no_answer(terminal: Start, said: str) -> None:
    screen = begin(terminal)
    before = bar(screen)
    screen.say(said)
    if said == "!wait 60":
        screen.wait_for("Ctrl+C stops it")
        screen.press("ctrl c")
    screen.wait_until(lambda: bar(screen) > before, "tokens of what was asked")


def test_the_bar_knows_the_window_that_is_set_for_a_provider(terminal: Start, root: Path) -> None:
    there = '[provider.there]\nbase_url = "http://127.0.0.1:9"\napi_key = "k"\nwindow = 54321\n'
    config = CONFIG.replace("[turn]", '[turn]\nmodel = "there:m"') + there
    (root / "config.toml").write_text(config)
    screen = begin(terminal)
    assert screen.text.endswith("0 of 54,321 tokens")
    screen.say("/context")
    screen.wait_for(" of 54,321 tokens (0 %)")


def test_leaving_tells_of_a_turn_in_a_session_that_was_left(terminal: Start, store: Store) -> None:
    screen = begin(terminal)
    session = only_session(store)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    screen.say("/new")
    screen.wait_until(lambda: screen.everything.count("New session") == 2, "the next session")
    wait_for_prompt(screen)
    screen.press("ctrl d")
    assert screen.wait_for_end() == 0
    assert f"the running turn in “{session.metadata.display_title}” is stopped" in screen.everything
    assert stops(session) == ["cancelled"]


def test_leaving_begins_no_turn_of_what_waits(terminal: Start, store: Store) -> None:
    screen = begin(terminal)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    screen.say("!wait 59")
    screen.wait_for("queued: 1")
    screen.press("ctrl d")
    assert screen.wait_for_end() == 0
    session = only_session(store)
    assert stops(session) == ["cancelled"]
    assert len(session.metadata.waiting) == 1


@pytest.mark.parametrize("command", ["/rewind #1", "/compact"])
def test_what_must_wait_for_a_turn_says_so_in_plain_words(terminal: Start, command: str) -> None:
    screen = begin(terminal)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    screen.say(command)
    screen.wait_for("✗ a turn of this session is running (wait until it ends, or stop it)")
    assert "pid" not in screen.everything


@pytest.mark.parametrize("columns", [30, 37, 44, 50])
def test_lines_break_between_words(terminal: Start, columns: int) -> None:
    screen = begin(terminal, columns=columns)
    screen.wait_for_words("main with user · in this process")
    screen.say("/fokr")
    screen.wait_for_words(
        "Unknown command /fokr. Did you mean /fork? Type /help for the list, or start with // to send the text as it is."
    )
    wait_for_prompt(screen)
    screen.say("/expand some")
    screen.wait_for_words("✗ /expand takes the number of folded items to show")


@pytest.mark.parametrize("columns", [24, 40, 60, 100])
def test_a_listing_has_a_row_for_each_session_however_narrow(terminal: Start, store: Store, columns: int) -> None:
    for number in range(3):
        session = store.create(title=f"{number}: a title of some length, 日本語 too", agent="poet")
        session.append(everlog.user("hello"))
    listing = terminal("sessions", "list", columns=columns)
    assert listing.wait_for_end() == 0
    head, *rows = listing.everything.rstrip().split("\n")
    assert head.startswith("ID") and "TITLE" in head
    assert [row[:8] for row in rows] == [one.id[:8] for one in store.list()]
    assert all(": a" in row for row in rows)


def test_an_export_in_a_format_that_there_is_not_is_refused(terminal: Start, store: Store, tmp_path: Path) -> None:
    screen = begin(terminal, columns=200)
    screen.say(f"/export pdf {tmp_path}/page")
    screen.wait_for("✗ unknown format 'pdf' (/export [md|html] [FILE]")
    assert [one.name for one in tmp_path.iterdir()] == ["root"]
    screen.say(f"/export md {tmp_path}/my notes.md")
    screen.wait_for("written:")
    assert (tmp_path / "my notes.md").exists()
