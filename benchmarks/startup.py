"""How long the command line takes, in units of `python -c pass`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import everlog
from benchmarks.listing import populate
from benchmarks.report import Figure, middle

ROUNDS = 15


def measure(folder: Path) -> list[Figure]:
    """All figures about starting up."""
    populate(folder, 10_000)
    with everlog.open_store(folder, create=True) as store:
        assert store.list(limit=1).total == 10_000
    program = str(Path(sys.executable).parent / "everlog")
    listing = [program, "--home", str(folder), "sessions", "list"]
    commands = {
        "pass": [sys.executable, "-c", "pass"],
        "version": [program, "--version"],
        "piped": listing,
        "json": [*listing, "--json"],
    }
    times: dict[str, list[float]] = {name: [] for name in (*commands, "terminal")}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            times[name].append(_piped(command))
        times["terminal"].append(_on_terminal(listing))
    unit = middle(times["pass"])

    def figure(what: str, name: str, limit: float) -> Figure:
        ratio = middle(times[name]) / unit
        return Figure(what, f"≤ {limit:g} ×", f"{ratio:.1f} ×", ratio <= limit)

    return [
        figure("`everlog --version` against `python -c pass`", "version", 2.5),
        figure("`sessions list` over 10,000 sessions, piped, against the same", "piped", 8),
        figure("`sessions list --json`", "json", 8),
        figure("`sessions list` on a terminal", "terminal", 12),
    ]


def _piped(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return time.perf_counter() - start


def _on_terminal(command: list[str]) -> float:
    master, slave = pty.openpty()
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        try:
            while os.read(master, 65536):
                pass
        except OSError:
            pass  # the other end was closed: the program has ended
    took = time.perf_counter() - start
    os.close(master)
    assert process.returncode == 0
    return took
