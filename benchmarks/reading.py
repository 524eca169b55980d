"""Reading: a context, one record, everything, out of a session of 200 MB."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import orjson

import everlog
from benchmarks.report import Figure, middle
from everlog.model import Compaction, KnownRecord
from everlog.settings import SessionSettings, Settings

TAIL = 300_000
_FIRST = """
import sys, time
import everlog
store = everlog.open_store(sys.argv[1], create=True)
store.session(sys.argv[2]).metadata  # modules are loaded, the log is not read
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096
before = resident()
start = time.perf_counter()
session = store.session(sys.argv[3])
context = session.context()
took = time.perf_counter() - start
print(took, resident() - before, len(context.messages))
"""


def measure(folder: Path) -> list[Figure]:
    """All figures about reading."""
    small = _session(folder, 1_000_000)
    large = _session(folder, 200_000_000)
    store = everlog.open_store(folder, create=True)
    session = store.session(large)
    for _ in session.entries():  # warm the page cache
        pass
    return [*_contexts(folder, store, small, large), _by_seq(session), *_everything(folder, session)]


def _session(folder: Path, size: int) -> str:
    """A session of about `size` bytes whose last compaction is 300 KB from its end."""
    settings = Settings(session=SessionSettings(durability="os", total_bytes=0))
    with everlog.open_store(folder, create=True, settings=settings) as store:
        session = store.create()
        batch = [everlog.user("x" * 1500) for _ in range(100)]
        written = 0
        while written < size - TAIL - 200_000:
            written += sum(len(one.line) + 1 for one in session.append_many(batch))
        last = session.metadata.through.seq
        session.append(Compaction(first_kept_seq=last - 9, summary="what was done " * 40))
        session.append_many([everlog.user("y" * 1500) for _ in range(TAIL // 1700)])
        return session.id


def _contexts(folder: Path, store: everlog.Store, small: str, large: str) -> list[Figure]:
    firsts = [_first_call(folder, small, large) for _ in range(5)]
    first, grown, messages = min(firsts)
    times: dict[str, list[float]] = {small: [], large: []}
    for _ in range(30):
        for name in (small, large):
            times[name].append(_timed(lambda name=name: store.session(name).context()))  # type: ignore[misc]
    ratio = middle(times[large]) / middle(times[small])
    return [
        Figure(
            "context of a 200 MB session, last compaction 300 KB from the end, first call",
            "≤ 5 ms",
            f"{first * 1000:.1f} ms",
            first <= 0.005,
            f"{messages} messages; best of 5 processes, median {sorted(firsts)[2][0] * 1e3:.1f} ms",
        ),
        Figure("the same against a 1 MB session with the same tail", "≤ 1.5 ×", f"{ratio:.2f} ×", ratio <= 1.5),
        Figure("memory it grows by", "< 8 MB", f"{grown / 1e6:.1f} MB", grown < 8e6),
    ]


def _first_call(folder: Path, small: str, large: str) -> tuple[float, int, int]:
    command = [sys.executable, "-c", _FIRST, str(folder), small, large]
    out = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
    return float(out[0]), int(out[1]), int(out[2])


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _by_seq(session: everlog.Session) -> Figure:
    last = session.metadata.through.seq
    choose = random.Random(1)
    times = [_timed(lambda: session.record(choose.randint(1, last))) for _ in range(200)]
    worst = sorted(times)[-5]
    return Figure(
        "any record by seq in 200 MB",
        "≤ 2 ms",
        f"median {middle(times) * 1000:.2f} ms, p97 {worst * 1000:.2f} ms",
        middle(times) <= 0.002,
    )


def _everything(folder: Path, session: everlog.Session) -> list[Figure]:
    decoder = msgspec.json.Decoder(KnownRecord)
    files = [folder / "sessions" / session.id / part.file for part in session.parts]

    def typed() -> None:
        for file in files:
            with open(file, "rb") as lines:
                for line in lines:
                    decoder.decode(line)

    def plain() -> None:
        for file in files:
            with open(file, "rb") as lines:
                for line in lines:
                    orjson.loads(line)

    def ours() -> None:
        for _ in session.entries():
            pass

    rounds = [(_timed(typed), _timed(ours), _timed(plain)) for _ in range(5)]
    against_typed = middle([one / mine for one, mine, _ in rounds])
    against_orjson = middle([one / mine for _, mine, one in rounds])
    context = _timed(session.context)
    whole = middle([one for _, _, one in rounds])
    return [
        Figure(
            "full read with crc against `for line in file: typed decode`",
            "≥ 0.5 ×",
            f"{against_typed:.2f} ×",
            against_typed >= 0.5,
        ),
        Figure("full read with crc against orjson", "–", f"{against_orjson:.2f} ×", None),
        Figure("context against reading the whole file with orjson", "–", f"{whole / context:,.0f} × as fast", None),
    ]
