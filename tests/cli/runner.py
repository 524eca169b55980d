"""How these tests run the command line: in this process, as a process, or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any, NamedTuple, Protocol

SRC = Path(__file__).parents[2] / "src"


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its answer."""
        return json.loads(self.out)


class Cli(Protocol):
    """Runs `everlog …` on the test's root."""

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result: ...


def environment(root: Path, **more: str) -> dict[str, str]:
    """The environment of a child process: ours, without what would colour its output."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERLOG_")}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        kept.pop(name, None)
    path = os.pathsep.join(filter(None, (str(SRC), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "EVERLOG_HOME": str(root), "TERM": "xterm", **more}


def run_process(root: Path, *arguments: str, stdin: bytes = b"", **more: str) -> Result:
    """Run the command line as its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "everlog", *arguments],
        input=stdin,
        capture_output=True,
        env=environment(root, **more),
        timeout=60,
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_on_terminal(root: Path, *arguments: str, typed: bytes = b"", **more: str) -> Result:
    """Run the command line with a terminal of 120 columns as stdin, stdout and stderr."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (40, 120))
    with subprocess.Popen(
        [sys.executable, "-m", "everlog", *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment(root, **more),
        start_new_session=True,
    ) as process:
        os.close(inner)
        if typed:
            os.write(outer, typed)
        shown = b""
        while select.select([outer], [], [], 60)[0]:
            try:
                piece = os.read(outer, 1 << 16)
            except OSError:  # Linux says EIO when the last writer is gone
                piece = b""
            if not piece:
                break
            shown += piece
        else:
            process.kill()
        code = process.wait()
    os.close(outer)
    return Result(code, shown.decode("utf-8", "replace").replace("\r\n", "\n"), "")
