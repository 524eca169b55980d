"""kill -9, thousands of times: `python -m tests.crash.kill9 --cycles 10000` (`make crash`).

A child opens the log, which recovers it, and appends records of up to 1 MB until it is killed:
mostly after a few acknowledgements and a random pause, at times before it has begun, at times
when the log is seen to grow. A kill inside a write leaves a torn tail. When a log has grown, it is taken up again, appended to and
read; then the next begins. A run counts only if it reached enough: below the floor it fails.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from everlog.cli.output import is_terminal, progress
from tests.crash.checker import tell_apart, violations
from tests.crash.control import Options
from tests.crash.interfaces import name_of, open_log, payload
from tests.crash.sample_records import parts
from tests.crash.twin import TWINS

SIZES = (10, 300, 5000, 5000, 50_000, 1_000_000)
OPTIONS = Options(part_bytes=4_000_000)
# A longer log is checked, and the next one begun. No writer lives long enough to save metadata,
# so each reads the whole log when it opens it: longer logs make cycles slower, not better.
LOG_BYTES = 15_000_000
AIMED = 0.2  # the share of kills that wait for a large write
LARGE = 50_000
ACKS_PER_CYCLE = 2.0  # the floor
TORN_PER_CYCLE = 0.01
AT_ONCE = 2  # hunters, one per core


class Tally(msgspec.Struct):
    """What was seen; all of it adds up."""

    cycles: int = 0
    acked: int = 0
    torn: int = 0
    lost: int = 0
    unreadable: int = 0
    wrong: list[str] = []  # all violations, in words

    def add(self, other: Tally) -> None:
        """Take another's figures over."""
        for name in ("cycles", "acked", "torn", "lost", "unreadable"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.wrong += other.wrong


class Hunter:
    """Kills the writers of one log after the other."""

    def __init__(self, kind: str, folder: Path, seed: int) -> None:
        self._kind = kind
        self._folder = folder
        self._random = random.Random(seed)
        self._log = 0
        self._begin()

    def _begin(self) -> None:
        self._log += 1
        self.root = self._folder / f"log{self._log}"
        self.root.mkdir()
        self._acked: dict[str, int] = {}
        # Where a tail was torn, and what it was. A second one at the same place takes the name
        # of the first, so the last one counts.
        self._torn: dict[tuple[int, int], bytes] = {}

    def cycle(self, number: int, *, last: bool) -> Tally:
        """Start a writer, kill it, look; check the log if it is time to."""
        told = tell_apart(self._kill_one(number))
        tally = Tally(cycles=1, acked=len(told.acked), wrong=[f"ERR {one}" for one in told.errors])
        self._acked |= told.acked
        tally.torn = self._look_for_torn()
        files = parts(self._kind, self.root)
        if last or sum(file.stat().st_size for file in files) > LOG_BYTES:
            self._check(tally, derived=last)
            shutil.rmtree(self.root)
            self._begin()
        return tally

    def _kill_one(self, number: int) -> list[str]:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _write_for_ever(self._kind, self.root, f"k{number}", writing)
        os.close(writing)
        told = b""
        if self._random.random() < 0.85:
            wanted = self._random.randint(1, 3)
            while told.count(b"ACK ") < wanted and (more := os.read(reading, 1 << 16)):
                told += more
        if self._random.random() < AIMED:
            self._await_large_write()
        else:
            time.sleep(self._random.random() ** 2 * 0.01)
        os.kill(child, signal.SIGKILL)
        while more := os.read(reading, 1 << 16):
            told += more
        os.close(reading)
        os.waitpid(child, 0)
        return told.decode().split("\n")[:-1]

    def _await_large_write(self) -> None:
        """Return when the log grows by much, which is in the middle of a write, or soon anyway."""
        deadline = time.monotonic() + 0.03
        seen = 0
        while time.monotonic() < deadline:
            files = parts(self._kind, self.root)
            size = files[-1].stat().st_size if files else 0
            if seen and size > seen + LARGE:
                return
            seen = size

    def _look_for_torn(self) -> int:
        files = parts(self._kind, self.root)
        if not files:
            return 0
        with files[-1].open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2 * max(SIZES)))
            data = file.read()
        keep = data.rfind(b"\n") + 1
        if keep == len(data):
            return 0
        self._torn[len(files), size - len(data) + keep] = data[keep:]
        return 1

    def _check(self, tally: Tally, *, derived: bool) -> None:
        wrong = violations(
            self._kind, self.root, self._acked, options=OPTIONS, torn=list(self._torn.values()), derived=derived
        )
        tally.lost += sum(one.startswith("lost") for one in wrong)
        tally.unreadable += any(one.startswith("cannot be") for one in wrong)
        tally.wrong += [one[:300] for one in wrong]


def _write_for_ever(kind: str, root: Path, writer: str, acks: int) -> None:
    """The child's life."""
    try:
        chance = random.Random(writer)
        log = open_log(kind, root, OPTIONS)
        for number in range(1_000_000):
            texts = [payload(writer, 3 * number, chance.choice(SIZES))]
            if chance.random() < 0.1:
                texts += [payload(writer, 3 * number + n, 1000) for n in (1, 2)]
            seqs = log.append_many(texts)
            lines = [f"ACK {seq} {name_of(text)}\n" for seq, text in zip(seqs, texts, strict=True)]
            os.write(acks, "".join(lines).encode())
    except BaseException as error:
        os.write(acks, f"ERR {type(error).__name__}:{error}\n".replace(" ", "_", 1).encode())
    finally:
        os._exit(1)


def hunt(kind: str, folder: Path, numbers: range, out: int) -> None:
    """All cycles of one hunter; figures go out line by line."""
    hunter = Hunter(kind, folder, seed=numbers.start)
    for number in numbers:
        tally = hunter.cycle(number, last=number == numbers[-1])
        os.write(out, msgspec.json.encode(tally) + b"\n")


def run(kind: str, cycles: int, folder: Path) -> Tally:
    """Hunters at once, their figures together, and a bar or lines that tell how far it is."""
    total = Tally()
    pipes: dict[int, bytes] = {}
    children = []
    for n in range(AT_ONCE):
        numbers = range(cycles * n // AT_ONCE, cycles * (n + 1) // AT_ONCE)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            for other in pipes:
                os.close(other)
            os.close(reading)
            own = folder / f"hunter{n}"
            own.mkdir()
            hunt(kind, own, numbers, writing)
            os._exit(0)
        os.close(writing)
        pipes[reading] = b""
        children.append(child)
    shown = time.monotonic()
    watched = is_terminal(sys.stderr)
    with progress("killing writers") as tell:
        while pipes:
            for pipe in select.select(list(pipes), [], [])[0]:
                data = os.read(pipe, 1 << 16)
                if not data:
                    del pipes[pipe]
                    os.close(pipe)
                    continue
                *lines, pipes[pipe] = (pipes[pipe] + data).split(b"\n")
                for line in lines:
                    total.add(msgspec.json.decode(line, type=Tally))
            tell(total.cycles, cycles)
            if not watched and time.monotonic() - shown > 5:
                shown = time.monotonic()
                print(f"{total.cycles} of {cycles} cycles, {_figures(total)}", flush=True)
    if any(os.waitpid(child, 0)[1] for child in children):
        total.wrong.append("a hunter failed")
    return total


def _figures(total: Tally) -> str:
    return f"acked={total.acked} torn={total.torn} lost={total.lost} unreadable={total.unreadable}"


def main() -> int:
    """Hunt, tell, judge."""
    parser = argparse.ArgumentParser(description="kill -9 a writer, again and again")
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--kind", choices=["everlog", *TWINS], default="everlog")
    parser.add_argument("--dir", help="where the logs go (default: the system's place)")
    given = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="everlog-kill9-", dir=given.dir) as folder:
        total = run(given.kind, given.cycles, Path(folder))
    for one in total.wrong[:20]:
        print(one)
    seconds = time.monotonic() - begun
    print(f"cycles={total.cycles} {_figures(total)} seconds={seconds:.0f}")
    if total.wrong:
        print(f"{len(total.wrong)} promises were not kept", file=sys.stderr)
    missed = total.acked < ACKS_PER_CYCLE * given.cycles or total.torn < TORN_PER_CYCLE * given.cycles
    if missed or total.cycles != given.cycles:
        print("too little was reached for the run to count", file=sys.stderr)
    return 1 if total.wrong or missed or total.cycles != given.cycles else 0


if __name__ == "__main__":
    sys.exit(main())
