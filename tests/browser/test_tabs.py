"""What goes on beside the page, in a browser: other tabs, other programs, a lost connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Route, expect

import holdfast
from holdfast.client import Client
from tests.browser.conftest import Complaints
from tests.daemon.running import Daemon

Visit = Callable[..., Page]
TOP = "one => one.getBoundingClientRect().top"


@pytest.fixture
def store(daemon: Daemon) -> Iterator[holdfast.Store]:
    """The daemon's sessions, as another process has them."""
    with holdfast.open_store(daemon.root) as made:
        yield made


def talk(store: holdfast.Store, count: int, **facts: str) -> holdfast.Session:
    made = store.create(**facts)
    made.append_many(
        one
        for number in range(count // 2)
        for one in (holdfast.user(f"question {number}"), holdfast.assistant(f"answer {number}"))
    )
    return made


def connected(page: Page) -> None:
    """Wait until the page hears of its session, and has put what it had to put.

    Neither is in the page as it was served: the module puts the outline there when it begins, and
    the queue, with which turn runs, when its subscription was answered.
    """
    expect(page.locator("[data-outline] nav > *").first).to_be_attached()
    expect(page.locator("[data-queue] [data-running]")).to_be_attached()


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")


def another(page: Page, address: str) -> Page:
    made = page.context.new_page()
    made.goto(address)
    return made


def test_a_rewind_elsewhere_does_not_move_who_reads_in_the_middle(
    visit: Visit, daemon: Daemon, store: holdfast.Store
) -> None:
    session = talk(store, 400, title="middle")
    page = visit(daemon, f"/sessions/{session.id}?at=100#m100")
    connected(page)
    message = page.locator("#m100")
    expect(message).to_be_in_viewport()
    was = message.evaluate(TOP)
    page.evaluate("document.querySelector('#m100').dataset.old = 'yes'")
    session.rewind(390)
    expect(page.locator("#m100:not([data-old])")).to_be_attached()  # it is another, in its place
    assert abs(message.evaluate(TOP) - was) <= 2
    expect(page.locator("[data-newer]")).to_be_attached()


def test_who_has_scrolled_up_stays_where_a_compaction_makes_a_summary(
    visit: Visit, daemon: Daemon, store: holdfast.Store
) -> None:
    session = talk(store, 200, title="summary")
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    message = page.locator("#m145")
    message.evaluate("one => one.scrollIntoView({ block: 'center' })")
    was = message.evaluate(TOP)
    session.append(holdfast.Compaction(first_kept_seq=190, summary="what was before"))
    expect(page.locator(".fold")).to_contain_text("what was before")
    assert abs(message.evaluate(TOP) - was) <= 2


def test_what_is_read_in_one_tab_is_not_new_in_another(
    visit: Visit, daemon: Daemon, store: holdfast.Store
) -> None:
    first, second = talk(store, 2, title="first"), talk(store, 2, title="second")
    listing = visit(daemon)
    tabs = [another(listing, f"{daemon.address}/sessions/{one.id}") for one in (first, second)]
    for tab in tabs:
        connected(tab)
    for _ in range(3):
        for tab in tabs:  # at once: neither takes away what the other one wrote
            say(tab, "!say something new")
    for session in (first, second):
        row = listing.locator(f'.row[data-id="{session.id}"]')
        expect(row).to_have_attribute("data-count", "8")
        expect(row).not_to_have_class(re.compile("unread"))
    listing.reload()
    for session in (first, second):
        row = listing.locator(f'.row[data-id="{session.id}"]')
        expect(row).not_to_have_class(re.compile("unread"))


def test_who_goes_back_finds_the_place_in_the_list(
    visit: Visit, start: Callable[..., Daemon]
) -> None:
    daemon = start()
    with holdfast.open_store(daemon.root) as store:
        for number in range(200):
            store.create(title=f"session {number}").append(holdfast.user("x"))
    page = visit(daemon)
    for shown in (60, 120, 180):
        expect(page.locator(".row")).to_have_count(shown)
        page.locator(".row").last.scroll_into_view_if_needed()
    expect(page.locator(".row")).to_have_count(200)
    row = page.locator(".row").filter(has_text="session 50")
    row.evaluate("one => one.scrollIntoView({ block: 'center' })")
    was = row.evaluate(TOP)
    row.locator(".title").click()
    connected(page)
    page.go_back()
    expect(row).to_be_in_viewport()
    assert abs(row.evaluate(TOP) - was) <= 40


def test_a_browser_that_is_not_let_in_any_more_is_told_what_to_do(
    visit: Visit, start: Callable[..., Daemon], complaints: Complaints
) -> None:
    complaints.forgive("401|WebSocket|ERR_")
    daemon = start()
    with holdfast.open_store(daemon.root) as store:
        session = talk(store, 2)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.context.clear_cookies()
    for _ in range(2):  # told again, and one message to read
        say(page, "are you there?")
        expect(page.locator(".toast")).to_contain_text("holdfast page")
        expect(page.get_by_role("textbox", name="Message")).to_have_value("are you there?")
    page.evaluate("document.querySelector('.toast').remove()")
    daemon.stop()
    expect(page.locator("[data-link]")).to_contain_text("does not answer")


def test_calls_stay_unfolded_whatever_their_ids(
    visit: Visit, daemon: Daemon, store: holdfast.Store
) -> None:
    session = store.create()
    odd = 'x"] , [data-act="remove'
    calls = [holdfast.ToolCall(one, "look", {"at": one}) for one in (odd, odd, "last")]
    session.append(holdfast.assistant([holdfast.Thinking("hm"), *calls]))
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    for fold in page.locator("#m1 details:not(.menu) > summary").all():
        fold.click()
    session.append(holdfast.tool_result("last", "seen"))
    expect(page.locator("#m1 .call.done")).to_have_count(1)
    expect(page.locator("#m1 details[open]")).to_have_count(4)


def test_what_is_streamed_next_does_not_go_with_the_message_before(
    visit: Visit, daemon: Daemon, client: Client
) -> None:
    page = visit(daemon, f"/sessions/{client.create().id}")
    connected(page)
    asked: list[Route] = []

    def slowly(route: Route) -> None:
        asked.append(route)
        if len(asked) != 2:  # the second is the message that calls
            route.continue_()

    page.route(re.compile(r"/sessions/[^/]+/messages/\d+$"), slowly)
    say(page, '!call look {"at": 1}\n!then\n!stream 60000')
    expect(page.locator("[data-streamed]")).to_have_text(re.compile(r".{500}", re.DOTALL))
    before = page.locator("[data-streamed]").evaluate("one => one.textContent")
    asked[1].continue_()
    expect(page.locator("[data-transcript] .call")).to_be_visible()
    assert page.locator("[data-streamed]").evaluate("one => one.textContent").startswith(before)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("[data-pending]")).to_be_hidden()


def test_without_the_module_nothing_is_offered_that_needs_it(
    visit: Visit, daemon: Daemon, store: holdfast.Store
) -> None:
    session = talk(store, 4, title="to be read")
    page = visit(daemon, f"/sessions/{session.id}", java_script_enabled=False)
    expect(page.locator("#m4")).to_be_visible()
    for name in ("Send", "Rename", "Keys"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("searchbox")).to_have_count(0)


def test_on_paper_there_is_what_was_said_and_nothing_to_press(
    visit: Visit, daemon: Daemon, store: holdfast.Store
) -> None:
    session = talk(store, 4, title="to be printed")
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.emulate_media(media="print")
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("#m4")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("textbox")).to_have_count(0)
