"""What a person is doing on the page stays as it is while something else happens, in a browser."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

import everlog
from tests.browser.conftest import Complaints, wait_until
from tests.browser.test_tabs import Visit, connected, store, talk
from tests.daemon.running_daemon import Daemon

__all__ = ["store"]

JOB = '[[cron.jobs]]\nid = "long"\nschedule = "0 0 1 1 *"\nprompt = "!wait 9"\n'
FINAL = "innerHeight + scrollY >= document.documentElement.scrollHeight - 2"


def test_next_goes_from_hit_to_hit_through_a_long_session(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 900)
    session.append(everlog.user("İİİİİ a needle"))
    hits = [2 * number + 1 for number in (17, *range(170, 180))]
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.get_by_role("searchbox").fill("question 17")
    page.get_by_role("searchbox").press("Enter")  # at once: what was typed is found first
    for seq in hits[:4]:
        expect(page.locator(f"#m{seq}")).to_be_in_viewport()
        expect(page.locator("[data-hits] a[aria-current]")).to_have_attribute("data-to", str(seq))
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("n")
    expect(page.locator("[data-hits] a[aria-current]")).to_have_attribute("data-to", str(hits[4]))
    page.get_by_role("searchbox").fill("needle")
    expect(page.locator("[data-hits] mark", has_text="needle")).to_have_count(1)


def test_the_last_hit_is_before_the_first(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 40)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.get_by_role("searchbox").fill("answer")
    expect(page.locator("[data-hits] a")).to_have_count(20)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Shift+N")
    expect(page.locator("[data-hits] a[aria-current]")).to_have_attribute("data-to", "40")


def test_a_session_is_in_the_list_once_wherever_it_was(visit: Visit, start: Callable[..., Daemon]) -> None:
    daemon = start()
    with everlog.open_store(daemon.root, create=True) as store:
        made = [store.create(title=f"session {number}") for number in range(70)]
        for one in made:
            one.append(everlog.user("x"))
        page = visit(daemon)
        page.locator(".row").last.scroll_into_view_if_needed()
        expect(page.locator(".row")).to_have_count(70)
        expect(page.locator(".row").last).to_contain_text("session 0")
        made[2].append(everlog.user("once more"))
        expect(page.locator(".row").first).to_contain_text("session 2")
        expect(page.locator(".row")).to_have_count(70)
        made[2].delete()
        expect(page.locator(".row")).to_have_count(69)


def test_the_list_hears_of_old_sessions_too(visit: Visit, start: Callable[..., Daemon]) -> None:
    daemon = start()
    with everlog.open_store(daemon.root, create=True) as store:
        old = [store.create(agent="old", title=f"old {number}") for number in range(2)]
        for number in range(70):
            store.create(title=f"new {number}").append(everlog.user("x"))
        page = visit(daemon, "/?agent=old")
        expect(page.locator(".row")).to_have_count(2)
        with daemon.client() as client:
            client.update(old[0].id, title="another title")
            expect(page.locator(".row", has_text="another title")).to_have_count(1)
            client.delete(old[1].id)
            expect(page.locator(".row")).to_have_count(1)
            expect(page.locator("p.count")).to_have_text("1 session")


def test_who_writes_much_still_sees_the_end(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 60)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    field = page.get_by_role("textbox", name="Message")
    field.fill("\n".join(["!say yes", *"abcdefg"]))
    wait_until(page, FINAL)
    field.press("Enter")
    expect(page.locator("[data-transcript] .said.assistant").last).to_contain_text("yes")
    wait_until(page, FINAL)


def test_what_is_unfolded_stays_so_when_all_is_read_anew(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 10)
    session.append(everlog.assistant([everlog.ToolCall("c", "look", {"at": "x"})]))
    session.append(everlog.tool_result("c", "seen"))
    session.append(everlog.user("last words"))
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.locator(".call > summary").click()
    session.rewind(12)
    expect(page.get_by_text("last words")).to_have_count(0)
    expect(page.locator(".call[open]")).to_have_count(1)


def test_a_rename_and_a_failed_turn_elsewhere_are_shown(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 2)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    session.rename("Another title")
    expect(page.get_by_role("heading", level=1)).to_have_text("Another title")
    session.append(everlog.user("go", run_id="r1"))
    session.end_turn(duration_ms=1, run_id="r1", stop="error", error="the model is away")
    expect(page.locator(".line.failed")).to_contain_text("the model is away")
    expect(page.locator(".toast.bad")).to_have_text("the model is away")


def test_a_deleted_session_is_told_and_leaves_what_was_being_written(
    visit: Visit, daemon: Daemon, store: everlog.Store
) -> None:
    session = talk(store, 4)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.get_by_role("textbox", name="Message").fill("a long thought")
    session.delete()
    expect(page.locator(".toast.bad")).to_have_text("This session was deleted")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("a long thought")
    assert page.evaluate("Object.keys(localStorage).filter(one => one.startsWith('draft'))") == []


def test_a_note_that_is_being_written_outlives_another_that_is_forgotten(
    visit: Visit, start: Callable[..., Daemon]
) -> None:
    daemon = start()
    daemon.call("POST", "/api/memory", {"text": "Rows are sorted by name."})
    page = visit(daemon, "/memory")
    page.get_by_text("New note").click()
    page.get_by_label("Text").first.fill("a thought under way")
    page.get_by_role("button", name="Forget").click()
    page.get_by_role("button", name="Forget note").click()
    expect(page.locator(".toast")).to_contain_text("Reload the page when your text is saved")
    expect(page.get_by_label("Text").first).to_have_value("a thought under way")


def test_what_is_open_stays_open_while_a_job_runs(visit: Visit, start: Callable[..., Daemon]) -> None:
    page = visit(start(config=JOB), "/cron")
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".state")).to_have_text("running")
    page.get_by_text("Prompt").click()
    with pytest.raises(AssertionError):  # for longer than it takes to come again
        expect(page.locator("details[open]")).to_have_count(0, timeout=3000)
    page.get_by_text("Prompt").click()
    with page.expect_navigation():
        page.evaluate("document.activeElement.blur()")


def test_escape_goes_back_to_the_list_as_it_was(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 2, title="a heron", agent="fisher")
    page = visit(daemon, "/?agent=fisher")
    page.locator(".row", has_text="a heron").first.locator(".title").click()
    connected(page)
    expect(page).to_have_url(re.compile(session.id))
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile(r"/\?agent=fisher$"))


def test_the_focus_stays_where_a_menu_was(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 6)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    menu = page.locator("#m3 .menu summary")
    menu.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#m3 .menu[open]")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator("#m3 .menu[open]")).to_have_count(0)
    expect(menu).to_be_focused()


def test_the_focus_stays_at_a_message_that_is_read_anew(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 6)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.locator("#m3 .menu summary").focus()
    page.evaluate("document.querySelector('#m3').dataset.old = 'yes'")
    session.rewind(4)
    expect(page.locator("#m3:not([data-old])")).to_be_focused()


def test_what_turns_text_around_is_shown_harmless_when_it_comes_live(
    visit: Visit, daemon: Daemon, store: everlog.Store
) -> None:
    session = talk(store, 2)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    session.rename("Good \u202eeltit\x1b[2J")
    expect(page.get_by_role("heading", level=1)).to_have_text("Good \ufffdeltit\ufffd[2J")
    expect(page).to_have_title("Good \ufffdeltit\ufffd[2J · everlog")
    page.get_by_role("textbox", name="Message").fill("!say one \u202eowt")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("[data-aloud]")).to_have_text("Agent: one \ufffdowt")


def test_damage_leads_to_its_repair(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = talk(store, 4)
    part = daemon.root / "sessions" / session.id / session.parts[0].file
    lines = part.read_bytes().split(b"\n")
    lines[2] = b"?" * len(lines[2])
    part.write_bytes(b"\n".join(lines))
    page = visit(daemon, f"/sessions/{session.id}")
    page.get_by_role("link", name="repair").click()
    page.get_by_role("button", name="Repair").click()
    expect(page.locator(".patient")).to_contain_text("nothing was deleted")


def test_tables_are_read_on_a_phone(visit: Visit, daemon: Daemon, store: everlog.Store) -> None:
    session = store.create()
    cells = "| asynchronous | Database | understanding | configuration |\n"
    session.append(everlog.assistant(cells + "|---|---|---|---|\n" + cells))
    page = visit(daemon, f"/sessions/{session.id}", width=380)
    cell = page.locator(".prose td").first
    expect(cell).to_have_text("asynchronous")
    assert cell.evaluate("one => one.getClientRects()[0].height") < 40
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


def test_a_title_that_is_too_long_is_told_why(
    visit: Visit, daemon: Daemon, store: everlog.Store, complaints: Complaints
) -> None:
    complaints.forgive("400")
    session = talk(store, 2)
    page = visit(daemon, f"/sessions/{session.id}")
    connected(page)
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").press_sequentially("x" * 3)
    assert page.get_by_label("Title").get_attribute("maxlength") == "500"
    page.get_by_label("Title").evaluate("one => { one.value = 'x'.repeat(501); }")
    page.get_by_role("button", name="Rename", exact=True).last.click()
    expect(page.locator(".toast.bad")).to_contain_text("500")
