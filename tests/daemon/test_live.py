"""`/ws`, over a real connection."""

from __future__ import annotations

import json
import socket as sockets
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
import websockets.sync.client
from websockets.exceptions import ConnectionClosed

from holdfast.client import Client
from tests.daemon.running import Daemon, receive, say

NOBODY = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def run_of(socket: Any) -> list[dict[str, Any]]:
    """Events until a run has ended."""
    events = [receive(socket)]
    while events[-1]["type"] not in ("message_complete", "error"):
        events.append(receive(socket))
    return events


def whole(client: Client, session_id: str) -> list[dict[str, Any]]:
    return client.session(session_id).messages


def test_a_message_that_is_sent_is_told_from_start_to_end(daemon: Daemon, client: Client) -> None:
    made = client.create()
    script = "!call current_time {}\n!then\n!say done and done"
    with daemon.socket() as socket:
        say(socket, type="send_message", sessionId=made.id, content=script)
        events = run_of(socket)
    kinds = [event["type"] for event in events]
    for kind in ("run_start", "tool_start", "tool_result", "stream_delta", "message_complete"):
        assert kind in kinds, kind
    assert {event["sessionId"] for event in events} == {made.id}
    assert len({event["runId"] for event in events}) == 1
    told = next(event for event in events if event["type"] == "tool_start")
    assert (told["toolName"], told["args"]) == ("current_time", {})
    result = next(event for event in events if event["type"] == "tool_result")
    assert result["isError"] is False and result["result"]
    assert "".join(e["text"] for e in events if e["type"] == "stream_delta") == "done and done"
    stored = [event["message"] for event in events if event["type"] == "message"]
    assert [one["seq"] for one in stored] == [m["seq"] for m in client.session(made.id).messages]
    assert all("crc" not in one and "\x7fline" not in one for one in stored)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ("{", "Invalid JSON payload"),
        ("[" * 5000, "Invalid JSON payload"),
        ('{"type":"send_message","content":"\\ud800"}', "Invalid JSON payload"),
        ("[]", "Invalid message payload"),
        ("{}", "Invalid message payload"),
        ('{"type":5}', "Invalid message payload"),
        ('{"type":"dance"}', "Unsupported message type"),
        ('{"type":"send_message"}', "Invalid send_message payload"),
        ('{"type":"send_message","sessionId":"NOBODY"}', "Invalid send_message payload"),
        (
            '{"type":"send_message","sessionId":"NOBODY","content":""}',
            "Invalid send_message payload",
        ),
        ('{"type":"cancel","sessionId":"NOBODY"}', "Invalid cancel payload"),
        ('{"type":"subscribe","sessionId":5}', "Invalid subscribe payload"),
        ('{"type":"subscribe","sessionId":"x","after":-1}', "Invalid subscribe payload"),
        ('{"type":"send_message","sessionId":"../x","content":"x"}', "Invalid session ID"),
        ('{"type":"cancel","sessionId":"x","runId":"x"}', "Invalid session ID"),
        ('{"type":"subscribe","sessionId":"a\\u0000b"}', "Invalid session ID"),
        (
            '{"type":"send_message","sessionId":"NOBODY","content":"x"}',
            "Session not found",
        ),
        ('{"type":"cancel","sessionId":"NOBODY","runId":"x"}', "Session not found"),
        ('{"type":"subscribe","sessionId":"NOBODY"}', "Session not found"),
    ],
)
def test_what_is_not_understood_is_answered_in_words(daemon: Daemon, sent: str, error: str) -> None:
    sent = sent.replace("NOBODY", NOBODY)
    with daemon.socket() as socket:
        socket.send(sent)
        event = receive(socket)
        assert (event["type"], event["message"]) == ("error", error)
        assert "runId" not in event
        socket.send(sent.encode())  # bytes are text as well
        assert receive(socket)["message"] == error


def test_a_full_queue_is_told_to_the_sender_only(daemon: Daemon, client: Client) -> None:
    made = client.create()
    with daemon.socket() as sender, daemon.socket() as other:
        say(other, type="subscribe", sessionId=made.id)
        receive(other, "subscribed")
        for _ in range(10):
            say(sender, type="send_message", sessionId=made.id, content="!wait 30")
        assert receive(sender, "error")["message"] == "Session queue is full. Please retry later."
        positions = [receive(other, "queued")["position"] for _ in range(8)]
        assert positions == [1, 2, 3, 4, 5, 6, 7, 8]
        while client.cancel(made.id):
            pass
        told = [receive(other, "error") for _ in range(9)]
        assert {event["code"] for event in told} == {"RunCancelled"}


def test_all_who_watch_get_all_events_in_one_order(daemon: Daemon, client: Client) -> None:
    made = client.create()
    with ExitStack() as stack:
        watching = [stack.enter_context(daemon.socket()) for _ in range(100)]
        for socket in watching:
            say(socket, type="subscribe", sessionId=made.id)
            receive(socket, "subscribed")
        client.send(made.id, "!stream 50")
        told = [run_of(socket) for socket in watching]
    assert all(events == told[0] for events in told) and len(told[0]) > 10


def test_who_comes_back_with_after_misses_nothing_and_gets_nothing_twice(
    daemon: Daemon, client: Client
) -> None:
    made = client.create()
    seen: list[int] = []
    for number in range(8):
        client.submit(made.id, f"!wait 0.02\n!say {number}")
    while len(seen) < 16:
        with daemon.socket() as socket:  # one that goes away again and again
            say(socket, type="subscribe", sessionId=made.id, after=seen[-1] if seen else 0)
            assert receive(socket)["type"] == "subscribed"
            for _ in range(min(3, 16 - len(seen))):
                seen.append(receive(socket, "message")["seq"])
    assert seen == [one["seq"] for one in client.session(made.id).messages]


def test_a_long_log_is_replayed_whole_and_then_goes_on_live(daemon: Daemon, client: Client) -> None:
    from holdfast import user
    from holdfast.app import open_store

    with open_store(daemon.root) as store:
        made = store.create()
        made.append_many([user(f"{number}") for number in range(2500)])
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made.id, after=0)
        first = receive(socket)
        assert (first["type"], first["seq"]) == ("subscribed", 2500)
        for number in range(3):  # while the log is being told
            client.submit(made.id, f"!say {number}")
        seen = [receive(socket, "message")["seq"] for _ in range(2506)]
    assert seen == [one["seq"] for one in whole(client, made.id)]


def test_a_cancelled_run_is_told_and_the_next_one_works(daemon: Daemon, client: Client) -> None:
    made = client.create()
    with daemon.socket() as socket:
        say(socket, type="send_message", sessionId=made.id, content="!wait 30")
        run = receive(socket, "run_start")["runId"]
        say(socket, type="cancel", sessionId=made.id, runId="no such run")
        assert receive(socket, "error")["message"] == "there is no such run"
        say(socket, type="cancel", sessionId=made.id, runId=run)
        error = receive(socket, "error")
        assert (error["runId"], error["code"]) == (run, "RunCancelled")
        say(socket, type="send_message", sessionId=made.id, content="!say next")
        assert receive(socket, "message_complete")["content"] == "next"


def test_a_socket_that_closes_does_not_stop_its_run(daemon: Daemon, client: Client) -> None:
    made = client.create()
    with daemon.socket() as socket:
        say(socket, type="send_message", sessionId=made.id, content="!wait 0.3\n!say after all")
        receive(socket, "run_start")
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made.id, after=1)
        assert receive(socket, "message")["message"]["content"][0]["text"] == "after all"


def test_who_unsubscribes_is_told_no_more(daemon: Daemon, client: Client) -> None:
    made, other = client.create(), client.create()
    with daemon.socket() as socket:
        for one in (made, other):
            say(socket, type="subscribe", sessionId=one.id)
            receive(socket, "subscribed")
        say(socket, type="unsubscribe", sessionId=made.id)
        assert receive(socket)["type"] == "unsubscribed"
        client.send(made.id, "!say unheard")
        client.send(other.id, "!say heard")
        assert {event["sessionId"] for event in run_of(socket)} == {other.id}


def test_a_rename_is_told(daemon: Daemon, client: Client) -> None:
    made = client.create()
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made.id)
        receive(socket, "subscribed")
        client.update(made.id, name="Better")
        event = receive(socket)
        assert (event["type"], event["name"]) == ("session_renamed", "Better")
        assert "runId" not in event


def test_a_title_is_made_and_told(daemon: Daemon, client: Client) -> None:
    made = client.create()
    assert made.name == "New Session"
    with daemon.socket() as socket:
        say(socket, type="send_message", sessionId=made.id, content="please fix the flaky tests")
        assert receive(socket, "session_renamed")["name"]


def slow(daemon: Daemon) -> Any:
    """A socket that takes little and reads nothing by itself."""
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", daemon.port))
    return websockets.sync.client.connect(
        f"ws://127.0.0.1:{daemon.port}/ws",
        additional_headers=daemon.bearer,
        sock=raw,
        proxy=None,
        max_queue=1,
        ping_interval=None,
        close_timeout=1,
    )


def test_a_slow_reader_is_dropped_and_holds_up_nobody(daemon: Daemon, client: Client) -> None:
    made = client.create()
    with slow(daemon) as sleepy, daemon.socket() as awake:
        for socket in (sleepy, awake):
            say(socket, type="subscribe", sessionId=made.id)
            receive(socket, "subscribed")
        say(awake, type="send_message", sessionId=made.id, content="!stream 100000")
        events = run_of(awake)
        assert events[-1]["type"] == "message_complete"
        text = "".join(event["text"] for event in events if event["type"] == "stream_delta")
        assert text == events[-1]["content"]
        with pytest.raises(ConnectionClosed) as closed:
            deque(sleepy.recv(timeout=20) for _ in count())
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
        assert closed.value.rcvd.reason == "too slow: subscribe again with after"
    with daemon.socket() as again:
        say(again, type="subscribe", sessionId=made.id, after=1)
        assert receive(again, "message")["message"]["role"] == "assistant"


def test_a_message_that_is_too_large_ends_the_socket(start: Callable[..., Daemon]) -> None:
    daemon = start(config="[daemon]\nport = 0\nbody_bytes = 10000")
    with daemon.socket() as socket:
        socket.send(json.dumps({"type": "x", "y": "y" * 20_000}))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    assert daemon.call("GET", "/api/health").status_code == 200


def test_too_many_messages_are_not_obeyed(start: Callable[..., Daemon]) -> None:
    daemon = start(config="[daemon]\nport = 0\nrequests_per_second = 2")
    with daemon.socket() as socket:
        for _ in range(12):
            socket.send("{}")
        told = [receive(socket)["message"] for _ in range(12)]
    assert "Too many messages. Please retry later." in told


def test_the_daemon_sends_everybody_away_when_it_stops(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with daemon.socket() as socket:
        assert daemon.stop() == 0
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001


def test_events_reach_a_hundred_watchers_quickly(daemon: Daemon, client: Client) -> None:
    """No figure here, those are the benchmark's: only that it is nowhere near too slow."""
    made = client.create()
    with ExitStack() as stack:
        watching = [stack.enter_context(daemon.socket()) for _ in range(100)]
        for socket in watching:
            say(socket, type="subscribe", sessionId=made.id)
            receive(socket, "subscribed")
        started = time.monotonic()
        client.update(made.id, name="x")
        for socket in watching:
            receive(socket, "session_renamed")
        assert time.monotonic() - started < 5
