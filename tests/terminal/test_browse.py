"""`everlog sessions browse` on a real terminal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from everlog.model import ToolCall, assistant, tool_result, user
from everlog.session import Session, Store
from tests.cli.runner import run_process
from tests.terminal.terminal import Terminal

Begin = Callable[..., Terminal]


@pytest.fixture
def sessions(store: Store) -> dict[str, Session]:
    """Three sessions, the last one newest."""
    made = {
        "login": store.create(title="Fix the login test", agent="coder"),
        "trip": store.create(title="Plan a trip", sender="alice"),
        "index": store.create(title="Rebuild the index"),
    }
    made["login"].append(user("It fails every third run."))
    made["trip"].append(user("Where do pelicans live in winter?"))
    made["trip"].append(assistant([ToolCall("tc", "bash", {"command": "birds --where"})]))
    made["trip"].append(tool_result("tc", "found"))
    made["trip"].append(assistant("By the sea."))
    made["index"].append(user("Why is it slow?"))
    store.close()  # the terminal's process is another one
    return made


def browse(terminal: Begin, *options: str, **how: object) -> Terminal:
    shown = terminal("sessions", "browse", *options, **how)
    drawn = ("Filter:", "F1 help")  # the first row and the last
    shown.wait_until(lambda: shown.screen.is_alternate and all(one in shown.text for one in drawn))
    return shown


def highlighted(shown: Terminal) -> str:
    """The row with the mark."""
    return next((row for row in shown.text.splitlines() if row.startswith("› ")), "")


def wait_for_row(shown: Terminal, title: str) -> None:
    shown.wait_until(lambda: title in highlighted(shown), f"{title!r} highlighted")


def test_the_newest_session_is_highlighted_and_the_columns_tell_of_each(
    terminal: Begin, sessions: dict[str, Session]
) -> None:
    shown = browse(terminal, columns=140)
    wait_for_row(shown, "Rebuild the index")
    shown.wait_for("Plan a trip", "Fix the login test", "1 of 3")
    titles = next(row for row in shown.text.splitlines() if "TITLE" in row)
    assert titles.split("│")[0].split() == ["TITLE", "AGENT", "SENDER", "MSGS", "ACTIVE", "SIZE"]
    row = next(row for row in shown.text.splitlines() if "Plan a trip" in row)
    assert row.split("│")[0].split()[3:7] == ["main", "alice", "4", "now"]


def test_typing_filters_by_title_and_escape_clears_and_then_leaves(
    terminal: Begin, sessions: dict[str, Session]
) -> None:
    shown = browse(terminal)
    shown.type("LOGIN")
    wait_for_row(shown, "Fix the login test")
    shown.wait_until(lambda: "Plan a trip" not in shown.text, "fewer rows")
    shown.press("escape")
    shown.wait_for("Plan a trip")
    shown.wait_until(lambda: "LOGIN" not in shown.text, "an empty filter")
    shown.press("escape")
    assert shown.wait_for_end() == 0
    assert not shown.screen.is_alternate


def test_typing_finds_what_was_said_and_shows_the_passage(terminal: Begin, sessions: dict[str, Session]) -> None:
    shown = browse(terminal)
    shown.type("pelica")
    wait_for_row(shown, "Plan a trip")
    shown.wait_until(lambda: "    Where do pelicans live" in shown.text, "the passage")
    shown.type("q")
    shown.wait_for("no session matches")


def test_the_preview_follows_the_highlight_and_tab_hides_it(terminal: Begin, sessions: dict[str, Session]) -> None:
    shown = browse(terminal)
    shown.wait_for("Why is it slow?")
    shown.press("down")
    wait_for_row(shown, "Plan a trip")
    shown.wait_for("By the sea.", "✓ bash birds --where", sessions["trip"].id)
    shown.press("tab")
    shown.wait_until(lambda: "By the sea." not in shown.text, "no preview")
    shown.press("ctrl p")
    shown.wait_until(lambda: "By the sea." in shown.text, "the preview")


def test_rename_is_typed_in_place_and_escape_leaves_the_title(
    terminal: Begin, sessions: dict[str, Session], root: Path
) -> None:
    shown = browse(terminal)
    wait_for_row(shown, "Rebuild the index")
    shown.press("ctrl r")
    shown.wait_for("Title: Rebuild the index")
    shown.type(" for nothing")
    shown.press("escape")
    shown.wait_for("the title is unchanged")
    shown.press("ctrl r")
    shown.type(" twice")
    shown.wait_for("Title: Rebuild the index twice")
    shown.press("enter")
    wait_for_row(shown, "Rebuild the index twice")
    shown.press("ctrl c")
    assert shown.wait_for_end() == 0
    done = run_process(root, "sessions", "list", "--json").json
    assert {one["name"] for one in done["sessions"]} >= {"Rebuild the index twice", "Plan a trip"}


def test_delete_asks_and_only_y_deletes(terminal: Begin, sessions: dict[str, Session], root: Path) -> None:
    shown = browse(terminal)
    for key in ("n", "\r", "\x1b"):
        shown.press("ctrl d")
        shown.wait_for("Delete permanently? Type y: Rebuild the index, 1 message")
        shown.type(key)
        shown.wait_for("nothing was deleted")
        shown.press("home")
        shown.wait_until(lambda: "nothing was deleted" not in shown.text, "the next key")
    shown.press("ctrl d")
    shown.wait_until(lambda: "Delete permanently?" in shown.text, "the question")
    shown.type("y")
    shown.wait_for("deleted Rebuild the index", "1 of 2")
    wait_for_row(shown, "Plan a trip")
    shown.press("escape")
    assert shown.wait_for_end() == 0
    left = {one["id"] for one in run_process(root, "sessions", "list", "--json").json["sessions"]}
    assert left == {sessions["login"].id, sessions["trip"].id}


def test_a_session_that_is_in_use_is_not_deleted_and_the_picker_goes_on(
    terminal: Begin, sessions: dict[str, Session]
) -> None:
    with sessions["index"].lease():
        shown = browse(terminal)
        shown.press("ctrl d")
        shown.wait_for("Delete permanently?")
        shown.type("y")
        shown.wait_until(lambda: "Rebuild the index" in highlighted(shown), "the row")
        shown.wait_for("is running in process")
        shown.wait_until(lambda: "wait until it ends" in shown.everything.replace("\n", ""))
    shown.press("down")
    wait_for_row(shown, "Plan a trip")


def test_enter_goes_on_in_a_chat_with_the_session(terminal: Begin, sessions: dict[str, Session]) -> None:
    shown = browse(terminal)
    shown.press("down")
    wait_for_row(shown, "Plan a trip")
    shown.press("enter")
    shown.wait_until(lambda: not shown.screen.is_alternate and "Plan a trip" in shown.everything, "chat")
    shown.press("ctrl d")
    assert shown.wait_for_end() == 0


def test_with_json_the_picked_session_is_the_answer(terminal: Begin, sessions: dict[str, Session]) -> None:
    shown = browse(terminal, "--json", NO_COLOR="1")
    shown.press("end")
    wait_for_row(shown, "Fix the login test")
    shown.press("enter")
    assert shown.wait_for_end() == 0
    after = shown.raw.rpartition(b"\x1b[?1049l")[2]  # the picker has given the screen back
    answer = json.loads(after[after.index(b"{\r\n") :])
    assert answer["session"]["id"] == sessions["login"].id


def test_a_small_screen_has_the_title_and_the_time_and_grows_with_its_window(
    terminal: Begin, sessions: dict[str, Session]
) -> None:
    shown = browse(terminal, rows=15, columns=40)
    wait_for_row(shown, "Rebuild the index")
    titles = next(row for row in shown.text.splitlines() if "TITLE" in row)
    assert titles.split() == ["TITLE", "ACTIVE"]
    assert "Why is it slow?" not in shown.text  # the preview waits to be asked for
    shown.press("tab")
    shown.wait_for("Why is it slow?")
    shown.resize(rows=24, columns=120)
    shown.wait_until(lambda: "SENDER" in shown.text or "AGENT" in shown.text, "more columns")
    shown.wait_until(lambda: "│" in shown.text, "the preview at the side")


def test_a_screen_that_was_very_narrow_shows_the_line_that_is_typed_whole_again(
    terminal: Begin, sessions: dict[str, Session]
) -> None:
    shown = browse(terminal, rows=24, columns=80)
    shown.type("pel")
    shown.wait_for("Filter: pel")
    shown.resize(rows=24, columns=12)
    drawn = "pel  1 of 1"  # only when all of it is, the next size is another one
    shown.wait_until(lambda: shown.text.split("\n")[0].strip() == drawn, "no room for it")
    shown.resize(rows=24, columns=80)
    shown.wait_until(lambda: shown.text.startswith("Filter: pel"), "all of the line")


def test_help_is_at_the_bottom(terminal: Begin, sessions: dict[str, Session]) -> None:
    shown = browse(terminal, rows=24, columns=80)
    assert "Enter open" in shown.text.splitlines()[-1]
    shown.type("?")
    shown.wait_for("Type to filter by title and content")
    shown.type("?")
    shown.wait_until(lambda: "Type to filter" not in shown.text, "the help gone")
    shown.type("a?")  # behind other text it is a letter
    shown.wait_for("Filter: a?")


def test_no_color_leaves_no_colour(terminal: Begin, sessions: dict[str, Session]) -> None:
    shown = browse(terminal, NO_COLOR="1")
    shown.type("pelican")
    shown.wait_for("    Where do pelicans live")
    used = {code for one in shown.colours for code in one.split(";")}
    assert used <= {"0", "1", "3", "7"}  # bold, italic, reverse


def test_stored_text_gives_the_terminal_no_orders_and_keeps_its_place(terminal: Begin, store: Store) -> None:
    bad = "\x1b[31mred\x1b]0;owned\x07 \x9b2J \u202edrow\nsecond 会議の記録"
    made = store.create(title=bad, agent="a\tb")
    made.append(user(f"{bad} pelican"))
    store.create(title="An honest one")
    store.close()
    shown = browse(terminal, columns=140)
    shown.type("pelican")
    shown.wait_for("␛[31mred␛]0;owned␇")
    shown.wait_until(lambda: "pelican" in shown.text.split("TITLE")[1], "the passage")
    raw = shown.raw.decode()
    assert "\x1b[31mred" not in raw and "owned\x07" not in raw
    assert not set(raw) & set("\x9b\u202e")
    cells = shown.screen.buffer
    edges = {place for row in range(40) for place in range(140) if cells[row][place].data == "│"}
    assert len(edges) == 1  # wide characters do not push the preview


def test_a_pasted_line_break_is_a_space(terminal: Begin, sessions: dict[str, Session]) -> None:
    shown = browse(terminal)
    shown.paste("the\nlogin")
    wait_for_row(shown, "Fix the login test")
    shown.wait_until(lambda: "Plan a trip" not in shown.text, "fewer rows")


def test_an_empty_root_says_how_to_begin(terminal: Begin) -> None:
    shown = browse(terminal)
    shown.wait_for("no sessions yet")
    shown.press("enter", "down", "ctrl r", "ctrl d", "end")  # nothing to do these to
    shown.type("x")
    shown.wait_for("no session matches")
    shown.press("ctrl c")
    assert shown.wait_for_end() == 0


def test_without_a_terminal_there_is_one_line_that_names_the_list(root: Path) -> None:
    done = run_process(root, "sessions", "browse")
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
    assert "everlog sessions list" in done.err


def test_a_session_that_somebody_else_deleted_leaves_the_list(
    terminal: Begin, sessions: dict[str, Session], store: Store
) -> None:
    shown = browse(terminal)
    wait_for_row(shown, "Rebuild the index")
    store.session(sessions["trip"].id).delete()
    store.session(sessions["login"].id).delete()
    shown.press("down")
    shown.wait_for("deleted by another process")
    shown.wait_until(lambda: "1 of 1" in shown.text, "one row")
    wait_for_row(shown, "Rebuild the index")


def test_deleting_what_is_gone_already_is_told_and_the_picker_goes_on(
    terminal: Begin, sessions: dict[str, Session], store: Store
) -> None:
    shown = browse(terminal)
    wait_for_row(shown, "Rebuild the index")
    shown.wait_for("Why is it slow?")
    store.session(sessions["index"].id).delete()
    shown.press("ctrl d")
    shown.wait_for("Delete permanently?")
    shown.type("y")
    shown.wait_for("deleted by another process")
    wait_for_row(shown, "Plan a trip")


def test_entering_what_is_gone_already_is_told_and_the_picker_goes_on(
    terminal: Begin, sessions: dict[str, Session], store: Store
) -> None:
    shown = browse(terminal)
    wait_for_row(shown, "Rebuild the index")
    shown.wait_for("Why is it slow?")
    store.session(sessions["index"].id).delete()
    shown.press("enter")
    shown.wait_for(f"{sessions['index'].id} was deleted by another process")
    wait_for_row(shown, "Plan a trip")
    assert "Rebuild the index" not in shown.text
    shown.press("enter", "enter")
    shown.wait_until(lambda: not shown.screen.is_alternate, "a chat")
    shown.wait_for("Where do pelicans live in winter?")
