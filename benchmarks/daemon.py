"""The engine and the daemon on the offline model: what they add to a turn, and how many at once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Figure, middle
from everlog.app import open_runtime
from everlog.settings import SessionSettings, Settings, TurnSettings

TURNS = 300  # in sessions of ten
SESSIONS = 200  # with a turn each, at once
SUBSCRIBERS = 100
MESSAGES = 40  # that they are told
STARTS = 5
CONFIG = "[daemon]\nport = 0\nrequests_per_second = 100000\n[turn]\nwaiting = 50\n"


def measure(folder: Path) -> list[Figure]:
    """All figures about turns and the daemon."""
    overhead = asyncio.run(_overhead(folder / "turns"))
    starts = [_start(folder / f"start{at}") for at in range(STARTS)]
    many, memory, wrong = asyncio.run(_many(folder / "many"))
    spread = asyncio.run(_fan_out(folder / "fan"))
    first = middle(starts)
    return [
        Figure(
            "a turn without its model: append, context, hooks, events; p50, durability os",
            "≤ 8 ms",
            f"{middle(overhead):.1f} ms",
            middle(overhead) <= 8,
            f"{TURNS} turns, one at a time; p99 {_percentile(overhead, 99):.1f} ms",
        ),
        Figure(
            f"{SESSIONS} sessions with a turn each at once: errors, messages missing",
            "0, 0",
            f"{wrong[0]}, {wrong[1]}",
            wrong == (0, 0),
            f"all answered after {many:.1f} s",
        ),
        Figure("memory of the daemon then", "< 200 MB", f"{memory:.0f} MB", memory < 200, ""),
        Figure(
            f"an event to {SUBSCRIBERS} WebSockets, p99",
            "≤ 50 ms",
            f"{_percentile(spread, 99):.1f} ms",
            _percentile(spread, 99) <= 50,
            f"p50 {middle(spread):.1f} ms; sender and receivers share the two cores",
        ),
        Figure(
            "from starting the program to the first answer",
            "≤ 2 s",
            f"{first:.2f} s",
            first <= 2,
            f"best of {STARTS} {min(starts):.2f} s",
        ),
    ]


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) * percent // 100, len(values) - 1)]


async def _overhead(root: Path) -> list[float]:
    """Milliseconds of turns whose model answers at once."""
    settings = Settings(session=SessionSettings(durability="os"), turn=TurnSettings(titles=False))
    runtime = open_runtime(home=root, create=True, settings=settings)
    await runtime.start()
    times = []
    for at in range(TURNS):
        if at % 10 == 0:
            session = await runtime.create()
        began = time.perf_counter()
        await (await runtime.submit(session, "!say x", cwd=str(root))).answer()
        times.append((time.perf_counter() - began) * 1000)
    await runtime.drain(1)
    await runtime.store.close()
    return times[10:]


class Daemon:
    """A daemon in a process of its own."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        (root / "config.toml").write_text(CONFIG)
        self.root = root
        self.began = time.perf_counter()
        command = [sys.executable, "-m", "everlog", "--home", str(root), "serve"]
        quiet = {key: one for key, one in os.environ.items() if not key.startswith("EVERLOG_")}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=quiet)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.address = (root / "run" / "address").read_text().strip()
        token = (root / "run" / "token").read_text().strip()
        self.headers = {"Authorization": f"Bearer {token}"}

    def memory(self) -> float:
        """Megabytes that it has taken at most."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1000
        return 0.0

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def http(self) -> Any:
        """An asynchronous client of its API."""
        import httpx2

        limits = httpx2.Limits(max_connections=SESSIONS + 10)
        return httpx2.AsyncClient(
            base_url=self.address, headers=self.headers, trust_env=False, timeout=120, limits=limits
        )


def _start(root: Path) -> float:
    """Seconds until a fresh root has answered its first message."""

    async def ask() -> float:
        async with daemon.http() as http:
            made = (await http.post("/api/sessions", json={})).json()["id"]
            answer = await http.post(f"/api/sessions/{made}/messages", json={"content": "hello"})
            answer.raise_for_status()
        return time.perf_counter() - daemon.began

    daemon = Daemon(root)
    try:
        return asyncio.run(ask())
    finally:
        daemon.stop()


async def _many(root: Path) -> tuple[float, float, tuple[int, int]]:
    """Seconds until all have answered, the daemon's memory, errors and missing messages."""
    daemon = Daemon(root)
    try:
        async with daemon.http() as http:
            ids = [(await http.post("/api/sessions", json={})).json()["id"] for _ in range(SESSIONS)]

            async def turn(session: str) -> bool:
                text = f"{session}\n!call current_time {{}}\n!wait 0.5\n!say done {session}"
                path = f"/api/sessions/{session}/messages"
                answer = await http.post(path, json={"content": text})
                return bool(answer.status_code == 200)

            began = time.perf_counter()
            good = await asyncio.gather(*(turn(session) for session in ids))
            seconds = time.perf_counter() - began
            missing = 0
            for session in ids:
                said = (await http.get(f"/api/sessions/{session}")).json()["messages"]
                missing += len(said) != 4
        return seconds, daemon.memory(), (good.count(False), missing)
    finally:
        daemon.stop()


async def _fan_out(root: Path) -> list[float]:
    """Milliseconds from the first socket's being told of an event to each other's."""
    from websockets.asyncio.client import connect

    daemon = Daemon(root)
    try:
        async with daemon.http() as http:
            session = (await http.post("/api/sessions", json={})).json()["id"]
            address = f"ws{daemon.address.removeprefix('http')}/ws"
            sockets = [
                await connect(address, additional_headers=daemon.headers, proxy=None, compression=None)
                for _ in range(SUBSCRIBERS)
            ]
            for socket in sockets:
                await socket.send(json.dumps({"type": "subscribe", "sessionId": session}))
                await socket.recv()
            spread: list[float] = []
            for _ in range(MESSAGES):
                body = {"content": "!say x"}
                began = time.perf_counter()
                asking = asyncio.create_task(http.post(f"/api/sessions/{session}/messages", json=body))
                told = await asyncio.gather(*(_complete(socket) for socket in sockets))
                first = min(told)
                spread += [(one - first) * 1000 for one in told]
                await asking
                assert began < first
            for socket in sockets:
                await socket.close()
        return spread
    finally:
        daemon.stop()


async def _complete(socket: Any) -> float:
    while True:
        if json.loads(await socket.recv())["type"] == "message_complete":
            return time.perf_counter()
