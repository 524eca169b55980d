"""Slash commands of `everlog chat`: each does what /help says of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import everlog
from everlog.cli.chat.slash_parser import SLASH_COMMANDS
from everlog.client import websocket
from everlog.memory.file_memory import memory_path
from everlog.memory.memory_directory import MemoryDirectory
from everlog.memory.notes import INDEX_FILE
from everlog.model import Compaction, Usage
from everlog.session import Session, Store
from everlog.wire import events
from tests.cli.runner import run_process
from tests.daemon.running_daemon import Daemon
from tests.terminal.chat_driver import Start, begin, only_session, wait_for_prompt
from tests.terminal.terminal import Terminal


@pytest.fixture
def session(store: Store) -> Session:
    """One with two exchanges."""
    made = store.create(title="Fix the tests")
    for question, answer in (("why is it red?", "the clock"), ("and blue?", "the sky")):
        made.append(everlog.user(question))
        made.append(everlog.assistant(answer))
    return made


@pytest.fixture
def screen(terminal: Start, session: Session) -> Terminal:
    """A conversation that goes on with it; wide, for paths."""
    return begin(terminal, columns=200)


def do(screen: Terminal, line: str, *shown: str) -> None:
    """Type a command and wait for what it shows, once more than before, and for the prompt."""
    before = {text: screen.everything.count(text) for text in shown}
    screen.say(line)
    for text, count in before.items():
        screen.wait_until(
            lambda text=text, count=count: screen.everything.count(text) > count,  # type: ignore[misc]
            f"{text!r} again",
        )
    wait_for_prompt(screen)


def test_help_lists_every_command_and_the_keys(screen: Terminal) -> None:
    do(screen, "/help", "Ctrl+D leaves")
    for name, verb in SLASH_COMMANDS.items():
        assert f"  /{name} {verb.usage}".rstrip() in screen.everything
        assert verb.help in screen.everything


def test_an_unknown_command_is_answered_with_the_nearest(screen: Terminal, store: Store) -> None:
    do(screen, "/fokr", "Unknown command /fokr. Did you mean /fork?")
    do(screen, "/home/me/x is broken", "Unknown command /home/me/x.", "start with // to send")
    assert only_session(store).metadata.message_count == 4, "nothing was said"


def test_two_slashes_say_what_begins_with_one(screen: Terminal, session: Session) -> None:
    do(screen, "//etc/hosts is what?", "› /etc/hosts is what?", "✓")
    assert session.messages()[-2].text == "/etc/hosts is what?"


def test_new_starts_the_next_session_and_an_empty_one_will_do(screen: Terminal, store: Store) -> None:
    do(screen, "/new", "New session")
    do(screen, "/new Another title", "Another title · main")
    assert store.list().total == 2
    do(screen, "!say hello", "\nhello", "✓")
    do(screen, "/new", "New Session · main")
    assert store.list().total == 3


def test_resume_goes_on_with_a_session_by_the_first_of_its_id(screen: Terminal, store: Store) -> None:
    other = store.create(agent="poet", title="Verses")
    other.append(everlog.user("a rhyme on everlog"))
    do(screen, f"/resume {other.id[:20]}", "› a rhyme on everlog", "poet with user")
    do(screen, "/resume 01ZZZZZZ", "✗ ")


def test_ids_are_completed_after_resume_and_names_after_a_slash(
    screen: Terminal, store: Store, session: Session
) -> None:
    other = store.create(title="Verses")
    screen.type("/ti")
    screen.wait_for("show or set the title")
    screen.press("tab")
    screen.wait_for("› /title")
    screen.press("ctrl c")
    wait_for_prompt(screen)
    screen.type("/resume vers")
    screen.wait_for(f"{other.id[:10]}… Verses")
    screen.press("tab")
    screen.wait_for(f"› /resume {other.id}")
    screen.press("enter")
    screen.wait_for(f"New session {other.id}")


def test_resume_alone_opens_the_picker(screen: Terminal, store: Store) -> None:
    other = store.create(title="Verses")
    other.append(everlog.user("a rhyme on everlog"))
    screen.say("/resume")
    screen.wait_until(lambda: screen.screen.is_alternate and "Verses" in screen.text)
    screen.type("verses")
    screen.wait_until(lambda: "Fix the tests" not in screen.text)
    screen.press("enter")
    screen.wait_until(lambda: not screen.screen.is_alternate)
    screen.wait_for("› a rhyme on everlog")
    wait_for_prompt(screen)


def test_sessions_are_listed_and_filtered(screen: Terminal, store: Store) -> None:
    store.create(title="Verses").append(everlog.user("hm"))
    do(screen, "/sessions", "TITLE", "Verses")
    do(screen, "/sessions nothing like it", "no session matches")


def test_a_title_is_shown_and_set(screen: Terminal, session: Session) -> None:
    do(screen, "/title", "\nFix the tests")
    do(screen, "/title Fix the clock", "the title is now: Fix the clock", "Fix the clock · main")
    assert session.metadata.display_title == "Fix the clock"


def test_compact_records_a_summary(screen: Terminal, session: Session) -> None:
    for number in range(30):
        session.append(everlog.user(f"question {number}: " + "why " * 400))
        session.append(everlog.assistant(f"answer {number}: " + "because " * 400))
    do(screen, "/compact the clock", "compacted ", "tokens")
    assert any(isinstance(one, Compaction) for one in session.records())


def test_context_shows_what_the_model_would_be_sent(screen: Terminal) -> None:
    do(screen, "/context", "of 128,000 tokens", "#1 user", "why is it red?", "#4 assistant")


def test_what_others_must_hear_of_goes_through_the_daemon(
    terminal: Start, daemon: Callable[[], Daemon], session: Session, store: Store
) -> None:
    serving = daemon()
    screen = begin(terminal)
    with serving.client() as client, client.connect() as socket:
        websocket.subscribe(socket, session.id, None)
        do(screen, "/title Fix the clock", "the title is now: Fix the clock")
        do(screen, "/context", "of 128,000 tokens", "#1 user", "#4 assistant")
        do(screen, "/compact", "not compacted: ")
        screen.say("/rewind 1")
        screen.wait_for("rewound to #2;")
        wait_for_prompt(screen, "and blue?")
        told = websocket.read_events(socket)
        changes = (one for one in told if isinstance(one, events.SessionRenamed | events.SessionChanged))
        assert [type(one) for one in islice(changes, 2)] == [events.SessionRenamed, events.SessionChanged]
    screen.press("ctrl c")
    wait_for_prompt(screen)
    do(screen, "/new", "New session")
    do(screen, "!say hello", "\nhello", "✓")
    assert screen.everything.count("was rewound") == 1
    assert len(session.messages()) == 2
    assert store.list().total == 2


def test_rewind_goes_back_to_before_a_prompt_and_offers_it_again(screen: Terminal, session: Session) -> None:
    screen.say("/rewind")
    screen.wait_for("  2  why is it red?", "  1  and blue?", "rewind to before which prompt?")
    screen.type("1\r")
    screen.wait_for("rewound to #2;")
    wait_for_prompt(screen, "and blue?")
    assert [one.text for one in session.messages()] == ["why is it red?", "the clock"]
    screen.press("ctrl c")
    wait_for_prompt(screen)
    do(screen, "/rewind 7", "✗ there is no prompt 7")
    do(screen, "/rewind x", "✗ /rewind takes the number of a prompt")
    do(screen, "/rewind #1", "rewound to #1")
    assert len(session.messages()) == 1


def test_fork_goes_on_in_a_copy(screen: Terminal, store: Store, session: Session) -> None:
    do(screen, "/fork #2", f"a copy of {session.id}", "the clock")
    do(screen, "!say here", "\nhere", "✓")
    assert len(session.messages()) == 4
    (other,) = (one for one in store.list() if one.id != session.id)
    texts = [one.text for one in store.session(other.id).messages()]
    assert texts == ["why is it red?", "the clock", "!say here", "here"]
    assert store.current().id == other.id, "the next chat goes on with it"  # type: ignore[union-attr]


def test_search_finds_what_was_said(screen: Terminal, session: Session) -> None:
    do(screen, "/search clock", f"Fix the tests  {session.id}", "#2 assistant", "«clock»")
    do(screen, "/search zebra", "no matches")
    do(screen, "/search", "✗ the search is empty")


def test_memory_shows_what_the_agent_remembers(screen: Terminal, root: Path) -> None:
    do(screen, "/memory", "the memory of main is empty")
    from everlog.cli.main import main

    assert main(["--home", str(root), "memory", "add", "The clock is five minutes slow."]) == 0
    assert any(one.path == INDEX_FILE for one in MemoryDirectory(memory_path(root, agent="main")).files())
    do(screen, "/memory", "The clock is five minutes slow")
    do(screen, "/memory zebra", "no matches")


def test_usage_sums_the_turns(screen: Terminal) -> None:
    do(screen, "!say hello", "\nhello", "✓")
    do(screen, "/usage", "  turns", "  tokens out", "  time")


def test_usage_is_what_the_statistics_tell_also_of_what_was_not_said_here(
    screen: Terminal, root: Path, session: Session
) -> None:
    taken = Usage(input_tokens=1_200, output_tokens=345, cache_read_tokens=6_789)
    session.append(everlog.user("and green?"))
    session.append(everlog.assistant("the grass", model="house-1", usage=taken))
    screen.wait_for("› and green?")
    do(screen, "/usage", "  turns ", "  tokens in ", "  tokens out ", "  cache reads ")
    shown = dict(re.findall(r"^  (turns|tokens in|tokens out|cache reads) +([0-9,]+)$", screen.text, re.M))
    told = run_process(root, "sessions", "stats", session.id, "--json").json["total"]
    names = ("turns", "inputTokens", "outputTokens", "cacheReadTokens")
    assert [int(one.replace(",", "")) for one in shown.values()] == [told[name] for name in names]
    assert shown["tokens in"] == "1,200"


def test_export_writes_a_page_and_not_over_a_file(screen: Terminal, session: Session, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    do(screen, f"/export html {page}", "written:")
    assert "why is it red?" in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600
    do(screen, f"/export {page}", "✗ ", "already exists")
    do(screen, f"/export md {tmp_path}", "written:")
    assert (tmp_path / f"{session.id}.md").read_text().startswith("# Fix the tests")
    nowhere = f"✗ there is no folder {tmp_path}/no/such (create it, or choose another file)"
    do(screen, f"/export md {tmp_path}/no/such/place.md", nowhere)
    do(screen, f"/export md {page}/place.md", "place.md: not a directory (choose")
    assert "Errno" not in screen.everything


def test_exit_leaves(screen: Terminal) -> None:
    screen.say("/exit")
    assert screen.wait_for_end() == 0
