"""A real browser on a real daemon.

Chromium is installed by `make test` where that is possible. Where it is not, these tests skip and
say why; in CI (`CI` is set) they fail instead.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright
from playwright.sync_api import Error as BrowserError

from tests.daemon.conftest import client, daemon, start
from tests.daemon.running_daemon import Daemon

__all__ = ["client", "daemon", "start"]  # fixtures: a daemon for all tests, and for one

NAMES = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
QUIET = (
    "--no-sandbox",  # root has none
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
SECONDS = 30_000  # milliseconds until an expectation fails; machines are slow at times
expect.set_options(timeout=SECONDS)


def wait_until(page: Page, expression: str) -> Any:
    """Wait for an expression to be true of a page; its value.

    Not by `wait_for_function`: what it asks for the second time is asked by the page itself, whose
    policy lets nobody evaluate strings.
    """
    end = time.monotonic() + SECONDS / 1000
    while not (found := page.evaluate(expression)):
        assert time.monotonic() < end, f"it did not become true: {expression}"
        page.wait_for_timeout(20)
    return found


def _missing(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"the page cannot be tested: {why}", pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="package")  # with it a loop runs in the thread, which others need
def browser() -> Iterator[Browser]:
    """Chromium without a window, for all tests of a process."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        _missing("no Chromium is installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        try:
            made = playwright.chromium.launch(executable_path=found, args=list(QUIET))
        except BrowserError as error:
            _missing(f"{found} does not start: {str(error).splitlines()[0]}")
            raise
        yield made
        made.close()


class Complaints:
    """What went wrong in a browser: errors of its console, exceptions, requests elsewhere."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._forgiven: list[str] = []

    def watch(self, page: Page, address: str) -> None:
        """Collect those of a page."""

        def console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                self._found.append(f"console: {message.text}")

        def request(asked: Request) -> None:
            ours = (address, f"ws{address.removeprefix('http')}", "blob:", "about:")
            if not asked.url.startswith(ours):
                self._found.append(f"request elsewhere: {asked.url[:200]}")

        page.on("console", console)
        page.on("pageerror", lambda error: self._found.append(f"exception: {error}"))
        page.on("request", request)
        page.on("dialog", lambda dialog: self._found.append(f"dialog: {dialog.message}"))

    def forgive(self, pattern: str) -> None:
        """Expect complaints of a kind: a test that breaks the connection has them."""
        self._forgiven.append(pattern)

    @property
    def left(self) -> list[str]:
        """Those that were not expected."""
        return [one for one in self._found if not any(re.search(pattern, one) for pattern in self._forgiven)]


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    """Must be empty in the end."""
    made = Complaints()
    yield made
    assert made.left == []


@pytest.fixture
def visit(
    browser: Browser,
    complaints: Complaints,
    start: Callable[..., Daemon],  # named here so that pages are closed before their daemon
) -> Iterator[Callable[..., Page]]:
    """`visit(daemon, "/path", width=380, color_scheme="dark")`: a new browser profile, let in."""
    contexts: list[BrowserContext] = []

    def go(daemon: Daemon, path: str = "/", *, width: int = 1280, height: int = 860, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        context.set_default_timeout(SECONDS)
        page = context.new_page()
        complaints.watch(page, daemon.address)
        with daemon.client() as client:
            page.goto(client.link())
        if path != "/":
            page.goto(f"{daemon.address}{path}")
        return page

    yield go
    for one in contexts:
        one.close()


@pytest.fixture
def page(visit: Callable[..., Page], daemon: Daemon) -> Page:
    """The list of the shared daemon."""
    return visit(daemon)


RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture
def axe() -> Callable[[Page], None]:
    """`axe(page)`: no barrier that axe-core knows of, WCAG 2.2 AA."""

    def check(page: Page) -> None:
        found = Axe().run(page, options={"runOnly": {"type": "tag", "values": RULES}})
        assert found.violations_count == 0, found.generate_report()

    return check
