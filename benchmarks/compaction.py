"""Compaction: planning a cut, a context compacted often, appends while compactions run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

import everlog
from benchmarks.report import Figure, middle
from everlog.agent.compactor import Compactor, Outcome
from everlog.aio import AsyncSession, AsyncStore
from everlog.context.compaction.plan import CompactionPlan, plan_compaction
from everlog.log.backward_read import LiveMessages
from everlog.model import Compaction, Message, ToolCall, assistant, tool_result, user
from everlog.settings import CompactionSettings

MESSAGES = 10_000
COMPACTIONS = 1_000
WRITERS = 8
WORDS = "the tests pass on one machine and fail on the other, so look at the clock first "


def measure(folder: Path) -> list[Figure]:
    """All figures about compaction."""
    return [*_planning(), _repeated(folder / "repeated"), *_beside_writers(folder / "beside")]


def _history(count: int) -> list[Message]:
    """A conversation in which every second round calls two tools."""
    made: list[Message] = []
    while len(made) < count:
        seq = len(made) + 1
        names = (f"c{seq}", f"d{seq}")
        made += [
            replace(user(WORDS * 3), seq=seq),
            replace(assistant([ToolCall(n, "read", {"path": f"{n}.py"}) for n in names]), seq=seq + 1),
            replace(tool_result(names[0], WORDS * 20), seq=seq + 2),
            replace(tool_result(names[1], WORDS * 10), seq=seq + 3),
            replace(assistant(WORDS * 5), seq=seq + 4),
        ]
    return made[:count]


def _planning() -> list[Figure]:
    live = LiveMessages(messages=tuple(_history(MESSAGES)), last_seq=MESSAGES)
    size = sum(len(message.text) for message in live.messages)

    def once() -> None:
        assert isinstance(plan_compaction(live, CompactionSettings(), 200_000), CompactionPlan)

    took = middle([_timed(once) for _ in range(15)])
    tracemalloc.start()
    once()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [
        Figure(f"plan a cut over {MESSAGES:,} decoded messages", "≤ 30 ms", f"{took * 1000:.1f} ms", took <= 0.030),
        Figure(
            "memory for that plan against the text of the messages",
            "no copy",
            f"{peak / size:.2f} ×",
            peak < size / 4,
            f"{peak / 1e6:.1f} MB; pointers and one table of calls",
        ),
    ]


def _repeated(folder: Path) -> Figure:
    """The same tail behind one compaction and behind five."""
    store = everlog.open_store(folder, create=True)
    sessions = []
    for times in (1, 5):
        session = store.create()
        for _ in range(times):
            session.append_many(_history(500))
            last = session.metadata.through.seq
            session.append(Compaction(first_kept_seq=last - 9, summary=WORDS * 50))
        session.append_many(_history(100))
        sessions.append(session)
    taken: list[list[float]] = [[], []]
    for _ in range(60):
        for index, session in enumerate(sessions):
            taken[index].append(_timed(session.context))
    ratio = middle(taken[1]) / middle(taken[0])
    return Figure("context of a session compacted 5 times against once", "1 ×", f"{ratio:.2f} ×", ratio < 1.15)


def _beside_writers(folder: Path) -> list[Figure]:
    """Eight threads append to a session while it is compacted again and again."""
    store = everlog.open_store(folder, create=True)
    session = store.create()
    session.append_many(_history(200))
    alone, _ = _writing(session, lambda: time.sleep(2))
    said: list[Outcome] = []
    settings = CompactionSettings(keep_recent_tokens=2_000)

    def compact() -> None:
        async def run() -> None:
            async with AsyncStore(session.store) as outer:
                own = AsyncSession(outer, session)
                compactor = Compactor(settings)
                with await own.lease() as lease:
                    for _ in range(COMPACTIONS):
                        said.append(await compactor.run(own, lease, manual=True))

        asyncio.run(run())

    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)  # as the daemon does
    try:
        waits, seqs = _writing(session, compact)
    finally:
        sys.setswitchinterval(before)
    found = {message.seq for message in everlog.open_store(folder, create=True).session(session.id).messages()}
    lost = len(set(seqs) - found)
    silent = sum(not one.compacted and not one.reason for one in said)
    done = sum(one.compacted for one in said)
    p99 = _percentile(waits, 99)
    return [
        Figure(
            f"append p99, {WRITERS} threads, while {COMPACTIONS:,} compactions run",
            "≤ 50 ms",
            f"{p99 * 1000:.1f} ms",
            p99 <= 0.050,
            f"p50 {_percentile(waits, 50) * 1000:.1f} ms; "
            f"without compactions p99 {_percentile(alone, 99) * 1000:.1f} ms",
        ),
        Figure(
            "messages lost, and compactions that neither commit nor say why",
            "0, 0",
            f"{lost}, {silent}",
            not lost and not silent,
            f"{len(seqs):,} appended, {done:,} of {len(said):,} committed",
        ),
    ]


def _writing(session: everlog.Session, meanwhile: Callable[[], None]) -> tuple[list[float], list[int]]:
    """What each append took and its seq, while something else goes on."""
    stop = threading.Event()
    waits: list[float] = []
    seqs: list[int] = []

    def write() -> None:
        while not stop.is_set():
            start = time.perf_counter()
            seq = session.append(user(WORDS * 4)).seq
            waits.append(time.perf_counter() - start)
            seqs.append(seq)
            time.sleep(0.02)  # people and models speak now and then

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return waits, seqs


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
