"""`everlog chat` as a person meets it: on a terminal, with and without a daemon."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import everlog
from everlog.session import Store
from tests.daemon.running_daemon import Daemon
from tests.providers.fake_server import Answer, FakeServer, chat
from tests.terminal.chat_driver import Start, begin, only_session, stops, use_server, wait_for_prompt

Serve = Callable[..., Daemon]


@pytest.fixture(params=["here", "daemon"])
def place(request: pytest.FixtureRequest, daemon: Serve) -> str:
    """Where turns run; the same is seen in both."""
    if request.param == "daemon":
        daemon()
        return "through the daemon at"
    return "in this process"


def test_a_message_is_answered_and_the_next_chat_goes_on_with_it(terminal: Start, store: Store, place: str) -> None:
    first = begin(terminal)
    assert "New session" in first.everything
    assert place in first.everything
    first.say("tell me of **everlog**")
    first.wait_for("› tell me of **everlog**", "everlog's offline model", "tokens in")
    wait_for_prompt(first)
    first.press("ctrl d")
    assert first.wait_for_end() == 0
    session = only_session(store)
    assert [one.role for one in session.messages()] == ["user", "assistant"]
    assert session.messages()[0].cwd == os.getcwd()

    second = begin(terminal)
    shown = second.everything
    assert session.id in shown
    assert "2 messages" in shown
    assert "now" in shown
    assert "› tell me of" in shown
    assert "offline model" in shown


def test_a_turn_that_runs_is_stopped_by_ctrl_c_and_the_program_goes_on(
    terminal: Start, store: Store, place: str
) -> None:
    screen = begin(terminal)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    screen.press("ctrl c")
    screen.wait_for("stopped; the text so far is kept")
    wait_for_prompt(screen)
    screen.say("!say still here")
    screen.wait_for("\nstill here", "✓")
    wait_for_prompt(screen)
    assert stops(only_session(store)) == ["cancelled", "end"]


def test_what_is_typed_while_a_turn_runs_waits_for_its_own(terminal: Start, store: Store, place: str) -> None:
    screen = begin(terminal)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    screen.say("!say and now me")
    screen.wait_for("queued: 1")
    screen.wait_until(lambda: screen.text.endswith(" · queued: 1"), "bar that tells it too")
    screen.press("ctrl c")
    screen.wait_for("› !say and now me")
    screen.wait_for("\nand now me", "✓")
    wait_for_prompt(screen)
    assert not screen.text.endswith("queued: 1")
    said = [one.text for one in only_session(store).messages() if one.role == "user"]
    assert said == ["!wait 60", "!say and now me"]


def test_tool_calls_and_thinking_are_one_line_each_and_unfold(terminal: Start, place: str) -> None:
    screen = begin(terminal)
    screen.type("!think first this, then that")
    screen.press("alt enter")
    screen.type('!call current_time {"timezone": "Europe/Berlin"}')
    screen.press("enter")
    screen.wait_for("✻ thought: first this, then that", "⚙ current_time Europe/Berlin ✓ 0.")
    screen.wait_for("1 tool call")
    wait_for_prompt(screen)
    assert '"timezone"' not in screen.everything.rpartition("⚙")[2]
    screen.press("ctrl o")
    screen.wait_for('    "timezone": "Europe/Berlin"')
    screen.say("/expand 1")
    screen.wait_until(lambda: screen.everything.count('"timezone": "Europe/Berlin"\n') == 2)


def test_words_are_seen_as_they_come_and_rendered_when_a_block_is_complete(
    terminal: Start, root: Path, half: tuple[threading.Event, Answer]
) -> None:
    going_on, answer = half
    with FakeServer(answer) as server:
        use_server(root, server)
        screen = begin(terminal)
        screen.say("write something")
        screen.wait_for("The first paragraph.", "- the ta")
        assert "# A heading" not in screen.text, "a heading is rendered, not shown as typed"
        assert "A heading" in screen.text
        going_on.set()
        screen.wait_for(" • the tail of a list")
        wait_for_prompt(screen)
        assert "- the ta" not in screen.text, "what was shown for the moment is gone"
        assert screen.text.count("The first paragraph.") == 1


def test_a_stream_that_is_stopped_keeps_what_was_said(
    terminal: Start, root: Path, store: Store, half: tuple[threading.Event, Answer]
) -> None:
    with FakeServer(half[1], chat("and ", "on")) as server:
        use_server(root, server)
        screen = begin(terminal)
        screen.say("write something")
        screen.wait_for("- the ta")
        screen.press("ctrl c")
        screen.wait_for("stopped; the text so far is kept")
        wait_for_prompt(screen)
        screen.say("go on")
        screen.wait_for("and on", "100 tokens in (60 cached), 7 out")
        wait_for_prompt(screen)
    _, stopped, _, last = only_session(store).messages()
    assert stopped.stop_reason == "cancelled"
    assert stopped.text.endswith("the ta")
    assert last.text == "and on"


HOSTILE = (
    "before \x1b[2J\x1b[31mred\x1b]0;title\x07 \x9b31m \u202eevil\n\n"
    "<script>alert(1)</script> [link](javascript:alert(1))\n\n"
)


def test_an_answer_with_escapes_does_no_harm(terminal: Start, root: Path) -> None:
    with FakeServer(chat(HOSTILE, "\n\nthe end")) as server:
        use_server(root, server)
        screen = begin(terminal)
        screen.say("be evil")
        screen.wait_for("<script>alert(1)</script>", "the end", "7 out")
        assert "before ␛[2J␛[31mred␛]0;title␇" in screen.everything
        assert b"\x1b]0;" not in screen.raw
        assert b"\xe2\x80\xae" not in screen.raw
        assert b"\x1b]8;" not in screen.raw, "no link that a click could follow"


def test_a_line_of_five_megabytes_is_shown_and_the_chat_goes_on(terminal: Start, root: Path) -> None:
    with FakeServer(chat("start\n\n", "x" * 5_000_000, "\n\nthe end"), chat("fine")) as server:
        use_server(root, server)
        screen = terminal("chat", is_drawn=False, PROMPT_TOOLKIT_NO_CPR="1")
        screen.wait_until(lambda: "›".encode() in screen.raw)
        screen.type("be long\r")
        screen.wait_until(lambda: b"7 out" in screen.raw[-2000:], "end of the turn", seconds=60)
        assert screen.raw.count(b"x") >= 5_000_000
        screen.type("and now?\r")
        screen.wait_until(lambda: b"fine" in screen.raw[-2000:])
        screen.press("ctrl d")
        assert screen.wait_for_end() == 0


def test_ctrl_c_at_rest_gives_up_what_was_typed_or_says_how_to_leave(terminal: Start) -> None:
    screen = begin(terminal)
    screen.type("not this")
    screen.wait_for("› not this")
    screen.press("ctrl c")
    wait_for_prompt(screen)
    assert "not this" not in screen.text
    screen.press("ctrl c")
    screen.wait_for("to leave, press Ctrl+D or type /exit")
    screen.press("ctrl d")
    assert screen.wait_for_end() == 0


def test_pasted_lines_are_one_message_and_the_history_is_kept_for_its_owner(
    terminal: Start, root: Path, store: Store
) -> None:
    screen = begin(terminal)
    screen.paste("line one\nline two")
    screen.wait_for("line two")
    screen.press("enter")
    screen.wait_for("tokens in")
    wait_for_prompt(screen)
    assert only_session(store).messages()[0].text == "line one\nline two"
    screen.press("ctrl d")
    screen.wait_for_end()
    kept = root / "run" / "chat_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    again = begin(terminal)
    again.press("up")
    again.wait_until(lambda: again.text.count("› line one\n  line two") == 2)


def test_new_and_resume_choose_the_session(terminal: Start, store: Store) -> None:
    old = store.create(title="The old one")
    old.append(everlog.user("about the old one"))
    other = store.create(agent="other", sender="somebody", title="Of another pair")
    other.append(everlog.user("about another pair"))

    screen = begin(terminal)
    assert "The old one" in screen.everything
    screen.press("ctrl d")
    screen.wait_for_end()

    newest = begin(terminal, "--resume")
    assert "Of another pair" in newest.everything
    assert "other with somebody" in newest.everything
    newest.press("ctrl d")
    newest.wait_for_end()

    fresh = begin(terminal, "--new")
    assert "New session" in fresh.everything
    fresh.say("!say hello")
    fresh.wait_for("\nhello", "✓")
    wait_for_prompt(fresh)
    fresh.press("ctrl d")
    fresh.wait_for_end()
    assert store.current().id not in (old.id, other.id)  # type: ignore[union-attr]

    named = begin(terminal, "--resume", old.id[:20])
    assert "about the old one" in named.everything
    assert store.current().id == old.id, "routing follows it"  # type: ignore[union-attr]


def test_an_agent_a_sender_and_a_model_can_be_chosen(terminal: Start, store: Store) -> None:
    screen = begin(terminal, "--agent", "poet", "--sender", "ada", "--model", "offline")
    assert "poet with ada" in screen.everything
    metadata = only_session(store).metadata
    assert (metadata.agent, metadata.sender, metadata.model) == ("poet", "ada", "offline")
    assert metadata.model_chosen


def test_an_agent_of_an_unknown_name_is_started_only_when_confirmed(terminal: Start, store: Store) -> None:
    screen = terminal("chat", "--agent", "pote")
    screen.wait_for("there is no agent 'pote'; known: ", "poet", "Start it?")
    screen.send(b"n\r")
    assert screen.wait_for_end() == 130
    assert store.list().total == 0
    screen = terminal("chat", "--agent", "pote")
    screen.wait_for("Start it?")
    screen.send(b"y\r")
    wait_for_prompt(screen)
    assert only_session(store).metadata.agent == "pote"


def test_without_colours_nothing_is_coloured(terminal: Start) -> None:
    screen = begin(terminal, NO_COLOR="1")
    screen.say("!say **bold** and `code`")
    screen.wait_for("bold and code")
    screen.say("/sessions")
    screen.wait_for("TITLE")
    wait_for_prompt(screen)
    assert screen.colours == []
    coloured = begin(terminal)
    assert coloured.colours != [], "else the test could not fail"


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal: Start) -> None:
    screen = terminal("chat", TERM="dumb")
    screen.wait_for(">")
    screen.say("!wait 60")
    screen.wait_for("› !wait 60")
    screen.press("ctrl c")
    screen.wait_for("stopped; the text so far is kept")
    screen.say("!say **still** here")
    screen.wait_for("\nstill here", "✓")
    screen.say("/usage")
    screen.wait_for("tool calls")
    screen.press("ctrl d")
    assert screen.wait_for_end() == 0
    assert b"\x1b" not in screen.raw


def test_forty_columns_are_enough(terminal: Start) -> None:
    screen = begin(terminal, columns=40, rows=20)
    screen.say("!stream 60")
    screen.wait_for("word60", "✓")
    wait_for_prompt(screen)
    for name in ("/help", "/sessions", "/context", "/usage"):
        screen.say(name)
        wait_for_prompt(screen)
    assert "✗" not in screen.everything
    bar = screen.text.split("\n")[-1]
    assert "tokens" in bar
    assert len(bar) <= 40


def test_a_failure_of_the_model_is_one_line_and_the_chat_goes_on(terminal: Start) -> None:
    screen = begin(terminal)
    screen.say("!fail denied")
    screen.wait_for("✗ the script asked for a key that is not accepted")
    screen.say("!say better")
    screen.wait_for("\nbetter")


def test_a_daemon_that_is_killed_is_told_of_and_the_chat_goes_on_without_it(
    terminal: Start, daemon: Serve, store: Store
) -> None:
    serving = daemon()
    screen = begin(terminal)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    serving.process.send_signal(signal.SIGKILL)
    screen.wait_for("✗ lost the daemon")
    assert "Ctrl+C stops it" not in screen.text
    screen.say("!say alone")
    screen.wait_for("continuing in this process", "\nalone", "✓")
    roles = [one.role for one in only_session(store).messages()]
    assert roles == ["user", "user", "assistant"]


def test_a_daemon_that_is_started_again_is_found_again(terminal: Start, daemon: Serve) -> None:
    serving = daemon()
    screen = begin(terminal)
    serving.process.send_signal(signal.SIGKILL)
    screen.wait_for("✗ lost the daemon")
    serving.process.wait(60)
    daemon()
    screen.wait_for("the daemon is back")
    screen.say("!say together")
    screen.wait_for("\ntogether")
    assert "in this process" not in screen.everything


def test_leaving_during_a_turn_records_its_end(terminal: Start, store: Store) -> None:
    screen = begin(terminal)
    screen.say("!wait 60")
    screen.wait_for("Ctrl+C stops it")
    screen.press("ctrl d")
    assert screen.wait_for_end() == 0
    assert "the running turn is stopped" in screen.everything
    assert stops(only_session(store)) == ["cancelled"]


def test_a_message_of_somebody_else_is_shown_with_its_answer(terminal: Start, daemon: Serve, store: Store) -> None:
    serving = daemon()
    screen = begin(terminal)
    with serving.client() as client:
        client.send(only_session(store).id, "!say from elsewhere")
    screen.wait_for("› !say from elsewhere", "\nfrom elsewhere")
