"""Session trees for these tests, and what is on the disk afterwards."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from everlog.interop.archive.backup import BackupReport, copy


def log(lines: int, seed: int = 1) -> bytes:
    """Lines of a log, about 200 bytes each, that do not repeat."""
    chance = random.Random(seed)
    return b"".join(
        json.dumps({"uuid": f"{chance.getrandbits(128):032x}", "text": f"line {number} " * 10}).encode().ljust(200)
        + b"\n"
        for number in range(lines)
    )


def plant(folder: Path) -> Path:
    """A tree as Claude Code makes it."""
    project = folder / "projects" / "-work-x"
    files = {
        "aaaa.jsonl": log(20, 1),
        "aaaa/subagents/agent-1.jsonl": log(5, 2),
        "aaaa/subagents/agent-1.meta.json": b"{}",
        "aaaa/tool-results/1.txt": b"a result\r\n\x00\xff",
        "bbbb.jsonl": log(10, 3),
        "memory/MEMORY.md": b"# Notes\n",
        "empty.jsonl": b"",
    }
    for name, data in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(data)
    return folder / "projects"


def run(root: Path, *sources: Path, again: bool = False) -> BackupReport:
    """Archive sources; nothing may be left."""
    done = copy(root, sources, reread=again)
    assert done.problems == []
    return done


def tree(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def prints(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything that a write would change in a folder."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return found


def restored(output: Path, source: Path) -> Path:
    """Where a source is below the folder that it was restored to."""
    return output / os.path.realpath(source).lstrip("/")


def objects(root: Path) -> list[Path]:
    """The objects of an archive."""
    return sorted((root / "archive" / "objects").rglob("*.zst"))


def object_bytes(root: Path) -> int:
    """How many bytes the objects take."""
    return sum(path.stat().st_size for path in objects(root))


needs_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
