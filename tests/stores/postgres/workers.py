"""Processes of writers, and what they have told."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Self

from tests.stores.postgres.checker import violations
from tests.stores.postgres.interfaces import Ack, new_sessions, open_face

REPOSITORY = Path(__file__).parents[3]
PATIENCE = 60.0  # seconds for anything to happen


def until(is_so: Callable[[], object], what: str = "what must come to be") -> None:
    """Wait for something that must come to be."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not in {PATIENCE:g} seconds: {what}"
        time.sleep(0.005)


class Outcome(NamedTuple):
    """What the checker found."""

    wrong: list[str]  # promises that were not kept
    stored: int
    acknowledged: int
    gap: float  # the longest time without an acknowledgement, in seconds

    def __str__(self) -> str:
        figures = f"acknowledged={self.acknowledged} stored={self.stored} gap={self.gap:.1f}s"
        return f"{figures} wrong={len(self.wrong)}"


class Crew:
    """Processes that write to some sessions of a face, from when it is entered until `finish`."""

    def __init__(
        self,
        kind: str,
        url: str,
        *,
        processes: int = 2,
        threads: int = 8,
        sessions: int = 6,
        lease: float = 0.0,
        name: str = "crew",
        through: str = "",
        inside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`through`: the address that they use, if it is another; `inside`: entered while
        they are started. Tables are called after `name` and `kind`.
        """
        self.kind, self.url, self.schema = kind, url, f"{name}_{kind.lower()}"
        self.sessions = new_sessions(kind, url, self.schema, sessions)
        self.acks: list[Ack] = []
        self.late = 0
        self._gap, self._last = 0.0, 0.0  # between acknowledgements; when the last one came
        self.stops = 0
        program = [sys.executable, "-m", "tests.stores.postgres.writer", kind, through or url]
        with inside():
            self._processes = [
                subprocess.Popen(
                    [*program, self.schema, f"p{n}", f"{threads}", f"{lease}", *self.sessions],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=REPOSITORY,
                )
                for n in range(processes)
            ]
        self._listening = [threading.Thread(target=self._listen, args=(one,)) for one in self._processes]
        for thread in self._listening:
            thread.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, session, *rest = line.split()
            if word == "ACK":
                name, seq, epoch = rest
                self.acks.append(Ack(session, name, int(seq), int(epoch)))
                now = time.monotonic()
                if self._last:
                    self._gap = max(self._gap, now - self._last)
                self._last = now
            else:
                self.late += 1

    def more(self, count: int) -> None:
        """Wait for so many acknowledgements from now on."""
        wanted = len(self.acks) + count
        until(lambda: len(self.acks) >= wanted, f"{count} acknowledgements")

    @contextmanager
    def paused(self, which: int) -> Iterator[None]:
        """Stop one of the processes meanwhile."""
        process = self._processes[which % len(self._processes)]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)
        self.stops += 1

    def pause(self, which: int, seconds: float) -> None:
        """Stop one of the processes for a while."""
        with self.paused(which):
            threading.Event().wait(seconds)  # the time itself is what matters

    def finish(self) -> None:
        """Let all end what they are at; afterwards everything they wrote is acknowledged."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process, thread in zip(self._processes, self._listening, strict=True):
            thread.join()
            assert process.stderr is not None
            told = process.stderr.read()
            assert process.wait(PATIENCE) == 0, told

    def kill(self) -> None:
        """End them at once."""
        for process in self._processes:
            process.kill()

    def outcome(self, url: str = "") -> Outcome:
        """What has become of it all, at this or another address."""
        face = open_face(self.kind, url or self.url, self.schema)
        try:
            wrong = violations(face, self.sessions, self.acks)
            stored = sum(len(face.rows(session)) for session in self.sessions)
            return Outcome(wrong, stored, len(self.acks), self._gap)
        finally:
            face.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process, thread in zip(self._processes, self._listening, strict=True):
            process.kill()
            process.wait(PATIENCE)
            thread.join()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
