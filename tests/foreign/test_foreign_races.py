"""Another program renames, truncates or appends at each system call of a write of ours.

strace halts the writer after one call; then the other program acts; then the writer goes on. This
is so for each call up to the last look: at the name of the transcript, or for a title change at the
file that had it before. What is taken after that was acknowledged; a turn writes it again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import pytest

from everlog.model import user
from everlog.testing.foreign_store_suite import open_foreign_store
from tests.crash.children import Call, Child, Server, Strace, poll, summary
from tests.foreign.foreign_directories import SESSIONS, made
from tests.foreign.raced_writer import OURS, Write

pytestmark = pytest.mark.crash

FORMATS = sorted(SESSIONS)
THEIRS = "theirs, at the same time"
WATCHED = "openat,newfstatat,fstat,pread64,write,fdatasync,fsync,renameat,renameat2,linkat,unlinkat,ftruncate,fchmod"


class Scene(NamedTuple):
    """A session with its mirror, to be copied for each race."""

    format: str
    session: str
    folder: Path  # with `root` and `home`
    transcript: str  # path below the root
    theirs: bytes  # a line that its program would append
    ours: bytes  # a line that a writer of ours would append


def scene(folder: Path, name: str) -> Scene:
    files, session = SESSIONS[name]
    root, module = made(folder / "root", files), import_module(f"everlog.interop.formats.{name}").FORMAT
    transcript = next(iter(files))
    with open_foreign_store(root, folder / "home", module) as store:
        store.session(session).append(user("ours, before"))
    lines = []
    for number, text in enumerate((THEIRS, OURS)):
        other = folder / f"other-{number}"
        shutil.copytree(root, other / "root")
        with open_foreign_store(other / "root", other / "home", module) as store:
            store.session(session).append(user(text))
        lines.append((other / "root" / transcript).read_bytes().splitlines()[-1])
    return Scene(name, session, folder, transcript, *lines)


@pytest.fixture(scope="module")
def writers() -> Iterator[Server]:
    if not sys.platform.startswith("linux") or shutil.which("strace") is None:
        pytest.skip("writers are halted by strace, which only Linux has (apt-get install strace)")
    with Server("tests.foreign.raced_writer") as server:
        yield server


# --- what the other program does; each returns the lines that must be in the file afterwards


def rename_over(file: Path, before: bytes, theirs: bytes) -> bytes:
    """A rewrite of what it read before our write, by a temporary file."""
    content = before + theirs + b"\n"
    temporary = file.with_name("their.tmp")
    temporary.write_bytes(content)
    temporary.rename(file)
    return content


def rename_current(file: Path, before: bytes, theirs: bytes) -> bytes:
    """A rewrite of what is there now, which may have our line already."""
    return rename_over(file, file.read_bytes(), theirs)


def truncate(file: Path, before: bytes, theirs: bytes) -> bytes:
    """The removal of the last line that it knows."""
    content = file.read_bytes()
    size = content.index(before.splitlines(keepends=True)[-1])
    os.truncate(file, size)
    return content[:size]


def rewrite(file: Path, before: bytes, theirs: bytes) -> bytes:
    """A rewrite in place of what it read before our write."""
    file.write_bytes(before + theirs + b"\n")
    return before + theirs + b"\n"


def append(file: Path, before: bytes, theirs: bytes) -> bytes:
    """Another line."""
    with file.open("ab") as opened:
        opened.write(theirs + b"\n")
    return before + theirs + b"\n"


def append_late(file: Path, before: bytes, theirs: bytes) -> bytes:
    """Another line, by a program that opened the file before our write."""
    os.write(HELD[file.parent], theirs + b"\n")
    return before + theirs + b"\n"


HELD: dict[Path, int] = {}  # descriptors by folder, for `append_late`
Meddling = Callable[[Path, bytes, bytes], bytes]
MEDDLINGS: tuple[Meddling, ...] = (rename_over, rename_current, truncate, rewrite, append)


# --- races


class Outcome(NamedTuple):
    """What came of one race."""

    answer: str  # of the writer
    file: bytes  # the transcript afterwards
    kept: bytes  # what the other program had there
    calls: list[Call]  # of the writer


class Race(NamedTuple):
    """A writer, and where it is halted for the other program."""

    server: Server
    stage: Scene
    action: str
    folder: Path

    def run(self, rule: str = "", meddle: Meddling = append) -> Outcome:
        """Let the writer write, and the other program act when it is halted."""
        for name in ("root", "home"):
            shutil.copytree(self.stage.folder / name, self.folder / name)
        root, trace = self.folder / "root", self.folder / "trace"
        file = root / self.stage.transcript
        if meddle is append_late:
            HELD[file.parent] = os.open(file, os.O_WRONLY | os.O_APPEND)
        before = kept = file.read_bytes()
        home, session = str(self.folder / "home"), self.stage.session
        write = Write(str(root), home, self.stage.format, session, self.action, self.stage.ours.decode())
        with LOCK:
            child = self.server.start(write, self.folder / "told")
        child.go()
        child.await_line("READY")
        child.await_state("T")
        strace = Strace(child, trace, f"trace={WATCHED}", *([f"inject={rule}"] if rule else []))
        child.go()
        if rule:
            poll(lambda: HALT.search(trace.read_text(errors="replace")) is not None or is_done(child), "a halt")
            if not is_done(child):
                (current,) = file.parent.glob(f"{session}*.jsonl")  # a title change renames it
                kept = meddle(current, before, self.stage.theirs)
            child.go()
        poll(lambda: is_done(child), "the end")
        with LOCK:
            child.wait()
        strace.close()
        if meddle is append_late:
            os.close(HELD.pop(file.parent))
        (current,) = file.parent.glob(f"{session}*.jsonl")
        return Outcome(child.told().lines[1], current.read_bytes(), kept, strace.calls(root))


# Not the stop before strace was attached, which was no signal then.
HALT = re.compile(r"--- SIGSTOP .*stopped by SIGSTOP", re.DOTALL)
LOCK = Lock()  # of the server, which answers one request after the other


def is_done(child: Child) -> bool:
    return len(child.told().lines) > 1


class Sweep(NamedTuple):
    """Races at each call on the session's files."""

    problems: list[str]
    answers: Counter[str]  # of the writers


def sweep(server: Server, stage: Scene, action: str, folder: Path, meddlings: Sequence[Meddling]) -> Sweep:
    """Let the other program act in each of these ways after each call on the session's files."""
    (folder / "calls").mkdir()
    calls = [call for call in Race(server, stage, action, folder / "calls").run().calls if call.inside]
    look = f'{stage.session}.jsonl", {{st_mode' if action == "append" else ".tmp"
    looks = [n for n, call in enumerate(calls) if look in call.text]
    if action != "naive":
        calls = calls[: looks[-1]]
    calls = [call for call in calls if "ENOENT" not in call.text]  # nothing is there to change
    first_write = next(n for n, call in enumerate(calls) if call.name == "write")
    # Before there is anything of ours, all its rewrites are the same.
    races = [
        (call, meddle)
        for n, call in enumerate(calls)
        for meddle in meddlings
        if n >= first_write or meddle not in (rename_current, rewrite)
    ]

    def run(number: int) -> tuple[str, str]:
        call, meddle = races[number]
        own = folder / str(number)
        own.mkdir()
        outcome = Race(server, stage, action, own).run(f"{call.name}:signal=SIGSTOP:when={call.n}", meddle)
        shutil.rmtree(own)
        problem = judge(outcome, action)
        answer = f"{meddle.__name__}: {' '.join(outcome.answer.split()[:2])}"
        return answer, f"{meddle.__name__} after {call.text[:120]}: {problem}" if problem else ""

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(len(races))))
    return Sweep([problem for _, problem in results if problem], Counter(answer for answer, _ in results))


def judge(outcome: Outcome, action: str) -> str:
    """Describe a promise that does not hold."""
    lines = outcome.file.split(b"\n")
    ours = sum(OURS.encode() in line for line in lines)
    head = 1 if action == "title" else 0
    missing = [line for line in outcome.kept.splitlines()[head:] if line not in lines]
    if missing:
        return f"their line is gone: {missing[0][:80]!r}"
    if b"\0" in outcome.file or not outcome.file.endswith(b"\n"):
        return "bytes that nobody wrote"
    for line in lines:
        if line and not is_json(line):
            return f"a damaged line: {line[:80]!r}"
    if outcome.answer == "DONE" and action != "title" and ours != 1:
        return f"the acknowledged line is there {ours} times"
    if outcome.answer == "DONE" and action == "title" and lines.count(b"") != 1:
        return "empty lines"
    return "" if ours <= 1 else "a refused line is there twice"


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_no_call_of_an_append_lets_another_program_take_an_acknowledged_line(
    name: str, writers: Server, tmp_path: Path
) -> None:
    races = sweep(writers, scene(tmp_path / "scene", name), "append", tmp_path, MEDDLINGS)
    assert not races.problems, summary(races.problems)
    assert races.answers["append: DONE"] and not any(answer.startswith("append: R") for answer in races.answers)
    assert races.answers["rename_over: DONE"] and races.answers["rename_current: DONE"], races.answers


def test_a_twin_that_checks_nothing_loses_acknowledged_lines(writers: Server, tmp_path: Path) -> None:
    races = sweep(writers, scene(tmp_path / "scene", "crabtalk"), "naive", tmp_path, MEDDLINGS)
    lost = [problem for problem in races.problems if "is there 0 times" in problem]
    assert {problem.split()[0] for problem in lost} >= {"rename_over", "truncate", "rewrite"}, races


def test_no_call_of_a_title_change_takes_what_another_program_writes(writers: Server, tmp_path: Path) -> None:
    meddlings = (rename_over, truncate, rewrite, append, append_late)
    races = sweep(writers, scene(tmp_path / "scene", "crabtalk"), "title", tmp_path, meddlings)
    assert not races.problems, summary(races.problems)
    assert races.answers["append: DONE"] and races.answers["append_late: DONE"], races.answers
