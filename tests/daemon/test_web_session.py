"""The session view as the daemon serves it: what it reads, what it refuses, what it keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.daemon.web.marker_cache import MAX_SESSIONS, MarkerCache
from everlog.daemon.web.partial_answers import MAX_CHARACTERS, PartialAnswers
from everlog.model import Compaction, Damaged, Entry, Message
from everlog.render.page_window import WINDOW_SIZE, PageWindow, window_before
from everlog.render.transcript_items import MessageItem
from everlog.wire.events import MessageStored, StreamDelta
from tests.daemon.running_daemon import Daemon, receive, say


@pytest.fixture
def session(daemon: Daemon) -> Iterator[everlog.Session]:
    with everlog.open_store(daemon.root, create=True) as store:
        made = store.create(title="Pages")
        made.append_many(everlog.user(f"question {number}") for number in range(1, 201))
        yield made


def shown(text: str) -> list[int]:
    return [int(one) for one in re.findall(r'<article [^>]*id="m(\d+)"', text)]


def page(daemon: Daemon, path: str, status: int = 200) -> str:
    answer = daemon.call("GET", f"/sessions/{path}")
    assert answer.status_code == status, answer.text[:500]
    return answer.text


def test_pages_meet_without_a_gap_and_without_doubles(daemon: Daemon, session: everlog.Session) -> None:
    found = shown(page(daemon, session.id))
    assert len(found) == WINDOW_SIZE and found[-1] == 200
    while found[0] > 1:
        older = shown(page(daemon, f"{session.id}/older?before={found[0]}"))
        assert older, "a page without messages"
        found = older + found
    assert found == list(range(1, 201))
    newer = shown(page(daemon, f"{session.id}/newer?after=0"))
    while newer[-1] < 200:
        newer += shown(page(daemon, f"{session.id}/newer?after={newer[-1]}"))
    assert newer == found


def test_a_message_is_found_by_its_number_wherever_it_is(daemon: Daemon, session: everlog.Session) -> None:
    for seq in (1, 2, 100, 199, 200):
        assert seq in shown(page(daemon, f"{session.id}?at={seq}"))
        assert shown(page(daemon, f"{session.id}/messages/{seq}")) == [seq]
    session.append(Compaction(first_kept_seq=150, summary="before"))
    assert 10 in shown(page(daemon, f"{session.id}?at=10"))
    assert shown(page(daemon, session.id)) == list(range(150, 201))
    assert "Show the 149 earlier messages" in page(daemon, session.id)


def test_the_piece_of_a_result_is_that_of_its_call(daemon: Daemon) -> None:
    with everlog.open_store(daemon.root, create=True) as store:
        session = store.create()
        calls = [everlog.ToolCall("a", "read", {}), everlog.ToolCall("b", "bash", {})]
        session.append(everlog.assistant(calls))
        session.append(everlog.tool_result("b", "second first"))
        session.append(everlog.tool_result("a", "late"))
    for seq in (1, 2, 3):
        text = page(daemon, f"{session.id}/messages/{seq}")
        assert shown(text) == [1]
        assert "second first" in text and "late" in text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("?at=999999", 200),
        ("?at=-5", 200),
        ("?at=99999999999999999999999", 200),
        ("?before=-1", 200),
        ("?before=0", 200),
        ("?after=999999", 200),
        ("?at=x", 400),
        ("/older", 400),
        ("/older?before=", 400),
        ("/newer?after=-9", 200),
        ("/messages/0", 200),
        ("/messages/999999", 200),
        ("/messages/999999/text", 404),
        ("/messages/x", 404),
        ("/rows?low=9&high=3", 200),
        ("/rows?low=-9&high=99999", 200),
        ("/gone?first=-1&last=99999", 200),
        ("/pictures/1/0", 404),
        ("/pictures/0/0", 404),
        ("/pictures/1/-1", 404),
        ("/find?q=", 200),
        ("/find?q=%00%ff", 200),
        ("/outline", 200),
        ("/queue", 200),
        ("/export.md", 200),
        ("/export.html", 200),
        ("/export.exe", 404),
    ],
)
def test_nonsense_is_answered_and_nothing_breaks(
    daemon: Daemon, session: everlog.Session, path: str, status: int
) -> None:
    page(daemon, f"{session.id}{path}", status)


def test_a_dry_run_tells_the_cut_and_writes_nothing(daemon: Daemon) -> None:
    with everlog.open_store(daemon.root, create=True) as store:
        session = store.create()
        session.append_many(everlog.user("do it " * 900) for _ in range(80))
        before = session.metadata.through
        path = f"/api/sessions/{session.id}/compact"
        told = daemon.call("POST", path, {"dryRun": True}).json()
        assert told["compacted"] is False and told["reason"] == "dry run"
        assert told["messages"] > 0 and told["tokensFreed"] > 0
        assert told["record"]["firstKeptSeq"] > 1
        assert session.metadata.through == before
        done = daemon.call("POST", path, {}).json()
        assert done["compacted"] is True
        assert done["record"]["firstKeptSeq"] == told["record"]["firstKeptSeq"]


class Counting:
    """A store port that counts the records that are read from it."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.read_records = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    def read(self, session: str, *, after: int = 0, limit: int | None = None) -> Iterator[Entry]:
        for entry in self._port.read(session, after=after, limit=limit):
            self.read_records += 1
            yield entry


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[tuple[everlog.Session, Counting]]:
    with everlog.open_store(tmp_path / "root", create=True) as store:
        made = store.create()
        for part in range(10):
            made.append_many(everlog.user(f"ask {part} {number}") for number in range(1_000))
        port = Counting(store.port)
        store.port = port
        yield store.session(made.id), port


def opened(sketches: MarkerCache, session: everlog.Session, before: int = 2**53) -> PageWindow:
    with sketches.open(session, session.metadata) as sketch:
        return window_before(sketch, before)


def test_ten_thousand_messages_open_with_one_page_read(counted: tuple[everlog.Session, Counting]) -> None:
    session, port = counted
    sketches = MarkerCache()
    leaf = opened(sketches, session)
    assert len(leaf.items) == WINDOW_SIZE and port.read_records < 200
    opened(sketches, session, leaf.low)
    assert port.read_records < 400, "an older page is read alone"
    session.append(everlog.user("one more"))
    port.read_records = 0
    assert opened(sketches, session).high == 10_002
    assert port.read_records < 200, "what is new is taken in, and nothing read again"


@pytest.mark.parametrize("size", [1, 3, 7])
def test_damaged_lines_are_shown_once_wherever_a_page_ends(tmp_path: Path, size: int) -> None:
    root = tmp_path / "root"
    with everlog.open_store(root, create=True) as store:
        name = store.create().id
        for number in range(60):
            store.session(name).append(everlog.user(f"ask {number}"))
    path = root / "sessions" / name / "session.jsonl"
    lines = path.read_bytes().split(b"\n")
    for place in (9, 10, 11, 24, 33, 34, 52):
        lines[place] = lines[place][:50]
    for place in (20, 40):
        lines.insert(place, b"this is no record")
    path.write_bytes(b"\n".join(lines))
    with everlog.open_store(root, create=True) as store:
        session = store.session(name)
        everything = [one.seq for one in session.entries() if isinstance(one, Message | Damaged)]
        found: list[int | None] = []
        before = session.metadata.through.seq + 1
        sketches = MarkerCache()
        while before > 1:
            with sketches.open(session, session.metadata) as sketch:
                leaf = window_before(sketch, before, size)
            found = [
                part.seq if isinstance(part, Damaged) else part.message.seq
                for part in leaf.items
                if isinstance(part, Damaged | MessageItem)
            ] + found
            before = leaf.low
        assert found == everything and len(found) == 62


def test_only_some_sketches_are_kept_and_an_emptied_log_is_sketched_anew(tmp_path: Path) -> None:
    with everlog.open_store(tmp_path / "root", create=True) as store:
        sketches = MarkerCache()
        made = [store.create() for _ in range(MAX_SESSIONS + 5)]
        for one in made:
            one.append(everlog.user("hello"))
            assert len(opened(sketches, one).items) == 1
        assert len(sketches._cached) == MAX_SESSIONS
        with sketches.open(made[-1], made[-1].metadata) as sketch:
            sketch.high = 99  # as if its file had been longer
        assert opened(sketches, made[-1]).high == 2


def test_what_was_said_so_far_is_forgotten_with_the_message() -> None:
    made = PartialAnswers()
    for text in ("Hel", "lo"):
        made.on_event(StreamDelta(session_id="a", text=text))
    made.on_event(StreamDelta(session_id="b", text="x" * MAX_CHARACTERS))
    made.on_event(StreamDelta(session_id="b", text="too much"))
    assert made.text("a") == "Hello" and len(made.text("b")) == MAX_CHARACTERS and made.text("c") == ""
    made.on_event(MessageStored(session_id="a", seq=1, message=everlog.assistant("Hello")))
    assert made.text("a") == ""


def test_an_answer_that_began_before_any_page_was_open_is_shown_from_its_beginning(
    start: Callable[..., Daemon],
) -> None:
    daemon = start()
    with daemon.client() as client, daemon.socket() as socket:
        session = client.create().id
        say(socket, type="subscribe", sessionId=session)
        receive(socket, "subscribed")
        say(socket, type="send_message", sessionId=session, content="!stream 60000")
        run = receive(socket, "run_start")["runId"]
        first = receive(socket, "stream_delta")["text"]
        text = page(daemon, session)
        say(socket, type="cancel", sessionId=session, runId=run)
        receive(socket, "error")
    assert f"data-streamed>{first.rstrip()}" in text


def test_a_page_of_heavy_answers_is_shorter(daemon: Daemon) -> None:
    code = "```python\n" + "for one in range(10): print(one)\n" * 350 + "```\n"
    with everlog.open_store(daemon.root, create=True) as store:
        made = store.create()
        made.append_many(everlog.assistant(code) for _ in range(WINDOW_SIZE))
    found = shown(page(daemon, made.id))
    assert 10 <= len(found) <= WINDOW_SIZE / 3 and found[-1] == WINDOW_SIZE
    assert shown(page(daemon, f"{made.id}/older?before={found[0]}"))[-1] == found[0] - 1
    later = shown(page(daemon, f"{made.id}/newer?after=0"))
    assert later[0] == 1 and len(later) <= WINDOW_SIZE / 2


@pytest.mark.parametrize(
    ("path", "accept", "kind"),
    [
        ("/nothing", "text/html", "text/html"),
        ("/sessions/a/b/c", "text/html", "text/html"),
        ("/nothing", "*/*", "application/json"),
        ("/api/nothing", "text/html", "application/json"),
    ],
)
def test_where_nothing_is_a_browser_gets_a_page_and_a_program_json(
    daemon: Daemon, path: str, accept: str, kind: str
) -> None:
    answer = daemon.ask("GET", path, headers={**daemon.bearer, "Accept": accept})
    assert answer.status_code == 404 and answer.headers["content-type"].startswith(kind)
    assert ("Page not found" in answer.text) is (kind == "text/html")
