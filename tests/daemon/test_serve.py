"""A daemon's life: start, reload, drain, stop, and coming back."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from everlog.app import open_store
from everlog.client import Client
from tests.daemon.running_daemon import FAST, Daemon, until

Start = Callable[..., Daemon]


def events(daemon: Daemon) -> list[str]:
    return [line["event"] for line in daemon.log()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well_and_leaves_nothing_behind(start: Start, number: int) -> None:
    daemon = start()
    token = daemon.token
    assert daemon.stop(number) == 0
    assert sorted(one.name for one in (daemon.root / "run").iterdir() if "cron" not in one.name) == [
        "daemon.lock",
        "token",
    ]
    assert events(daemon)[0] == "daemon_start" and events(daemon)[-1] == "daemon_stop"
    assert start().token == token  # it is made once


def test_a_running_turn_ends_before_the_daemon_does(start: Start) -> None:
    daemon = start()
    with daemon.client() as client, ThreadPoolExecutor(1) as pool:
        made = client.create()
        waiting = pool.submit(client.send, made.id, "!wait 0.7\n!say finished")
        with open_store(daemon.root, create=True) as store:
            until(lambda: len(store.session(made.id).messages()) == 1)
        assert daemon.stop() == 0
        assert waiting.result().messages[1]["content"][0]["text"] == "finished"
    with open_store(daemon.root, create=True) as store:
        assert len(store.session(made.id).messages()) == 2


def test_a_turn_that_takes_too_long_is_stopped_and_recorded(start: Start) -> None:
    daemon = start(config=FAST.replace("drain_seconds = 5", "drain_seconds = 0.2"))
    with daemon.client() as client:
        made = client.create()
        client.submit(made.id, "!wait 50")
        client.submit(made.id, "!say afterwards")
    started = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - started < 15
    again = start()
    with again.client() as client:
        until(lambda: len(client.session(made.id).messages) >= 3)
        said = [one["content"][0]["text"] for one in client.session(made.id).messages]
        assert "afterwards" in said


def test_messages_that_wait_survive_a_kill_and_are_answered(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        made = client.create()
        client.submit(made.id, "!wait 50")
        runs = [client.submit(made.id, f"!say {number}") for number in range(3)]
    assert [run.position for run in runs] == [1, 2, 3]
    assert daemon.stop(signal.SIGKILL) == -signal.SIGKILL
    assert (daemon.root / "run" / "address").exists()
    again = start()
    with again.client() as client:
        until(lambda: client.session(made.id).metadata["messageCount"] >= 7)
        said = [one["content"][0]["text"] for one in client.session(made.id).messages]
        assert [text for text in said if text in "012"] == ["0", "1", "2"]
    recovered = until(lambda: next((line for line in again.log() if line["event"] == "recovered"), None))
    assert (recovered["sessionId"], recovered["waiting"]) == (made.id, 3)


def test_a_second_daemon_is_refused_and_told_where_the_first_is(start: Start) -> None:
    first = start()
    second = start()
    assert second.said["error"] == "SessionBusyError" and first.address in second.said["message"]
    assert second.stop() == 1
    assert first.call("GET", "/api/health").status_code == 200
    assert (first.root / "run" / "address").read_text().strip() == first.address


def test_a_port_that_is_taken_is_one_clear_line(start: Start) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = start(config=f"[daemon]\nport = {port}")
    assert refused.said["error"] == "SettingsError"
    assert f"port {port}" in refused.said["message"] and "\n" not in refused.said["message"]
    assert refused.stop() == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_another_address_without_tls_is_refused(start: Start, host: str) -> None:
    refused = start(host)
    assert refused.said["error"] == "SettingsError" and "TLS" in refused.said["message"]
    assert refused.stop() == 1


def test_half_of_tls_is_refused(start: Start) -> None:
    refused = start(config='[daemon]\nport = 0\ntls_certificate = "x.pem"')
    assert refused.said["error"] == "SettingsError" and "together" in refused.said["message"]


def test_tls_files_that_cannot_be_read_are_refused(start: Start) -> None:
    refused = start(config='[daemon]\nport = 0\ntls_certificate = "x.pem"\ntls_key = "y.pem"')
    assert refused.said["error"] == "SettingsError" and "tls_key" in refused.said["message"]


def test_with_tls_it_speaks_https(start: Start, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        f"-keyout {key} -out {certificate} -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    )
    try:
        subprocess.run(command.split(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl on this machine")
    config = f'[daemon]\nport = 0\ntls_certificate = "{certificate}"\ntls_key = "{key}"'
    daemon = start(config=config)
    assert daemon.address.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(certificate))
    with httpx2.Client(verify=trusted, trust_env=False) as http:
        assert http.get(f"{daemon.address}/api/health").status_code == 401
        answer = http.get(f"{daemon.address}/api/health", headers=daemon.bearer)
        assert answer.status_code == 200
        code = http.post(f"{daemon.address}/api/link", headers=daemon.bearer).json()["url"]
        assert "; Secure" in http.get(code).headers["set-cookie"]


def test_the_configuration_is_taken_over_and_a_wrong_one_is_not(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        assert len(client.cron()) == 1
        job = '\n[[cron.jobs]]\nid = "second"\nschedule = "0 4 * * *"\nprompt = "x"\n'
        (daemon.root / "config.toml").write_text(FAST + job)
        until(lambda: len(client.cron()) == 2)
        for wrong in ("[daemon\n", FAST + "[nonsense]\nx = 1", FAST + job.replace("0 4 * * *", "x")):
            before = events(daemon).count("reload_failed")
            (daemon.root / "config.toml").write_text(wrong)
            until(lambda before=before: events(daemon).count("reload_failed") > before)  # type: ignore[misc]
            assert len(client.cron()) == 2
        (daemon.root / "config.toml").write_text(FAST)
        until(lambda: len(client.cron()) == 1)


def test_the_client_finds_the_daemon_of_a_root(start: Start, tmp_path: Path) -> None:
    from everlog.errors import NotFoundError

    with pytest.raises(NotFoundError, match="no daemon is running"):
        Client.of(tmp_path)
    daemon = start()
    with Client.of(daemon.root) as client:
        assert client.health()["ok"] is True
    daemon.stop(signal.SIGKILL)  # its address stays behind
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind(("127.0.0.1", daemon.port))
        thief.listen()
        thief.setblocking(False)
        with pytest.raises(NotFoundError, match="no daemon is running"):
            Client.of(daemon.root)
        with pytest.raises(BlockingIOError):
            thief.accept()  # it was not even asked


def test_two_hundred_sessions_have_a_turn_each_at_once(start: Start) -> None:
    daemon = start()
    with daemon.client() as client:
        ids = [client.create().id for _ in range(200)]
        for one in ids:
            client.submit(one, "!wait 1\n!say here")
        until(lambda: client.health()["running"] == 0 and client.health()["turns"] == 200, 60)
        assert client.health()["failures"] == 0
        assert all(len(client.session(one).messages) == 2 for one in ids)


def test_what_libraries_warn_of_is_a_line_like_any_other(start: Start) -> None:
    script = "import sys; print('no message', flush=True); sys.exit(1)"
    server = f"[mcp.odd]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(['-c', script])}"
    daemon = start(config=f"{FAST}\n{server}\n")
    with daemon.client() as client:
        session = client.create(title="noisy").id
        assert client.send(session, "!say on we go").messages[-1]["role"] == "assistant"
    assert daemon.stop() == 0
    assert {line["logger"] for line in daemon.log() if line["event"] == "library"}


def test_a_root_whose_name_is_too_long_for_a_socket_says_what_to_do(start: Start) -> None:
    refused = start(name="r" * 120)
    assert refused.said["error"] == "StoreFailedError" and "socket = false" in refused.said["message"]
    quiet = start(name="r" * 120, config=FAST.replace("[daemon]", "[daemon]\nsocket = false"))
    assert quiet.call("GET", "/api/health").status_code == 200
