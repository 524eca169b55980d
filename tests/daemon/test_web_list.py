"""The list of sessions as a page: its search, its filters, and what is marked in it."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import everlog
from tests.daemon.running_daemon import Daemon

FOUND = 50  # sessions of one page


def listed(daemon: Daemon, path: str) -> str:
    answer = daemon.call("GET", path)
    assert answer.status_code == 200, answer.text
    return answer.text


def titles(page: str) -> list[str]:
    return re.findall(r"<span data-title[^>]*>([^<]*)</span>", page)


def link(page: str, label: str) -> str:
    """Where the first link of some name goes to."""
    found = re.search(rf'href="([^"]*)"[^>]*aria-label="{label}"', page)
    assert found, label
    return unescape(found[1])


def asked(address: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(address).query)


def test_a_search_pages_on_to_every_session_that_has_it(daemon: Daemon) -> None:
    with everlog.open_store(daemon.root, create=True) as store:
        for number in range(2 * FOUND + 1):
            store.create(title=f"wombat {number}", sender="keeper")
    path = "/?q=wombat&sender=keeper"
    pages: list[str] = []
    while path:
        pages.append(listed(daemon, f"{path}&part=rows" if pages else path))
        more = re.search(r'<a href="([^"]*)" rel="next" data-more>', pages[-1])
        path = unescape(more[1]) if more else ""
    assert "101 sessions matching “wombat”" in pages[0]
    assert [len(titles(page)) for page in pages] == [FOUND, FOUND, 1]
    every = {title for page in pages for title in titles(page)}
    assert every == {f"wombat {number}" for number in range(2 * FOUND + 1)}
    assert 'class="count" role' not in pages[1] and 'aria-label="Filters"' not in pages[1]
    assert daemon.call("GET", "/?q=wombat&cursor=-1").status_code == 400


def test_chips_add_to_the_search_and_to_each_other_and_take_themselves_away(daemon: Daemon) -> None:
    with everlog.open_store(daemon.root, create=True) as store:
        for agent, sender in (("ant", "carol"), ("ant", "dave"), ("bee", "carol")):
            store.create(title=f"okapi {agent} {sender}", agent=agent, sender=sender)
    one = link(listed(daemon, "/?q=okapi"), "Filter by sender carol")
    assert asked(one) == {"q": ["okapi"], "sender": ["carol"]}
    page = listed(daemon, one)
    assert sorted(titles(page)) == ["okapi ant carol", "okapi bee carol"]
    two = link(page, "Filter by agent ant")
    assert asked(two) == {"q": ["okapi"], "sender": ["carol"], "agent": ["ant"]}
    page = listed(daemon, two)
    assert titles(page) == ["okapi ant carol"]
    for label in ("Stop filtering by sender carol", "Remove the filter sender carol"):
        assert asked(link(page, label)) == {"q": ["okapi"], "agent": ["ant"]}
    page = listed(daemon, "/?agent=ant")
    assert asked(link(page, "Filter by sender dave")) == {"agent": ["ant"], "sender": ["dave"]}
    # What is typed changes the rows only: what takes a filter away has to be among them.
    assert asked(link(listed(daemon, "/?q=okapi&agent=ant&part=rows"), "Remove the filter agent ant")) == {
        "q": ["okapi"]
    }


def test_only_what_was_found_is_marked_and_a_text_keeps_its_own_marks(daemon: Daemon) -> None:
    with everlog.open_store(daemon.root, create=True) as store:
        store.create(title="Zoo").append(everlog.user("Il dit «bonjour» <b> au quagga"))
    page = listed(daemon, "/?q=quagga")
    assert "</b> Il dit «bonjour» &lt;b&gt; au <mark>quagga</mark></a>" in page
