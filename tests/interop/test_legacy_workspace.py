"""Legacy sessions beside PicoClaw's newer files: shown to readers, converted by the first writer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.identity.route import Router
from everlog.identity.scope import Inbound
from everlog.integrations.picoclaw import SessionStore
from everlog.promotion import routing_of
from everlog.settings import FurtherStoreSettings, Settings
from tests.foreign.foreign_directories import made, picoclaw_files

LEGACY = "agent:main:telegram:direct:7"
STEM = "agent_main_telegram_direct_7"
CREATED, UPDATED = "2025-03-04T05:06:07.5Z", "2025-04-05T06:07:08+02:00"
TEXTS = ["hello <b>", "", "a.py", "one file"]


def document(key: str = LEGACY, **more: Any) -> bytes:
    function = {"name": "ls", "arguments": '{"path":"."}'}
    call = {"id": "c1", "type": "function", "function": function, "extra_content": {"google": {"x": 1}}}
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hello <b>"},
        {"role": "assistant", "content": "", "tool_calls": [call], "created_at": "2025-03-05T00:00:00.123456789Z"},
        {"role": "tool", "content": "a.py", "tool_call_id": "c1"},
        {"role": "assistant", "content": "one file"},
    ]
    value = {"key": key, "messages": messages, "summary": "They met.", "created": CREATED, "updated": UPDATED, **more}
    return json.dumps(value).encode()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    others = {"settings.json": b'{"theme": "dark"}', "torn.json": b'{"key": "x", "messages": ['}
    return made(tmp_path / "sessions", {"old.json": document(), **picoclaw_files("agent:main:direct:1"), **others})


def opened(place: Path, **more: Any) -> everlog.Store:
    return everlog.open_store(f"picoclaw:{place}", home=place.parent / "home", **more)


def snapshot(place: Path) -> dict[str, tuple[int, int, bytes]]:
    stats = {path: path.stat() for path in sorted(place.iterdir())}
    return {path.name: (status.st_ino, status.st_mtime_ns, path.read_bytes()) for path, status in stats.items()}


def texts(session: everlog.Session) -> list[str]:
    return [message.text for message in session.messages()]


def test_a_reader_sees_legacy_sessions_and_changes_nothing(place: Path) -> None:
    before = snapshot(place)
    folder = place.stat().st_mtime_ns
    for _ in range(2):
        with opened(place) as store:
            assert {row.id for row in store.list()} == {STEM, "agent_main_direct_1"}
            session = store.session(LEGACY)
            assert (session.id, texts(session)) == (STEM, TEXTS)
            assert session.metadata.created_at == "2025-03-04T05:06:07.500Z"
            assert session.access.mode == "own"
            assert store.search("hello").total == 2
            skipped = {Path(file.path).name for file in store.port.skipped_files()}  # type: ignore[attr-defined]
            assert skipped == {"settings.json", "torn.json"}
            assert store.usage().sessions
    assert (snapshot(place), place.stat().st_mtime_ns) == (before, folder)


@pytest.mark.parametrize("how", ["append", "create", "route", "prepare", "class"])
def test_the_first_write_converts_them_in_place(place: Path, how: str) -> None:
    if how == "class":
        with SessionStore(place, home=place.parent / "home") as picoclaw:
            assert [message.text for message in picoclaw.get_history(LEGACY)] == TEXTS
            assert picoclaw.get_summary(LEGACY) == "They met."
    with opened(place) as store:
        assert texts(store.session(LEGACY)) == TEXTS
        if how == "append":
            store.session(STEM).append("more")
        elif how == "create":
            store.create(key="agent:main:direct:3")
        elif how == "route":
            inbound = Inbound(channel="telegram", chat_type="direct", chat_id="7", sender_id="7")
            assert texts(store.route_to_session(Router().route(inbound)))[-1] == "one file"
        else:
            routing_of(store.port).prepare()
        assert texts(store.session(STEM))[:4] == TEXTS
        assert any("torn.json" in report for report in store.port.reports) or how == "class"  # type: ignore[attr-defined]
    assert not (place / "old.json").exists() and (place / "old.json.migrated").read_bytes() == document()
    assert (place / "settings.json").exists() and (place / "torn.json").exists()
    lines = (place / f"{STEM}.jsonl").read_bytes().splitlines()
    assert lines[0] == b'{"role":"system","content":"be kind","created_at":"2025-03-04T05:06:07.5Z"}'
    assert b'"hello \\u003cb\\u003e"' in lines[1] and b'"extra_content":{"google":{"x":1}}' in lines[2]
    meta = json.loads((place / f"{STEM}.meta.json").read_bytes())
    assert (meta["key"], meta["summary"], meta["skip"], meta["created_at"]) == (LEGACY, "They met.", 0, CREATED)
    assert not list((place.parent / "home").rglob("legacy")), "its text is in no copy of ours"
    with opened(place) as store:
        assert texts(store.session(STEM))[:4] == TEXTS


def test_a_conversion_that_was_cut_short_is_completed(place: Path) -> None:
    with opened(place) as store:
        routing_of(store.port).prepare()
    os.rename(place / "old.json.migrated", place / "old.json")
    with opened(place) as store:
        store.session("agent_main_direct_1").append("more")
        assert texts(store.session(STEM)) == TEXTS
    assert not (place / "old.json").exists()


def test_a_document_whose_session_went_another_way_stays_and_is_reported(place: Path) -> None:
    made(place, picoclaw_files(LEGACY))
    with opened(place) as store:
        routing_of(store.port).prepare()
        assert texts(store.session(LEGACY)) == ["hello", "hi there"]
        assert any("other messages" in report for report in store.port.reports)  # type: ignore[attr-defined]
    assert (place / "old.json").read_bytes() == document()


def test_what_cannot_be_converted_is_used_as_it_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise everlog.StoreFullError("the disk is full")

    monkeypatch.setattr("everlog.interop.foreign.foreign_files.ForeignFiles.create", full)
    with opened(place) as store:
        routing_of(store.port).prepare()
        session = store.session(LEGACY)
        session.append("still talking")
        assert texts(session) == [*TEXTS, "still talking"]
        assert any("disk is full" in report for report in store.port.reports)  # type: ignore[attr-defined]
        assert texts(store.session("agent_main_direct_1")) == ["hello", "hi there"]
    assert (place / "old.json").exists() and not (place / f"{STEM}.jsonl").exists()
    monkeypatch.undo()
    with opened(place) as store:
        routing_of(store.port).prepare()
        assert texts(store.session(STEM))[-1] == "still talking"


def test_a_directory_of_nothing_but_legacy_sessions_is_picoclaws(tmp_path: Path) -> None:
    place = made(tmp_path / "sessions", {"old.json": document()})
    before = snapshot(place)
    with everlog.open_store(place, home=tmp_path / "home") as store:
        assert texts(store.session(LEGACY)) == TEXTS
    assert snapshot(place) == before


def test_legacy_sessions_of_a_further_store_are_shown_and_never_converted(place: Path) -> None:
    before = snapshot(place)
    settings = Settings(stores=(FurtherStoreSettings(f"picoclaw:{place}"),))
    with everlog.open_store(home=place.parent / "home", create=True, settings=settings) as store:
        own = store.create(title="ours")
        routing_of(store.port).prepare()
        assert {row.id for row in store.list(order="created")} == {STEM, "agent_main_direct_1", own.id}
        assert texts(store.session(LEGACY)) == TEXTS
        assert {hit.session for hit in store.search("hello").results} == {STEM, "agent_main_direct_1"}
        assert store.session(LEGACY).access.mode == "read"
        with pytest.raises(everlog.UnsupportedError, match="only read"):
            store.session(LEGACY).append("more")
        skipped = {Path(file.path).name for file in store.port.skipped_files()}  # type: ignore[attr-defined]
        assert skipped == {"settings.json", "torn.json"}
    assert snapshot(place) == before


def test_legacy_sessions_are_shown_where_the_home_cannot_hold_a_copy(place: Path) -> None:
    before = snapshot(place)
    with opened(place) as store:
        view = next((place.parent / "home" / "live").glob("*/legacy"))
        assert texts(store.session(LEGACY)) == TEXTS
    shutil.rmtree(view)
    view.write_bytes(b"")  # in its place, so that it cannot be made
    with opened(place) as store:
        assert len(store.list()) == 2
        assert texts(store.session(LEGACY)) == TEXTS
        assert store.search("hello").total == 2
    assert snapshot(place) == before
