"""Sessions of other programs: reading, importing, showing, archiving."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from benchmarks.report import Figure, middle
from holdfast.app import dialects, open_store
from holdfast.importing import FileSource, bring
from holdfast.settings import SessionSettings, Settings

ROUNDS = 5
MEGABYTE = 1_000_000
TREE_BYTES = 200 * MEGABYTE  # of the tree that is archived


def measure(folder: Path) -> list[Figure]:
    """All figures about foreign files."""
    session = folder / f"{uuid4()}.jsonl"
    _write_claude(session, 3 * MEGABYTE)
    (dialect,) = dialects("claude")
    size = session.stat().st_size
    reads = [_timed(lambda: dialect.read(FileSource(session))) for _ in range(ROUNDS)]
    read = dialect.read(FileSource(session))
    quick = Settings(session=SessionSettings(durability="os", total_bytes=0))
    imports, shows = [], []
    for at in range(ROUNDS):
        with open_store(folder / f"root{at}", settings=quick) as store:
            imports.append(_timed(partial(bring, store.port, "claude", read)))
            brought = store.session(f"claude:{session.stem}")
            shows.append(_timed(brought.view))
    whole = middle(reads) + middle(imports)
    first, second, written = _archive(folder)
    return [
        Figure(
            "read a Claude Code session of 3 MB",
            "–",
            f"{size / middle(reads) / MEGABYTE:.0f} MB/s",
            None,
            "lines of about 1.3 kB",
        ),
        Figure(
            "import it to a store of ours, without sync",
            "≥ 40 MB/s",
            f"{size / whole / MEGABYTE:.0f} MB/s",
            size / whole / MEGABYTE >= 40,
            f"of that, storing {size / middle(imports) / MEGABYTE:.0f} MB/s",
        ),
        Figure(
            "show the view of it, imported",
            "≤ 60 ms",
            f"{middle(shows) * 1000:.0f} ms",
            middle(shows) <= 0.06,
        ),
        Figure(
            f"archive a tree of {TREE_BYTES // MEGABYTE} MB, the first time",
            "–",
            f"{TREE_BYTES / first / MEGABYTE:.0f} MB/s",
            None,
        ),
        Figure(
            "the second time, nothing changed",
            "≤ 1 s for 1 GB, 0 bytes",
            f"{second:.2f} s, {written} bytes",
            written == 0 and second <= 1,
            "1,000 files",
        ),
    ]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _write_claude(file: Path, size: int) -> None:
    """A conversation with tool calls, as Claude Code writes it."""
    parent, number = None, 0
    with file.open("w", encoding="utf-8") as opened:
        while opened.tell() < size:
            call = f"toolu_{number}"
            said = "The login test fails every third run, and nobody knows why. " * 6
            blocks = (
                ("user", said),
                ("assistant", [{"type": "text", "text": said}]),
                (
                    "assistant",
                    [{"type": "tool_use", "id": call, "name": "Read", "input": {"path": "a"}}],
                ),
                ("user", [{"type": "tool_result", "tool_use_id": call, "content": said * 4}]),
            )
            for role, content in blocks:
                number += 1
                uuid = str(UUID(int=number, version=4))
                message: dict[str, Any] = {"role": role, "content": content}
                if role == "assistant":
                    usage = {"input_tokens": 10, "output_tokens": number}
                    message |= {"id": f"msg_{number}", "model": "claude", "usage": usage}
                record = {
                    "parentUuid": parent,
                    "isSidechain": False,
                    "userType": "external",
                    "cwd": "/srv/app",
                    "sessionId": file.stem,
                    "version": "2.1.0",
                    "gitBranch": "main",
                    "type": role,
                    "message": message,
                    "uuid": uuid,
                    "timestamp": "2026-03-01T10:00:00.000Z",
                }
                opened.write(json.dumps(record, separators=(",", ":")) + "\n")
                parent = uuid


def _archive(folder: Path) -> tuple[float, float, int]:
    """Seconds of the first and second run over a tree, and the bytes that the second wrote."""
    from holdfast.archive.copying import copy

    tree = folder / "tree"
    tree.mkdir()
    line = json.dumps({"type": "user", "text": "some words " * 100}).encode() + b"\n"
    for at in range(1000):
        own = b"".join(line.replace(b"some", os.urandom(4).hex().encode()) for _ in range(180))
        (tree / f"{at}.jsonl").write_bytes(own[: TREE_BYTES // 1000])
    root = folder / "archive-root"
    first = _timed(lambda: copy(root, [tree]))
    before = _bytes(root)
    second = _timed(lambda: copy(root, [tree]))
    return first, second, _bytes(root) - before


def _bytes(folder: Path) -> int:
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
