"""Sessions of other programs: reading, importing, showing, archiving."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from benchmarks.report import Figure, middle
from everlog.app import load_formats, open_store
from everlog.interop.importer import import_session
from everlog.interop.transcript_sources import FileSource
from everlog.model import user
from everlog.session import Session
from everlog.settings import SessionSettings, Settings

ROUNDS = 5
MEGABYTE = 1_000_000
SESSIONS = 1_000  # of the tree that is listed, 1 MB each
SEARCHED_SESSIONS, SEARCHED_BYTES = 3_000, 60 * MEGABYTE
BLOCKS, BLOCK = 10, 20  # appends
TREE_BYTES = 200 * MEGABYTE  # of the tree that is archived


def measure(folder: Path) -> list[Figure]:
    """All figures about foreign files."""
    session = folder / f"{uuid4()}.jsonl"
    _write_claude(session, 3 * MEGABYTE)
    (dialect,) = load_formats("claude")
    size = session.stat().st_size
    processor: list[float] = []
    reads = [_timed(lambda: dialect.read(FileSource(session)), processor) for _ in range(ROUNDS)]
    reading = middle(processor)
    processor.clear()
    read = dialect.read(FileSource(session))
    quick = Settings(session=SessionSettings(durability="os", total_bytes=0))
    imports, shows = [], []
    for at in range(ROUNDS):
        with open_store(folder / f"root{at}", create=True, settings=quick) as store:
            imports.append(_timed(partial(import_session, store.port, dialect, read), processor))
            brought = store.session(f"claude:{session.stem}")
            shows.append(_timed(brought.view))
    whole, busy = middle(reads) + middle(imports), reading + middle(processor)
    first, second, written = _archive(folder)
    figures = [
        Figure(
            "read a Claude Code session of 3 MB",
            "–",
            f"{size / middle(reads) / MEGABYTE:.0f} MB/s",
            None,
            "lines of about 1 kB",
        ),
        Figure(
            "import it to a store of ours, without sync",
            "≥ 90 MB/s of processor time",
            f"{size / busy / MEGABYTE:.0f} MB/s",
            size / busy / MEGABYTE >= 90,
            f"{size / whole / MEGABYTE:.0f} MB/s by the clock; of that, storing "
            f"{size / middle(imports) / MEGABYTE:.0f} MB/s",
        ),
        Figure("show the view of it, imported", "≤ 60 ms", f"{middle(shows) * 1000:.0f} ms", middle(shows) <= 0.06),
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
    return [*figures, *_listed(folder), *_searched(folder), *_shown(folder, session), _appended(folder, session)]


def _timed(work: Callable[[], object], processor: list[float] | None = None) -> float:
    """How long something takes; its processor time goes behind those in `processor`."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    if processor is not None:
        processor.append(time.process_time() - spent)
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
                ("assistant", [{"type": "tool_use", "id": call, "name": "Read", "input": {"path": "a"}}]),
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
    from everlog.interop.archive.backup import copy

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


# --- where they lie -------------------------------------------------------------------------


def _listed(folder: Path) -> list[Figure]:
    """A tree of Claude Code, opened and listed as often as somebody starts us."""
    tree, home = folder / "projects", folder / "listed-home"
    (tree / "-srv-app").mkdir(parents=True)
    pattern, total = _bulky(), 0
    for _ in range(SESSIONS):
        own = str(uuid4())
        total += (tree / "-srv-app" / f"{own}.jsonl").write_bytes(pattern.replace(_STAND.encode(), own.encode()))

    def look() -> None:
        with open_store(f"claude:{tree}", home=home) as store:
            page = store.list(limit=SESSIONS)
            assert len(page.sessions) == SESSIONS

    first = _timed(look)
    later = middle([_timed(look) for _ in range(ROUNDS)])
    return [
        Figure(
            f"open and list a Claude Code tree of {SESSIONS:,} sessions, the first time",
            "≥ 250 MB/s",
            f"{total / first / MEGABYTE:.0f} MB/s",
            total / first / MEGABYTE >= 250,
            f"{total / MEGABYTE:.0f} MB, 72 % of it prompt snapshots and request shapes",
        ),
        Figure("the second time, by another store object", "≤ 50 ms", f"{later * 1000:.0f} ms", later <= 0.05),
    ]


def _searched(folder: Path) -> list[Figure]:
    """A tree of many short sessions, searched for the first time and again."""
    tree, home = folder / "searched", folder / "searched-home"
    (tree / "-srv-app").mkdir(parents=True)
    template = tree / "-srv-app" / f"{_STAND}.jsonl"
    _write_claude(template, SEARCHED_BYTES // SEARCHED_SESSIONS)
    data = template.read_bytes()
    template.unlink()
    for _ in range(SEARCHED_SESSIONS):
        own = str(uuid4())
        (tree / "-srv-app" / f"{own}.jsonl").write_bytes(data.replace(_STAND.encode(), own.encode()))

    def search() -> None:
        with open_store(f"claude:{tree}", home=home) as store:
            assert store.search("login").total == SEARCHED_SESSIONS

    first = _timed(search)
    later = middle([_timed(search) for _ in range(ROUNDS)])
    total = SEARCHED_SESSIONS * len(data) / MEGABYTE
    return [
        Figure(
            f"the first search over {SEARCHED_SESSIONS:,} sessions of Claude Code",
            "≤ 10 s",
            f"{first:.1f} s",
            first <= 10,
            f"{total:.0f} MB; the tree is listed first",
        ),
        Figure("the next search, by another store object", "≤ 300 ms", f"{later * 1000:.0f} ms", later <= 0.3),
    ]


_STAND = "00000000-0000-4000-8000-000000000000"  # replaced by the id of each session


def _bulky() -> bytes:
    """A session of 1 MB like a real one: most of it is no conversation."""
    common = {"isSidechain": False, "cwd": "/srv/app", "sessionId": _STAND, "version": "2.1.0"}
    words = "The login test fails every third run, and nobody knows why. "
    rows: list[bytes] = []
    parent: str | None = None
    size, number = 0, 0
    while size < MEGABYTE:
        call = f"toolu_{number}"
        use = {"type": "tool_use", "id": call, "name": "Read", "input": {"path": "a.py"}}
        result = {"type": "tool_result", "tool_use_id": call, "content": words * 50}
        answer = {"id": f"msg_{number}", "model": "claude", "usage": {"output_tokens": number}}
        snapshot = {"type": "prompt_snapshot", "system": [words * 8] * 30, "tools": [words] * 40}
        for kind, fields in (
            ("user", {"message": {"role": "user", "content": words * 10}}),
            ("attachment", {"attachment": snapshot}),
            ("api-request-shape", {"shape": {"messages": [{"n": 1, "hash": words}] * 150}}),
            ("assistant", {"message": {"role": "assistant", "content": [use], **answer}}),
            ("user", {"message": {"role": "user", "content": [result]}}),
            ("assistant", {"message": {"role": "assistant", "content": words * 105, **answer}}),
        ):
            record: dict[str, Any] = {"type": kind, **fields, **common}
            if kind != "api-request-shape":
                number += 1
                uuid = str(UUID(int=number, version=4))
                record = {"parentUuid": parent, **record, "uuid": uuid}
                record["timestamp"] = "2026-03-01T10:00:00.000Z"
                parent = uuid
            rows.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
            size += len(rows[-1])
    return b"".join(rows)


def _shown(folder: Path, session: Path) -> list[Figure]:
    """The view of a session in its own file: its mirror is made, and then used."""
    firsts: list[float] = []
    seconds: list[float] = []
    for at in range(ROUNDS):
        tree = _tree(folder / f"shown{at}", session)
        for times in (firsts, seconds):
            with open_store(f"claude:{tree}", home=folder / f"shown-home{at}") as store:
                store.list()
                times.append(_timed(lambda: store.session(session.stem).view()))
    return [
        Figure(
            "show the view of the 3 MB session where it lies, the first time",
            "–",
            f"{middle(firsts) * 1000:.0f} ms",
            None,
            "its mirror is made",
        ),
        Figure(
            "the second time, by another store object",
            "≤ 60 ms",
            f"{middle(seconds) * 1000:.0f} ms",
            middle(seconds) <= 0.06,
        ),
    ]


def _appended(folder: Path, session: Path) -> Figure:
    """What a durable append costs that goes to the file first, against one to a log of ours."""
    tree = _tree(folder / "appended", session)
    live: list[float] = []
    own: list[float] = []
    with (
        open_store(f"claude:{tree}", home=folder / "appended-home") as foreign,
        open_store(folder / "appended-root", create=True) as native,
    ):
        there, here = foreign.session(session.stem), native.create()
        for one in (there, here):
            one.append(user("first"))
        for _ in range(BLOCKS):
            live.append(_timed(partial(_append, there)))
            own.append(_timed(partial(_append, here)))
    ratio = middle([a / b for a, b in zip(live, own, strict=True)])
    return Figure(
        "append to a live session, durable, against a native append",
        "≤ 4 ×",
        f"{ratio:.1f} × the time",
        ratio <= 4,
        f"{middle(live) / BLOCK * 1000:.2f} ms and {middle(own) / BLOCK * 1000:.2f} ms; "
        f"{BLOCKS} blocks of {BLOCK} each",
    )


def _append(session: Session) -> None:
    for _ in range(BLOCK):
        session.append(user("Does it fail on Linux too?"))


def _tree(tree: Path, session: Path) -> Path:
    """A tree of Claude Code with one session."""
    (tree / "-srv-app").mkdir(parents=True)
    shutil.copy(session, tree / "-srv-app")
    return tree
