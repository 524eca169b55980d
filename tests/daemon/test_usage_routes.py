"""`/api/usage`, over a real connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import everlog
from everlog.client import Client
from everlog.ids import timestamp
from tests.daemon.running_daemon import Daemon


def test_a_turn_is_seen_in_the_usage_of_its_sender_and_of_its_session(client: Client) -> None:
    assert client.usage(sender="counted").lines == ()
    one = client.create(title="Counting", sender="counted").id
    client.send(one, "!say hello")
    for found in (client.usage(sender="counted"), client.usage(one)):
        assert found.sessions == 1 and found.behind == 0
        assert found.total.turns == 1 and found.total.output_tokens > 0
        assert found.total.dollars == 0.0 and found.unpriced == ()  # the offline model is free
        (line,) = found.lines
        assert line.tokens == found.total.tokens
    (costly,) = client.usage(sender="counted").costliest
    assert (costly.session, costly.title, costly.agent) == (one, "Counting", "main")
    assert [one.name for one in client.usage(one, by="model").lines] == ["offline"]


def test_days_are_chosen(client: Client) -> None:
    one = client.create(sender="dated").id
    client.send(one, "!say hello")
    assert client.usage(sender="dated", since="2020-01-01").sessions == 1
    assert client.usage(sender="dated", until="2020-01-01").sessions == 0
    assert client.usage(one, until="2020-01-01").total.turns == 0


@pytest.fixture
def ahead(tmp_path: Path, start: Callable[..., Daemon]) -> Daemon:
    """A daemon on a session that spent something today, years later, and on the last day of all."""
    now = time.time()
    stamps = [timestamp(now), timestamp(now + 1200 * 86_400), "9999-12-31T23:59:59.999Z"]
    with everlog.open_store(tmp_path / "root", create=True) as store:
        session = store.create(title="Ahead")
        for number, stamp in enumerate(stamps, 1):
            usage = everlog.Usage(input_tokens=111 * number)
            session.append(everlog.assistant("x", model="house-1", usage=usage, timestamp=stamp))
    return start()


def test_a_range_ends_today_whatever_was_dated_later(ahead: Daemon) -> None:
    with ahead.client() as client:
        (row,) = client.sessions(title="Ahead").sessions
    for path in ("/usage", f"/sessions/{row.id}/usage"):
        page = ahead.call("GET", f"{path}?range=7d")
        assert page.status_code == 200 and "Tokens per day" in page.text
        assert page.text.count('<th scope="row">') == 8  # days, and the model
        assert ">111<" in page.text and ">666<" not in page.text and ">9999-12" not in page.text


def test_all_days_have_room_for_the_last_one(ahead: Daemon) -> None:
    with ahead.client() as client:
        (row,) = client.sessions(title="Ahead").sessions
        for found in (client.usage(), client.usage(row.id), client.usage(by="month")):
            assert found.total.input_tokens == 666
            assert len(found.lines) == 3 and found.lines[-1].name.startswith("9999-12")
    for path in ("/usage", f"/sessions/{row.id}/usage"):
        page = ahead.call("GET", f"{path}?range=all")
        assert page.status_code == 200 and "9999-12-31" in page.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/usage?since=soon", 400),
        ("/api/usage?until=", 400),
        ("/api/usage?by=fortnight", 400),
        ("/api/usage?limit=101", 400),
        ("/api/usage?limit=-1", 400),
        ("/api/sessions/01ARZ3NDEKTSV4RRFFQ69G5FAV/usage", 404),
        ("/api/sessions/..%2Fx/usage", 400),
    ],
)
def test_nonsense_is_refused(daemon: Daemon, path: str, status: int) -> None:
    answer = daemon.call("GET", path)
    assert answer.status_code == status
    assert answer.json()["error"]
