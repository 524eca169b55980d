"""Stores on a small disk and beside it that have grown since they were indexed, and what reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import everlog
from everlog.log import line_codec
from tests.crash.command_server import Output, run_commands
from tests.crash.small_disk import SmallDisk
from tests.foreign.foreign_directories import crabtalk_file, made

KILLED = """
import os, sys, everlog
store = everlog.open_store(home=sys.argv[1], settings=everlog.Settings())
store.create(title="Late").append("giraffe in a new session")
store.session(sys.argv[2]).append("giraffe in an old session")
os._exit(0)
"""
FOREIGN = "crab_user_1"


class Places(NamedTuple):
    """Homes and foreign directories, on the disk and elsewhere."""

    home: Path
    foreign: Path
    outer_home: Path
    outer_foreign: Path
    session: str  # a native session in the home

    def commands(self) -> list[list[str]]:
        """Every reading command, over both stores of the home, and over each foreign store."""
        session = self.session
        commands = [
            *self.session_commands(session),
            ["sessions", "show", "sk_v1_3", "--json"],
            ["sessions", "show", session[:20], "--json"],
            ["sessions", "show", FOREIGN, "--json"],
            ["sessions", "search", "hello", "--json"],
            ["sessions", "verify", "--json"],
            ["store", "verify", "--json"],
            ["memory", "show", "--json"],
            ["memory", "search", "zebra", "--json"],
            ["archive", "list", "--json"],
            ["config", "show", "--json"],
        ]
        for home, foreign in (
            (self.home, self.foreign),
            (self.home, self.outer_foreign),
            (self.outer_home, self.foreign),
        ):
            where = ["--home", os.fspath(home), "--store", f"crabtalk:{foreign}"]
            commands += [[*where, *command] for command in self.session_commands(FOREIGN)]
        return commands

    @staticmethod
    def session_commands(session: str) -> list[list[str]]:
        """The commands that read sessions."""
        return [
            ["sessions", "list", "--json"],
            ["sessions", "search", "giraffe", "--json"],
            ["sessions", "show", session, "--json"],
            ["sessions", "context", session, "--json"],
            ["sessions", "stats", "--json"],
            ["sessions", "verify", session, "--json"],
            ["sessions", "parts", session, "--json"],
            ["sessions", "export", session, "--format", "md"],
        ]

    def run(self, commands: Sequence[Sequence[str]], exports: Path) -> list[Output]:
        """Run commands on the home, or where they say; what they export goes into numbered directories."""
        given = [
            [*command, "--output", f"{exports}/{number}"] if "export" in command else command
            for number, command in enumerate(commands)
        ]
        return run_commands(given, {"EVERLOG_HOME": os.fspath(self.home)})


def prepare(disk: SmallDisk, outside: Path) -> Places:
    """Make stores that everlog has read, and that have grown since: the indexes lag behind."""
    home, foreign = disk.path / "home", disk.path / "foreign"
    outer_home, outer_foreign = outside / "home", outside / "foreign"
    for directory in (foreign, outer_foreign):
        made(directory, {f"{FOREIGN}.jsonl": crabtalk_file()})
    for directory in (home, outer_home):
        directory.mkdir(mode=0o700)
    with everlog.open_store(home=home) as store:
        sessions = [store.create(sender=f"tg:{number}", key=f"sk_v1_{number}") for number in range(6)]
        for session in sessions:
            session.append("hello zebra")
        store.search("hello")
    (home / "config.toml").write_text(f'[[stores]]\nlocation = "crabtalk:{foreign}"\n')
    places = Places(home, foreign, outer_home, outer_foreign, sessions[0].id)
    warm = places.run([["memory", "add", "zebras have stripes"], *places.commands()], outside / "warm")
    assert [output.err for output in warm if output.code] == []
    (home / "sessions").chmod(0o755)  # as after a copy: a read-only disk keeps it so
    subprocess.run([sys.executable, "-c", KILLED, home, sessions[0].id], check=True)
    append_unmarked(home, sessions[1].id)
    for directory in (foreign, outer_foreign):
        with (directory / f"{FOREIGN}.jsonl").open("ab") as file:
            file.write(b'{"role":"user","content":"giraffe in a foreign file"}\n')
        made(directory, {"crab_late_1.jsonl": crabtalk_file(sender="late", title="giraffe")})
    return places


def append_unmarked(home: Path, session: str) -> None:
    """Append as a program does that leaves no mark in the index."""
    body = line_codec.encode(everlog.user("giraffe without a mark"))[1]
    with (home / "sessions" / session / "session.jsonl").open("ab") as log:
        log.write(line_codec.build_line(body, "message", 2) + b"\n")
