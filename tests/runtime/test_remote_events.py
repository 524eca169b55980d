"""What others append to a session: told once, in order, and not again what was told by its doer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.app import open_store
from everlog.errors import NotFoundError
from everlog.model import assistant, user
from everlog.runtime.remote_events import MAX_RECORDS, RemoteEvents
from everlog.session import Session
from everlog.wire.events import Error, MessageStored, RunEvent, SessionChanged, SessionRenamed


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session with one message, which is known."""
    with open_store(tmp_path, create=True) as store:
        made = store.create()
        made.append(user("before"))
        yield made


@pytest.fixture
def news(session: Session) -> RemoteEvents:
    """Of that session, from now on."""
    return RemoteEvents(session, session.metadata.through.seq)


def told(news: RemoteEvents) -> list[RunEvent]:
    """What a look tells."""
    return list(news.new_events(news.read()))


def test_nothing_new_is_nothing_told(news: RemoteEvents) -> None:
    assert news.read() == []


def test_each_kind_of_change_is_told_once(session: Session, news: RemoteEvents) -> None:
    session.append(user("one"))
    session.append(assistant("two"))
    session.rename("A better title")
    session.rewind(2)
    run = session.append(user("three", run_id="01RUN")).run_id or ""
    session.end_turn(duration_ms=1, run_id=run, stop="error", error="no such model")
    events = told(news)
    assert [type(one) for one in events] == [
        MessageStored, MessageStored, SessionRenamed, SessionChanged, MessageStored, Error,
    ]  # fmt: skip
    assert isinstance(events[-1], Error) and events[-1].message == "no such model"
    assert told(news) == []


def test_what_was_told_by_whoever_did_it_is_left_out(session: Session, news: RemoteEvents) -> None:
    own = session.append(user("mine"))
    news.note_reported(MessageStored(session_id=session.id, seq=own.seq, message=own))
    session.rename("Mine")
    news.note_reported(SessionRenamed(session_id=session.id, name="Mine"))
    theirs = session.append(user("theirs"))
    assert news.has_seen(own.seq) and not news.has_seen(theirs.seq)
    assert [one.seq for one in told(news) if isinstance(one, MessageStored)] == [theirs.seq]
    assert news.has_seen(theirs.seq)
    session.rename("Other")
    session.rename("Mine")
    names = [one.name for one in told(news) if isinstance(one, SessionRenamed)]
    assert names == ["Other", "Mine"], "a title is left out once"


def test_more_than_is_told_at_a_time_is_told_the_next_time(session: Session, news: RemoteEvents) -> None:
    session.append_many([user(str(number)) for number in range(MAX_RECORDS + 5)])
    assert (len(told(news)), len(told(news)), len(told(news))) == (MAX_RECORDS, 5, 0)


def test_a_session_that_has_gone_is_not_found(session: Session, news: RemoteEvents) -> None:
    session.delete()
    with pytest.raises(NotFoundError):
        news.read()
