"""Directories of other programs, used live by several processes at once.

    python -m tests.foreign.load --appends 10000

Every process appends to all sessions of a directory, in an order of its own. At the end each
message that was acknowledged must be in its file, once, in the order of its writer, and the files
must be what their program writes: read by the whole-session reader, nothing damaged.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from everlog.interop.transcript_sources import FileSource
from everlog.model import Message, assistant, user
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.foreign.foreign_directories import cersei_file, crabtalk_file, made, picoclaw_files

PROCESSES = 4
SESSIONS = 100
Work = tuple[str, str, str, int, int]  # root, home, dialect, which writer, appends


def directory(dialect: str) -> tuple[Mapping[str, bytes], list[str]]:
    """The files of a directory of many sessions, and their ids."""
    files: dict[str, bytes] = {}
    names = []
    for number in range(SESSIONS):
        if dialect == "crabtalk":
            names.append(f"crab_user_{number}")
            files[f"{names[-1]}.jsonl"] = crabtalk_file()
        elif dialect == "cersei":
            names.append(f"session-{number}")
            files[f"{names[-1]}.jsonl"] = cersei_file(names[-1])
        else:
            names.append(f"agent_main_direct_{number}")
            files |= picoclaw_files(f"agent:main:direct:{number}")
    return files, names


def write(work: Work) -> list[tuple[str, str]]:
    """Append, and tell what was acknowledged."""
    root, home, dialect, writer, appends = work
    names = directory(dialect)[1]
    chosen = random.Random(writer)
    done = []
    with open_foreign_store(
        Path(root), Path(home), import_module(f"everlog.interop.formats.{dialect}").FORMAT
    ) as store:
        for number in range(appends):
            name, text = chosen.choice(names), f"{writer}:{number} 漢字 <&>"
            say = user if number % 2 else assistant
            store.session(name).append(say(text))
            done.append((name, text))
    return done


def check(root: Path, dialect: str, done: list[list[tuple[str, str]]]) -> int:
    """Compare the files with what was acknowledged; returns how many messages were lost."""
    module = import_module(f"everlog.interop.formats.{dialect}").FORMAT
    lost = 0
    for name in directory(dialect)[1]:
        read = module.read(FileSource(root / f"{name}.jsonl"))
        assert not read.damage, (name, read.damage)
        texts = [item.text for item in read.items if isinstance(item, Message)]
        assert texts[:2] == ["hello", "hi there"]
        for writer, acknowledged in enumerate(done):
            own = [text for text in texts if text.startswith(f"{writer}:")]
            wanted = [text for session, text in acknowledged if session == name]
            lost += len(set(wanted) - set(own))
            assert own == wanted, (name, writer)
        assert len(texts) == 2 + sum(session == name for one in done for session, _ in one)
    return lost


def run(root: Path, home: Path, dialect: str, appends: int) -> float:
    """All of it; returns the seconds that the appends took."""
    made(root, directory(dialect)[0])
    home.mkdir(parents=True, exist_ok=True)
    each = appends // PROCESSES
    work = [(str(root), str(home), dialect, writer, each) for writer in range(PROCESSES)]
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        done = pool.map(write, work)
    seconds = time.perf_counter() - start
    assert check(root, dialect, done) == 0
    with open_foreign_store(root, home, import_module(f"everlog.interop.formats.{dialect}").FORMAT) as store:
        listed = sum(row.metadata.message_count for row in store.list(limit=SESSIONS))
    assert listed == 2 * SESSIONS + each * PROCESSES, listed
    return seconds


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description="use foreign directories live")
    parser.add_argument("--appends", type=int, default=10_000)
    appends = parser.parse_args().appends
    for dialect in ("crabtalk", "cersei", "picoclaw"):
        with tempfile.TemporaryDirectory() as place:
            seconds = run(Path(place, "root"), Path(place, "home"), dialect, appends)
        print(
            f"{dialect}: {appends} appends by {PROCESSES} processes to {SESSIONS} sessions in "
            f"{seconds:.1f} s, nothing lost"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
