"""Who gets in, and who does not."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import resource
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from litestar.routes import HTTPRoute
from websockets.exceptions import InvalidStatus

from everlog.app import open_runtime
from everlog.daemon.auth import Credentials
from everlog.daemon.connection import HEAD_BYTES, MAX_CONNECTIONS
from everlog.daemon.event_stream import EventStream
from everlog.daemon.http_app import build_app
from everlog.daemon.listing_events import ListingWatcher
from everlog.daemon.request_guard import Guard
from everlog.daemon.request_limits import RateLimiter
from everlog.settings import DaemonSettings
from tests.daemon.running_daemon import FAST, Daemon

JSON = {"Content-Type": "application/json"}


def routes() -> list[tuple[str, str]]:
    """Every method and path that the router knows."""

    async def find() -> list[tuple[str, str]]:
        runtime = open_runtime("memory:")
        app = build_app(runtime, lambda: "", EventStream(runtime, RateLimiter(lambda: 1.0), ListingWatcher(runtime)))
        await runtime.store.close()
        return [
            (method, re.sub(r"\{seq[^}]*\}", "1", re.sub(r"\{(?!seq)[^}]*\}", "abcdef", route.path)))
            for route in app.routes
            for method in (route.methods if isinstance(route, HTTPRoute) else ("GET",))
        ]

    return sorted(asyncio.run(find()))


def ask(daemon: Daemon, method: str, path: str, **how: Any) -> httpx2.Response:
    """What a stranger is answered, who comes again when it was told to come later."""
    while (answer := daemon.ask(method, path, **how)).status_code == 429:
        time.sleep(float(answer.headers["retry-after"]) / 10)
    return answer


def test_every_route_needs_the_token(daemon: Daemon) -> None:
    known = routes()
    assert ("GET", "/api/sessions") in known and ("GET", "/ws") in known and ("GET", "/") in known
    for method, path in [*known, ("GET", "/nowhere"), ("POST", "/open/x"), ("GET", "/api")]:
        for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": daemon.token}):
            answer = ask(daemon, method, path, headers=headers)
            assert answer.status_code == 401, (method, path, headers)
            if method != "HEAD":
                assert answer.json()["error"] == "Unauthorized" and answer.json()["hint"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Cookie": "everlog=x"},
        {"Authorization": "Basic {token}"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer {token}x"},
        {"X-Token": "{token}"},
        {"Cookie": "everlog={token}"},
    ],
)
def test_nothing_else_is_a_token(daemon: Daemon, headers: dict[str, str]) -> None:
    given = {name: value.replace("{token}", daemon.token) for name, value in headers.items()}
    assert ask(daemon, "GET", "/api/sessions", headers=given).status_code == 401


def test_the_token_in_a_query_string_is_refused(daemon: Daemon) -> None:
    for name in ("token", "access_token", "Authorization"):
        assert ask(daemon, "GET", f"/api/sessions?{name}={daemon.token}").status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "localhost.evil.example:{port}",
        "127.0.0.1:{port}.evil.example",
        "127.0.0.1.:{port}",
        "",
    ],
)
def test_a_host_that_is_not_ours_is_refused(daemon: Daemon, host: str) -> None:
    headers = {**daemon.bearer, "Host": host.replace("{port}", str(daemon.port))}
    assert ask(daemon, "GET", "/api/sessions", headers=headers).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_every_name_of_this_machine_is_a_host(daemon: Daemon, host: str) -> None:
    headers = {**daemon.bearer, "Host": host.replace("{port}", str(daemon.port))}
    assert ask(daemon, "GET", "/api/sessions", headers=headers).status_code == 200


def test_two_hosts_are_none(daemon: Daemon) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
    connection.putrequest("GET", "/api/sessions", skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{daemon.port}")
    connection.putheader("Host", "evil.example")
    connection.putheader("Authorization", daemon.bearer["Authorization"])
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost.evil.example",
        "http://localhost",
        "http://localhost:1",
        "http://127.0.0.1:{port}.evil.example",
        "http://evil.example:{port}",
        "file://",
        "http://127.0.0.1:{port}/",
        "",
    ],
)
def test_an_origin_that_is_not_ours_is_refused_even_with_the_token(daemon: Daemon, origin: str) -> None:
    headers = {**daemon.bearer, "Origin": origin.replace("{port}", str(daemon.port))}
    for method in ("GET", "POST", "OPTIONS"):
        answer = ask(daemon, method, "/api/sessions", headers=headers)
        assert answer.status_code == 403
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_our_own_origin_is_taken(daemon: Daemon) -> None:
    headers = {**daemon.bearer, "Origin": f"http://localhost:{daemon.port}"}
    assert daemon.ask("GET", "/api/sessions", headers=headers).status_code == 200


def test_every_answer_carries_the_security_headers(daemon: Daemon) -> None:
    answers = (daemon.ask("GET", "/"), daemon.call("GET", "/"), daemon.call("GET", "/nowhere"))
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers


# --- bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "", "json"])
def test_a_body_that_is_not_json_is_refused(daemon: Daemon, kind: str) -> None:
    headers = {**daemon.bearer, "Content-Type": kind}
    answer = daemon.ask("POST", "/api/sessions", content=b"{}", headers=headers)
    assert answer.status_code == 415


def test_json_may_name_its_character_set(daemon: Daemon) -> None:
    headers = {**daemon.bearer, "Content-Type": "Application/JSON; charset=utf-8"}
    answer = daemon.ask("POST", "/api/sessions", content=b"{}", headers=headers)
    assert answer.status_code == 200


def test_a_body_that_is_too_large_is_refused_by_its_length(daemon: Daemon) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
    headers = {**daemon.bearer, **JSON, "Content-Length": "100000000"}
    connection.request("POST", "/api/sessions", headers=headers)  # and no body
    assert connection.getresponse().status == 413
    connection.close()


def test_a_body_that_is_too_large_is_refused_while_it_comes(start: Callable[..., Daemon]) -> None:
    daemon = start(config=FAST.replace("[daemon]", "[daemon]\nbody_bytes = 1024"))
    chunks = (b"[" + b"1," * 300 for _ in range(10))
    answer = daemon.ask("POST", "/api/sessions", content=chunks, headers={**daemon.bearer, **JSON})
    assert answer.status_code == 413 and "1,024" in answer.json()["hint"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"name":' * 101 + b"1" + b"}" * 101,
        b'{"name":"\\ud800"}',
        b'{"name":"\xed\xa0\x80"}',
        b'{"name":"\xff"}',
        b'{"name":' + b"9" * 5000 + b"}",
        b'{"name":NaN}',
        b"null",
        b"[]",
        b'"x"',
        b"{",
        b"\x00",
    ],
)
def test_bodies_that_are_traps_are_answered_400(daemon: Daemon, body: bytes) -> None:
    headers = {**daemon.bearer, **JSON}
    answer = daemon.ask("POST", "/api/sessions", content=body, headers=headers)
    assert answer.status_code == 400 and answer.json()["error"] == "Validation failed"


# --- how often ------------------------------------------------------------------------------


def test_too_many_requests_are_told_when_to_come_back(start: Callable[..., Daemon]) -> None:
    daemon = start(config="[daemon]\nport = 0\nrequests_per_second = 1")
    codes = [daemon.call("GET", "/api/health").status_code for _ in range(8)]
    assert codes[:5] == [200] * 5 and 429 in codes
    refused = daemon.call("GET", "/api/health")
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1


def test_who_guesses_tokens_does_not_use_up_the_owners_requests(start: Callable[..., Daemon]) -> None:
    daemon = start()
    codes = [daemon.ask("GET", "/api/health").status_code for _ in range(600)]
    assert codes[0] == 401 and codes.count(429) > 0
    assert daemon.call("GET", "/api/health").status_code == 200


# --- the cookie and the link ----------------------------------------------------------------


def opened(daemon: Daemon) -> dict[str, str]:
    """The cookie that a fresh link gives."""
    answer = daemon.ask("GET", daemon.call("POST", "/api/link").json()["url"].removeprefix(daemon.address))
    assert answer.status_code == 303 and answer.headers["location"] == "/"
    return {"Cookie": answer.headers["set-cookie"].partition(";")[0]}


def test_a_link_opens_once_and_gives_a_strict_cookie(daemon: Daemon) -> None:
    url = daemon.call("POST", "/api/link").json()["url"]
    assert url.startswith(f"{daemon.address}/open/")
    first, second = (daemon.ask("GET", url.removeprefix(daemon.address)) for _ in range(2))
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/" in cookie
    assert daemon.token not in cookie
    assert second.status_code == 403 and "set-cookie" not in second.headers
    assert daemon.ask("GET", "/open/guess").status_code == 403


def test_a_link_needs_our_host_too(daemon: Daemon) -> None:
    path = daemon.call("POST", "/api/link").json()["url"].removeprefix(daemon.address)
    assert daemon.ask("GET", path, headers={"Host": "evil.example"}).status_code == 400
    assert daemon.ask("GET", path).status_code == 303


def test_the_cookie_reads(daemon: Daemon) -> None:
    cookie = opened(daemon)
    for path in ("/", "/docs", "/docs/openapi.json", "/api/sessions"):
        assert daemon.ask("GET", path, headers=cookie).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        (JSON, 403),
        ({"X-Everlog": "1"}, 403),
        ({"X-Everlog": "1", "Content-Type": "text/plain"}, 403),
        ({"X-Everlog": "2", **JSON}, 403),
        ({"X-Everlog": "1", **JSON}, 200),
    ],
)
def test_the_cookie_writes_only_json_with_our_header(daemon: Daemon, headers: dict[str, str], status: int) -> None:
    given = {**opened(daemon), **headers}
    answer = daemon.ask("POST", "/api/sessions", content=b"{}", headers=given)
    assert answer.status_code == status


def test_the_cookie_makes_no_links(daemon: Daemon) -> None:
    given = {**opened(daemon), **JSON, "X-Everlog": "1"}
    for path in ("/api/link", "/api/link/", "/api//link"):
        assert daemon.ask("POST", path, headers=given).status_code == 403


def test_the_cookie_ends_with_the_token_and_outlives_a_restart(start: Callable[..., Daemon]) -> None:
    daemon = start()
    cookie = opened(daemon)
    assert daemon.stop() == 0
    again = start()
    assert again.ask("GET", "/", headers=cookie).status_code == 200
    old = again.bearer
    (again.root / "run" / "token").write_text("n" * 43)
    assert again.ask("GET", "/api/health", headers=old).status_code == 401
    assert again.ask("GET", "/", headers=cookie).status_code == 401
    assert again.call("GET", "/api/health").status_code == 200
    (again.root / "run" / "token").unlink()
    assert again.ask("GET", "/api/health", headers={"Authorization": "Bearer"}).status_code == 401


# --- WebSockets -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X": "no token"}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Authorization": "Bearer {token}", "Origin": "https://evil.example"}, 403),
        ({"Authorization": "Bearer {token}", "Origin": "null"}, 403),
        ({"Cookie": "everlog=x"}, 401),
    ],
)
def test_a_websocket_is_refused_before_it_is_one(daemon: Daemon, headers: dict[str, str], status: int) -> None:
    given = {name: value.replace("{token}", daemon.token) for name, value in headers.items()}
    with pytest.raises(InvalidStatus) as refused:
        daemon.socket(**given)
    assert refused.value.response.status_code == status


def test_the_cookie_opens_a_websocket(daemon: Daemon) -> None:
    cookie = opened(daemon)
    with daemon.socket(**cookie, Origin=f"http://127.0.0.1:{daemon.port}") as socket:
        socket.send("{}")
        assert "Invalid message payload" in str(socket.recv())


# --- files ----------------------------------------------------------------------------------


def test_only_the_owner_can_read_what_the_daemon_keeps(daemon: Daemon) -> None:
    run = daemon.root / "run"
    assert run.stat().st_mode & 0o777 == 0o700
    assert (run / "token").stat().st_mode & 0o777 == 0o600
    assert (run / "address").read_text() == f"{daemon.address}\n"
    assert len(daemon.token) >= 43


def test_a_planted_link_is_not_followed(start: Callable[..., Daemon], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("o" * 43)
    run = tmp_path / "root" / "run"
    run.mkdir(parents=True)
    (run / "token").symlink_to(outside)
    refused = start()
    assert refused.said["error"] == "SettingsError" and "token" in refused.said["message"]
    assert outside.read_text() == "o" * 43


@pytest.mark.parametrize("text", ["", "short", "\x00" * 43])
def test_a_token_that_is_none_is_not_served_with(start: Callable[..., Daemon], tmp_path: Path, text: str) -> None:
    run = tmp_path / "root" / "run"
    run.mkdir(parents=True)
    (run / "token").write_text(text)
    assert start().said["error"] == "SettingsError"


def test_a_head_without_an_end_is_cut_off(daemon: Daemon) -> None:
    with socket.create_connection(("127.0.0.1", daemon.port)) as raw:
        raw.settimeout(20)
        raw.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES)
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    answer = daemon.ask("GET", "/", headers={"X": "x" * 50_000})
    assert answer.status_code == 401


def test_connections_beyond_a_number_are_hung_up_and_others_go_on(start: Callable[..., Daemon]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    daemon = start()
    with daemon.client() as client, ExitStack() as stack:
        assert client.health()["ok"] is True  # this connection is there first
        for _ in range(MAX_CONNECTIONS + 50):
            stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
        assert client.health()["ok"] is True
    with daemon.client() as client:
        assert client.health()["ok"] is True


def test_who_opens_connections_keeps_nobody_out(start: Callable[..., Daemon]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    daemon = start()
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 50):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
            one.sendall(b"GET / HT")
        for _ in range(20):  # each by a connection of its own
            assert daemon.call("GET", "/api/health").status_code == 200


def raw(daemon: Daemon, request: str) -> bytes:
    """The answer to some bytes, to its end."""
    with socket.create_connection(("127.0.0.1", daemon.port)) as connection:
        connection.settimeout(20)
        connection.sendall(request.replace("\n", "\r\n").encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


UPGRADE = """{target} HTTP/1.1
Host: 127.0.0.1:{port}
Authorization: Bearer {token}
Connection: Upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==
"""


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("POST /ws", ""),
        ("GET http://evil.example/ws", ""),
        ("GET /ws", "X: y\n" * 200),
        ("GET /ws", f"X: {'y' * 20_000}\n"),
    ],
)
def test_an_upgrade_that_is_none_is_answered_and_holds_up_no_stop(
    start: Callable[..., Daemon], target: str, more: str
) -> None:
    daemon = start()
    asked = UPGRADE.format(target=target, port=daemon.port, token=daemon.token)
    assert raw(daemon, f"{asked}{more}\n").startswith(b"HTTP/1.1 400")
    with socket.create_connection(("127.0.0.1", daemon.port)) as left:
        left.sendall(asked.replace("\n", "\r\n").encode())
        assert daemon.stop() == 0
    assert [line for line in daemon.log() if line["level"] == "error"] == []


@pytest.mark.parametrize(
    "line", ["GET http://evil.example/api/health HTTP/1.1", "GET http://{host}/ HTTP/1.1", "nonsense"]
)
def test_a_request_that_is_none_has_our_kind_of_error(daemon: Daemon, line: str) -> None:
    host = f"127.0.0.1:{daemon.port}"
    bearer = daemon.bearer["Authorization"]
    request = f"{line.format(host=host)}\nHost: {host}\nAuthorization: {bearer}\n\n"
    head, _, body = raw(daemon, request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"nosniff" in head
    assert set(json.loads(body)) == {"error", "details", "hint", "code"}


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    class Source:
        def stamp(self) -> tuple[int, ...]:
            return (1,)

        def token(self) -> str:
            return "t" * 43

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def run() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        bucket, keys = RateLimiter(lambda: 1.0), Credentials(Source())
        guard = Guard(never, keys, DaemonSettings, limiter=bucket, port=1, body_seconds=0.01)
        headers = [
            (b"host", b"127.0.0.1:1"),
            (b"authorization", b"Bearer " + b"t" * 43),
            (b"content-type", b"application/json"),
            (b"transfer-encoding", b"chunked"),
        ]
        scope: Any = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        scope["state"] = {}
        await guard(scope, never, send)
        return sent

    assert asyncio.run(run())[0]["status"] == 408


def head(daemon: Daemon, length: int) -> bytes:
    """Of a request that makes a session."""
    rows = (
        "POST /api/sessions HTTP/1.1",
        f"Host: 127.0.0.1:{daemon.port}",
        f"Authorization: {daemon.bearer['Authorization']}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        "\r\n",
    )
    return "\r\n".join(rows).encode()


def test_half_a_request_does_nothing(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with socket.create_connection(("127.0.0.1", daemon.port)) as connection:
        connection.sendall(head(daemon, 100) + b'{"name": "half"}')
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(20)
        assert connection.recv(100) == b""
    assert daemon.call("GET", "/api/sessions").json() == []
    assert [line for line in daemon.log() if line["level"] == "error"] == []


def test_bodies_that_come_at_once_are_bounded_together(start: Callable[..., Daemon]) -> None:
    daemon = start()
    with ExitStack() as stack:
        answers = []
        for _ in range(6):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
            one.settimeout(20)
            one.sendall(head(daemon, 19_000_000) + b" " * 18_000_000)
            assert daemon.call("GET", "/api/health").status_code == 200
            one.settimeout(0.5)
            with suppress(TimeoutError):
                answers.append(one.recv(12))
        assert answers == [b"HTTP/1.1 429"] * 3
    assert daemon.call("POST", "/api/sessions", {"name": "x" * 500}).status_code == 200


@pytest.mark.parametrize("name", ["", "run", "run/token"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_somebody_else_is_not_used(start: Callable[..., Daemon], tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "run").mkdir(parents=True)
    (root / "run" / "token").write_text("t" * 43)
    os.chown(root / name, 12345, 12345)
    refused = start()
    assert refused.said["error"] == ("SettingsError" if "token" in name else "StoreFailedError")
    assert not (root / "run" / "daemon.lock").exists() or "token" in name


def test_nothing_listens_beyond_this_machine(daemon: Daemon) -> None:
    """As the kernel tells it: every socket that listens on the daemon's port, and where."""
    table = Path("/proc/net/tcp")
    if not table.exists():
        pytest.skip("only Linux tells its sockets in /proc")
    other = Path("/proc/net/tcp6")
    rows = table.read_text().splitlines()[1:]
    rows += other.read_text().splitlines()[1:] if other.exists() else []
    listening = [
        row.split()[1]
        for row in rows
        if row.split()[3] == "0A"  # LISTEN
    ]
    mine = [one for one in listening if int(one.rpartition(":")[2], 16) == daemon.port]
    assert mine == [f"0100007F:{daemon.port:04X}"]
