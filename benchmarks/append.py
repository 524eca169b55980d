"""Appending: against bare system calls, and against another session layer."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import msgspec

import everlog
from benchmarks.report import Figure, middle
from everlog.ids import TimestampSource, UuidGenerator
from everlog.settings import SessionSettings, Settings

KILOBYTE = 806  # characters of text that make a line of 1 KB
BLOCKS, BLOCK = 40, 50


def measure(folder: Path) -> list[Figure]:
    """All figures about appending."""
    return [*one_session(folder), *many_sessions(folder), unsynced(folder), *peer(folder)]


def _store(folder: Path, durability: str = "always") -> everlog.Store:
    settings = {"durability": durability, "total_bytes": 0}
    session = SessionSettings(**settings)  # type: ignore[arg-type]
    return everlog.open_store(folder, create=True, settings=Settings(session=session))


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _bare(path: Path, line: bytes, count: int = BLOCK) -> Callable[[], None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write() -> None:
        for _ in range(count):
            os.write(descriptor, line)
            os.fdatasync(descriptor)

    return write


def _flat(folder: Path) -> Callable[[], None]:
    """What an append does at the least, in one flat function: the floor for any Python code.

    Encode, number, crc, lock, look, write, sync, unlock; no checks, no metadata, no errors.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    log, lock = (os.open(folder / name, flags, 0o600) for name in ("flat", "flat.lock"))
    message, stamps, ids = everlog.user("x" * KILOBYTE), TimestampSource(time.time), UuidGenerator()
    encode = msgspec.json.Encoder().encode
    seq = 0

    def write() -> None:
        nonlocal seq
        for _ in range(BLOCK):
            record = msgspec.structs.replace(message, timestamp=stamps(), id=ids())
            body = encode(record)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fstat(log)
            seq += 1
            start = b'{"recordType":"message","schemaVersion":1,"seq":%d%b' % (seq, body[23:-1])
            os.write(log, b'%b,"crc":"%08x"}\n' % (start, crc32(start)))
            os.lseek(log, 0, os.SEEK_CUR)
            os.fdatasync(log)
            fcntl.flock(lock, fcntl.LOCK_UN)

    return write


def one_session(folder: Path) -> list[Figure]:
    """Durable appends to one session, interleaved with two bare loops of the same bytes."""
    with _store(folder / "one") as store:
        session = store.create()
        message = everlog.user("x" * KILOBYTE)
        line = session.append(message).line + b"\n"
        first, second = _bare(folder / "bare1", line), _bare(folder / "bare2", line)
        flat = _flat(folder)

        def ours() -> None:
            for _ in range(BLOCK):
                session.append(message)

        for warm in (first, ours, second, flat):
            warm()
        times = [(_timed(first), _timed(ours), _timed(second), _timed(flat)) for _ in range(BLOCKS)]
    ratio = middle([(a + b) / 2 / mine for a, mine, b, _ in times])
    floor = middle([(a + b) / 2 / least for a, _, b, least in times])
    apart = abs(middle([a for a, _, _, _ in times]) / middle([b for _, _, b, _ in times]) - 1)
    void = apart > 0.05
    note = f"{BLOCKS} blocks of {BLOCK}; the two bare loops differ by {apart:.1%}"
    return [
        Figure(
            "durable append, one session, against write + fdatasync",
            "≥ 0.80 ×",
            f"{ratio:.2f} ×",
            None if void else ratio >= 0.80,
            note + (": void" if void else ""),
        ),
        Figure(
            "the least an append can do, in one flat Python function, against the same",
            "–",
            f"{floor:.2f} ×",
            None,
            "a floor, measured in the same blocks",
        ),
    ]


def _together(works: list[Callable[[], None]]) -> float:
    barrier = threading.Barrier(len(works) + 1)

    def run(work: Callable[[], None]) -> None:
        barrier.wait()
        work()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def many_sessions(folder: Path) -> list[Figure]:
    """16 threads, each with its own session, against one session and against 16 bare threads."""
    count, rounds, each = 16, 7, 200  # shorter runs measure how threads start
    with _store(folder / "many") as store:
        sessions = [store.create() for _ in range(count)]
        message = everlog.user("x" * KILOBYTE)
        line = sessions[0].append(message).line + b"\n"

        def appender(session: everlog.Session) -> Callable[[], None]:
            def work() -> None:
                for _ in range(each):
                    session.append(message)

            return work

        ours = [appender(session) for session in sessions]
        bare = [_bare(folder / f"bare-{n}", line, each) for n in range(count)]
        for work in (*ours, *bare):
            work()
        single = _bare(folder / "bare-alone", line, each)
        alone, together, plain, lone = [], [], [], []
        for _ in range(rounds):
            lone.append(each / _timed(single))
            alone.append(each / _timed(ours[0]))
            together.append(count * each / _together(ours))
            plain.append(count * each / _together(bare))
    against_one = middle([many / one for many, one in zip(together, alone, strict=True)])
    against_bare = middle([many / one for many, one in zip(together, plain, strict=True)])
    return [
        Figure(
            "durable append, 16 threads on 16 sessions, against one session",
            "≥ 2.5 ×",
            f"{against_one:.1f} ×",
            against_one >= 2.5,
            f"16 bare threads against one: {middle(plain) / middle(lone):.1f} ×",
        ),
        Figure("the same against 16 bare threads", "≥ 0.5 ×", f"{against_bare:.2f} ×", against_bare >= 0.5),
    ]


def unsynced(folder: Path) -> Figure:
    """Appends with durability `os`."""
    count, rates = 10_000, []
    with _store(folder / "os", "os") as store:
        session = store.create()
        message = everlog.user("x" * KILOBYTE)
        size = len(session.append(message).line) + 1

        def work() -> None:
            for _ in range(count):
                session.append(message)

        for _ in range(7):
            rates.append(count / _timed(work))
    best = max(rates)
    return Figure(
        "append with durability `os`",
        "≥ 35,000 records/s of 1 KB",
        f"{middle(rates):,.0f}/s, best of 7 runs {best:,.0f}/s",
        best >= 35_000,
        f"lines of {size} bytes",
    )


def peer(folder: Path) -> list[Figure]:
    """The same message through openai-agents' SQLiteSession, where it is installed."""
    try:
        from agents import SQLiteSession
    except ImportError:
        return []
    (folder / "peer").mkdir()
    other = SQLiteSession("bench", folder / "peer" / "sessions.db")
    item = {"role": "user", "content": "x" * KILOBYTE}
    with _store(folder / "against") as store:
        session = store.create()
        message = everlog.user("x" * KILOBYTE)

        def ours() -> None:
            for _ in range(BLOCK):
                session.append(message)

        async def add() -> None:
            for _ in range(BLOCK):
                await other.add_items([item])

        def theirs() -> None:
            asyncio.run(add())

        ours()
        theirs()
        ratios = [_timed(theirs) / _timed(ours) for _ in range(12)]
        for _ in range(60):
            ours()
            theirs()
        reads = [_timed(lambda: asyncio.run(_items(other))) / _timed(lambda: _read(session)) for _ in range(5)]
    other.close()
    return [
        Figure(
            "durable append against openai-agents' SQLiteSession", "–", f"{middle(ratios):.1f} × as many a second", None
        ),
        Figure(
            "reading the whole session against the same",
            "–",
            f"{middle(reads):.1f} × as fast",
            None,
            "about 3,700 messages",
        ),
    ]


async def _items(session: object) -> None:
    await session.get_items()  # type: ignore[attr-defined]


def _read(session: everlog.Session) -> None:
    session.messages()
