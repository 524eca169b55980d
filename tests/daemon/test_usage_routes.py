"""`/api/usage`, over a real connection."""

from __future__ import annotations

import pytest

from holdfast.client import Client
from tests.daemon.running import Daemon


def test_a_turn_is_seen_in_the_usage_of_its_sender_and_of_its_session(client: Client) -> None:
    assert client.usage(sender="counted").lines == ()
    one = client.create(name="Counting", sender="counted").id
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
