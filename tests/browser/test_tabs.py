"""What goes on beside the page, in a browser: other tabs, other programs, a lost connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Page, Route, WebSocketRoute, expect

import everlog
from everlog.client import Client
from tests.browser.conftest import Complaints, wait_until
from tests.daemon.running_daemon import Daemon

Visit = Callable[..., Page]
TOP = "one => one.getBoundingClientRect().top"


@pytest.fixture
def store(daemon: Daemon) -> Iterator[everlog.Store]:
    """The daemon's sessions, as another process has them."""
    with everlog.open_store(daemon.root, create=True) as made:
        yield made


def talk(store: everlog.Store, count: int, **facts: Any) -> everlog.Session:
    made = store.create(**facts)
    made.append_many(
        one
        for number in range(count // 2)
        for one in (everlog.user(f"question {number}"), everlog.assistant(f"answer {number}"))
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
    visit: Visit, daemon: Daemon, store: everlog.Store
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
    visit: Visit, daemon: Daemon, store: everlog.Store
) -> None:
    session = talk(store, 200, title="summary")
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    message = page.locator("#m145")
    message.evaluate("one => one.scrollIntoView({ block: 'center' })")
    was = message.evaluate(TOP)
    session.append(everlog.Compaction(first_kept_seq=190, summary="what was before"))
    expect(page.locator(".fold")).to_contain_text("what was before")
    assert abs(message.evaluate(TOP) - was) <= 2


def test_what_is_read_in_one_tab_is_not_new_in_another(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
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


def test_who_goes_back_finds_the_place_in_the_list(visit: Visit, start: Callable[..., Daemon]) -> None:
    daemon = start()
    with everlog.open_store(daemon.root, create=True) as store:
        for number in range(200):
            store.create(title=f"session {number}").append(everlog.user("x"))
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
    top = f"document.querySelector('[data-id=\"{row.get_attribute('data-id')}\"]').getBoundingClientRect().top"
    wait_until(page, f"Math.abs({top} - {was}) <= 40")  # it goes there page by page


def test_a_session_that_is_deleted_does_not_come_back_with_rows_that_were_on_their_way(
    visit: Visit, daemon: Daemon, client: Client
) -> None:
    session = client.create(title="soon gone").id
    client.send(session, "!say one")
    page = visit(daemon)
    row = page.locator(f'.row[data-id="{session}"]')
    expect(row).to_have_count(1)
    held: list[tuple[Route, APIResponse]] = []

    def hold(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route(re.compile("part=rows"), hold)
    client.send(session, "!say two")
    while not held:
        page.wait_for_timeout(20)
    client.delete(session)
    expect(row).to_have_count(0)
    (route, old), *_ = held
    assert session in old.text()
    with page.expect_response(lambda one: "part=rows" in one.url):
        route.fulfill(response=old)
    page.evaluate("new Promise((done) => setTimeout(done, 100))")  # until it has been put there
    expect(row).to_have_count(0)


def test_sessions_that_went_while_the_connection_was_lost_are_not_shown_any_more(
    visit: Visit, start: Callable[..., Daemon], complaints: Complaints
) -> None:
    complaints.forgive("WebSocket|ERR_|401")
    daemon = start()
    with everlog.open_store(daemon.root, create=True) as store:
        made = [store.create(title=f"session {number}") for number in range(130)]
        for one in made:
            one.append(everlog.user("x"))
        page = visit(daemon)
        sockets: list[WebSocketRoute] = []

        def between(one: WebSocketRoute) -> None:
            one.connect_to_server()
            sockets.append(one)

        page.route_web_socket(re.compile("/ws"), between)
        page.reload()
        while not sockets:
            page.wait_for_timeout(20)
        for shown in (60, 120):
            expect(page.locator(".row")).to_have_count(shown)
            page.locator(".row").last.scroll_into_view_if_needed()
        expect(page.locator(".row")).to_have_count(130)
        page.route(re.compile("part=rows"), lambda route: route.abort())  # it is away altogether
        sockets[0].close()
        made[3].delete()
        page.unroute(re.compile("part=rows"))
        expect(page.locator(f'.row[data-id="{made[3].id}"]')).to_have_count(0)
        expect(page.locator(".row").last).to_contain_text("session 0")


def test_the_list_is_renewed_though_something_happens_all_the_time(visit: Visit, daemon: Daemon) -> None:
    page = visit(daemon)
    asked: list[str] = []
    sockets: list[WebSocketRoute] = []
    page.on("request", lambda one: asked.append(one.url) if "part=rows" in one.url else None)
    page.route_web_socket(re.compile("/ws"), lambda one: sockets.append(one))  # noqa: PLW0108 - a builtin has no signature to look at
    page.reload()
    while not sockets:
        page.wait_for_timeout(20)
    for _ in range(300):
        sockets[0].send('{"type": "listing_changed", "sessionId": "", "gone": []}')
        page.wait_for_timeout(20)
        if asked:
            break
    assert asked


def test_a_browser_that_is_not_let_in_any_more_is_told_what_to_do(
    visit: Visit, start: Callable[..., Daemon], complaints: Complaints
) -> None:
    complaints.forgive("401|WebSocket|ERR_")
    daemon = start()
    with everlog.open_store(daemon.root, create=True) as store:
        session = talk(store, 2)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.context.clear_cookies()
    for _ in range(2):  # told again, and one message to read
        say(page, "are you there?")
        expect(page.locator(".toast")).to_contain_text("everlog page")
        expect(page.get_by_role("textbox", name="Message")).to_have_value("are you there?")
    page.evaluate("document.querySelector('.toast').remove()")
    daemon.stop()
    expect(page.locator("[data-link]")).to_contain_text("does not respond")


def test_calls_stay_unfolded_whatever_their_ids(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = store.create()
    odd = 'x"] , [data-act="remove'
    calls = [everlog.ToolCall(one, "look", {"at": one}) for one in (odd, odd, "last")]
    session.append(everlog.assistant([everlog.Thinking("hm"), *calls]))
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    for fold in page.locator("#m1 details:not(.menu) > summary").all():
        fold.click()
    session.append(everlog.tool_result("last", "seen"))
    expect(page.locator("#m1 .call.done")).to_have_count(1)
    expect(page.locator("#m1 details[open]")).to_have_count(4)


def test_what_is_streamed_next_does_not_go_with_the_message_before(
    visit: Visit, daemon: Daemon, client: Client
) -> None:
    page = visit(daemon, f"/sessions/{client.create().id}")
    connected(page)
    held: list[Route] = []  # the message that calls, the answer, and which turn runs
    looked = False

    def hold(route: Route) -> None:
        if looked:
            route.continue_()
        else:
            held.append(route)

    page.route(re.compile(r"/sessions/[^/]+/messages/[2-9]$|/queue$"), hold)
    say(page, '!call look {"at": 1}\n!then\n!stream 3000')
    streamed = page.locator("[data-streamed]")
    expect(streamed).to_have_text(re.compile(r".{500}", re.DOTALL))
    before = streamed.evaluate("one => one.textContent")
    calling = next(one for one in held if one.request.url.endswith("/messages/2"))
    calling.continue_()
    expect(page.locator("[data-transcript] .call")).to_be_visible()
    assert streamed.evaluate("one => one.textContent").startswith(before)
    expect(streamed).to_contain_text("word3000")
    looked = True
    for one in held:
        if one is not calling:
            one.continue_()
    expect(page.locator("[data-pending]")).to_be_hidden()
    expect(streamed).to_have_text("")


def test_without_the_module_nothing_is_offered_that_needs_it(
    visit: Visit, daemon: Daemon, store: everlog.Store
) -> None:
    session = talk(store, 4, title="to be read")
    page = visit(daemon, f"/sessions/{session.id}", java_script_enabled=False)
    expect(page.locator("#m4")).to_be_visible()
    for name in ("Send", "Rename", "Keyboard shortcuts"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("searchbox")).to_have_count(0)


def test_on_paper_there_is_what_was_said_and_nothing_to_press(
    visit: Visit, daemon: Daemon, store: everlog.Store
) -> None:
    session = talk(store, 4, title="to be printed")
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.emulate_media(media="print")
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator("#m4")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("textbox")).to_have_count(0)
