"""Listing 100,000 sessions while some are being written, and rebuilding the index."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import everlog
from benchmarks.report import Figure, middle
from everlog.ids import UlidGenerator
from everlog.log import line_codec
from everlog.log.fold import MetadataFold
from everlog.model import AnyRecord, Meta
from everlog.settings import SessionSettings, Settings
from everlog.stores.file import metadata_file

SESSIONS = 100_000


def populate(folder: Path, count: int) -> None:
    """Sessions of three records each, written as a store would leave them, only faster."""
    os.makedirs(folder / "sessions", mode=0o700)
    for name in ("tmp", "trash"):
        os.makedirs(folder / name, mode=0o700)
    moment = 1_700_000_000.0
    new_id = UlidGenerator(lambda: moment)
    for number in range(count):
        moment += 60
        session = new_id()
        tally = MetadataFold.empty(session)
        said = f"2025-{number % 12 + 1:02d}-{number % 28 + 1:02d}T10:{number % 60:02d}:00.000Z"
        records: list[AnyRecord] = [
            Meta(set={"agent": "main", "sender": f"user-{number % 100}", "name": f"Session {number}"}),
            everlog.user("What pods are running?", id=f"a{number}", timestamp=said),
            everlog.assistant("One pod is running: nginx.", id=f"b{number}", timestamp=said),
        ]
        data = b""
        for seq, record in enumerate(records):
            line = line_codec.build_line(line_codec.encode(record)[1], record.record_type, seq)
            tally.add(line_codec.as_stored(record, seq, line, plain=False))
            data += line + b"\n"
        directory = folder / "sessions" / session
        os.mkdir(directory, 0o700)
        for name, content in (
            ("session.jsonl", data),
            (metadata_file.NAME, metadata_file.encode(tally.metadata(1, len(data)))),
        ):
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, content)
            os.close(descriptor)


def _names(folder: Path, count: int) -> list[Figure]:
    """Finding a session by an alias, and appending to it so."""
    alias = "agent:main:telegram:direct:42"
    with everlog.open_store(folder, create=True) as store:
        session = store.create(key="sk_v1_bench", aliases=[alias])
        message = everlog.user("one more")
        session.append(message)
        found, by_id, by_alias = [], [], []
        for _ in range(400):
            found.append(_timed(lambda: store.session(alias)))
            by_id.append(_timed(lambda: store.session(session.id).append(message)))
            by_alias.append(_timed(lambda: store.session(alias).append(message)))
    ratio = middle(by_alias) / middle(by_id)
    return [
        Figure(
            f"a session found by its alias among {count:,}",
            "≤ 1 ms",
            f"{middle(found) * 1000:.3f} ms",
            middle(found) <= 0.001,
        ),
        Figure(
            "durable append by alias against by id",
            "≤ 1.1 ×",
            f"{ratio:.2f} ×",
            ratio <= 1.1,
            f"{middle(by_alias) * 1000:.2f} ms against {middle(by_id) * 1000:.2f} ms",
        ),
    ]


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(folder: Path, count: int = SESSIONS) -> list[Figure]:
    """All figures about listing."""
    populate(folder, count)
    settings = Settings(session=SessionSettings(durability="os"))
    with everlog.open_store(folder, create=True, settings=settings) as store:
        start = time.perf_counter()
        total = store.list(limit=1).total
        rebuilt = time.perf_counter() - start
        assert total == count
        written = [store.session(row.id) for row in store.list(limit=8)]
        message = everlog.user("one more")
        times = []
        for _ in range(60):
            newest = {session.append(message).timestamp for session in written}
            start = time.perf_counter()
            page = store.list(limit=50)
            times.append(time.perf_counter() - start)
            assert {row.metadata.last_message_at for row in page[:8]} == newest
        quiet = []
        for _ in range(60):
            start = time.perf_counter()
            store.list(limit=50)
            quiet.append(time.perf_counter() - start)
    return [
        *_names(folder, count),
        Figure(
            f"newest 50 of {count:,} sessions, 8 of them being written and shown current",
            "≤ 1 ms",
            f"median {middle(times) * 1000:.2f} ms, best {min(times) * 1000:.2f} ms",
            middle(times) <= 0.001,
            f"nothing being written: {middle(quiet) * 1000:.2f} ms",
        ),
        Figure(f"index of {count:,} sessions rebuilt, page cache warm", "≤ 20 s", f"{rebuilt:.1f} s", rebuilt <= 20),
    ]
