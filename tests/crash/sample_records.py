"""Logs to damage: grown through the public face, copied, and looked at as files."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.control import USUAL, Options
from tests.crash.interfaces import name_of, open_log, payload


def grow(
    kind: str, root: Path, plan: Sequence[str], options: Options = USUAL, *, writer: str = "A", start: int = 0
) -> dict[str, int]:
    """Append to the log of a root as a worker does; what was acknowledged, by its seq."""
    log = open_log(kind, root, options)
    acked: dict[str, int] = {}
    for step in plan:
        count, size = map(int, step.split("*"))
        texts = [payload(writer, start + n, size) for n in range(count)]
        start += count
        seqs = [log.append(texts[0])] if count == 1 else log.append_many(texts)
        acked |= {name_of(text): seq for text, seq in zip(texts, seqs, strict=True)}
    log.close()
    return acked


def parts(kind: str, root: Path) -> list[Path]:
    """The files of the one log of a root, in order."""
    found = root.glob("sessions/*/session*.jsonl" if kind == "everlog" else "twin/log.*")
    return sorted(found, key=lambda path: int(re.sub(r"\D", "", path.name) or 1))


def tear(kind: str, root: Path, data: bytes) -> Path:
    """Leave the beginning of a line at the end of a log, as a killed writer does."""
    path = parts(kind, root)[-1]
    with path.open("ab") as log:
        log.write(data)
    return path


def clone(source: Path, target: Path) -> Path:
    """A copy of a root."""
    shutil.copytree(source, target)
    return target


def torn_bytes(data: bytes) -> list[bytes]:
    """What follows the last newline, as the list of what must be set aside."""
    tail = data[data.rfind(b"\n") + 1 :]
    return [tail] if tail else []


@contextmanager
def mounted(where: Path, *arguments: str) -> Iterator[None]:
    """Mount something, and take it away again."""
    where.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, where], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)
