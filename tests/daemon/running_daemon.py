"""A real daemon for tests, and plain ways to reach it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import websockets.sync.client
from websockets.sync.connection import Connection

from everlog.client import Client

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds for anything to happen: far more than anything takes
FAST = """
[daemon]
port = 0
requests_per_second = 100000
drain_seconds = 5
[session]
durability = "os"
[turn]
retry_seconds = 0.01
[[cron.jobs]]
id = "night/ly"
schedule = "0 3 * * *"
prompt = "!say all is well"
"""


class Daemon:
    """One that runs until it is stopped."""

    def __init__(self, root: Path, *arguments: str, config: str = FAST, log: Path | None = None) -> None:
        root.mkdir(exist_ok=True)
        self.root = root
        if config:
            (root / "config.toml").write_text(config)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("EVERLOG_")}
        if "port = " not in config:
            environment["EVERLOG_DAEMON_PORT"] = "0"  # never the default one: somebody may use it
        self._log = log or root / "stderr"
        stderr = self._log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.daemon.process", str(root), *arguments],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
        )
        stderr.close()
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        self.address: str = self.said.get("address", "")
        self.port = int(self.address.rpartition(":")[2] or 0)

    @property
    def token(self) -> str:
        return (self.root / "run" / "token").read_text().strip()

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def client(self) -> Client:
        return Client(self.address, self.token)

    def ask(self, method: str, path: str, **how: Any) -> httpx2.Response:
        """A request with nothing that is not given."""
        with httpx2.Client(trust_env=False, timeout=30, verify=False) as http:
            return http.request(method, f"{self.address}{path}", **how)

    def call(self, method: str, path: str, said: object = None, **how: Any) -> httpx2.Response:
        """A request with the token, and JSON if something is said."""
        body = {} if said is None else {"json": said}
        return self.ask(method, path, headers=self.bearer, **body, **how)

    def socket(self, **headers: str) -> Connection:
        """An open WebSocket."""
        given = headers or self.bearer
        return websockets.sync.client.connect(
            f"ws{self.address.removeprefix('http')}/ws", additional_headers=given, proxy=None, close_timeout=1
        )

    def log(self) -> list[dict[str, Any]]:
        """What it has logged."""
        return [json.loads(line) for line in self._log.read_bytes().splitlines()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        if self.address and self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def until(is_so: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Wait for something that is bound to happen, not for a time."""
    end = time.monotonic() + seconds
    while not (found := is_so()):
        assert time.monotonic() < end, f"it did not come about in {seconds:g} seconds"
        time.sleep(0.01)
    return found


def receive(socket: Connection, *kinds: str, seconds: float = PATIENCE) -> dict[str, Any]:
    """The next event, or the next of some kinds."""
    while True:
        event: dict[str, Any] = json.loads(socket.recv(timeout=seconds))
        if not kinds or event["type"] in kinds:
            return event


def say(socket: Connection, **message: Any) -> None:
    socket.send(json.dumps(message))
