"""CrabTalk's and PicoClaw's files whose first line is huge, tiny, damaged or gone: nothing of them is hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlog.app import open_store
from everlog.interop.formats.crabtalk import FORMAT as crabtalk
from everlog.interop.formats.format_types import InMemorySource, ListingScan, Match, TranscriptInfo, split_lines
from everlog.interop.formats.picoclaw import FORMAT as picoclaw
from everlog.interop.importer import import_files
from everlog.model import Event, Message, assistant, user
from everlog.session import Session, Store
from everlog.stores.in_memory import InMemoryStore
from tests.formats.test_crabtalk import META, NUMBERED

STEM = "crab_tg-1_3_a-title"
HEAD = (
    b'{"agent":"crab","created_by":"tg-1","created_at":"2026-04-02T08:15:30+00:00","title":"A title","uptime_secs":0}'
)
BODY = b'{"role":"user","content":"first"}\n{"role":"assistant","content":"second"}\n'
SIZES = (1, 2, 200, 4096, 65_536, 65_537, 5_000_000)

HEADS = {
    "lost": b"",
    "blank": b"\n",
    "spaces": b"  \r\n",
    "torn": HEAD[:50] + b"\n",
    "one byte": b"{\n",
    "no JSON": b"x\n",
    "NULs": b"\0" * 4096 + b"\n",
    "another object": b'{"agent":"crab"}\n',
    "a list": b"[1]\n",
}


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


def imported(path: Path) -> tuple[Store, Session]:
    store = Store(InMemoryStore())
    (result,) = import_files(store.port, [path], [crabtalk, picoclaw])
    assert result.id is not None, result.problem
    return store, store.session(result.id)


# --- CrabTalk


@pytest.mark.parametrize("size", SIZES)
def test_a_first_line_of_any_size_hides_nothing(tmp_path: Path, size: int) -> None:
    file = tmp_path / "theirs" / f"{STEM}.jsonl"
    file.parent.mkdir()
    line = json.dumps({**json.loads(HEAD), "more": "x" * size}).encode() if size > 200 else HEAD[:size]
    file.write_bytes(line + b"\n" + BODY)
    with open_store(file.parent, dialect="auto", home=tmp_path / "home") as store:
        (row,) = store.list()
        assert (row.metadata.agent, row.metadata.sender, row.metadata.chat) == ("crab", "tg-1", 3)
        assert row.metadata.message_count == 2
        session = store.session("crab_tg-1_3")
        assert texts(session) == ["first", "second"]
        session.append(user("third"))
        assert texts(session) == ["first", "second", "third"]
    assert file.read_bytes() == line + b"\n" + BODY + b'{"role":"user","content":"third"}\n'
    assert texts(imported(file)[1]) == ["first", "second", "third"]


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_session_without_its_first_line_is_listed_shown_continued_and_imported(tmp_path: Path, head: bytes) -> None:
    file = tmp_path / "theirs" / f"{STEM}.jsonl"
    file.parent.mkdir()
    file.write_bytes(head + BODY)
    with open_store(file.parent, dialect="auto", home=tmp_path / "home") as store:
        (row,) = store.list()
        found = row.metadata
        assert (row.id, found.agent, found.sender, found.chat) == ("crab_tg-1_3", "crab", "tg-1", 3)
        assert (found.title, found.message_count) == ("a-title", 2)
        session = store.session("crab_tg-1_3")
        assert texts(session) == ["first", "second"]
        session.append_many([assistant("third"), user("fourth")])
        assert texts(session) == ["first", "second", "third", "fourth"]
    assert file.read_bytes().startswith(head + BODY)
    with open_store(file.parent, dialect="auto", home=tmp_path / "anew") as store:
        assert texts(store.session("crab_tg-1_3")) == ["first", "second", "third", "fourth"]
    store, session = imported(file)
    assert texts(session) == ["first", "second", "third", "fourth"]
    assert (session.metadata.agent, session.metadata.sender, session.metadata.title) == ("crab", "tg-1", "a-title")


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_the_same_session_has_the_same_ids_with_and_without_its_first_line(head: bytes) -> None:
    def read(data: bytes) -> list[str]:
        session = crabtalk.read(InMemorySource(STEM, {f"{STEM}.jsonl": data}))
        assert session.session_id == "crab_tg-1_3"
        assert len({item.id for item in session.items}) == len(session.items)
        return [item.id for item in session.items if isinstance(item, Message)]

    assert read(head + BODY) == read(HEAD + b"\n" + BODY)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_first_line_that_is_lost_later_changes_no_message(tmp_path: Path, head: bytes) -> None:
    file = tmp_path / "theirs" / f"{STEM}.jsonl"
    file.parent.mkdir()
    file.write_bytes(HEAD + b"\n" + BODY)
    with open_store(file.parent, dialect="crabtalk", home=tmp_path / "home") as store:
        session = store.session("crab_tg-1_3")
        before = session.messages()
        file.write_bytes(head + BODY + b'{"role":"user","content":"third"}\n')
        assert session.messages()[:2] == before and texts(session) == ["first", "second", "third"]


def test_blank_and_damaged_lines_before_the_metadata_are_kept_and_hide_nothing() -> None:
    data = b"\n\0\0\0\n\n" + HEAD + b"\n" + BODY
    source = InMemorySource(STEM, {f"{STEM}.jsonl": data})
    read = crabtalk.read(source)
    assert read.metadata["name"] == "A title"
    assert [type(item) for item in read.items] == [Event, Event, Event, Event, Message, Message]
    assert len({item.id for item in read.items}) == 6
    assert (read.line_count, len(read.damage)) == (4, 1)
    assert crabtalk.recognises(f"{STEM}.jsonl", data) == Match.SURE
    where = crabtalk.find_head(split_lines(data))
    assert (where.meta_bytes, where.size) == (HEAD, data.index(b'{"role"'))


def test_a_title_puts_a_lost_first_line_back_and_loses_no_message(tmp_path: Path) -> None:
    file = tmp_path / "theirs" / "crab_tg-1_3.jsonl"
    file.parent.mkdir()
    file.write_bytes(BODY)
    with open_store(file.parent, dialect="crabtalk", home=tmp_path / "home") as store:
        session = store.session("crab_tg-1_3")
        before = session.messages()
        session.update(title="New title")
        assert session.messages() == before and session.metadata.title == "New title"
    (renamed,) = file.parent.iterdir()
    assert renamed.name == "crab_tg-1_3_new-title.jsonl" and renamed.read_bytes().endswith(b"}\n" + BODY)
    assert crabtalk.recognises("x.jsonl", renamed.read_bytes()) == Match.SURE


@pytest.mark.parametrize(
    ("stem", "data", "match"),
    [
        ("x", META, Match.SURE),
        (STEM, BODY, Match.POSSIBLE),
        (STEM, b'{"role":"user","content":["x"]}\n' + BODY, Match.POSSIBLE),
        (STEM, b'{"compact":"s"}\n', Match.POSSIBLE),
        (STEM, b"\0" * 100, Match.POSSIBLE),
        (STEM, b"", Match.POSSIBLE),
        (STEM, HEAD[:20], Match.POSSIBLE),
        ("crab", BODY, Match.NO),
        ("agent_main_direct_42", BODY, Match.NO),
        (STEM, b"{}\n", Match.NO),
        (STEM, b"text\n", Match.NO),
        (STEM, b'{"type":"user","message":{"role":"user","content":"x"}}\n', Match.NO),
        (STEM, b'{"role":"user","content":[{"type":"text","text":"x"}]}\n', Match.NO),
        (STEM, b'{"role":"user","content":"x","created_at":"2026-06-13T08:00:00Z"}\n', Match.NO),
        (STEM, b'{"role":"user","message":{"content":[]}}\n', Match.NO),
        (STEM, b'{"type":"session","version":3,"id":"x"}\n' + BODY, Match.NO),
    ],
)
def test_crabtalk_is_told_by_its_metadata_or_else_by_name_and_lines(stem: str, data: bytes, match: Match) -> None:
    assert crabtalk.recognises(f"{stem}.jsonl", data) == match
    assert crabtalk.recognises(f"{stem}.txt", data) == Match.NO


@settings(deadline=None)
@given(st.binary(max_size=80), st.booleans())
def test_whatever_is_in_the_first_line_the_views_agree(first: bytes, is_named: bool) -> None:
    data = first.replace(b"\n", b"") + b"\n" + BODY
    stem = STEM if is_named else "crab"
    read = crabtalk.read(InMemorySource(stem, {f"{stem}.jsonl": data}))
    head = crabtalk.find_head(split_lines(data))
    lines = list(split_lines(data))[len(head.lines) :]
    where = TranscriptInfo(read.session_id, head.meta_bytes, stem=stem)
    followed = crabtalk.read_all(lines, where)
    messages = [item for item in read.items if isinstance(item, Message)]
    assert [item.id for item in followed.items] == [item.id for item in messages]
    assert crabtalk.scan_listing(ListingScan(), lines, where).messages == len(messages) >= 2


# --- PicoClaw


def pico(content: Any) -> bytes:
    value = {"role": "user", "content": content, "created_at": "2026-06-13T08:00:00Z"}
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("size", SIZES)
def test_a_first_message_of_any_size_hides_nothing(tmp_path: Path, size: int) -> None:
    file = tmp_path / "theirs" / "heartbeat.jsonl"
    file.parent.mkdir()
    file.write_bytes(pico("x" * size) + pico("second"))
    with open_store(file.parent, dialect="auto", home=tmp_path / "home") as store:
        (row,) = store.list()
        assert (row.id, row.metadata.message_count) == ("heartbeat", 2)
        session = store.session("heartbeat")
        session.append(user("third"))
        assert [len(text) for text in texts(session)] == [size, 6, 5]
    assert [len(text) for text in texts(imported(file)[1])] == [size, 6, 5]


@pytest.mark.parametrize(
    "first",
    [b"", b"\n", b"{\n", b"x\n", b"\0" * 4096 + b"\n", pico("torn")[:30] + b"\n", pico(["x"]), pico(7), pico("x") * 2],
)
def test_an_odd_first_line_of_picoclaw_hides_nothing_after_it(tmp_path: Path, first: bytes) -> None:
    file = tmp_path / "theirs" / "agent_main_direct_42.jsonl"
    file.parent.mkdir()
    file.write_bytes(first + pico("second"))
    with open_store(file.parent, dialect="auto", home=tmp_path / "home") as store:
        assert [row.id for row in store.list()] == ["agent_main_direct_42"]
        session = store.session("agent_main_direct_42")
        assert texts(session)[-1] == "second"
        session.append(user("third"))
        assert texts(session)[-2:] == ["second", "third"]
    assert texts(imported(file)[1])[-2:] == ["second", "third"]


@pytest.mark.parametrize(
    ("stem", "data", "match"),
    [
        ("x", pico("x"), Match.SURE),
        ("x", pico(["x"]) + pico("y"), Match.SURE),
        ("sk_v1_00", BODY, Match.POSSIBLE),
        ("x", BODY, Match.NO),
        ("x", b'{"role":"tool","content":"x","tool_call_id":"c"}\n', Match.POSSIBLE),
        ("x", b'{"type":"user","role":"user","content":"x","created_at":"2026-06-13T08:00:00Z"}\n', Match.NO),
        ("x", META + pico("x"), Match.NO),
        ("x", b'{"role":"user","content":[{"type":"text","text":"x"}]}\n', Match.NO),
    ],
)
def test_picoclaw_is_told_by_its_keys_or_else_by_its_name(stem: str, data: bytes, match: Match) -> None:
    assert picoclaw.recognises(f"{stem}.jsonl", data) == match


def test_the_keys_of_both_are_those_of_their_lines() -> None:
    assert {"created_by", "uptime_secs"} <= crabtalk.KEYS and {"model_name", "created_at"} <= picoclaw.KEYS
    assert crabtalk.recognises("x.jsonl", next(iter(NUMBERED.files.values()))) == Match.SURE
