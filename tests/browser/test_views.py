"""Context, cron, memory and health, in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import everlog
from everlog.client import Client
from everlog.model import assistant
from tests.browser.conftest import Complaints
from tests.daemon.running_daemon import Daemon
from tests.runtime.test_integrity_check import damage

HOSTILE = "<script>alert(1)</script>"
LOOKS = [
    {"width": 1280, "color_scheme": "light"},
    {"width": 1280, "color_scheme": "dark"},
    {"width": 380, "color_scheme": "light"},
    {"width": 380, "color_scheme": "dark"},
]
FACTS = """## Auto-extracted memories

### Session memories — 2026-04-03
- **[preference]** The user prefers tabs *(confidence: 80%)* <!-- session:{session} seq:1 -->
"""


def compacted(client: Client) -> str:
    """A session whose beginning is summarised."""
    session = client.create(title="A long story").id
    for text in ("first", "long " * 20_000, "last"):
        client.send(session, f"!say {text}")
    assert client.compact(session).compacted
    return session


def note(page: Page, name: str) -> Any:
    return page.get_by_role("article", name=name)


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[tuple[Daemon, str]]:
    """A daemon on two sessions, and the one of them that is damaged."""
    root = tmp_path / "root"
    with everlog.open_store(root, create=True) as store:
        for title in ("Sound", "Sick"):
            session = store.create(title=title)
            for number in range(3):
                session.append(everlog.user(f"question {number}"))
                session.append(assistant("answer"))
    damage(root, session.id)
    daemon = Daemon(root)
    yield daemon, session.id
    daemon.stop()


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: f"{look['width']}-{look['color_scheme']}")
def test_every_view_is_free_of_barriers_and_fits(
    visit: Callable[..., Page], daemon: Daemon, client: Client, axe: Callable[[Page], None], look: dict[str, Any]
) -> None:
    agent = f"seen{look['width']}{look['color_scheme']}"
    client.remember(f"# A heading\n\n{HOSTILE} " + "word " * 600, agent=agent, name=HOSTILE)
    client.remember("`code` and a " + "long" * 60, agent=agent, category="project")
    session = compacted(client)
    page = visit(daemon, **look)
    for path in (
        f"/sessions/{session}/context",
        "/cron",
        f"/memory?agent={agent}&preview=yes",
        f"/health?session={session}",
    ):
        page.goto(f"{daemon.address}{path}")
        for summary in page.locator("main summary").all():
            summary.click()
        axe(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= look["width"], f"{path} is wider than the window"


def test_the_context_of_a_compacted_session(visit: Callable[..., Page], daemon: Daemon, client: Client) -> None:
    session = compacted(client)
    page = visit(daemon, f"/sessions/{session}/context")
    expect(page.locator(".figure")).to_contain_text(re.compile(r"[\d,]+ of [\d,]+ tokens"))
    kinds = page.locator(".piece .who b").all_inner_texts()
    assert kinds[0].endswith("tools") and kinds[1] == "Summary" and "Injected" in kinds
    assert page.locator(".share.whole rect").count() == len(set(kinds)) + 1
    summary = page.locator(".piece.k-summary")
    expect(summary.locator("pre")).to_be_hidden()
    summary.locator("summary").click()
    expect(summary.locator("pre")).to_contain_text("compacted into the following summary")
    last = page.locator(".piece a").last
    seq = last.inner_text().removeprefix("#")
    last.click()
    page.wait_for_url(f"**/sessions/{session}?at={seq}#m{seq}")


def test_a_job_is_paused_resumed_and_run(start: Callable[..., Daemon], visit: Callable[..., Page]) -> None:
    page = visit(start(), "/cron")
    job = page.get_by_role("article", name="night/ly")
    job.get_by_role("button", name="Pause").click()
    expect(job.locator(".state")).to_have_text("paused")
    expect(job).to_contain_text("none: paused")
    job.get_by_role("button", name="Resume").click()
    expect(job.locator(".state")).to_have_text("waiting")
    expect(job).to_contain_text("never")
    job.get_by_role("button", name="Run now").click()
    link = job.get_by_role("link", name="Session of the last run of night/ly")
    expect(link).to_be_visible()
    link.click()
    page.wait_for_url("**/sessions/*")
    expect(page.locator("main")).to_contain_text("all is well")


def test_a_note_is_written_and_edited_and_a_conflict_is_told(
    visit: Callable[..., Page], daemon: Daemon, client: Client, complaints: Complaints
) -> None:
    page = visit(daemon, "/memory?agent=writer")
    page.get_by_text("New note").click()
    page.get_by_label("Text").fill("The host is **blue**.\nIt is in the cellar.")
    page.get_by_label("Name").fill("The host")
    page.get_by_label("Category").select_option("project")
    page.get_by_role("button", name="Save note").click()
    expect(note(page, "The host").locator(".prose strong")).to_have_text("blue")
    expect(note(page, "The host")).to_contain_text("by a person")

    note(page, "The host").get_by_text("Edit").click()
    form = note(page, "The host").locator("form")
    expect(form.get_by_label("Category")).to_have_value("project")
    form.get_by_label("Text").fill("The host is green.")
    form.get_by_label("Description").fill("Where it runs")
    form.get_by_role("button", name="Save").click()
    expect(note(page, "The host").locator(".prose")).to_have_text("The host is green.")

    note(page, "The host").get_by_text("Edit").click()
    (known,) = client.memory("writer").notes
    assert (known.category, known.description) == ("project", "Where it runs")
    client.revise(known.file, "The host is red.", agent="writer", name="The host")
    complaints.forgive("status of 409")
    form = note(page, "The host").locator("form")
    form.get_by_label("Text").fill("The host is black.")
    form.get_by_role("button", name="Save").click()
    expect(page.locator(".toast.bad")).to_contain_text("was changed by somebody else")
    expect(form.get_by_label("Text")).to_have_value("The host is black.")
    assert client.memory("writer").notes[0].text == "The host is red."


def test_a_note_is_forgotten_for_good(visit: Callable[..., Page], daemon: Daemon, client: Client) -> None:
    client.remember("The cat is called Bo.", agent="forgetter", name="Cat")
    page = visit(daemon, "/memory?agent=forgetter")
    note(page, "Cat").get_by_role("button", name="Forget").click()
    page.get_by_role("button", name="Cancel").click()
    expect(note(page, "Cat")).to_be_visible()
    note(page, "Cat").get_by_role("button", name="Forget").click()
    page.get_by_role("button", name="Forget note").click()
    expect(page.locator("p.empty").first).to_contain_text("No notes yet")
    expect(page.get_by_role("region", name="Changes")).to_contain_text("No changes yet")
    assert not any(b"called Bo" in file.read_bytes() for file in daemon.root.rglob("*") if file.is_file())


def test_a_dream_is_previewed_dreamt_and_leads_to_its_source(
    visit: Callable[..., Page], daemon: Daemon, client: Client
) -> None:
    session = client.create(title="About tabs").id
    client.send(session, "!say noted")
    folder = daemon.root / "memory" / "dreaming"
    folder.mkdir(parents=True)
    (folder / "extracted.md").write_text(FACTS.format(session=session))
    page = visit(daemon, "/memory?agent=dreaming")
    expect(page.locator(".facts-found")).to_contain_text("The user prefers tabs")
    page.get_by_role("link", name="Preview changes").click()
    expect(page.locator("#preview")).to_contain_text("extracted.md")
    expect(page.locator("p.empty").first).to_contain_text("No notes yet")
    page.get_by_role("button", name="Dream now").click()
    made = note(page, "Prefers tabs")
    expect(made).to_contain_text("by everlog")
    expect(page.locator(".past li").first).to_contain_text("Dream")
    made.get_by_role("link", name="About tabs #1").click()
    page.wait_for_url(f"**/sessions/{session}?at=1#m1")


def test_damage_is_found_and_repaired(
    damaged: tuple[Daemon, str], visit: Callable[..., Page], axe: Callable[[Page], None]
) -> None:
    daemon, session = damaged
    page = visit(daemon, "/health")
    page.get_by_role("button", name="Verify all").click()
    found = page.get_by_role("article", name="Sick")
    expect(found).to_contain_text("session.jsonl")
    expect(page.get_by_text("in 1 session of 2")).to_be_visible()
    axe(page)
    found.get_by_role("button", name="Repair").click()
    expect(found).to_contain_text("a copy is in damaged")
    expect(found.get_by_role("button", name="Repair")).to_have_count(0)
    folder = daemon.root / "sessions" / session
    assert list(folder.glob("damaged.*"))
    axe(page)


def test_no_repair_while_a_turn_runs(
    damaged: tuple[Daemon, str], visit: Callable[..., Page], complaints: Complaints
) -> None:
    daemon, session = damaged
    complaints.forgive("status of 409")
    page = visit(daemon, f"/health?session={session}")
    with daemon.client() as client:
        run = client.submit(session, "!wait 60").run_id
        page.get_by_role("button", name="Repair").click()
        expect(page.locator(".toast.bad")).to_contain_text(re.compile("busy|turn|held|running"))
        assert client.cancel(session, run)


def test_notes_are_reached_by_keyboard_alone(visit: Callable[..., Page], daemon: Daemon, client: Client) -> None:
    for number in range(3):
        client.remember(f"Fact number {number}.", agent="typist", name=f"Fact {number}")
    page = visit(daemon, "/memory?agent=typist")
    names = page.locator("article h3").all_inner_texts()
    for key, at in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(page.locator(":focus")).to_have_text(names[at])
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(note(page, names[1]).get_by_label("Text")).to_be_visible()
