"""A session, in a browser: read, talked in, changed."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

import everlog
from everlog.client import Client
from everlog.model import Compaction
from tests.browser.conftest import Complaints
from tests.daemon.running_daemon import FAST, Daemon
from tests.foreign.foreign_directories import SESSIONS, made

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
Visit = Callable[..., Page]


@pytest.fixture
def store(daemon: Daemon) -> Iterator[everlog.Store]:
    """The daemon's sessions, as another process has them."""
    with everlog.open_store(daemon.root, create=True) as made:
        yield made


@pytest.fixture
def opened(visit: Visit, daemon: Daemon) -> Callable[..., Page]:
    """Open the page of a session."""

    def go(session: str, query: str = "", **how: object) -> Page:
        page = visit(daemon, f"/sessions/{session}{query}", **how)
        expect(page.locator("[data-outline] nav > *").first).to_be_attached()
        return page

    return go


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")


def said(page: Page, text: str | re.Pattern[str]) -> None:
    expect(page.locator("[data-transcript] .said").filter(has_text=text).last).to_be_visible()


def act(page: Page, seq: int, what: str) -> None:
    page.locator(f"#m{seq} .menu > summary").click()
    page.locator(f"#m{seq}").get_by_role("button", name=what).click()


def resting(page: Page) -> None:
    expect(page.locator("[data-pending]")).to_be_hidden()


def numbers(page: Page) -> list[int]:
    """The seqs of what is loaded, in their order on the page."""
    found: list[int] = page.eval_on_selector_all(
        "[data-transcript] > [data-seq]", "all => all.map(one => +one.dataset.seq)"
    )
    return found


def talk(store: everlog.Store, count: int, **facts: Any) -> everlog.Session:
    made = store.create(**facts)
    made.append_many(
        one
        for number in range(1, count // 2 + 1)
        for one in (everlog.user(f"question {number}"), everlog.assistant(f"answer **{number}**"))
    )
    return made


# --- talking ----------------------------------------------------------------------------------


def test_a_message_is_sent_and_its_answer_streams_in(
    opened: Callable[..., Page], client: Client, axe: Callable[[Page], None]
) -> None:
    page = opened(client.create(title="Small talk").id)
    expect(page.get_by_role("heading", level=1)).to_have_text("Small talk")
    expect(page.get_by_text("No messages yet.").first).to_be_visible()
    say(page, "!think about it\n!stream 300")
    said(page, "!stream 300")
    said(page, "word299 word300")
    resting(page)
    assert numbers(page) == sorted(set(numbers(page)))
    expect(page.locator(".said.assistant .prose")).to_have_count(1)
    page.locator("[data-transcript] .thinking summary").click()
    expect(page.locator(".thinking[open]")).to_contain_text("about it")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")
    expect(page.locator("[data-aloud]")).to_contain_text("Agent: word1")
    axe(page)


def test_shift_enter_is_a_new_line_and_a_draft_is_kept(opened: Callable[..., Page], client: Client) -> None:
    page = opened(client.create().id)
    field = page.get_by_role("textbox", name="Message")
    field.press_sequentially("one")
    field.press("Shift+Enter")
    field.press_sequentially("two")
    expect(field).to_have_value("one\ntwo")
    page.reload()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("one\ntwo")


def test_a_reload_during_a_turn_shows_it_going_on(opened: Callable[..., Page], client: Client) -> None:
    page = opened(client.create().id)
    say(page, "!wait 2\n!stream 300")
    said(page, "!wait 2")
    page.reload()
    expect(page.locator("[data-pending]")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    said(page, "word300")
    resting(page)
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator(".said.assistant").filter(has_text="word300")).to_have_count(1)


def test_stopping_ends_the_turn_and_a_line_says_so(opened: Callable[..., Page], client: Client) -> None:
    page = opened(client.create().id)
    say(page, "!wait 50")
    expect(page.locator("[data-pending]")).to_be_visible()
    page.get_by_role("textbox", name="Message").press("Escape")
    expect(page.locator(".line.cancelled")).to_contain_text("The turn was stopped")
    resting(page)
    say(page, "!fail denied")
    expect(page.locator(".toast.bad")).to_contain_text("not accepted")
    expect(page.locator(".line.failed")).to_contain_text("ProviderDeniedError")


def test_what_waits_is_shown_and_can_be_withdrawn(opened: Callable[..., Page], client: Client) -> None:
    page = opened(client.create().id)
    say(page, "!wait 50")
    expect(page.locator("[data-pending]")).to_be_visible()
    say(page, "this one waits")
    say(page, "and this one too")
    queue = page.get_by_role("list", name="Queued messages")
    expect(queue.get_by_role("listitem")).to_have_count(2)
    expect(queue.get_by_role("listitem").first).to_contain_text("this one waits")
    page.reload()
    expect(queue.get_by_role("listitem")).to_have_count(2)
    queue.get_by_role("button", name="Withdraw: this one waits").click()
    expect(queue.get_by_role("listitem")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    said(page, "and this one too")
    resting(page)
    expect(queue.get_by_role("listitem")).to_have_count(0)
    expect(page.locator(".said.user").filter(has_text="this one waits")).to_have_count(0)


def test_what_is_said_while_another_message_is_on_its_way_follows_it(
    opened: Callable[..., Page], client: Client, complaints: Complaints
) -> None:
    complaints.forgive("ERR_|Failed to (load|fetch)")
    page = opened(client.create().id)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/messages?wait=false", hold)
    with page.expect_request("**/messages?wait=false"):
        say(page, "!say first")
    say(page, "!say second")
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_have_value("")
    box.fill("being typed")
    assert len(held) == 1, "one after the other"
    with page.expect_request("**/messages?wait=false"):
        held[0].continue_()
    said(page, "first")
    held[1].abort()
    expect(box).to_have_value("being typed\n!say second")  # which was not taken
    page.unroute("**/messages?wait=false")
    box.fill("!say third")
    box.press("Enter")
    said(page, "third")
    resting(page)


def test_a_tool_call_is_one_line_that_unfolds(opened: Callable[..., Page], client: Client) -> None:
    page = opened(client.create().id)
    say(page, '!call current_time {"zone": "UTC"}\n!then\n!call nowhere {}\n!then\n!say done')
    said(page, "done")
    resting(page)
    call = page.locator(".call").first
    expect(call.locator("summary")).to_contain_text("current_time")
    expect(call.locator("summary .state")).to_contain_text(re.compile(r"(done|failed) · \d+"))
    expect(call.locator(".code")).to_be_hidden()
    call.locator("summary").click()
    expect(call.locator(".code")).to_contain_text('"zone"')
    expect(page.locator(".call.failed").last).to_contain_text("nowhere")
    chip = page.get_by_role("button", name="Tools")
    expect(chip).to_have_text("Tools 2")
    page.locator("h1").click()
    page.keyboard.press("e")
    expect(page.locator(".call[open]")).to_have_count(0)
    page.keyboard.press("e")
    expect(page.locator(".call[open]")).to_have_count(2)


def test_times_stand_below_one_another_whatever_was_said(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = store.create()
    session.append(everlog.user("go"))
    for number in range(3):
        session.append(everlog.assistant("one line"))
        session.append(everlog.assistant([everlog.ToolCall(f"c{number}", "bash", {"command": "ls"})]))
        session.append(everlog.tool_result(f"c{number}", "files"))
    page = opened(session.id)
    edges = "all => all.map(one => one.getBoundingClientRect().right)"
    found = page.eval_on_selector_all(".said.assistant .at", edges)
    assert len(found) == 6 and max(found) - min(found) < 8  # the first is on a line of its own


def test_what_another_process_says_appears(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 4)
    page = opened(session.id)
    session.append(everlog.user("from elsewhere"))
    said(page, "from elsewhere")


def test_a_reader_who_is_not_at_the_end_is_not_moved(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 60)
    page = opened(session.id)
    page.locator("#m20").scroll_into_view_if_needed()
    page.mouse.wheel(0, -200)
    expect(page.locator("[data-new-messages]")).to_have_text("Jump to end ↓")
    before = page.locator("#m20").bounding_box()
    session.append(everlog.user("something new"))
    expect(page.locator("#m61")).to_be_attached()
    after = page.locator("#m20").bounding_box()
    assert before and after and abs(before["y"] - after["y"]) < 2
    expect(page.locator("[data-new-messages]")).to_have_text("New messages ↓")
    page.locator("[data-new-messages]").click()
    expect(page.locator("#m61")).to_be_in_viewport()
    expect(page.locator("[data-new-messages]")).to_be_hidden()


def test_the_page_comes_back_after_the_daemon_restarts(
    start: Callable[..., Daemon], visit: Visit, complaints: Complaints
) -> None:
    complaints.forgive("WebSocket|ERR_|Failed to (load|fetch)")
    first = start()
    fixed = FAST.replace("port = 0", f"port = {first.port}")
    with first.client() as client:
        session = client.create(title="Survivor").id
        client.send(session, "before")
    page = visit(first, f"/sessions/{session}")
    said(page, "before")
    first.stop()
    expect(page.locator("[data-link]")).to_contain_text("Disconnected")
    with everlog.open_store(first.root, create=True) as store:
        store.session(session).append(everlog.user("while it was away"))
    second = start(config=fixed)
    assert second.port == first.port
    said(page, "while it was away")
    expect(page.locator("[data-link]")).to_be_hidden()
    say(page, "!say here again")
    said(page, "here again")
    resting(page)
    assert numbers(page) == sorted(set(numbers(page)))


# --- reading ----------------------------------------------------------------------------------


def test_a_long_session_is_read_page_by_page_and_nothing_jumps(
    opened: Callable[..., Page], store: everlog.Store
) -> None:
    session = talk(store, 10_000, title="Long")
    page = opened(session.id)
    expect(page.locator("#m10000")).to_be_in_viewport()
    assert numbers(page)[0] > 9_700  # a page or two, of 10,000 messages
    first = numbers(page)[0]
    page.locator(f"#m{first}").scroll_into_view_if_needed()
    expect(page.locator(f"#m{first - 1}")).to_be_attached()
    held = page.locator(f"#m{first}").bounding_box()
    assert held and 0 <= held["y"] <= 860, "what was read has moved out of sight"
    assert numbers(page) == list(range(numbers(page)[0], 10_001))
    page.keyboard.press("g")
    expect(page.locator("#m1")).to_be_in_viewport()
    page.keyboard.press("G")
    expect(page.locator("#m10000")).to_be_in_viewport()


def test_without_the_module_older_pages_are_links(
    opened: Callable[..., Page], visit: Visit, daemon: Daemon, store: everlog.Store
) -> None:
    session = talk(store, 200)
    page = visit(daemon, f"/sessions/{session.id}", java_script_enabled=False)
    assert numbers_without_module(page)[-1] == 200
    page.get_by_role("link", name="Older messages").click()
    page.wait_for_url("**?before=*")
    assert numbers_without_module(page)[-1] < 200
    page.get_by_role("link", name="Newer messages").click()
    page.wait_for_url("**?after=*")
    assert numbers_without_module(page)[-1] == 200


def numbers_without_module(page: Page) -> list[int]:
    ids = [one.get_attribute("data-seq") for one in page.locator(".said").all()]
    return [int(one) for one in ids if one]


def test_a_link_opens_an_old_message_in_the_middle_and_reading_goes_on_both_ways(
    opened: Callable[..., Page], store: everlog.Store
) -> None:
    session = talk(store, 1_000)
    page = opened(session.id, "?at=301#m301")
    target = page.locator("#m301")
    expect(target).to_be_in_viewport()
    expect(target).to_be_focused()
    box = target.bounding_box()
    assert box and 150 < box["y"] < 700
    page.keyboard.press("j")
    expect(page.locator("#m302")).to_be_focused()
    last = numbers(page)[-1]
    assert last < 1_000
    page.locator(f"#m{last}").scroll_into_view_if_needed()
    expect(page.locator(f"#m{last + 1}")).to_be_attached()
    found = numbers(page)
    assert found == list(range(found[0], found[-1] + 1))


def test_the_outline_leads_to_prompts_that_are_not_loaded(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 400)
    page = opened(session.id)
    outline = page.get_by_role("navigation", name="Outline")
    expect(outline.get_by_role("link")).to_have_count(200)
    expect(outline.locator("[aria-current]")).to_have_text(re.compile("question (199|200)"))
    outline.get_by_role("link", name="question 12", exact=True).click()
    expect(page.locator("#m23")).to_be_in_viewport()
    expect(page.locator("#m23")).to_contain_text("question 12")
    outline.get_by_role("link", name="question 14", exact=True).click()
    expect(page.locator("#m27")).to_be_focused()


def test_find_looks_through_the_whole_session(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 300)
    session.append(everlog.user("the Needle is here"))
    session.append(everlog.assistant([everlog.ToolCall("c", "read", {"path": "/needle"})]))
    session.append(everlog.tool_result("c", "a needle in the hay"))
    session.append(everlog.user("a deleted needle"))
    session.tombstone(304)
    page = opened(session.id)
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("needle")
    expect(page.locator("[data-hits] a")).to_have_count(3)
    expect(page.locator("[data-hits] mark").first).to_have_text("Needle")
    page.keyboard.press("Enter")
    expect(page.locator("#m301")).to_be_in_viewport()
    page.keyboard.press("n")
    page.keyboard.press("n")
    expect(page.locator("details#m303[open]")).to_be_in_viewport()
    page.get_by_role("searchbox").fill("question 7")
    expect(page.locator("[data-hits] a").first).to_contain_text("question 7")
    page.locator("[data-hits] a").first.click()
    expect(page.locator("#m13")).to_be_in_viewport()
    expect(page.get_by_role("searchbox")).to_have_value("question 7")
    expect(page.locator("[data-hits] a").first).to_be_attached()


def test_chips_count_what_is_loaded_and_jump(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 20)
    session.append(everlog.assistant([everlog.ToolCall("c", "bash", {"command": "x" * 300})]))
    session.append(everlog.tool_result("c", "boom", is_error=True))
    session.append_many(everlog.assistant(f"more {one}\n\n- a\n- b\n- c") for one in range(20))
    page = opened(session.id)
    expect(page.get_by_role("button", name="You")).to_have_text("You 10")
    expect(page.get_by_role("button", name="Agent 31")).to_be_visible()
    page.get_by_role("button", name="Errors 1").click()
    expect(page.locator(".call.failed")).to_be_in_viewport()
    page.get_by_role("button", name="You 10").click(modifiers=["Shift"])
    expect(page.locator("#m19")).to_be_in_viewport()


def test_very_long_texts_are_cut_until_they_are_wanted(
    opened: Callable[..., Page], store: everlog.Store, daemon: Daemon
) -> None:
    session = store.create()
    session.append(everlog.user("x" * 5_000_000 + " the end"))
    session.append(everlog.assistant("short"))
    page = opened(session.id)
    assert len(page.locator("#m1").inner_text()) < 20_000
    page.locator("#m1").get_by_role("link", name=re.compile("Show all")).click()
    rest = page.locator("#m1").get_by_role("link", name=re.compile("Show as plain text"))
    expect(rest).to_be_attached()
    assert page.locator("#m1 pre.text").evaluate("one => one.textContent.length") == 300_000
    answer = daemon.call("GET", str(rest.get_attribute("href")))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text == "x" * 5_000_000 + " the end"


def test_pictures_are_served_by_the_daemon_and_nothing_else_is_one(
    opened: Callable[..., Page], store: everlog.Store, daemon: Daemon
) -> None:
    session = store.create()
    good = everlog.Image(mime_type="image/png", data=base64.b64encode(DOT).decode())
    bad = everlog.Image(mime_type="image/png", data=base64.b64encode(b"<svg onload=x>").decode())
    svg = everlog.Image(mime_type="image/svg+xml", data="aGk=")
    session.append(everlog.user([everlog.Text("see"), good, svg]))
    page = opened(session.id)
    expect(page.locator(".picture img")).to_have_js_property("naturalWidth", 1)
    expect(page.locator(".picture img")).to_have_count(1)
    session.append(everlog.user([bad]))
    expect(page.locator("#m2")).to_contain_text("Image that cannot be shown")
    expect(page.locator(".picture img")).to_have_count(1)
    for path in ("2/0", "1/1", "1/7", "9/0"):
        answer = daemon.call("GET", f"/sessions/{session.id}/pictures/{path}")
        assert answer.status_code == 404, path
    answer = daemon.call("GET", f"/sessions/{session.id}/pictures/1/0")
    assert answer.headers["content-type"] == "image/png" and answer.content == DOT
    assert answer.headers["x-content-type-options"] == "nosniff"


# --- changing ---------------------------------------------------------------------------------


def test_enter_in_a_dialog_does_what_was_asked_for(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = store.create(title="Old")
    session.append_many(everlog.user(f"task {number} " + "x " * 900) for number in range(200))
    page = opened(session.id)
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").fill("New")
    page.get_by_label("Title").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("New")
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Compact now").click()
    field = page.get_by_role("dialog", name="Compact now").get_by_label("What the summary should focus on")
    field.fill("the tasks")
    field.press("Enter")
    expect(page.locator(".fold")).to_have_count(1)


def test_compacting_shows_the_cut_first_and_folds_the_past(
    opened: Callable[..., Page], store: everlog.Store, axe: Callable[[Page], None]
) -> None:
    session = store.create(title="Big")
    session.append_many(
        one
        for number in range(1, 151)
        for one in (
            everlog.user(f"please do task {number} " + "with care " * 150),
            everlog.assistant(f"task {number} is done " + "so it is " * 150),
        )
    )
    page = opened(session.id)
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Compact now").click()
    dialog = page.get_by_role("dialog", name="Compact now")
    expect(dialog).to_contain_text(re.compile(r"\d+ messages before message [\d,]+ would be summarised"))
    assert not [one for one in session.records() if isinstance(one, Compaction)]
    dialog.get_by_role("button", name="Compact", exact=True).click()
    fold = page.locator(".fold")
    expect(fold).to_have_count(1)
    record = next(one for one in session.records() if isinstance(one, Compaction))
    past = fold.get_by_role("link", name=re.compile(r"Show the \d+ earlier messages"))
    expect(past).to_have_text(f"Show the {record.first_kept_seq - 1} earlier messages")
    assert min(numbers(page)) == record.first_kept_seq - 0.5
    axe(page)
    past.click()
    expect(page.locator(f"#m{record.first_kept_seq - 1}")).to_be_in_viewport()
    assert min(numbers(page)) > 1
    first = min(numbers(page))
    page.locator(f"#m{int(first)}").scroll_into_view_if_needed()
    expect(page.locator(f"#m{int(first) - 1}")).to_be_attached()
    page.goto(page.url.split("?")[0] + "?at=5#m5")  # a link into the past
    expect(page.locator("#m5")).to_be_in_viewport()


def test_a_fork_shares_everything_up_to_a_message(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 10, title="Root")
    page = opened(session.id)
    act(page, 4, "Fork from here")
    page.wait_for_url(lambda url: session.id not in url)
    expect(page.locator("[data-transcript] .said")).to_have_count(4)
    assert len(session.messages()) == 10


def test_a_rewind_asks_first_and_what_it_dropped_can_be_seen(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 10)
    page = opened(session.id)
    act(page, 4, "Rewind to here")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.locator("#m10")).to_be_visible()
    act(page, 4, "Rewind to here")
    page.get_by_role("dialog").get_by_role("button", name="Rewind").click()
    line = page.locator(".line.gone")
    expect(line).to_contain_text("6 messages were rewound")
    expect(page.locator("#m10")).to_have_count(0)
    assert [one.seq for one in session.messages()] == [1, 2, 3, 4]
    line.get_by_role("link", name="show").click()
    expect(line.locator(".said")).to_have_count(6)
    expect(line.locator(".said").first).to_contain_text("question 3")


def test_a_deleted_message_comes_back_by_undo_and_by_restore(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = talk(store, 6)
    page = opened(session.id)
    act(page, 3, "Delete")
    expect(page.locator(".line.gone")).to_contain_text("1 message was deleted")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("article#m3")).to_be_visible()
    expect(page.locator(".line.gone")).to_have_count(0)
    act(page, 3, "Delete")
    page.locator(".line.gone").get_by_role("link", name="show").click()
    page.locator(".line.gone").get_by_role("button", name="Restore").click()
    expect(page.locator("article#m3")).to_be_visible()
    assert len(session.messages()) == 6


def test_a_call_is_deleted_with_its_result(opened: Callable[..., Page], store: everlog.Store) -> None:
    session = store.create()
    session.append(everlog.user("go"))
    session.append(everlog.assistant([everlog.ToolCall("c", "bash", {"command": "ls"})]))
    session.append(everlog.tool_result("c", "files"))
    session.append(everlog.assistant("that is all"))
    page = opened(session.id)
    act(page, 2, "Delete")
    expect(page.locator(".line.gone")).to_have_count(1)
    expect(page.locator(".line.gone")).to_contain_text("2 messages were deleted")
    assert numbers(page) == [1, 2, 4]
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#m2 .call")).to_be_visible()


def test_a_session_is_renamed_exported_and_deleted(
    opened: Callable[..., Page], store: everlog.Store, daemon: Daemon, tmp_path: Path
) -> None:
    session = talk(store, 4, title="Old")
    page = opened(session.id)
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("A <b>new</b> name")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("A <b>new</b> name")
    for kind, words in (("Markdown", "# A <b>new</b> name"), ("HTML", "<!doctype html>")):
        page.get_by_text("Actions", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("link", name=f"Export {kind}").click()
        text = Path(download.value.path()).read_text()
        assert text.startswith(words) and "question 2" in text
        page.keyboard.press("Escape")
    page.get_by_text("Actions", exact=True).click()
    page.get_by_role("button", name="Delete session").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.wait_for_url(f"{daemon.address}/")
    with pytest.raises(everlog.NotFoundError):
        store.session(session.id)


def test_a_damaged_line_is_named_and_leads_to_health(
    opened: Callable[..., Page], store: everlog.Store, daemon: Daemon
) -> None:
    session = talk(store, 6)
    path = daemon.root / "sessions" / session.id / "session.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"answer **2**", b"answer **X**"))
    page = opened(session.id)
    bar = page.locator(".line.damaged")
    expect(bar).to_contain_text("session.jsonl")
    expect(bar).to_contain_text(re.compile(r"bytes \d+ to \d+"))
    expect(bar.get_by_role("link")).to_have_attribute("href", f"/health?session={session.id}")


# --- hostile and other conditions -------------------------------------------------------------


def test_hostile_content_is_harmless(opened: Callable[..., Page], store: everlog.Store, complaints: Complaints) -> None:
    evil = (
        "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m \x1b]0;t\x07 "
        "\u202egnirts desrever \x00\x08"
    )
    session = store.create(title=f"<img src=x onerror=alert(3)> {evil}")
    session.append(everlog.user(evil, sender="<b>mallory</b>"))
    session.append(
        everlog.assistant(
            [
                everlog.Thinking(evil),
                everlog.Text(
                    f"{evil}\n\n[click](javascript:alert(4)) [d](data:text/html,x) [f](file:///etc)\n"
                    "[ok](https://example.org/a) ![p](http://evil.example/p.png)\n\n"
                    f"<iframe src='http://evil.example'></iframe>\n\n```html\n{evil}\n```\n"
                ),
                everlog.ToolCall("c", f"<i>{evil}</i>", {"path": evil, '"><script>': evil}),
            ]
        )
    )
    session.append(everlog.tool_result("c", evil, is_error=True))
    session.append(Compaction(first_kept_seq=1, summary=evil, read_files=(evil,)))
    page = opened(session.id)
    page.get_by_role("searchbox").fill("<script>")
    expect(page.locator("[data-hits] mark").first).to_have_text("<script>")
    page.locator("h1").click()
    expect(page.locator("[data-hits]")).to_be_hidden()
    for one in page.locator("details:not(.menu):not([open]) > summary").all():
        if one.is_visible():
            one.click()
    inside = page.locator("[data-transcript], h1, [data-outline], [data-hits]")
    for tag in ("script", "img", "iframe", "b.mallory", "i"):
        assert inside.locator(tag).count() == 0, tag
    for link in page.locator(".prose a").all():
        expect(link).to_have_attribute("href", re.compile("^https?://"))
        expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    assert "\x1b" not in page.content() and "red" in page.locator("#m1").inner_text()
    assert page.locator("#m1 pre.text").evaluate("one => getComputedStyle(one).unicodeBidi") in ("isolate", "plaintext")
    assert complaints.left == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_session_is_without_barriers_in_light_and_dark(
    opened: Callable[..., Page], store: everlog.Store, axe: Callable[[Page], None], scheme: str
) -> None:
    session = store.create(title="All kinds")
    session.append(everlog.user("# not a heading\n\nplease", sender="alice"))
    session.append(
        everlog.assistant(
            [
                everlog.Thinking("hm"),
                everlog.Text(
                    "# One\n\n### Three\n\n- a\n- b\n\n| a | b |\n|---|---:|\n| 1 | 2 |\n\n> said\n\n"
                    "```python\n# why\n@cached\ndef f(x: int = 1) -> str:\n    return f'{x!r}' + \"s\"\n```\n"
                    "```diff\n- old\n+ new\n```\n`code` and [a link](https://example.org)"
                ),
                everlog.ToolCall("c", "read", {"path": "/src/a.py", "lines": [1, 2.5, None, True]}),
                everlog.ToolCall("d", "bash", {"command": "false"}),
                everlog.ToolCall("open", "bash", {"command": "sleep"}),
            ]
        )
    )
    session.append(everlog.tool_result("c", "text"))
    session.append(everlog.tool_result("d", "bad", is_error=True))
    session.append(everlog.user("gone"))
    session.tombstone(5)
    session.end_turn(duration_ms=5, stop="error", error="ProviderDeniedError: no")
    session.append(Compaction(first_kept_seq=2, summary="## Goal\n\ntests", read_files=("/a",)))
    page = opened(session.id, color_scheme=scheme)
    page.locator("h1").click()
    page.keyboard.press("e")
    expect(page.locator(".call[open]")).to_have_count(3)
    axe(page)


def test_a_narrow_page_does_not_scroll_sideways(
    opened: Callable[..., Page], store: everlog.Store, axe: Callable[[Page], None]
) -> None:
    session = store.create(title="narrow" * 30)
    session.append(everlog.user("w" * 3_000))
    wide = "| " + " | ".join("column" for _ in range(30)) + " |\n|" + "---|" * 30
    session.append(everlog.assistant(f"{wide}\n\n```\n{'long line ' * 90}\n```"))
    session.append(everlog.assistant([everlog.ToolCall("c" * 90, "tool" * 20, {"a": "b" * 900})]))
    page = opened(session.id, width=380, height=700)
    page.locator(".call > summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
    axe(page)


def test_everything_can_be_done_with_the_keyboard(
    opened: Callable[..., Page], store: everlog.Store, daemon: Daemon
) -> None:
    session = talk(store, 8)
    page = opened(session.id)
    page.keyboard.press("k")
    expect(page.locator("#m8")).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator("#m7")).to_be_focused()
    page.keyboard.press("c")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type("!say by keyboard")
    page.keyboard.press("Enter")
    said(page, "by keyboard")
    resting(page)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("write a message")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()
    page.keyboard.press("Escape")
    page.wait_for_url(f"{daemon.address}/")


def test_a_session_that_is_not_there_says_so(visit: Visit, daemon: Daemon, complaints: Complaints) -> None:
    complaints.forgive("404|400")
    page = visit(daemon, "/sessions/01ARZ3NDEKTSV4RRFFQ69G5FAV")
    expect(page.get_by_role("heading", level=1)).to_have_text("Session not found")


def test_a_session_of_the_store_itself_is_continued_at_once_and_offers_what_its_file_can_hold(
    start: Callable[..., Daemon], visit: Visit, tmp_path: Path
) -> None:
    files, session = SESSIONS["crabtalk"]
    place = made(tmp_path / "crabtalk", files)
    page = visit(start("127.0.0.1", f"crabtalk:{place}"), f"/sessions/{session}")
    said(page, "hi there")
    expect(page.locator("[data-foreign]")).to_have_count(0)  # naming the store was the consent
    expect(page.locator("[data-act=hide], [data-act=rewind], [data-act=fork]")).to_have_count(0)
    expect(page.locator("[data-act=rename]")).to_be_visible()
    say(page, "!say in a foreign file")
    said(page, "in a foreign file")
    resting(page)
    assert any(b"in a foreign file" in one.read_bytes() for one in place.glob("*.jsonl"))


def test_the_link_of_a_message_is_copied(opened: Callable[..., Page], store: everlog.Store, daemon: Daemon) -> None:
    session = talk(store, 4)
    page = opened(session.id, permissions=["clipboard-read", "clipboard-write"])
    act(page, 2, "Copy link")
    expect(page.locator(".toast")).to_contain_text("copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == f"{daemon.address}/sessions/{session.id}?at=2#m2"


def test_the_module_is_small(daemon: Daemon) -> None:
    assert len(daemon.call("GET", "/static/page.js").content) <= 30_000
