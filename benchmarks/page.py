"""The page in a real browser: the list of 10,000 sessions, and a session of 10,000 messages."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import everlog
from benchmarks.report import Figure
from everlog.settings import SessionSettings, Settings

if TYPE_CHECKING:
    from tests.daemon.running_daemon import Daemon

SESSIONS = 10_000
MESSAGES = 10_000  # of one of them
LOADS = 7
SETTINGS = Settings(session=SessionSettings(durability="os"))
MODULE = 30_000  # bytes
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def measure(folder: Path) -> list[Figure]:
    """All figures about the page."""
    from tests.browser.conftest import NAMES
    from tests.daemon.running_daemon import Daemon

    browser = next(filter(None, map(shutil.which, NAMES)), None)
    size = (Path(everlog.__file__).parent / "daemon/web/static/page.js").stat().st_size
    figures = [Figure("the ES module", "≤ 30 KB", f"{size / 1000:.1f} KB", size <= MODULE)]
    if browser is None:
        return [*figures, Figure("the page in a browser", "", "no Chromium here", None)]
    root = folder / "root"
    session = _populate(root)
    daemon = Daemon(root)
    try:
        with _painting(browser, daemon) as paint:
            listed = [paint("/") for _ in range(LOADS)]
            opened = [paint(f"/sessions/{session}") for _ in range(LOADS)]
            found = [paint("/?q=topic") for _ in range(LOADS)]
    finally:
        daemon.stop()
    return [
        *figures,
        _figure(f"first paint of the list of {SESSIONS:,} sessions", 400, listed),
        _figure(f"first paint of a session of {MESSAGES:,} messages", 1000, opened),
        _figure("first paint of a search in them", None, found),
    ]


def _figure(what: str, limit: int | None, times: list[float]) -> Figure:
    middle = statistics.median(times)
    note = f"median of {LOADS}; the first {times[0]:.0f} ms"
    target = "–" if limit is None else f"≤ {limit} ms"
    return Figure(what, target, f"{middle:.0f} ms", None if limit is None else middle <= limit, note)


@contextmanager
def _painting(executable: str, daemon: Daemon) -> Iterator[Callable[[str], float]]:
    """A browser that tells after how many milliseconds it first showed something."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import QUIET, wait_until

    with sync_playwright() as playwright, daemon.client() as client:
        browser = playwright.chromium.launch(executable_path=executable, args=list(QUIET))
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(client.link())

        def paint(path: str) -> float:
            page.goto(f"{daemon.address}{path}")
            return float(wait_until(page, _PAINTED))

        yield paint
        browser.close()


def _populate(root: Path) -> str:
    """Sessions, and the long one, which is returned."""
    with everlog.open_store(root, create=True, settings=SETTINGS) as store:
        for number in range(SESSIONS):
            made = store.create(title=f"Session {number} on topic {number % 97}")
            made.append(everlog.user(f"a question, number {number}"))
        long = store.create(title="Ten thousand messages")
        for number in range(0, MESSAGES, 200):
            rounds = (
                one
                for place in range(number, number + 200, 2)
                for one in (
                    everlog.user(f"question {place}: what about it?"),
                    everlog.assistant(f"**Answer**, with `code`:\n\n```python\nprint({place})\n```"),
                )
            )
            long.append_many(rounds)
        return long.id
