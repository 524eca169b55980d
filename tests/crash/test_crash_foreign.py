"""A process that writes into the files of another program is killed in the middle of a write."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

from everlog.app import open_runtime
from everlog.interop.formats.format_types import InMemorySource
from everlog.model import Message, user
from everlog.settings import FurtherStoreSettings, Settings, TurnSettings
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.foreign.foreign_directories import SESSIONS, cersei_file, crabtalk_file, made, picoclaw_files

WRITES = 30
DIRECTORIES: dict[str, tuple[Mapping[str, bytes], str]] = {
    "crabtalk": ({"crab_user_1.jsonl": crabtalk_file()}, "crab_user_1"),
    "cersei": ({"s-1.jsonl": cersei_file("s-1")}, "s-1"),
    "picoclaw": (picoclaw_files("agent:main:main"), "agent_main_main"),
}

CHILD = """
import itertools, os, signal, sys
from importlib import import_module
from pathlib import Path
from everlog.model import user
from everlog.testing.foreign_store_suite import open_foreign_store

root, home, dialect, session, at, share = sys.argv[1:]
write, numbers = os.write, itertools.count(1)

def cut(descriptor, data):
    if next(numbers) == int(at):
        write(descriptor, bytes(data)[: int(len(data) * float(share))])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(descriptor, data)

with open_foreign_store(Path(root), Path(home), import_module(f"everlog.interop.formats.{dialect}").FORMAT) as store:
    os.write = cut
    for number in range(8):
        store.session(session).append(user(f"number {number}"))
        print(f"number {number}", flush=True)
"""


def said(root: Path, dialect: str) -> list[str]:
    """What the files say to a reader of their format."""
    files, _ = DIRECTORIES[dialect]
    found = {name: (root / name).read_bytes() for name in files}
    stem = next(iter(found)).removesuffix(".jsonl")
    read = import_module(f"everlog.interop.formats.{dialect}").FORMAT.read(InMemorySource(stem, found))
    return [item.text for item in read.items if isinstance(item, Message)]


@pytest.mark.crash
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dialect", sorted(DIRECTORIES))
def test_a_kill_in_any_write_loses_nothing_that_was_acknowledged(tmp_path: Path, dialect: str, share: float) -> None:
    files, session = DIRECTORIES[dialect]
    module = import_module(f"everlog.interop.formats.{dialect}").FORMAT
    killed = 0
    for at in range(1, WRITES, 3):
        root = made(tmp_path / f"root-{at}", files)
        home = tmp_path / f"home-{at}"
        home.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(root), str(home), dialect, session, *map(str, (at, share))],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert done.returncode in (0, -9), done.stderr
        killed += done.returncode == -9
        acknowledged = done.stdout.split("\n")[:-1]
        with open_foreign_store(root, home, module) as store:
            store.session(session).append(user("after the crash"))
            texts = [one.text for one in store.session(session).messages()]
        for shown in (texts, said(root, dialect)):
            own = [text for text in shown if text.startswith(("number", "after"))]
            # The one that was being written when the process died may be there or not.
            assert own[: len(acknowledged)] == acknowledged
            assert own[-1] == "after the crash"
            assert len(own) <= len(acknowledged) + 2
            assert len(set(own)) == len(own)
    assert killed > 3


@pytest.mark.crash
@pytest.mark.parametrize("dialect", sorted(DIRECTORIES))
def test_a_writer_that_does_not_end_torn_lines_loses_the_next_message(tmp_path: Path, dialect: str) -> None:
    """The naive twin: what the programs themselves do."""
    files, _ = DIRECTORIES[dialect]
    root = made(tmp_path, files)
    path = root / next(iter(files))
    line = path.read_bytes().splitlines(keepends=True)[-1]
    with path.open("ab") as opened:
        opened.write(line[: len(line) // 2])  # killed here
    with path.open("ab") as opened:
        opened.write(line.replace(b"hi there", b"after the crash"))
    assert "after the crash" not in said(root, dialect)


CLAUDE_KILLS = [("claude", at) for at in range(2, 23, 3)]
PROMPTS = ('!call current_time {}\n!call current_time {"timezone": "Asia/Tokyo"}', "!say two", "!say three")
TURNS = """
import asyncio, itertools, os, signal, sys
from pathlib import Path
from everlog.app import open_runtime
from everlog.stores.file.file_store import FileStore
from tests.crash.test_crash_foreign import PROMPTS, settings

root, home, session, at = sys.argv[1:]
append, numbers = FileStore.append, itertools.count(1)

def cut(self, *arguments, **named):
    if next(numbers) == int(at):  # before a companion or a mirror has it
        os.kill(os.getpid(), signal.SIGKILL)
    return append(self, *arguments, **named)

async def main():
    runtime = open_runtime(home=home, create=True, settings=settings(Path(root)))
    await runtime.start()
    one = await runtime.store.session(session)
    await one.metadata()
    FileStore.append = cut
    runs = []
    for text in PROMPTS:
        runs.append(await runtime.submit(one, text, continue_here=True))
        print(len(runs), flush=True)  # acknowledged
    for run in runs:
        await run.answer()

asyncio.run(main())
"""


def settings(root: Path) -> Settings:
    return Settings(stores=(FurtherStoreSettings(f"auto:{root}", mode="write"),), turn=TurnSettings(titles=False))


@pytest.mark.crash
@pytest.mark.parametrize(
    ("dialect", "at"),  # crabtalk and picoclaw have no ids
    [*(("crabtalk", at) for at in range(1, 23)), *(("picoclaw", at) for at in range(1, 23, 3)), *CLAUDE_KILLS],
)
def test_a_kill_between_file_companion_and_mirror_says_nothing_twice(tmp_path: Path, dialect: str, at: int) -> None:
    """Whether the mirrors are there afterwards or not."""
    files, session = SESSIONS[dialect]
    root, home = made(tmp_path / "root", files), tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", TURNS, str(root), str(home), session, str(at)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -9, done.stderr
    acknowledged = PROMPTS[: len(done.stdout.splitlines())]
    if at % 2:
        shutil.rmtree(home / "live")

    async def go_on() -> list[Message]:
        runtime = open_runtime(home=home, create=True, settings=settings(root))
        await runtime.start()
        one = await runtime.store.session(session)
        run = await runtime.submit(one, "!say last", continue_here=True)
        assert (await run.answer()).reply.text == "last"
        await runtime.drain(5)
        assert not (await one.metadata()).unfinished
        messages = one.sync.messages()
        await runtime.store.close()
        return messages

    messages = asyncio.run(go_on())
    inputs = [one.text for one in messages if one.role == "user"]
    kept = [text for text in PROMPTS if text in inputs]
    assert inputs[-len(kept) - 1 :] == [*kept, "!say last"], "each once, in order"
    assert set(acknowledged) <= set(kept)
    calls = [call.id for one in messages for call in one.tool_calls]
    results = [one.tool_call_id for one in messages if one.role == "toolResult"]
    assert len(set(results)) == len(results) and set(calls) == set(results)
    with open_foreign_store(
        root, tmp_path / "fresh", import_module(f"everlog.interop.formats.{dialect}").FORMAT
    ) as one:
        assert [m.text for m in one.session(session).messages()] == [m.text for m in messages]
