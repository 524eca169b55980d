"""What is told beside runs: changes of the listing, and what other processes append."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import everlog
from everlog.client import Client
from everlog.daemon.listing_events import COMPARED_ROWS
from everlog.errors import EverlogError
from everlog.session import Store
from tests.daemon.running_daemon import Daemon, receive, say


@pytest.fixture
def other(daemon: Daemon) -> Iterator[Store]:
    """A store of its own on the daemon's root, as another process has it."""
    with everlog.open_store(daemon.root, create=True) as store:
        yield store


def test_who_watches_is_told_at_once_and_of_every_change(daemon: Daemon, client: Client) -> None:
    with daemon.socket() as socket:
        say(socket, type="watch")
        receive(socket, "listing_changed")
        made = client.create(title="first").id
        assert receive(socket, "listing_changed")["sessionId"] == made
        client.update(made, title="second")
        assert receive(socket, "listing_changed")["sessionId"] == made
        client.delete(made)
        assert receive(socket, "listing_changed")["gone"] == [made]


def test_a_session_that_another_process_makes_is_told(daemon: Daemon, other: Store) -> None:
    with daemon.socket() as socket:
        say(socket, type="watch")
        receive(socket, "listing_changed")
        session = other.create(title="from elsewhere")
        session.append(everlog.user("hello"))
        assert receive(socket, "listing_changed")["sessionId"] == session.id


def test_that_old_sessions_were_deleted_elsewhere_is_told(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with everlog.open_store(daemon.root, create=True) as other, daemon.socket() as socket:
        made = [other.create(title=f"{number}") for number in range(COMPARED_ROWS + 5)]
        other.list()
        say(socket, type="watch")
        assert not receive(socket, "listing_changed")["lost"]
        made[0].delete()
        told = receive(socket, "listing_changed")
        assert told["lost"] and told["gone"] == []
        made[-1].delete()
        told = receive(socket, "listing_changed")
        assert told["gone"] == [made[-1].id] and not told["lost"]


def test_who_does_not_watch_is_not_told(daemon: Daemon, client: Client) -> None:
    made = client.create().id
    with daemon.socket() as socket, daemon.socket() as watching:
        say(watching, type="watch")
        receive(watching, "listing_changed")
        say(socket, type="subscribe", sessionId=made)
        receive(socket, "subscribed")
        client.create()
        receive(watching, "listing_changed")
        client.update(made, title="renamed")
        assert receive(socket)["type"] == "session_renamed"


def test_what_another_process_appends_reaches_those_who_follow(daemon: Daemon, client: Client, other: Store) -> None:
    made = client.create().id
    client.send(made, "!say one")
    session = other.session(made)
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made)
        receive(socket, "subscribed")
        said = session.append(everlog.user("from elsewhere"))
        event = receive(socket)
        assert event["type"] == "message" and event["seq"] == said.seq
        assert event["message"]["content"] == [{"type": "text", "text": "from elsewhere"}]
        session.tombstone(said.seq)
        event = receive(socket)
        assert (event["type"], event["change"]) == ("session_changed", "hidden")
        assert event["seqs"] == [said.seq]
        session.rewind(1)
        assert receive(socket)["change"] == "rewound"


def test_what_a_turn_of_ours_stores_is_told_once(daemon: Daemon, client: Client, other: Store) -> None:
    made = client.create().id
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made)
        receive(socket, "subscribed")
        client.send(made, "!say one")
        last = other.session(made).append(everlog.user("the end")).seq
        seqs: list[int] = []
        while not seqs or seqs[-1] != last:
            seqs.append(receive(socket, "message")["seq"])
    assert len(seqs) == len(set(seqs)) == 3


def test_a_session_that_another_process_deletes_is_told_once(daemon: Daemon, client: Client, other: Store) -> None:
    made, kept = client.create().id, client.create().id
    client.send(made, "!say one")
    with daemon.socket() as socket:
        for one in (made, kept):
            say(socket, type="subscribe", sessionId=one)
            receive(socket, "subscribed")
        other.session(made).delete()
        event = receive(socket, "session_changed")
        assert (event["sessionId"], event["change"]) == (made, "deleted")
        other.session(kept).append(everlog.user("the end"))
        assert receive(socket)["type"] == "message"  # not told again


def test_a_session_that_is_deleted_here_is_told_once(daemon: Daemon, client: Client) -> None:
    made, kept = client.create().id, client.create().id
    with daemon.socket() as socket:
        for one in (made, kept):
            say(socket, type="subscribe", sessionId=one)
            receive(socket, "subscribed")
        client.delete(made)
        assert receive(socket, "session_changed")["change"] == "deleted"
        client.update(kept, title="one")
        assert receive(socket)["type"] == "session_renamed"


def test_titles_and_turns_that_failed_are_told_once_wherever_it_was(
    daemon: Daemon, client: Client, other: Store
) -> None:
    made = client.create(model="nobody:knows").id
    session = other.session(made)
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made)
        receive(socket, "subscribed")
        client.update(made, title="here")
        with pytest.raises(EverlogError):
            client.send(made, "a turn that fails here")
        session.rename("elsewhere")
        session.append(everlog.user("go", run_id="r1"))
        session.end_turn(duration_ms=1, run_id="r1", stop="error", error="the model is away")
        session.append(everlog.user("go", run_id="r2"))
        session.end_turn(duration_ms=1, run_id="r2", stop="cancelled", error="it was stopped")
        last = session.append(everlog.user("the end")).seq
        told: list[dict[str, Any]] = []
        while not told or told[-1].get("seq") != last:
            told.append(receive(socket))
    names = [one["name"] for one in told if one["type"] == "session_renamed"]
    assert names == ["here", "elsewhere"]
    failures = [one for one in told if one["type"] == "error"]
    assert [one["runId"] for one in failures[1:]] == ["r1", "r2"]
    assert [one["code"] for one in failures[1:]] == ["", "RunCancelledError"]
