"""Searching 10,000 sessions with 200 MB of text: taking them in, asking, recalling."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import everlog
from benchmarks.report import Figure, middle
from everlog.ports import Query
from everlog.settings import SessionSettings, Settings

SESSIONS = 10_000
MESSAGES = 20  # of each
WORDS = 170  # of each, about 1 kB
QUERIES = 60
NOW = 1_800_000_000_000
SETTINGS = Settings(session=SessionSettings(durability="os"))


def measure(folder: Path) -> list[Figure]:
    """All figures about search."""
    chosen = random.Random(7)
    words = _vocabulary(chosen)
    said = _populate(folder, chosen, words)
    with everlog.open_store(folder, create=True, settings=SETTINGS) as store:
        store.list()
        first = _timed(store.port.catch_up)
        second = _timed(store.port.catch_up)
        # Words that people search for: neither those that are everywhere nor those that are once.
        usual = words[200:5_000]
        asked = [" ".join(chosen.sample(usual, 2)) for _ in range(QUERIES)]
        found = [_timed(lambda text=text: store.search(text)) for text in asked]  # type: ignore[misc]
        messages = [" ".join(chosen.choices(usual, k=12)) for _ in range(QUERIES)]
        recalled = [
            _timed(lambda text=text: store.port.recall(Query(text=text, limit=5), NOW))  # type: ignore[misc]
            for text in messages
        ]
    began = time.perf_counter()
    with everlog.open_store(folder, create=True, settings=SETTINGS) as store:
        store.search(asked[0])
        cold = time.perf_counter() - began
    size = said / 1e6
    return [
        Figure(
            f"take in {size:.0f} MB of text",
            "≥ 20 MB/s",
            f"{size / first:.0f} MB/s",
            size / first >= 20,
            f"{SESSIONS:,} sessions",
        ),
        Figure("the second time, nothing new", "≤ 1 s", f"{second:.3f} s", second <= 1),
        _figure("two words, 20 sessions with snippets", 15, found),
        Figure("the first search of a process", "≤ 150 ms", f"{cold * 1000:.0f} ms", cold <= 0.15),
        _figure("recall before a turn", 20, recalled),
    ]


def _figure(what: str, most: float, times: Sequence[float]) -> Figure:
    slow = sorted(times)[len(times) * 95 // 100]
    usual = middle(times) * 1000
    return Figure(what, f"≤ {most:.0f} ms p50", f"{usual:.1f} ms", usual <= most, f"p95 {slow * 1000:.0f} ms")


def _vocabulary(chosen: random.Random) -> list[str]:
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    weights = [1 / (place + 2) for place in range(26)]
    made = dict.fromkeys("".join(chosen.choices(letters, weights, k=chosen.randint(2, 11))) for _ in range(40_000))
    return list(made)


def _populate(folder: Path, chosen: random.Random, words: Sequence[str]) -> int:
    """Sessions whose words are as unevenly frequent as those of a language; bytes of text."""
    cumulated = list(accumulate(1 / (place + 1) for place in range(len(words))))
    size = 0
    with everlog.open_store(folder, create=True, settings=SETTINGS) as store:
        for number in range(SESSIONS):
            session = store.create(title=f"Session {number}")
            texts = [" ".join(chosen.choices(words, cum_weights=cumulated, k=WORDS)) for _ in range(MESSAGES)]
            size += sum(map(len, texts))
            session.append_many(
                everlog.assistant(text) if place % 2 else everlog.user(text) for place, text in enumerate(texts)
            )
    return size


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
