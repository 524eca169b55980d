"""Daemons on a full disk and on a read-only one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.small_disk import small_disk
from tests.crash.stale_stores import FOREIGN, Places, prepare
from tests.daemon.running_daemon import FAST, Daemon, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


def read_all(daemon: Daemon, places: Places) -> dict[str, str]:
    """The answers of every reading route, and of every page; those that tell the time are only asked for."""
    sessions = [f"/api/sessions/{session}" for session in (places.session, FOREIGN)]
    routes = [f"{session}{part}" for session in sessions for part in ("", "/messages", "/context", "/usage", "/verify")]
    routes += ["/api/sessions", "/api/search?q=giraffe", "/api/search?q=hello", "/api/usage", "/api/memory"]
    pages = ["/", "/?q=giraffe", "/usage", "/memory", "/cron", "/health", "/api/health", "/api/health/verify"]
    pages += [f"/sessions/{places.session}{part}" for part in ("", "/outline", "/context", "/usage")]
    answers = {route: daemon.call("GET", route) for route in (*routes, *pages)}
    assert {route: answer.text for route, answer in answers.items() if answer.status_code != 200} == {}
    assert answers["/health"].text.count("cannot be written") or "can be written again" in answers["/health"].text
    return {route: answers[route].text for route in routes}


def test_a_daemon_starts_on_a_full_disk_serves_what_is_there_and_recovers(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        places = prepare(disk, tmp_path)
        config = places.home / "config.toml"
        config.write_text(f"{FAST}\n{config.read_text()}")
        killed = Daemon(places.home, config="", log=tmp_path / "first")
        killed.stop(signal.SIGKILL)
        for name in ("address", "everlog.sock"):
            (places.home / "run" / name).unlink()
        disk.fill()
        daemon = Daemon(places.home, config="", log=tmp_path / "second")
        try:
            answers = read_all(daemon, places)
            assert answers["/api/search?q=giraffe"].count("«giraffe»") >= 4
            refused = daemon.call("POST", f"/api/sessions/{places.session}/messages", {"content": "x" * 9000})
            assert (refused.status_code, refused.json()["code"]) == (503, "StoreFullError")
            assert [line["step"] for line in daemon.log() if line["event"] == "start_delayed"] == ["socket", "address"]
            disk.free()
            assert read_all(daemon, places) == answers
            until((places.home / "run" / "address").exists)
            assert (places.home / "run" / "everlog.sock").is_socket()
            said = daemon.call("POST", f"/api/sessions/{places.session}/messages", {"content": "there is room"})
            assert said.status_code == 200
            assert places.session in daemon.call("GET", "/api/search?q=room").text
        finally:
            assert daemon.stop() == 0
        assert [line for line in daemon.log() if line["level"] == "error"] == []
        output = places.run([["sessions", "list", "--json"]], tmp_path)[0]
        assert output.err == ""
        assert json.loads(output.out)["sessions"][0]["id"] == places.session


def test_a_daemon_needs_a_home_that_can_be_written_and_reads_a_store_that_cannot(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        places = prepare(disk, tmp_path)
        disk.remount("ro")
        command = [sys.executable, "-m", "everlog", "--home", os.fspath(places.home), "serve", "--port", "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert f"{places.home} is on a read-only file system" in done.stderr
        daemon = Daemon(places.outer_home, "127.0.0.1", os.fspath(places.home))
        try:
            listed = daemon.call("GET", "/api/sessions").json()
            assert len(listed) == 7
            assert daemon.call("GET", "/api/search?q=giraffe").text.count("«giraffe»") == 3
            refused = daemon.call("POST", "/api/sessions", {})
            assert (refused.status_code, refused.json()["code"]) == (503, "StoreFailedError")
            assert str(places.home) in refused.json()["error"]
        finally:
            assert daemon.stop() == 0
