"""A demonstration of durability on a temporary root.

It creates a session and writes to it, kills a writer in the middle of a write, recovers the log by
appending to it, and compacts the context. Everything printed is read from the disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from everlog.app import open_store
from everlog.cli import output
from everlog.cli.main import main as everlog
from everlog.model import ToolCall, assistant, tool_result, user
from everlog.session import Session

ATTEMPTS = 20  # to kill during a write; the first nearly always succeeds
TIMEOUT = 20.0  # seconds for one attempt
RESULT_BYTES = 6_000_000


def main() -> int:
    """Run the demonstration and clean up."""
    if sys.argv[1:2] == ["--writer"]:
        return write_until_killed(*sys.argv[2:4])
    with tempfile.TemporaryDirectory(prefix="everlog-demo-") as root:
        return run_demo(Path(root))


def run_demo(root: Path) -> int:
    """Run all steps on an empty root; return the exit code."""
    print("everlog stores the sessions of AI agents: every message, durably, in plain files.")
    print(f"This runs on a temporary root, {root}, which is removed at the end.")

    _print_heading("A session, and three messages that are on disk before append() returns")
    with open_store(root, create=True) as store:
        session = store.create(title="Fix the flaky test")
        first = session.append(user("The login test fails every third run. Please fix it."))
        session.append(assistant("I'll read the log of the last runs first."), expected_seq=first.seq)
        session.append(user("Good. Mind the time zones."))
        directory = root / "sessions" / session.id
        _run(root, "sessions", "show", session.id)

        _print_heading("A writer appends 6 MB tool results in a loop, and is killed with kill -9")
        torn = _kill_writer(root, session, directory)

    _print_heading("What the crash left on disk")
    _describe(directory)
    if not torn:
        print("No kill hit a write this time, so there is no torn tail: the log is intact.")

    _print_heading("Recovery: just append again")
    _run(root, "sessions", "append", session.id, "Are you still there?")
    torn_files = sorted(directory.glob("torn.*"))
    for path in torn_files:
        print(f"set aside, not deleted: {path.name} ({output.size(path.stat().st_size)})")
    if torn and not torn_files:
        print("the torn bytes were not set aside: this is a bug")
        return 1

    _print_heading("Every acknowledged message is still there")
    for command in ("verify", "parts", "show"):
        _run(root, "sessions", command, session.id)

    _print_heading("Six megabytes exceed every context window: compact the context, not the log")
    size_before = _size(directory)
    _run(root, "sessions", "compact", session.id)
    _run(root, "sessions", "context", session.id)
    grown = _size(directory) - size_before
    print(f"\nThe log still has every byte, and {output.size(grown)} more.")
    _run(root, "sessions", "list")
    print("\nThe temporary root is now removed. To start your own: everlog sessions new")
    return 0


def _print_heading(title: str) -> None:
    print(f"\n── {title} ".ljust(80, "─"))


def _run(root: Path, *arguments: str) -> None:
    """Print a command line and run it; raises SystemExit if it fails."""
    quoted = [f'"{argument}"' if " " in argument else argument for argument in arguments]
    print(f"\n$ everlog {' '.join(quoted)}", flush=True)
    code = everlog(["--home", str(root), *arguments])
    if code:
        raise SystemExit(code)


def write_until_killed(root: str, session_id: str) -> int:
    """Append tool calls with large results until killed; print each acknowledged seq."""
    rows = "2026-01-01T00:00:00Z GET /login 200 17ms worker-3 request=8f2c\n"
    result = rows * (RESULT_BYTES // len(rows))
    with open_store(root, create=True) as store:
        session = store.session(session_id)
        while True:
            call = f"tc_{time.monotonic_ns()}"
            call_message = session.append(assistant([ToolCall(call, "read_file", {"path": "runs.log"})]))
            print(call_message.seq, flush=True)
            print(session.append(tool_result(call, result)).seq, flush=True)


def _kill_writer(root: Path, session: Session, directory: Path) -> bool:
    """Kill writers until one leaves an unfinished line; return whether one did."""
    command = [sys.executable, "-m", "tests.crash.demo", "--writer", str(root), session.id]
    for attempt in range(1, ATTEMPTS + 1):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            acknowledged = [writer.stdout.readline(), writer.stdout.readline()]
            _await_write(directory, writer)
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged += writer.stdout.readlines()
        last = acknowledged[-1].decode().strip()
        print(f"kill {attempt}: the last acknowledged seq is {last or 'none'}", flush=True)
        if _is_torn(directory):
            return True
    return False


def _await_write(directory: Path, writer: subprocess.Popen[bytes]) -> None:
    """Return in the middle of a write, as far as this can be seen from outside."""
    size = _size(directory)
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and writer.poll() is None:
        grown = _size(directory)
        if grown != size and _is_torn(directory):
            return
        size = grown


def _parts(directory: Path) -> list[Path]:
    return sorted(directory.glob("session*.jsonl"), key=lambda path: (len(path.name), path.name))


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in _parts(directory))


def _is_torn(directory: Path) -> bool:
    """Return whether the log ends in the middle of a line."""
    with open(_parts(directory)[-1], "rb") as log:
        return log.seek(0, os.SEEK_END) > 0 and os.pread(log.fileno(), 1, log.tell() - 1) != b"\n"


def _describe(directory: Path) -> None:
    for path in _parts(directory):
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    torn = _parts(directory)[-1].read_bytes().rpartition(b"\n")[2]
    if torn:
        print(f"its last {len(torn):,} bytes are an unfinished line that was never acknowledged:")
        print(f"  {torn[:100].decode('utf-8', 'replace')}…")


if __name__ == "__main__":
    sys.exit(main())
