"""`make pictures`: every view of the page, in light and dark, into docs/images.

The sessions in them are made here, by the library, on a temporary root.
"""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

import everlog
from everlog.ids import timestamp
from everlog.model import AnyRecord, Compaction, Message, Text, Thinking, ToolCall, Usage, assistant, tool_result, user
from everlog.session import Session, Store
from tests.browser.conftest import NAMES, QUIET
from tests.daemon.running_daemon import Daemon

IMAGES = Path(__file__).parents[2] / "docs" / "images"
QUALITY = 82  # of WebP
WIDE, PHONE = (1280, 860), (380, 780)
DAY = 86_400.0
MODEL = "anthropic:claude-sonnet-4-5"

# Where the sessions are is nobody's business.
ANYWHERE = """for (const one of document.querySelectorAll("code"))
  if (one.textContent.endsWith("/root")) one.textContent = "/home/user/.everlog";"""

CONFIG = """
[daemon]
port = 0
[[cron.jobs]]
id = "nightly-report"
schedule = "0 3 * * *"
prompt = "Summarise what changed since yesterday, and what is still open."
[[cron.jobs]]
id = "dependencies"
schedule = "30 8 * * 1"
prompt = "Look for new releases of our dependencies and tell what breaks."
agent = "ops"
"""

ANSWER = """\
The test compares a time in **UTC** with one in *local* time, so it fails on every run that \
crosses midnight in one of them but not in the other.

```python
def expires(token: Token, now: datetime) -> bool:
    # Both sides in UTC: the session table stores nothing else.
    return token.expires_at <= now.astimezone(UTC)
```

| run | zone | result |
| --- | --- | --- |
| 41 | UTC | passed |
| 42 | Europe/Berlin | **failed** |
| 43 | UTC | passed |

1. `tests/test_login.py` builds `now` with `datetime.now()`; it must be aware.
2. `auth/context/tokens.py` should refuse naive times altogether.

Shall I change both, and add a test that runs at 23:59?
"""
SUMMARY = """\
## Goal
Make the login test reliable.

## Decided
- Times are stored in UTC; naive ones are refused at the border.
- The fix goes into `auth/context/tokens.py`, not into the test.

## Files
Read `auth/context/tokens.py`, `tests/test_login.py`; changed `auth/context/tokens.py`.

## Open
- A test that runs at 23:59.
"""


class Clock:
    """The time of a conversation, which goes on as it is written."""

    def __init__(self, start: float) -> None:
        self.now = start

    def __call__(self, seconds: float = 20.0) -> str:
        self.now += seconds
        return timestamp(self.now)


def spent(tokens: int) -> Usage:
    """What a call cost."""
    return Usage(input_tokens=tokens, output_tokens=tokens // 9, cache_read_tokens=tokens * 3, cost=tokens * 6e-6)


def conversation(clock: Clock) -> Iterator[AnyRecord]:
    """The one that is shown in full."""
    yield user("The login test fails every third run. Please find out why.", timestamp=clock())
    for number, (path, text) in enumerate(
        (
            ("tests/test_login.py", "def test_login_expires():\n    now = datetime.now()\n    …"),
            ("auth/context/tokens.py", "def expires(token, now):\n    return token.expires_at <= now\n"),
        )
    ):
        call = ToolCall(f"c{number}", "read_file", {"path": path})
        thought = Thinking("A failure in one run of three smells of time. Zones first.")
        yield assistant(
            [thought, Text("I'll read it first."), call] if not number else [call],
            model=MODEL,
            usage=spent(2_400),
            timestamp=clock(8),
        )
        yield tool_result(call.id, text, tool_name="read_file", timestamp=clock(1.4))
    yield assistant("Both files work with times that have no zone.", model=MODEL, usage=spent(3_000), timestamp=clock())
    yield user("Then look at what the last runs say.", timestamp=clock(60))
    call = ToolCall("c9", "run", {"command": "pytest tests/test_login.py --count 3"})
    yield assistant([call], model=MODEL, usage=spent(3_200), timestamp=clock(6))
    failed = "1 failed, 2 passed in 4.1 s\nE   TypeError: can't compare offset-naive times"
    yield tool_result(call.id, failed, is_error=True, tool_name="run", timestamp=clock(4.2))
    yield Compaction(strategy="structured", first_kept_seq=7, summary=SUMMARY, tokens_before=18_400)
    yield assistant(ANSWER, model=MODEL, usage=spent(4_100), timestamp=clock(15))
    yield user("Yes, both. And keep the test short.", timestamp=clock(90))


TITLES = (
    ("Release notes for the next version", "main", "user"),
    ("Why is the import slow on large files?", "main", "user"),
    ("Plan the move of old sessions", "main", "user"),
    ("A table that fits narrow terminals", "main", "user"),
    ("Renew the certificate of the staging host", "ops", "team"),
    ("Disk usage of the build machines", "ops", "team"),
    ("Translate the error messages", "main", "user"),
    ("Review: retries with the same id", "main", "user"),
    ("What did we decide about time zones?", "main", "user"),
    ("Benchmarks on the small machine", "ops", "team"),
)


def fill(store: Store, now: float) -> str:
    """A root as it looks after some weeks; returns the session to show."""
    for number in range(60):
        title, agent, sender = TITLES[number % len(TITLES)]
        clock = Clock(now - (60 - number) * 0.5 * DAY)
        session = make(store, clock, title, agent, sender)
        for turn in range(1 + number % 4):
            said: list[Message] = [
                user(f"{title}: step {turn + 1}, please.", timestamp=clock(40)),
                assistant(
                    "Done. The details are in the pull request.",
                    model=MODEL if number % 3 else "openai:gpt-5-mini",
                    usage=spent(1_500 + 900 * (number * 7 % 5)),
                    timestamp=clock(30),
                ),
            ]
            session.append_many(said)
    clock = Clock(now - 900)
    shown = make(store, clock, "Fix the flaky login test", "main", "user")
    shown.append_many(list(conversation(clock)))
    return shown.id


def make(store: Store, clock: Clock, title: str, agent: str, sender: str) -> Session:
    facts = {"agent": agent, "sender": sender, "source": "interactive", "name": title}
    return store.session(store.port.create(facts, at=int(clock.now * 1000)).id)


def notes(daemon: Daemon) -> None:
    """What the agent has learnt."""
    with daemon.client() as client:
        client.remember(
            "Times are stored in UTC; naive ones are refused.",
            name="Times",
            description="How times are kept",
            category="decision",
        )
        client.remember(
            "Pull requests are small, and their message says why.",
            name="Pull requests",
            description="How changes are proposed",
            category="preference",
        )


def take(page: Page, name: str) -> None:
    """One picture, as WebP."""
    session = page.context.new_cdp_session(page)
    told = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    file = IMAGES / f"{name}.webp"
    file.write_bytes(base64.b64decode(told["data"]))
    print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


def views(session: str) -> dict[str, str]:
    """Every view by its name."""
    return {
        "list": "/",
        "search": "/?q=time+zones",
        "session": f"/sessions/{session}",
        "context": f"/sessions/{session}/context",
        "usage": "/usage",
        "cron": "/cron",
        "memory": "/memory",
        "health": "/health",
    }


def shoot(browser: Browser, daemon: Daemon, session: str) -> None:
    """All views, wide in both schemes, and the two most used on a phone."""
    for scheme in ("light", "dark"):
        with daemon.client() as client:
            link = client.link()
        for (width, height), names in ((WIDE, None), (PHONE, ("list", "session"))):
            options: dict[str, Any] = {"color_scheme": scheme, "reduced_motion": "reduce"}
            if width == WIDE[0]:
                context = browser.new_context(viewport={"width": width, "height": height}, **options)
                page = context.new_page()
                page.goto(link)
                cookies = context.cookies()
            else:
                context = browser.new_context(viewport={"width": width, "height": height}, **options)
                context.add_cookies(cookies)  # type: ignore[arg-type]
                page = context.new_page()
            for name, path in views(session).items():
                if names is None or name in names:
                    page.goto(f"{daemon.address}{path}")
                    page.wait_for_load_state("networkidle")
                    page.evaluate(ANYWHERE)
                    end = f"-{scheme}" if names is None else f"-phone-{scheme}"
                    take(page, f"{name}{end}")
            context.close()


def main() -> int:
    """Make them all."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        print("no Chromium is installed", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        with everlog.open_store(root, create=True) as store:
            session = fill(store, time.time())
        daemon = Daemon(root, config=CONFIG)
        try:
            notes(daemon)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=found, args=list(QUIET))
                shoot(browser, daemon, session)
                browser.close()
        finally:
            daemon.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
