"""Routed messages find their session; old histories come along once, and nobody else's."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.identity.route import Routed, Router
from everlog.identity.scope import Inbound
from everlog.model import Compaction, Message, assistant, user

LEGACY = "agent:main:direct:42"


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> everlog.Store:
    return everlog.open_store("memory:" if request.param == "memory" else tmp_path)


def _route(channel: str = "telegram", sender: str = "42", **more: Any) -> Routed:
    fields = {"chat_type": "direct", "chat_id": sender, **more}
    return Router().route(Inbound(channel=channel, sender_id=sender, **fields))


def _old(store: everlog.Store, name: str = LEGACY, *texts: str) -> everlog.Session:
    """A session as an older version left it, under a readable key."""
    session = store.create(key=name)
    for text in texts or ("hello", "again"):
        session.append(user(text))
        session.append(assistant(f"re: {text}"))
    return session


def _texts(session: everlog.Session) -> list[str]:
    return [message.text for message in session.messages()]


def test_the_same_route_leads_to_the_same_session(store: everlog.Store) -> None:
    one = store.route_to_session(_route(), sender="42")
    assert store.route_to_session(_route(), sender="42").id == one.id
    assert store.route_to_session(_route(channel="discord")).id != one.id
    metadata = one.metadata
    assert metadata.key == _route().session_key
    assert metadata.scope is not None and metadata.scope["channel"] == "telegram"
    assert (metadata.agent, metadata.sender, metadata.chat) == ("main", "42", 1)
    for alias in ("agent:main:telegram:direct:42", metadata.key):
        assert store.session(alias).id == one.id


def test_the_second_message_after_a_new_chat_goes_to_the_new_chat(store: everlog.Store) -> None:
    one = store.route_to_session(_route())
    one.append(user("old"))
    two = store.route_to_session(_route(), new_chat=True)
    assert two.id != one.id and two.metadata.chat == 2
    for _ in range(2):
        assert store.route_to_session(_route()).id == two.id
    assert store.session("agent:main:telegram:direct:42").id == two.id
    one.resume()
    for _ in range(2):
        assert store.route_to_session(_route()).id == one.id


def test_an_old_history_comes_in_with_the_first_message(store: everlog.Store) -> None:
    old = _old(store)
    new = store.route_to_session(_route())
    assert new.id != old.id
    assert _texts(new) == _texts(old)
    assert [m.id for m in new.messages()] == [m.id for m in old.messages()]
    assert [m.timestamp for m in new.messages()] == [m.timestamp for m in old.messages()]
    assert old.metadata.promoted_to == {"id": new.id, "seq": 4}
    assert store.session(LEGACY).id == new.id  # the old name goes on working
    assert len(store.session(old.id).messages()) == 4  # and the old session stays
    assert store.route_to_session(_route()).id == new.id
    assert len(new.messages()) == 4


def test_its_summary_comes_too(store: everlog.Store) -> None:
    old = _old(store, LEGACY, "a", "b", "c")
    old.append(Compaction(first_kept_seq=5, summary="S"))
    old.append(user("d"))
    old.tombstone(6)
    new = store.route_to_session(_route())
    assert [m.text for m in new.context().messages] == [m.text for m in old.context().messages]
    assert _texts(new) == _texts(old)


def test_clearing_does_not_bring_it_back(store: everlog.Store) -> None:
    _old(store)
    new = store.route_to_session(_route())
    new.rewind(0)
    for _ in range(2):
        assert store.route_to_session(_route()).messages() == []
    assert store.route_to_session(_route(), new_chat=True).messages() == []


def test_a_name_without_a_channel_is_promoted_once_to_the_first_that_claims_it(store: everlog.Store) -> None:
    _old(store)
    first = store.route_to_session(_route("telegram"))
    for channel in ("discord", "slack"):
        other = store.route_to_session(_route(channel))
        assert other.messages() == [], "history leaked into another channel"
    assert len(first.messages()) == 4
    assert store.session(LEGACY).id == first.id


def test_a_name_with_a_channel_is_promoted_there_only(store: everlog.Store) -> None:
    _old(store, "agent:main:slack:direct:42")
    assert store.route_to_session(_route("telegram")).messages() == []
    assert len(store.route_to_session(_route("slack")).messages()) == 4


def test_nothing_is_promoted_from_the_main_session(store: everlog.Store) -> None:
    _old(store, "agent:main:main")
    assert store.route_to_session(_route()).messages() == []
    assert len(store.session("agent:main:main").messages()) == 4


def test_nothing_is_promoted_over_a_conversation(store: everlog.Store) -> None:
    new = store.route_to_session(_route())
    new.append(user("first"))
    _old(store)
    assert _texts(store.route_to_session(_route())) == ["first"]
    store.route_to_session(_route()).rewind(0)
    assert store.route_to_session(_route()).messages() == []


def test_an_empty_session_that_was_there_before_is_filled(store: everlog.Store) -> None:
    new = store.route_to_session(_route())
    _old(store)
    assert len(store.route_to_session(_route()).messages()) == 4
    assert store.route_to_session(_route()).id == new.id


def test_an_explicit_key_takes_no_names_of_the_chat(store: everlog.Store) -> None:
    chat = store.route_to_session(_route())
    inbound = Inbound(channel="telegram", chat_type="direct", chat_id="42", sender_id="42")
    key = "agent:cron-nightly-1"
    cron = store.route_to_session(Router().route(inbound, key), incoming=key, source="cron")
    assert cron.id != chat.id
    assert cron.metadata.aliases == ()
    assert store.session("agent:main:telegram:direct:42").id == chat.id
    assert store.session(key).id == cron.id


def test_a_key_that_is_not_explicit_is_one_more_alias(store: everlog.Store) -> None:
    other = _old(store, "agent:other:direct:1")
    for incoming in ("cli:default", other.id[:10], "two words", "\x00", "x" * 600):
        session = store.route_to_session(_route(), incoming=incoming)
        assert session.id == store.route_to_session(_route()).id != other.id
    assert store.session("cli:default").id == session.id
    assert "cli:default" in session.metadata.aliases
    assert session.messages() == []
    assert store.session(other.id).id == other.id


@pytest.mark.parametrize("stop", range(1, 5))
def test_a_copy_that_was_cut_short_is_completed(tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = everlog.open_store(tmp_path, create=True)
    old = _old(store)
    monkeypatch.setattr("everlog.promotion.BATCH_RECORDS", 1)
    append = store.port.append
    calls: list[int] = []

    def dying(*arguments: Any, **more: Any) -> Any:
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(1)
        return append(*arguments, **more)

    monkeypatch.setattr(store.port, "append", dying)
    with pytest.raises(KeyboardInterrupt):
        store.route_to_session(_route())
    again = everlog.open_store(tmp_path, create=True)
    new = again.route_to_session(_route())
    assert _texts(new) == _texts(old)
    assert _texts(again.route_to_session(_route())) == _texts(old)


def _promote(root: Path, channel: str) -> None:
    store = everlog.open_store(root, create=True)
    session = store.route_to_session(_route(channel))
    session.append(user(f"now on {channel}"))


@pytest.mark.parametrize("channels", [("telegram",), ("telegram", "discord", "slack", "irc")])
@pytest.mark.slow
def test_sixteen_processes_promote_once(tmp_path: Path, channels: tuple[str, ...]) -> None:
    old = _old(everlog.open_store(tmp_path, create=True), LEGACY, *[f"line {n}" for n in range(40)])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_promote, args=(tmp_path, channels[n % len(channels)])) for n in range(16)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 16
    store = everlog.open_store(tmp_path, create=True)
    told = _texts(old)
    winners = 0
    for channel in channels:
        texts = _texts(store.route_to_session(_route(channel)))
        if texts[: len(told)] == told:
            winners += 1
            texts = texts[len(told) :]
        assert texts == [f"now on {channel}"] * (16 // len(channels)), "doubled or mixed"
    assert winners == 1
    assert len(store.list()) == 1 + len(channels)


def test_messages_are_copied_with_what_we_do_not_know_of_them(store: everlog.Store) -> None:
    old = store.create(key=LEGACY)
    old.append(Message(role="user", content=(everlog.OtherBlock({"type": "video", "x": 1}),)))
    new = store.route_to_session(_route())
    assert new.messages()[0].content == old.messages()[0].content
