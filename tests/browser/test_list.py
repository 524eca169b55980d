"""The list of sessions, in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import everlog
from everlog.client import Client
from tests.browser.conftest import wait_until
from tests.daemon.running_daemon import Daemon

MANY = 400  # sessions of the long list; the module loads them 60 at a time


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on many sessions."""
    root = tmp_path_factory.mktemp("many") / "root"
    with everlog.open_store(root, create=True) as store:
        for number in range(MANY):
            session = store.create(title=f"Session number {number}", agent=f"agent{number % 3}")
            session.append(everlog.user(f"say {number}"))
    made = Daemon(root)
    yield made
    made.stop()


def rows(page: Page) -> list[str]:
    return page.locator(".row [data-title]").all_text_contents()  # also of rows out of sight


def test_the_list_shows_sessions_newest_first(
    visit: Callable[..., Page], many: Daemon, axe: Callable[[Page], None]
) -> None:
    page = visit(many)
    expect(page.locator("p.count")).to_have_text(f"{MANY} sessions")
    assert rows(page)[0] == f"Session number {MANY - 1}"
    axe(page)


def test_scrolling_brings_all_sessions_once_each(visit: Callable[..., Page], many: Daemon) -> None:
    page = visit(many)
    while page.locator("[data-more]").count():
        before = page.locator(".row").count()
        # Not by a key: the browser scrolls softly to where the end was when it was pressed.
        page.evaluate("scrollTo({top: document.body.scrollHeight, behavior: 'instant'})")
        more = f"document.querySelectorAll('.row').length > {before}"
        wait_until(page, f"{more} || !document.querySelector('[data-more]')")
    assert rows(page) == [f"Session number {n}" for n in reversed(range(MANY))]


def test_without_the_module_more_is_a_link(visit: Callable[..., Page], many: Daemon) -> None:
    page = visit(many, java_script_enabled=False)
    first = rows(page)
    page.get_by_role("link", name="More sessions").click()
    page.wait_for_url("**/?cursor=*")
    assert len(rows(page)) == len(first) and not set(first) & set(rows(page))


def test_typing_searches_titles_and_what_was_said(client: Client, page: Page) -> None:
    named = client.create(title="Zebra crossing").id
    said = client.create(title="Of something else").id
    client.send(said, "!say the zebras are striped")
    page.keyboard.press("/")
    page.keyboard.type("zebra")
    expect(page.locator(f'.row[data-id="{named}"]')).to_be_visible()
    found = page.locator(f'.row[data-id="{said}"]')
    expect(found.locator(".snippet mark").first).to_have_text(re.compile("zebras"))
    assert page.url.endswith("?q=zebra")
    found.locator(".snippet").first.click()
    expect(page).to_have_url(re.compile(rf"/sessions/{said}\?at=\d+#m\d+$"))


def test_a_search_is_narrowed_by_a_chip_and_scrolls_on_to_all_it_found(
    visit: Callable[..., Page], many: Daemon
) -> None:
    page = visit(many)
    page.get_by_role("searchbox").fill("number")
    expect(page.locator("p.count")).to_have_text(f"{MANY} sessions matching “number”")
    page.locator(".row .chip", has_text="agent1").first.click()
    expect(page.locator("p.count")).to_contain_text(re.compile("^13[34] sessions matching “number”"))
    expect(page.get_by_role("searchbox")).to_have_value("number")
    end = "scrollTo({top: document.body.scrollHeight, behavior: 'instant'})"
    while page.locator("[data-more]").count():
        before = page.locator(".row").count()
        # Scrolled at each look: a refresh may have taken away the rows that were loaded before.
        wait_until(
            page,
            f"{end}, document.querySelectorAll('.row').length > {before} || !document.querySelector('[data-more]')",
        )
    assert len(rows(page)) == len(set(rows(page))) == len(range(1, MANY, 3))
    page.get_by_role("searchbox").fill("number 4")
    expect(page.locator("p.count")).to_contain_text("matching “number 4”")
    page.get_by_role("link", name="Remove the filter agent agent1").click()
    expect(page.get_by_role("searchbox")).to_have_value("number 4")
    expect(page).to_have_url(re.compile(r"/\?q=number\+4$"))


def test_escape_clears_the_search(client: Client, page: Page) -> None:
    client.create(title="Something to list")
    everything = page.locator("p.count").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("nothingofthekind")
    expect(page.locator("p.empty")).to_have_text("No sessions found.")
    page.keyboard.press("Escape")
    expect(page.locator("p.count")).to_contain_text("sessions")
    assert page.get_by_role("searchbox").input_value() == "" and everything


def test_a_chip_filters_and_is_taken_away_again(visit: Callable[..., Page], many: Daemon) -> None:
    page = visit(many)
    page.locator(".row .chip", has_text="agent1").first.click()
    expect(page.locator("p.count")).to_contain_text(re.compile(r"^13[34] sessions"))
    assert {text for text in page.locator(".row .chip").all_inner_texts() if "agent" in text} == {"agent1"}
    page.get_by_role("link", name="Remove the filter agent agent1").click()
    expect(page.locator("p.count")).to_have_text(f"{MANY} sessions")


def test_a_session_that_is_made_or_renamed_elsewhere_appears(page: Page, daemon: Daemon) -> None:
    with everlog.open_store(daemon.root, create=True) as store:  # another process would do the same
        session = store.create(title="Made by another program")
        session.append(everlog.user("hello"))
        row = page.locator(f'.row[data-id="{session.id}"]')
        expect(row).to_contain_text("Made by another program")
        expect(row).to_have_class(re.compile("unread"))
        session.rename("And renamed by it")
        expect(row).to_contain_text("And renamed by it")
        session.delete()
        expect(row).to_have_count(0)


def test_a_running_turn_has_a_dot_until_it_ends(client: Client, page: Page) -> None:
    made = client.create(title="Takes its time").id
    client.submit(made, "!wait 2\n!say done")
    row = page.locator(f'.row[data-id="{made}"]')
    expect(row.get_by_role("img", name="A turn is running")).to_be_visible()
    expect(row.get_by_role("img", name="A turn is running")).to_have_count(0)


def test_what_was_read_is_not_unread_any_more(client: Client, page: Page) -> None:
    made = client.create(title="To be read").id
    client.send(made, "!say one")
    row = page.locator(f'.row[data-id="{made}"]')
    expect(row).to_have_class(re.compile("unread"))
    row.locator("a.title").click()
    expect(page.locator("body[data-view=session]")).to_be_attached()
    page.go_back()
    expect(row).to_be_visible()
    expect(row).not_to_have_class(re.compile("unread"))


def test_the_keyboard_alone_opens_a_session(visit: Callable[..., Page], many: Daemon) -> None:
    page = visit(many)
    for key in "jjjk":
        page.keyboard.press(key)
    focused = page.locator(":focus")
    expect(focused).to_have_text(f"Session number {MANY - 2}")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()
    expect(focused).to_have_text(f"Session number {MANY - 2}")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/sessions/"))


def test_a_new_session_is_one_key_away(page: Page) -> None:
    page.keyboard.press("n")
    expect(page).to_have_url(re.compile("/sessions/[0-9A-Z]{26}"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280])
def test_it_fits_and_is_accessible_in_light_and_dark(
    visit: Callable[..., Page], many: Daemon, axe: Callable[[Page], None], scheme: str, width: int
) -> None:
    page = visit(many, width=width, color_scheme=scheme)
    page.get_by_role("searchbox").fill("number 39")
    expect(page.locator(".snippet").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    axe(page)


def test_the_theme_is_switched_and_remembered(page: Page) -> None:
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    assert dark != "rgb(255, 255, 255)"


def test_titles_are_text(client: Client, page: Page) -> None:
    evil = "<img src=x onerror=alert(1)> \u202e gnirts </a><script>alert(2)</script>"
    made = client.create(title=evil).id
    page.reload()
    assert page.locator(f'.row[data-id="{made}"] [data-title]').inner_text().startswith("<img")


def test_the_first_page_says_how_to_begin(
    visit: Callable[..., Page], start: Callable[..., Daemon], axe: Callable[[Page], None]
) -> None:
    page = visit(start())
    expect(page.locator("p.empty")).to_contain_text("No sessions yet")
    axe(page)


def test_a_stranger_is_told_how_to_get_in(visit: Callable[..., Page], daemon: Daemon, tmp_path: Path) -> None:
    answer = daemon.ask("GET", "/", headers={"Accept": "text/html"})
    assert answer.status_code == 401 and "everlog page" in answer.text
    assert "text/html" in answer.headers["content-type"]
    assert (
        daemon.ask("GET", "/api/sessions", headers={"Accept": "text/html"})
        .headers["content-type"]
        .startswith("application/json")
    )


def test_what_is_not_there_is_a_page_that_says_so(page: Page, daemon: Daemon) -> None:
    answer = page.request.get(f"{daemon.address}/?cursor=nonsense")
    assert answer.status == 400 and "not a cursor" in answer.text()
