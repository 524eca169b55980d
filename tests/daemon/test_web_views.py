"""The views Context, Cron, Memory and Health, and the routes behind them, over a real connection."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.client import Client
from everlog.errors import ConflictError, ContextOverflowError, FormatError, NotFoundError, SessionBusyError
from everlog.memory.dream_state import DreamStateFiles
from everlog.model import ToolCall, assistant, tool_result
from everlog.wire import responses
from tests.daemon.running_daemon import FAST, Daemon, until
from tests.runtime.test_integrity_check import damage

NOBODY = "01ARZ3NDEKTSV4RRFFQ69G5FAV"  # an id that no session has
AGAIN = '<meta http-equiv="refresh"'  # for who has no scripts; the module looks on its own
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
EXTRACTED = """## Auto-extracted memories

### Session memories — 2026-04-03
- **[preference]** The user prefers tabs *(confidence: 80%)* <!-- session:{session} seq:1 -->
"""


def view(daemon: Daemon, path: str, status: int = 200) -> str:
    answer = daemon.call("GET", path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script>alert" not in answer.text and "<img" not in answer.text
    return answer.text


# --- memory ---------------------------------------------------------------------------------


def test_a_note_is_revised_by_whoever_read_it_last(client: Client) -> None:
    file = client.remember("The port is 80.", agent="reviser", category="project").file
    (read,) = client.memory("reviser").notes
    client.revise(file, "The port is 8080.", agent="reviser", version=read.version)
    (now,) = client.memory("reviser").notes
    assert (now.text, now.name, now.by_person) == ("The port is 8080.", "The port is 8080.", True)
    assert now.category is None, "what is not given is not kept"
    assert "8080" in client.memory("reviser").index
    with pytest.raises(ConflictError, match="changed by somebody else"):
        client.revise(file, "The port is 81.", agent="reviser", version=read.version)
    assert client.memory("reviser").notes == [now]


def test_what_else_the_front_matter_says_survives_a_revision(daemon: Daemon, client: Client) -> None:
    folder = daemon.root / "memory" / "keeper"
    folder.mkdir(parents=True)
    note = folder / "tea.md"
    note.write_text("---\nname: Tea\nmood: calm\nsource: {session: 01J, seq: 4}\n---\n\nGreen.\n")
    client.revise("Tea", "Black.\r\n\r\nNever with milk.", agent="keeper", name="Tea")
    text = note.read_text()
    assert "mood: calm" in text and "source: {session: 01J, seq: 4}" in text
    assert text.endswith("\n\nBlack.\n\nNever with milk.\n")
    (read,) = client.memory("keeper").notes
    assert read.sources == [responses.FactSource(session="01J", seq=4)]


def test_a_note_that_was_written_is_taken_back_and_one_that_is_forgotten_stays_so(
    client: Client, daemon: Daemon
) -> None:
    file = client.remember("The cat is called Bo.", agent="undoer").file
    taken = client.undo("undoer")
    assert file in taken.files and "remembered" in taken.report
    assert client.memory("undoer").notes == []
    undo, written = client.memory_changes("undoer")
    assert undo.undoes == written.id and written.undone
    file = client.remember("The dog is called Al.", agent="undoer").file
    client.forget(file, agent="undoer")
    assert client.memory("undoer").notes == []
    with pytest.raises(NotFoundError, match="nothing to undo"):
        client.undo("undoer")
    left = [path for path in (daemon.root / "memory" / "undoer").rglob("*") if path.is_file()]
    assert left and not any("The dog is called Al." in path.read_text() for path in left)


def test_nothing_is_taken_back_from_under_an_edit(daemon: Daemon, client: Client) -> None:
    file = client.remember("The dog is called Al.", agent="edited").file
    (daemon.root / "memory" / "edited" / file).write_text("mine now")
    with pytest.raises(ConflictError, match="edited since"):
        client.undo("edited")


def test_a_dream_is_told_before_it_is_dreamt(daemon: Daemon, client: Client) -> None:
    session = client.create().id
    folder = daemon.root / "memory" / "dreamer"
    folder.mkdir(parents=True)
    (folder / "extracted.md").write_text(EXTRACTED.format(session=session))
    refused = client.dream(agent="dreamer")
    assert not refused.dreamed and "0 of 5 new sessions" in refused.reason
    told = client.dream(agent="dreamer", dry_run=True)
    assert not told.dreamed and [one.kind for one in told.changes].count("write") == 2
    assert client.memory("dreamer").notes == []
    shown = view(daemon, "/memory?agent=dreamer&preview=yes")
    assert "Changes a dream would make now" in shown and "extracted.md" in shown
    assert f'href="/sessions/{session}?at=1#m1"' in shown
    done = client.dream(agent="dreamer", force=True)
    assert done.dreamed and done.changes == told.changes
    (note,) = client.memory("dreamer").notes
    assert note.sources == [responses.FactSource(session=session, seq=1)] and not note.by_person
    shown = view(daemon, "/memory?agent=dreamer")
    assert "Dream</b>" in shown and f'href="/sessions/{session}?at=1#m1"' in shown


def test_two_dreams_at_once_are_refused(daemon: Daemon, client: Client) -> None:
    client.remember("Something.", agent="sleeper")
    other = DreamStateFiles(daemon.root / "memory" / "sleeper")
    other.acquire()
    try:
        with pytest.raises(SessionBusyError, match="another consolidation is running"):
            client.dream(agent="sleeper", force=True)
    finally:
        other.release()
    assert client.dream(agent="sleeper", force=True).dreamed


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/api/memory/none.md", {"text": "x"}, 404),
        ("PUT", "/api/memory/MEMORY.md", {"text": "x"}, 404),
        ("PUT", "/api/memory/..%2F..%2Fconfig.toml", {"text": "x"}, 404),
        ("PUT", "/api/memory/none.md", {"text": ""}, 400),
        ("PUT", "/api/memory/none.md", {"text": "x", "category": "gossip"}, 400),
        ("PUT", "/api/memory/none.md", {"txet": "x"}, 400),
        ("PUT", "/api/memory/none.md?agent=..", {"text": "x"}, 400),
        ("GET", "/api/memory/changes?agent=projects", None, 400),
        ("POST", "/api/memory/undo?agent=nobody", None, 404),
        ("POST", "/api/memory/dream?agent=a%2Fb", {}, 400),
        ("POST", "/api/memory/dream", {"forse": True}, 400),
        ("GET", f"/api/sessions/{NOBODY}/verify", None, 404),
        ("GET", "/api/sessions/no/verify", None, 400),
        ("POST", f"/api/sessions/{NOBODY}/repair", None, 404),
    ],
)
def test_nonsense_is_refused(daemon: Daemon, method: str, path: str, body: Any, status: int) -> None:
    answer = daemon.call(method, path, body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def test_an_empty_revision_is_refused_as_on_the_command_line(client: Client) -> None:
    file = client.remember("Something.", agent="emptied").file
    with pytest.raises(FormatError, match="would be empty"):
        client.revise(file, "  \n", agent="emptied")


def test_hostile_notes_are_shown_harmless(daemon: Daemon, client: Client) -> None:
    told = f"{HOSTILE}\n\n[click](javascript:alert(3)) \x1b[31mred"
    client.remember(told, agent="hostile", name=HOSTILE, description=f'"{HOSTILE}')
    page = view(daemon, "/memory?agent=hostile")
    assert "&lt;script&gt;alert(1)" in page
    assert "\x1b" not in re.sub(r"(?s)<textarea.*?</textarea>", "", page), "only for editing"
    assert not re.search(r'href="javascript', page, re.IGNORECASE)


def test_bytes_that_are_no_text_break_neither_page_nor_answer(daemon: Daemon, client: Client) -> None:
    folder = daemon.root / "memory" / "latin"
    folder.mkdir(parents=True)
    (folder / "cafe.md").write_bytes(b"---\nname: caf\xe9\n---\n\nau lait \xff\n")
    assert "caf\ufffd" in view(daemon, "/memory?agent=latin")
    (note,) = client.memory("latin").notes
    client.revise("cafe.md", "au lait", agent="latin", version=note.version)


def test_a_memory_without_anything_says_how_notes_come_about(daemon: Daemon) -> None:
    assert "No notes yet" in view(daemon, "/memory?agent=blank")
    assert "cannot be the name of a memory" in view(daemon, "/memory?agent=../x", 400)


# --- cron -----------------------------------------------------------------------------------

JOBS = (
    FAST
    + """
[[cron.jobs]]
id = "<script>alert(1)</script>"
schedule = "*/15 9-17 * * 1-5"
prompt = "!fail refused"
agent = "<img src=x>"
[[cron.jobs]]
id = "off"
schedule = "0 0 1 * *"
prompt = "!say x"
enabled = false
"""
)


def test_jobs_are_shown_with_how_they_fare(start: Callable[..., Daemon]) -> None:
    daemon = start(config=JOBS)
    page = view(daemon, "/cron")
    assert "At 03:00 every day" in page and "&lt;script&gt;alert(1)" in page
    assert 'data-call="POST /api/cron/night%2Fly/pause"' in page
    assert "disabled in" in page
    with daemon.client() as client:
        client.pause("night/ly")
        session = client.run("night/ly")
        until(lambda: all(not one["running"] for one in client.cron()))
    page = view(daemon, "/cron")
    assert 'data-call="POST /api/cron/night%2Fly/resume"' in page
    assert "succeeded" in page and f'href="/sessions/{session}"' in page


def test_the_page_comes_again_while_a_job_runs(start: Callable[..., Daemon]) -> None:
    daemon = start(config=FAST.replace("!say all is well", "!wait 60"))
    with daemon.client() as client:
        assert AGAIN not in view(daemon, "/cron")
        session = client.run("night/ly")
        assert AGAIN in view(daemon, "/cron") and " data-again" in view(daemon, "/cron")
        client.cancel(session)
        until(lambda: all(not one["running"] for one in client.cron()))
    assert AGAIN not in view(daemon, "/cron")


def test_without_jobs_the_page_says_how_to_add_one(start: Callable[..., Daemon]) -> None:
    config = FAST.partition("[[cron.jobs]]")[0]
    assert "[[cron.jobs]]" in view(start(config=config), "/cron")


# --- context --------------------------------------------------------------------------------


def test_the_context_shows_all_that_is_sent_and_what_is_not(daemon: Daemon, client: Client) -> None:
    session = client.create(title=f"Cut {HOSTILE}", system_prompt="Answer in rhymes.").id
    client.send(session, "!say first")
    client.send(session, f"!say {'long ' * 20_000}")
    client.send(session, f"!say {HOSTILE}")
    assert client.compact(session).compacted
    page = view(daemon, f"/sessions/{session}/context")
    assert "of all earlier messages" in page, "the summary is marked"
    assert "environment: system, date, directory" in page, "injections name their origin"
    assert "Answer in rhymes." in page and "System prompt" in page
    assert "current_time" in page, "tools are part of what is sent"
    sent = client.context(session)
    for message in sent.messages:
        seq = message.get("seq")
        assert not seq or f'href="/sessions/{session}?at={seq}#m{seq}"' in page
    client.delete_message(session, 1)
    assert "The summary is stale" in view(daemon, f"/sessions/{session}/context")


def test_calls_without_results_and_results_without_calls_are_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with everlog.open_store(root, create=True) as store:
        session = store.create()
        session.append(everlog.user("look"))
        session.append(tool_result("stray", "found"))
        session.append(assistant([ToolCall("open", "look", {"n": 1})]))
    daemon = Daemon(root)
    try:
        page = view(daemon, f"/sessions/{session.id}/context")
    finally:
        daemon.stop()
    assert "placeholder for a result that was never recorded" in page
    assert "a result without its call" in page and "?at=2#m2" in page


def test_the_context_of_no_session_is_a_page_that_says_so(daemon: Daemon) -> None:
    assert "Session not found" in view(daemon, f"/sessions/{NOBODY}/context", 404)


# --- health ---------------------------------------------------------------------------------


def test_damage_is_found_shown_and_repaired(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with daemon.client() as client:
        sound, sick = client.create(title="sound").id, client.create(title=HOSTILE).id
        for session in (sound, sick):
            client.send(session, "!say hello")
    daemon.stop()
    damage(daemon.root, sick)
    daemon = start()
    with daemon.client() as client:
        assert "Not run since the daemon started" in view(daemon, "/health")
        assert client.verify_all().running
        checked = until(lambda: (now := client.integrity_status()) and not now.running and now)
        assert not checked.ok and (checked.done, checked.of) == (2, 2)
        assert {one.session for one in checked.damage} == {sick}
        page = view(daemon, "/health")
        assert f'data-call="POST /api/sessions/{sick}/repair"' in page
        assert "1 problem</b>" in page and "session.jsonl" in page
        assert client.verify(sound) == responses.VerifyResult(ok=True, damage=[])
        repaired = client.repair(sick)
        assert repaired.left == checked.damage and "a copy is in" in repaired.done[0]
        page = view(daemon, "/health")
        assert "a copy is in damaged" in page and "/repair" not in page
        assert "No damage found" in view(daemon, f"/health?session={sound}")


def test_no_session_is_repaired_during_its_turn(client: Client) -> None:
    session = client.create().id
    run = client.submit(session, "!wait 60").run_id
    until(lambda: client.sessions(limit=500).sessions[0].running)
    with pytest.raises(SessionBusyError):
        client.repair(session)
    assert client.cancel(session, run)


def test_the_page_comes_again_while_sessions_are_verified(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with everlog.open_store(root, create=True) as store:
        session = store.create()
        session.append_many([everlog.user("one"), everlog.user("two")])
    damage(root, session.id)
    daemon = Daemon(root, config="[session]\nlock_seconds = 60\n")
    try:
        # What looks wrong is looked at again under the session's lock, which is ours.
        with (root / "sessions" / session.id / "lock").open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            daemon.call("POST", "/api/health/verify")
            seen = view(daemon, "/health")
            assert "<progress" in seen and AGAIN in seen and " data-again" in seen
        until(lambda: "<progress" not in view(daemon, "/health"))
        assert AGAIN not in view(daemon, "/health")
    finally:
        daemon.stop()


def test_health_tells_of_the_daemon_and_its_store(daemon: Daemon) -> None:
    page = view(daemon, "/health")
    assert everlog.__version__ in page and str(daemon.root) in page and "offline" in page
    assert "no session" in view(daemon, f"/health?session={NOBODY}", 404)


def test_the_context_of_a_session_that_does_not_fit_is_shown(start: Callable[..., Daemon]) -> None:
    daemon = start(config=f"{FAST}[compaction]\nwindow = 3000\nenabled = false\n")
    with daemon.client() as client:
        session = client.create().id
        client.send(session, "first")
        with everlog.open_store(daemon.root) as store:
            store.session(session).append(everlog.user("word " * 5_000))
        context = client.context(session)
        assert context.excess == context.tokens - context.window > 0
        assert {one.seq for one in context.left_out} >= {1, 2}
        with pytest.raises(ContextOverflowError, match="newest round"):
            client.send(session, "and this?")
    page = daemon.call("GET", f"/sessions/{session}/context")
    assert page.status_code == 200
    assert "This context does not fit" in page.text and "rewind the session" in page.text and "Left out" in page.text
