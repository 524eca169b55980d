"""`/ws`, over a real connection."""

from __future__ import annotations

import asyncio
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from everlog.app import open_runtime
from everlog.client import Client
from everlog.daemon.event_stream import EventStream
from everlog.daemon.event_stream import StreamClient as LiveClient
from everlog.daemon.listing_events import ListingWatcher
from everlog.daemon.request_limits import RateLimiter
from everlog.model import user
from everlog.wire.events import MessageStored
from tests.daemon.running_daemon import PATIENCE, Daemon, receive, say
from tests.examples import examples

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
        ('{"type":"send_message","sessionId":"NOBODY","content":""}', "Invalid send_message payload"),
        ('{"type":"cancel","sessionId":"NOBODY"}', "Invalid cancel payload"),
        ('{"type":"subscribe","sessionId":5}', "Invalid subscribe payload"),
        ('{"type":"subscribe","sessionId":"x","after":-1}', "Invalid subscribe payload"),
        ('{"type":"send_message","sessionId":"../x","content":"x"}', "Invalid session ID"),
        ('{"type":"cancel","sessionId":"x","runId":"x"}', "Invalid session ID"),
        ('{"type":"subscribe","sessionId":"a\\u0000b"}', "Invalid session ID"),
        ('{"type":"send_message","sessionId":"NOBODY","content":"x"}', "Session not found"),
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
        assert {event["code"] for event in told} == {"RunCancelledError"}


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


def test_who_comes_back_with_after_misses_nothing_and_gets_nothing_twice(daemon: Daemon, client: Client) -> None:
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


def test_who_asks_twice_gets_no_message_again_behind_a_later_one() -> None:
    class Socket:
        """A client that asks twice, and reads when both were heard."""

        def __init__(self, session_id: str) -> None:
            self.scope: dict[str, Any] = {"state": {}}
            self.told: list[int] = []
            self.heard = asyncio.Event()
            self.reads = asyncio.Event()
            asked = {"type": "subscribe", "sessionId": session_id}
            self._says = [json.dumps({**asked, "after": after}) for after in (2**53 - 1, 0)]

        async def receive(self) -> dict[str, Any]:
            if not self._says:
                self.heard.set()
                await asyncio.Event().wait()
            return {"type": "websocket.receive", "text": self._says.pop()}

        async def send_text(self, text: str) -> None:
            await self.reads.wait()
            event = json.loads(text)
            if event["type"] == "message":
                self.told.append(event["seq"])

        async def accept(self) -> None: ...

        async def close(self, code: int, reason: str) -> None: ...

    async def run() -> list[int]:
        runtime = open_runtime("memory:")
        session = await runtime.create()
        stored = [await session.append(user(text)) for text in ("one", "two")]
        socket: Any = Socket(session.id)
        live = LiveClient(EventStream(runtime, RateLimiter(lambda: 1000.0), ListingWatcher(runtime)), socket)
        running = asyncio.create_task(live.run())
        await socket.heard.wait()
        stored.append(await session.append(user("three")))
        for one in stored[1:]:  # the log has them already, and the turn tells them only now
            runtime.emit(MessageStored(session_id=session.id, seq=one.seq, message=one))
        socket.reads.set()
        live.stop()
        await running
        await runtime.store.close()
        told: list[int] = socket.told
        return told

    assert asyncio.run(run()) == [1, 2, 3]


ODD = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["type", "sessionId", "after", "content", "runId", "cwd"]), inner)
        ),
        max_leaves=12,
    ).map(json.dumps),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["send_message", "subscribe", "unsubscribe", "cancel"])},
        optional={
            "sessionId": st.text(max_size=30) | st.integers(),
            "after": st.integers() | st.floats(),
            "runId": st.text(max_size=30),
            "content": st.text(max_size=30) | st.lists(st.integers(), max_size=3),
        },
    ).map(json.dumps),
)


@given(said=st.lists(ODD, min_size=1, max_size=20))
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_said_is_answered_with_an_error_each(daemon: Daemon, said: list[Any]) -> None:
    with daemon.socket() as socket:
        for one in said:
            socket.send(one)
        for _ in said:
            assert receive(socket)["type"] == "error"


@pytest.mark.parametrize("asks", [True, False])
def test_who_came_with_an_old_token_is_told_nothing_more(start: Callable[..., Daemon], asks: bool) -> None:
    daemon = start()
    with daemon.client() as client:
        session = client.create(title="rotated").id
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=session)
        assert receive(socket)["type"] == "subscribed"
        (daemon.root / "run" / "token").write_text("n" * 43)
        if asks:
            say(socket, type="send_message", sessionId=session, content="still there?")
        else:
            with daemon.client() as client:
                client.send(session, "a secret")
        with pytest.raises(ConnectionClosed) as ended:
            receive(socket)
        assert ended.value.rcvd is not None and ended.value.rcvd.code == 1008
    with daemon.client() as client:
        assert len(client.session(session).messages) == (0 if asks else 2)


def test_a_long_log_is_replayed_whole_and_then_goes_on_live(daemon: Daemon, client: Client) -> None:
    from everlog import user
    from everlog.app import open_store

    with open_store(daemon.root, create=True) as store:
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
        assert receive(socket, "error")["message"] == "run not found"
        say(socket, type="cancel", sessionId=made.id, runId=run)
        error = receive(socket, "error")
        assert (error["runId"], error["code"]) == (run, "RunCancelledError")
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


def test_who_subscribes_during_a_turn_is_told_its_run(daemon: Daemon, client: Client) -> None:
    made = client.create()
    run = client.submit(made.id, "!wait 60").run_id
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made.id)
        assert receive(socket, "subscribed")["runId"] == run
        assert client.cancel(made.id, run)
        assert receive(socket, "error")["runId"] == run
        say(socket, type="subscribe", sessionId=made.id)
        assert "runId" not in receive(socket, "subscribed")


def test_a_rename_is_told(daemon: Daemon, client: Client) -> None:
    made = client.create()
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=made.id)
        receive(socket, "subscribed")
        client.update(made.id, title="Better")
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
        # Long words fill what the kernel takes for one who sleeps, and many words what the daemon
        # keeps. Who is awake reads each run to its end before the next begins: however slowly it
        # reads, no more than one run waits for it.
        for content in (*["!say " + "long" * 15_000] * 30, *["!stream 600"] * 3):
            say(awake, type="send_message", sessionId=made.id, content=content)
            events = run_of(awake)
            assert events[-1]["type"] == "message_complete"
            text = "".join(event["text"] for event in events if event["type"] == "stream_delta")
            assert text == events[-1]["content"]
        with pytest.raises(ConnectionClosed) as closed:
            deque(sleepy.recv(timeout=PATIENCE) for _ in count())
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
            socket.recv(timeout=PATIENCE)
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
            socket.recv(timeout=PATIENCE)
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
        client.update(made.id, title="x")
        for socket in watching:
            receive(socket, "session_renamed")
        assert time.monotonic() - started < 15


def test_who_watches_is_told_of_what_others_change(daemon: Daemon, client: Client) -> None:
    session = client.create().id
    client.send(session, "!say one")
    with daemon.socket() as socket:
        say(socket, type="subscribe", sessionId=session)
        receive(socket, "subscribed")
        client.delete_message(session, 2)
        hidden = receive(socket, "session_changed")
        assert (hidden["change"], hidden["seqs"]) == ("hidden", [2])
        client.restore_message(session, 2)
        assert receive(socket, "session_changed")["change"] == "restored"
        client.rewind(session, 1)
        rewound = receive(socket, "session_changed")
        assert (rewound["change"], rewound["seqs"]) == ("rewound", [1])
        client.update(session, title="Other")
        assert receive(socket, "session_renamed")["name"] == "Other"
        client.delete(session)
        assert receive(socket, "session_changed")["change"] == "deleted"
