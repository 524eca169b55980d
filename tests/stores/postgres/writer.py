"""A process of writers, which write until their input ends.

    python -m tests.stores.postgres.writer KIND URL SCHEMA NAME THREADS LEASE SESSION…

Each tries every record again under its name until it is acknowledged, and says so:

    ACK session name seq epoch
    LATE session epoch            a write under a turn that another has by now was refused

With a LEASE above 0 they take turns of so many seconds, and write under them.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from itertools import count

from tests.stores.postgres.interfaces import Again, Face, Refused, open_face

GIVE_UP = 60.0  # seconds without an acknowledgement


class Writers:
    """Threads that write to some sessions through one face."""

    def __init__(self, face: Face, sessions: list[str]) -> None:
        self._face = face
        self._sessions = sessions
        self._ending = threading.Event()
        self.problems: list[BaseException] = []

    def run(self, name: str, threads: int, *, turns: bool) -> None:
        """Write until the input ends, and end with everything acknowledged."""
        work = self._take_turns if turns else self._append
        writers = [threading.Thread(target=self._guarded, args=(work, f"{name}.{n}")) for n in range(threads)]
        for one in writers:
            one.start()
        sys.stdin.read()
        self._ending.set()
        for one in writers:
            one.join()

    def _guarded(self, work: object, name: str) -> None:
        try:
            work(name)  # type: ignore[operator]
        except BaseException as error:
            self.problems.append(error)

    def _append(self, name: str) -> None:
        chance = random.Random(name)
        for number in count():
            if self._ending.is_set():
                return
            self._insist(chance.choice(self._sessions), f"{name}-{number}")

    def _insist(self, session: str, name: str) -> None:
        deadline = time.monotonic() + GIVE_UP
        while True:
            try:
                _say("ACK", *self._face.append(session, name))
                return
            except Again:
                if time.monotonic() > deadline:
                    raise
                threading.Event().wait(0.01)  # as a caller would, who is not in a hurry

    def _take_turns(self, name: str) -> None:
        chance = random.Random(name)
        for number in count():
            if self._ending.is_set():
                return
            self._take_turn(chance, chance.choice(self._sessions), f"{name}-{number}")

    def _take_turn(self, chance: random.Random, session: str, name: str) -> None:
        turn = self._face.take(session)
        if turn is None:
            self._ending.wait(0.01)
            return
        try:
            for number in range(chance.randint(1, 40)):
                _say("ACK", *self._face.append(session, f"{name}-{number}", turn))
        except Refused:
            _say("LATE", session, turn.epoch)
        except Again:
            pass  # whether the last one was stored is not known, and nobody was told that it was
        turn.release()


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(kind: str, url: str, schema: str, name: str, *rest: str) -> int:
    """Write, and tell what went wrong."""
    threads, lease, *sessions = rest
    face = open_face(kind, url, schema, float(lease) or 15.0)
    writers = Writers(face, sessions)
    writers.run(name, int(threads), turns=float(lease) > 0)
    face.close()
    for problem in writers.problems:
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
    return 1 if writers.problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
