"""Usage, in a browser: charts, ranges, agents, and the most expensive sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

import everlog
from everlog.ids import timestamp
from tests.daemon.running_daemon import Daemon

HOSTILE = '<img src=x onerror="alert(1)">\u202e'


def spend(session: everlog.Session, days_ago: int, tokens: int, cost: float = 0.0) -> None:
    stamp = timestamp(time.time() - days_ago * 86_400)
    usage = everlog.Usage(input_tokens=tokens, output_tokens=tokens // 10, cost=cost)
    session.append(everlog.user("go", timestamp=stamp))
    model = "large-1" if cost else "house-1"
    session.append(everlog.assistant("ok", model=model, usage=usage, timestamp=stamp))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon on sessions that spent something: today, a fortnight ago, and long ago."""
    root = tmp_path_factory.mktemp("ledger") / "root"
    with everlog.open_store(root, create=True) as store:
        spend(store.create(title="Today", agent="main"), 0, 1_000, 0.5)
        spend(store.create(title="A fortnight ago", agent="other"), 14, 50_000, 2.5)
        spend(store.create(title=HOSTILE, agent="other"), 200, 7_000_000)
    made = Daemon(root)
    yield made
    made.stop()


def sessions(page: Page) -> list[str]:
    return page.locator("tr[data-item] td:first-child").all_text_contents()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 380])
def test_the_view_shows_charts_and_has_no_barriers(
    visit: Callable[..., Page], ledger: Daemon, axe: Callable[[Page], None], width: int, scheme: str
) -> None:
    page = visit(ledger, "/usage", width=width, color_scheme=scheme)
    tokens, cost = page.get_by_role("img").all()
    expect(tokens).to_have_accessible_name("Tokens per day")
    assert tokens.locator("g").count() == cost.locator("g").count() == 2
    box = tokens.bounding_box()
    assert box is not None and 100 < box["height"] < 250 and box["width"] > 200
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_text("Data table: Tokens per day").click()
    expect(page.get_by_role("region", name="Tokens per day").locator("tbody tr")).to_have_count(30)
    axe(page)


def test_ranges_and_agents_are_chosen_by_links(visit: Callable[..., Page], ledger: Daemon) -> None:
    page = visit(ledger, "/usage")
    assert sessions(page) == ["A fortnight ago", "Today"]
    page.get_by_role("link", name="7 days").click()
    expect(page.get_by_role("link", name="7 days")).to_have_attribute("aria-current", "true")
    expect(page.locator("tr[data-item] td:first-child")).to_have_text(["Today"])
    page.get_by_role("link", name="All", exact=True).click()
    expect(page.get_by_role("img").first).to_have_accessible_name("Tokens per week")
    expect(page.locator("tr[data-item]")).to_have_count(3)
    page.get_by_role("link", name="other", exact=True).click()
    expect(page.locator("tr[data-item]")).to_have_count(2)
    expect(page.get_by_text("No price is known for house-1.")).to_be_visible()


def test_a_session_is_opened_from_the_table_and_has_its_own_usage(
    visit: Callable[..., Page], ledger: Daemon, axe: Callable[[Page], None]
) -> None:
    page = visit(ledger, "/usage")
    page.get_by_role("link", name="Usage of Today").click()
    expect(page).to_have_url(f"{ledger.address}/sessions/{_id(ledger, 'Today')}/usage")
    expect(page.locator("dl.figures")).to_contain_text("$0.50")
    assert page.locator("tr[data-item]").count() == 0
    axe(page)
    page.get_by_role("link", name="← Today").click()
    expect(page).to_have_url(f"{ledger.address}/sessions/{_id(ledger, 'Today')}")


def test_names_that_were_stored_are_text(visit: Callable[..., Page], ledger: Daemon) -> None:
    page = visit(ledger, "/usage?range=all")
    assert HOSTILE in sessions(page)
    assert page.locator("img").count() == 0


def test_a_range_that_is_none_is_the_usual_one_and_nothing_spent_is_said(
    visit: Callable[..., Page], ledger: Daemon
) -> None:
    page = visit(ledger, "/usage?range=eternity")
    assert sessions(page) == ["A fortnight ago", "Today"]
    page.goto(f"{ledger.address}/usage?agent=nobody")
    expect(page.get_by_text("No usage in this period.")).to_be_visible()


def _id(daemon: Daemon, title: str) -> str:
    with daemon.client() as client:
        return client.sessions(title=title).sessions[0].id
