"""Sessions of other programs beside the store: only read, until their user says to continue here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from everlog.errors import UnconfirmedError, UnsupportedError
from tests.browser.conftest import Complaints, wait_until
from tests.daemon.running_daemon import FAST, Daemon, receive, until
from tests.foreign.foreign_directories import cersei_file, crabtalk_file, made
from tests.formats.round_trips import golden

CLAUDE = "3f1c7f0e-5c1a-4d0b-9a52-0c8f6a3b1d01"
STORES = """
[[stores]]
location = "cersei:{0}/cersei"
mode = "write"
[[stores]]
location = "claude:{0}/claude"
[[stores]]
location = "crabtalk:{0}/crab"
mode = "write"
"""


@pytest.fixture
def foreign(tmp_path: Path, start: Callable[..., Daemon]) -> Daemon:
    """A daemon beside whose store are directories of three programs."""
    made(tmp_path / "cersei", {"s-1.jsonl": cersei_file("s-1")})
    made(tmp_path / "claude", golden("claude", CLAUDE).files)
    made(tmp_path / "crab", {"crab_user_1.jsonl": crabtalk_file(title="Crabs")})
    return start(config=FAST + STORES.format(tmp_path))


def test_a_session_of_another_program_is_read_until_its_user_says_to_continue_here(
    foreign: Daemon, visit: Callable[..., Page], axe: Callable[[Page], None], tmp_path: Path
) -> None:
    file = tmp_path / "cersei" / "s-1.jsonl"
    before = file.read_bytes()
    page = visit(foreign, "/sessions/s-1", permissions=["clipboard-read", "clipboard-write"])
    notice, field = page.locator("[data-foreign]"), page.get_by_role("textbox", name="Message")
    expect(notice).to_contain_text("This is a session of cersei. Nothing is written to its file before you say so.")
    expect(field).to_be_hidden()
    page.get_by_text("Actions").click()
    expect(page.get_by_role("button", name="Delete session")).to_be_hidden()
    expect(page.get_by_text("Export HTML")).to_be_visible()
    page.get_by_text("Actions").click()
    axe(page)
    notice.get_by_role("button", name="Copy command").click()
    assert wait_until(page, "navigator.clipboard.readText()") == "cd /w && abstract --resume s-1"

    notice.get_by_text("Continue here").first.click()
    expect(notice).to_contain_text(f"offline answers, and writes to {file}")
    assert file.read_bytes() == before, "nothing before it was said"
    notice.get_by_role("button", name="Continue here").click()
    expect(notice).to_be_hidden()
    field.fill("!say from everlog")
    field.press("Enter")
    expect(page.get_by_role("article").last).to_contain_text("from everlog")
    until(lambda: b"from everlog" in file.read_bytes().removeprefix(before))

    page.reload()
    expect(field).to_be_visible()  # it was said for this tab
    page.get_by_text("Actions").click()
    expect(page.get_by_role("button", name="Delete session")).to_be_visible()
    expect(page.locator("[data-act=rename], [data-act=fork]")).to_have_count(0)  # Cersei has no place for them
    message = page.get_by_role("article").first
    message.get_by_label("Actions for message").click()
    expect(message.get_by_role("button", name="Rewind to here")).to_be_visible()
    message.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Message deleted")).to_be_visible()
    other = visit(foreign, "/sessions/s-1")
    expect(other.locator("[data-foreign]")).to_be_visible()  # but not for another one


def test_what_is_only_read_is_copied_and_never_written(
    foreign: Daemon, visit: Callable[..., Page], complaints: Complaints, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "claude").iterdir() if path.is_file()}
    page = visit(foreign, f"/sessions/{CLAUDE}", width=380)
    notice = page.locator("[data-foreign]")
    expect(notice).to_contain_text("which is only read here")
    expect(page.get_by_text("Continue here")).to_have_count(0)
    expect(page.get_by_role("textbox", name="Message")).to_have_count(0)
    expect(page.locator("[data-writes]")).to_have_count(0)
    notice.get_by_role("button", name="Copy into everlog").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    assert CLAUDE not in page.url
    expect(page.locator("[data-foreign]")).to_have_count(0)
    expect(page.get_by_role("article").first).to_be_visible()
    assert {path: path.read_bytes() for path in before} == before


def test_the_api_refuses_to_write_unless_it_is_told_to(foreign: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "crab" / "crab_user_1.jsonl"
    before = file.read_bytes()
    with foreign.client() as client:
        (row,) = [one for one in client.sessions().sessions if one.id == "crab_user_1"]
        assert (row.access, row.actions) == ("ask", ["append", "compact", "delete", "rename"])
        for write in (
            lambda: client.submit("crab_user_1", "hello"),
            lambda: client.update("crab_user_1", title="Ours"),
            lambda: client.compact("crab_user_1"),
            lambda: client.delete("crab_user_1"),
        ):
            with pytest.raises(UnconfirmedError, match=f"that writes to {file}") as caught:
                write()
            assert "continueHere" in caught.value.hint and caught.value.facts["status"] == 409
        for impossible in (
            lambda: client.rewind("crab_user_1", 1, continue_here=True),
            lambda: client.delete_message("crab_user_1", 1, continue_here=True),
            lambda: client.send(CLAUDE, "hello", continue_here=True),
        ):
            with pytest.raises(UnsupportedError, match=r"cannot be|only read"):
                impossible()
        with foreign.socket() as socket:
            socket.send(json.dumps({"type": "send_message", "sessionId": "crab_user_1", "content": "hello"}))
            assert receive(socket, "error")["code"] == "UnconfirmedError"
        assert file.read_bytes() == before
        assert client.update("crab_user_1", title="Ours", continue_here=True).name == "Ours"
        answered = client.send("crab_user_1", "!say yes", continue_here=True)
        assert answered.messages[-1]["content"][0]["text"] == "yes"
        copied = client.copy("crab_user_1")
        assert copied.name == "Ours" and len(client.session(copied.id).messages) == 4
        assert client.send(copied.id, "!say ours").messages
    (named,) = (tmp_path / "crab").iterdir()  # CrabTalk keeps the title in the file's name
    assert named.read_bytes().count(b"!say") == 1
