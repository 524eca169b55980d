"""Workers as processes: started stopped, traced, disturbed, killed.

A worker is forked off a server that has imported everything already, and stops itself before it
begins. So strace can be attached first, and counts the calls of the job alone.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import msgspec

from tests.crash.checker import Told, told
from tests.crash.driver import Job

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 60.0  # seconds for anything to happen
# Calls that change something on the disk or hold a lock; a kill between two of them leaves what
# a kill at the second leaves.
CALLS = (
    "openat,write,pwrite64,fsync,fdatasync,ftruncate,rename,renameat,renameat2,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,fchmod,fchmodat,chmod,flock"
)


class Call(msgspec.Struct, frozen=True):
    """One system call of a trace."""

    name: str
    n: int  # which call of this name, from 1
    text: str  # the line
    inside: bool  # it names something below the root

    @property
    def injected(self) -> bool:
        """Whether it was made to fail."""
        return self.text.endswith("(INJECTED)")

    @property
    def last(self) -> bool:
        """Whether the worker was killed when it entered it."""
        return self.text.endswith("= ?")


class Child:
    """A worker, stopped until `go`."""

    def __init__(self, server: Server, pid: int, acks: Path) -> None:
        self.pid = pid
        self.acks = acks
        self._server = server
        self.await_state("T")

    def go(self) -> None:
        """Let it begin, or go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> int:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end: its exit code, or the negative signal."""
        try:
            return self._server.ask(b"wait %d\n" % self.pid)
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            self._server.answer()
            raise

    def told(self) -> Told:
        """What it told so far."""
        return told(self.acks)

    def await_state(self, states: str) -> None:
        """Wait until the system says that it is stopped (T), traced and stopped (t), …"""
        path = Path(f"/proc/{self.pid}/stat")
        poll(lambda: path.read_text().rpartition(")")[2].split()[0] in states, f"state {states}")

    def await_line(self, word: str) -> str:
        """Wait until it told something."""

        def there() -> bool:
            return any(line.startswith(word) for line in self.told().lines)

        poll(there, word)
        return next(line for line in self.told().lines if line.startswith(word))


class Server:
    """Forks workers."""

    def __init__(self, module: str = "tests.crash.driver") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env=environment(),
        )
        self._stdin = cast(IO[bytes], self._process.stdin)
        self._stdout = cast(IO[bytes], self._process.stdout)

    def ask(self, line: bytes) -> int:
        """One request, one answer."""
        self._stdin.write(line)
        self._stdin.flush()
        return self.answer()

    def answer(self) -> int:
        """The answer to the last request."""
        if not select.select([self._stdout], [], [], PATIENCE)[0]:
            raise TimeoutError("a worker does not come to its end")
        return int(self._stdout.readline())

    def start(self, job: msgspec.Struct, acks: Path) -> Child:
        """A stopped worker that tells into a file; the file may hold what others told."""
        request = b"run " + msgspec.json.encode((job, str(acks))) + b"\n"
        return Child(self, self.ask(request), acks)

    def run(self, job: Job, acks: Path) -> Told:
        """A job to its end."""
        child = self.start(job, acks)
        child.go()
        child.wait()
        return child.told()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stdin.close()  # it ends its children, then itself
        self._process.wait(PATIENCE)
        self._stdout.close()


class Strace:
    """strace on a worker, from before its first call to its end."""

    def __init__(self, child: Child, output: Path, *rules: str, verbose: bool = False) -> None:
        self._output = output
        words = ["-y", "-xx", "-s", "100000000"] if verbose else ["-y", "-s", "64"]
        command = ["strace", "-f", "-p", str(child.pid), "-o", str(output), *words]
        for rule in rules:
            command += ["-e", rule]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE)
        self._stderr = cast(IO[bytes], self._process.stderr)
        line = self._stderr.readline()
        if b"attached" not in line:
            self.close()
            raise PermissionError(line.decode().strip() or "strace did not start")

    def close(self) -> None:
        """Wait for its end, which comes with the worker's."""
        self._stderr.read()
        self._process.wait(PATIENCE)
        self._stderr.close()

    def calls(self, root: Path) -> list[Call]:
        """What was traced."""
        return parse(self._output.read_text(errors="replace"), root)


def run_traced(server: Server, job: Job, acks: Path, *rules: str, calls: str = CALLS) -> tuple[Told, list[Call]]:
    """A job to its end under strace, with faults as the rules say."""
    child = server.start(job, acks)
    strace = Strace(child, acks.with_suffix(".strace"), f"trace={calls}", *rules)
    child.go()
    child.wait()
    strace.close()
    return child.told(), strace.calls(Path(job.root))


def kills(calls: list[Call]) -> list[str]:
    """A rule for each call below the root: kill -9 when it is entered, before it does anything."""
    return [f"inject={one.name}:signal=SIGKILL:when={one.n}" for one in calls if one.inside]


def parse(text: str, root: Path) -> list[Call]:
    """The system calls of a trace, numbered by name as strace numbers them."""
    count: dict[str, int] = {}
    found = []
    below = re.compile(re.escape(str(root)) + r'[/">]')
    for line in text.splitlines():
        match = re.match(r"(?:\d+ +)?(\w+)\(", line)
        if match:
            name = match[1]
            count[name] = count.get(name, 0) + 1
            found.append(Call(name, count[name], line, inside=below.search(line) is not None))
    return found


def poll(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that no descriptor tells of."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited for {what}")
        time.sleep(0.001)


def environment() -> dict[str, str]:
    """Our environment without settings of everlog's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("EVERLOG_")}
    path = os.pathsep.join(filter(None, (str(REPOSITORY / "src"), kept.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path}


def summary(items: Sequence[str], most: int = 8) -> str:
    """Violations for a failure message."""
    return "\n".join([*items[:most], f"… {len(items)} in all"])
