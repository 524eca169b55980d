"""The Python client: typed answers, and errors that are ours again."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from websockets.exceptions import ConnectionClosed

from everlog import errors
from everlog.client import Client
from everlog.client.websocket import subscribe
from everlog.daemon.error_responses import to_http_error
from everlog.errors import ProviderUnavailableError, StoreFailedError
from everlog.model import OtherBlock
from everlog.wire import events as wire_events
from everlog.wire.error_table import STATUS, decode_error
from everlog.wire.events import decode_event
from tests.daemon.running_daemon import REPOSITORY, Daemon


def test_a_listing_is_walked_page_by_page(client: Client) -> None:
    made = {client.create(sender="walked").id for _ in range(3)}
    first = client.sessions(limit=2, sender="walked")
    second = client.sessions(limit=2, sender="walked", cursor=first.next)
    assert (first.total, second.next) == (3, None)
    assert {one.id for one in (*first.sessions, *second.sessions)} == made


def test_a_stream_ends_with_its_own_run_though_others_wait_too(client: Client) -> None:
    made = client.create()
    client.submit(made.id, "!wait 0.2\n!say first")
    events = list(client.stream(made.id, "!say second"))
    assert isinstance(events[0], wire_events.Queued) and isinstance(events[-1], wire_events.MessageComplete)
    assert events[-1].content == "second"
    assert len({event.run_id for event in events}) == 1


def test_a_stream_of_a_run_that_fails_ends_with_the_error(client: Client) -> None:
    made = client.create()
    last = list(client.stream(made.id, "!fail refused"))[-1]
    assert isinstance(last, wire_events.Error) and last.code == "ProviderRefusedError"


def test_events_tell_the_log_and_then_what_happens(daemon: Daemon, client: Client) -> None:
    made = client.create()
    client.send(made.id, "!say one")
    told = client.events(made.id, after=0)
    stored = [next(told), next(told)]
    assert all(isinstance(event, wire_events.MessageStored) for event in stored)

    def speak() -> None:
        with daemon.client() as other:
            other.send(made.id, "!say two")

    speaking = threading.Thread(target=speak)
    speaking.start()
    kinds = []
    for event in told:
        kinds.append(type(event))
        if isinstance(event, wire_events.MessageComplete):
            break
    speaking.join()
    told.close()  # type: ignore[attr-defined]
    assert wire_events.RunStart in kinds


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda client: client.session("x"), errors.InvalidIdError),
        (lambda client: client.session("01ARZ3NDEKTSV4RRFFQ69G5FAV"), errors.NotFoundError),
        (lambda client: client.create(title=""), errors.FormatError),
        (lambda client: client.run("nobody"), errors.NotFoundError),
        (lambda client: client.sessions(limit=0).sessions, errors.FormatError),
        (lambda client: next(client.events("01ARZ3NDEKTSV4RRFFQ69G5FAV")), errors.NotFoundError),
        (lambda client: next(client.stream("x", "x")), errors.InvalidIdError),
    ],
)
def test_what_the_daemon_refuses_is_raised(client: Client, call: object, error: type[errors.EverlogError]) -> None:
    assert callable(call)
    with pytest.raises(error):
        call(client)


def test_a_wrong_token_and_no_daemon_are_told_apart(daemon: Daemon) -> None:
    with Client(daemon.address, "x") as client, pytest.raises(errors.SettingsError, match="Unauth"):
        client.health()
    with Client("http://127.0.0.1:1", "x") as client, pytest.raises(errors.StoreFailedError):
        client.health()


def test_every_error_of_ours_has_a_status_and_comes_back_as_itself() -> None:
    def kinds(of: type[errors.EverlogError]) -> list[type[errors.EverlogError]]:
        return [of, *(one for kind in of.__subclasses__() for one in kinds(kind))]

    import msgspec

    for kind in kinds(errors.EverlogError):
        if kind.__module__ != "everlog.errors":
            continue
        answer = to_http_error(kind("what", hint="do"))
        assert kind in STATUS and answer.status == STATUS[kind]
        back = decode_error(answer.status, msgspec.json.encode(answer.body))
        assert type(back) is kind and (back.message, back.hint) == ("what", "do")


def test_an_answer_that_is_none_of_ours_is_an_error_too() -> None:
    assert isinstance(decode_error(503, b"<html>"), errors.StoreFailedError)
    assert isinstance(decode_error(418, b'{"error":"teapot","code":"Exception"}'), errors.StoreFailedError)


def test_events_that_are_not_known_are_skipped_and_blocks_are_not() -> None:
    assert decode_event({"type": "from the future", "sessionId": "s"}) is None
    assert decode_event({"type": "run_start"}) is None
    message = {"recordType": "message", "role": "user", "content": [{"type": "hologram", "data": 1}], "seq": 3}
    event = decode_event({"type": "message", "sessionId": "s", "seq": 3, "message": message})
    assert isinstance(event, wire_events.MessageStored)
    assert event.message.content == (OtherBlock({"type": "hologram", "data": 1}),)


def test_the_client_loads_neither_engine_nor_store_nor_server() -> None:
    code = (
        "import sys, everlog.client; "
        "print([m for m in sys.modules if m.startswith(('everlog.runtime', 'everlog.stores', "
        "'everlog.daemon', 'litestar', 'httpx2', 'websockets'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_no_unicode_is_sent_as_what_can_be(client: Client) -> None:
    session = client.create(title="a\ud800b").id
    assert client.session(session).metadata["name"] == "a\ufffdb"
    said = client.send(session, [{"type": "text", "text": "!say c\udcff"}]).messages
    assert said[-1]["content"][0]["text"] == "c\ufffd"


@pytest.mark.parametrize("name", ["", "..", "\ud800", "x/../y", "\x00"])
def test_a_session_that_cannot_be_named_is_one_of_our_errors(client: Client, name: str) -> None:
    for call in (client.session, client.delete, client.context, client.compact, client.cancel):
        with pytest.raises(errors.EverlogError):
            call(name)


def test_what_only_reads_is_asked_again_on_a_connection_that_was_hung_up() -> None:
    """A server that answers once, takes the next request of the connection, and hangs up."""
    asked: list[bytes] = []
    body = b'{"ok":true}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    def serve(listening: socket.socket) -> None:
        for answered in (1, 1):
            connection, _ = listening.accept()
            with connection:
                for _ in range(answered):
                    asked.append(connection.recv(65536).split(b" ")[0])
                    connection.sendall(answer)
                asked.append(connection.recv(65536).split(b" ")[0])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        with Client(f"http://127.0.0.1:{listening.getsockname()[1]}", "t") as client:
            assert client.health() == client.health() == {"ok": True}
            with pytest.raises(StoreFailedError):
                client.cancel("x")  # what writes is not: it may have been done
        thread.join(60)
    assert asked == [b"GET", b"GET", b"GET", b"POST"]


def test_a_connection_that_ends_before_anything_was_asked_is_one_of_our_errors(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with daemon.client() as client, client.connect() as socket:
        session = client.create().id
        assert daemon.stop() == 0
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=60)
        with pytest.raises(ProviderUnavailableError, match="the daemon is stopping"):
            subscribe(socket, session, None)


def test_what_was_said_is_found_and_what_is_remembered_is_kept(client: Client) -> None:
    made = client.create(sender="searcher")
    client.send(made.id, "!say the quokka sleeps")
    (found,) = client.search("quokkas sleeping", sender="searcher").results
    assert found.session == made.id
    assert any("«quokka» «sleeps»" in hit.snippet for hit in found.hits)
    assert client.search("quokka", sender="nobody").results == ()
    noted = client.remember("Quokkas sleep at noon.", agent="zoo", category="project")
    assert [one.file for one in client.memory("zoo").notes] == [noted.file]
    client.forget(noted.file, agent="zoo")
    assert client.memory("zoo").notes == []
    with pytest.raises(errors.NotFoundError):
        client.forget("nothing.md", agent="zoo")
