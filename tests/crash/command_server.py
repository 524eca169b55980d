"""Commands as processes of their own, forked off one that has imported the command line.

    python -m tests.crash.command_server < commands.json

The input is a list of argument lists; the output a list of [exit code, stdout, stderr].
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[2]


class Output(NamedTuple):
    """What a command did; the code of one that was killed by a signal is negative."""

    code: int
    out: str
    err: str


def run_commands(commands: Sequence[Sequence[str]], environment: Mapping[str, str] = {}) -> list[Output]:
    """Run commands one after the other, each in a process of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERLOG_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.command_server"],
        input=json.dumps(commands).encode(),
        capture_output=True,
        cwd=REPOSITORY,
        env={**kept, **environment},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [Output(*output) for output in json.loads(done.stdout)]


def _run(arguments: Sequence[str]) -> Output:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["everlog", *arguments]
            from everlog.cli.main import main

            main()  # ends the process
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return Output(code, *texts)


def serve() -> None:
    """Run the commands of the standard input."""
    for module in ("click", "everlog.app", "everlog.cli.main", "everlog.cli.command_tree", "everlog.cli.output"):
        __import__(module)
    for module in ("cli.sessions", "cli.sessions_search", "stores.file.file_store", "interop.foreign.foreign_store"):
        __import__(f"everlog.{module}")
    print(json.dumps([_run(arguments) for arguments in json.load(sys.stdin)]))


if __name__ == "__main__":
    serve()
