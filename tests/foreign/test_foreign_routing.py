"""Promotion of PicoClaw's legacy histories: once, whole after a crash, and never into another's session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import everlog
from everlog.identity.route import Router
from everlog.identity.scope import Inbound
from everlog.ports import Route
from everlog.promotion import routing_of
from everlog.session import Store
from tests.foreign.foreign_directories import cersei_file, made, picoclaw_files

LEGACY = "agent:main:direct:42"
TELEGRAM = Router().route(Inbound(channel="telegram", chat_type="direct", chat_id="42", sender_id="42"))
SLACK = Router().route(Inbound(channel="slack", chat_type="direct", chat_id="42", sender_id="42"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    files = picoclaw_files(LEGACY)
    meta = json.loads(files["agent_main_direct_42.meta.json"])
    return made(tmp_path / "place", {**files, "agent_main_direct_42.meta.json": summarised(meta)})


def summarised(meta: dict[str, object]) -> bytes:
    return json.dumps({**meta, "skip": 1, "summary": "They met."}, indent=2).encode()


def opened(place: Path) -> Store:
    return everlog.open_store(f"picoclaw:{place}", home=place.parent / "home")


def history(session: everlog.Session) -> tuple[str, list[str]]:
    live = session.live()
    return live.summary.summary if live.summary else "", [message.text for message in live.messages]


def test_the_visible_history_and_the_summary_are_copied_once(place: Path) -> None:
    with opened(place) as store:
        assert history(store.route_to_session(TELEGRAM)) == ("They met.", ["hi there"])
        assert history(store.route_to_session(SLACK)) == ("", []), "it belongs to the first key that claims it"
        assert store.session(LEGACY) == store.route_to_session(TELEGRAM), "the name follows its history"
        store.route_to_session(TELEGRAM).delete()
        assert history(store.route_to_session(TELEGRAM)) == ("", []), "what is deleted stays deleted"


@pytest.mark.parametrize("copied", [0, 1])
def test_a_copy_that_a_crash_cut_short_is_completed(place: Path, copied: int) -> None:
    key = TELEGRAM.session_key
    half = picoclaw_files(key)
    lines = half[f"{key}.jsonl"].splitlines(keepends=True)[2 - copied :]
    meta = json.loads(half[f"{key}.meta.json"]) | {"count": copied}
    made(place, {f"{key}.jsonl": b"".join(lines), f"{key}.meta.json": json.dumps(meta).encode()})
    with opened(place) as store:
        store.list()
    (live,) = (place.parent / "home" / "live").iterdir()
    state = place.parent / "home" / "companion" / live.name / "current.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"promoted": {LEGACY: {"to": key}}}))
    with opened(place) as store:
        assert history(store.route_to_session(SLACK)) == ("", [])
        assert history(store.route_to_session(TELEGRAM)) == ("They met.", ["hi there"])
    assert json.loads(state.read_bytes())["promoted"] == {LEGACY: {"to": key, "done": True}}


def test_a_history_whose_name_another_session_lists_is_not_copied(place: Path) -> None:
    theirs = picoclaw_files(SLACK.session_key)
    meta = json.loads(theirs[f"{SLACK.session_key}.meta.json"]) | {"aliases": ["agent:main:main", LEGACY]}
    made(place, {**theirs, f"{SLACK.session_key}.meta.json": json.dumps(meta).encode()})
    with opened(place) as store:
        assert history(store.route_to_session(TELEGRAM)) == ("", [])
        assert store.session(LEGACY).id == SLACK.session_key


def test_a_second_message_rewrites_no_metadata_but_the_counts(place: Path) -> None:
    with opened(place) as store:
        store.route_to_session(TELEGRAM)
        before = (place / f"{TELEGRAM.session_key}.meta.json").stat()
        store.route_to_session(TELEGRAM)
        assert (place / f"{TELEGRAM.session_key}.meta.json").stat() == before


def test_a_key_that_ends_the_id_of_a_session_is_not_its_name(tmp_path: Path) -> None:
    place = made(tmp_path / "cersei", {"user_7.jsonl": cersei_file("user_7")})
    with everlog.open_store(f"cersei:{place}", home=tmp_path / "home") as store:
        routing, route = routing_of(store.port), Route(agent="main", sender="b", key="sk_v1_" + "0" * 64, name="7")
        assert routing.find_session(route) is None
        assert routing.route_to_session(route, {}) == "7"
        assert routing.find_session(route) == "7"
        assert store.session("user_7").metadata.message_count == 2
