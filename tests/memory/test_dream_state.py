"""The files of a consolidation: Cersei's, with a lock that knows its holder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everlog.errors import SessionBusyError
from everlog.memory.dream_state import ConsolidationState, DreamStateFiles, count_new_sessions
from everlog.testing import FakeClock

NOW = 1_775_000_000.0
ROOT = Path(__file__).parents[2]


def ours(path: Path, now: float = NOW, host: str = "here") -> DreamStateFiles:
    return DreamStateFiles(path, clock=lambda: now, host=host)


def a_process_that_is_gone() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def locked(path: Path, text: str) -> None:
    (path / ".consolidation_lock").write_text(text)


# --- state ----------------------------------------------------------------------------------


def test_the_state_is_pretty_json_in_whole_seconds(tmp_path: Path) -> None:
    assert ours(tmp_path, NOW + 0.9).record_run() == ConsolidationState(int(NOW))
    assert (tmp_path / ".consolidation_state.json").read_text() == (
        '{\n  "last_consolidated_at": 1775000000,\n  "lock_etag": null\n}'
    )
    assert ours(tmp_path).state == ConsolidationState(1_775_000_000)


@pytest.mark.parametrize("text", ["", "{", '{"last_consolidated_at": "x"}', "[]"])
def test_a_state_that_cannot_be_read_counts_as_never(tmp_path: Path, text: str) -> None:
    (tmp_path / ".consolidation_state.json").write_text(text)
    assert ours(tmp_path).state == ConsolidationState()


def test_a_state_of_another_program_with_more_keys_is_read(tmp_path: Path) -> None:
    (tmp_path / ".consolidation_state.json").write_text('{"last_consolidated_at": 7, "x": 1}')
    assert ours(tmp_path).state == ConsolidationState(7)
    (tmp_path / ".consolidation_state.json").write_text('{"last_consolidated_at": null}')
    assert ours(tmp_path).state == ConsolidationState(None)


# --- lock -----------------------------------------------------------------------------------


def test_the_lock_says_when_and_who(tmp_path: Path) -> None:
    held = ours(tmp_path)
    held.acquire()
    rows = (tmp_path / ".consolidation_lock").read_text().splitlines()
    assert rows[:2] == ["1775000000", f"here {os.getpid()}"]
    assert ours(tmp_path).holder() == f"process {os.getpid()}"
    with pytest.raises(SessionBusyError):
        ours(tmp_path).acquire()
    held.release()
    assert not (tmp_path / ".consolidation_lock").exists() and held.holder() == ""
    assert {one.name for one in tmp_path.iterdir()} == {".lock"}


def test_a_lock_with_a_time_alone_counts_for_an_hour(tmp_path: Path) -> None:
    locked(tmp_path, str(int(NOW)))
    assert ours(tmp_path, NOW + 3_599).holder()
    with pytest.raises(SessionBusyError):
        ours(tmp_path, NOW + 3_599).acquire()
    ours(tmp_path, NOW + 3_600).acquire()
    assert ours(tmp_path, NOW + 3_600).holder() == f"process {os.getpid()}"


def test_ours_is_free_as_soon_as_its_process_is_gone(tmp_path: Path) -> None:
    locked(tmp_path, f"{int(NOW)}\nhere {a_process_that_is_gone()}\n123\n")
    assert ours(tmp_path).holder() == ""
    ours(tmp_path).acquire()


def test_ours_is_held_as_long_as_its_process_lives(tmp_path: Path) -> None:
    ours(tmp_path).acquire()
    assert ours(tmp_path, NOW + 10 * 3_600).holder() == f"process {os.getpid()}"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="start times are told by /proc")
def test_another_process_by_the_same_number_does_not_hold_it(tmp_path: Path) -> None:
    locked(tmp_path, f"{int(NOW)}\nhere {os.getpid()}\n1\n")
    assert ours(tmp_path).holder() == ""


def test_a_process_of_another_host_counts_for_an_hour(tmp_path: Path) -> None:
    locked(tmp_path, f"{int(NOW)}\nthere {a_process_that_is_gone()}\n1\n")
    assert ours(tmp_path).holder().startswith("there ")
    assert ours(tmp_path, NOW + 3_600).holder() == ""


def test_a_clock_that_went_back_does_not_hold_a_lock_for_ever(tmp_path: Path) -> None:
    locked(tmp_path, str(int(NOW)))
    assert ours(tmp_path, NOW - 1_800).holder()
    assert ours(tmp_path, NOW - 7_200).holder() == ""


@pytest.mark.parametrize("text", ["", "not a time", "\n\n\n", "nan"])
def test_a_lock_that_says_nothing_counts_for_its_hour_at_the_most(tmp_path: Path, text: str) -> None:
    locked(tmp_path, text)
    there = (tmp_path / ".consolidation_lock").stat().st_mtime
    assert ours(tmp_path, there + 7_200).holder() == ""
    assert ours(tmp_path, there + 60).holder()


def test_a_lock_that_is_not_ours_any_more_is_left_to_its_holder(tmp_path: Path) -> None:
    held = ours(tmp_path)
    held.acquire()
    locked(tmp_path, str(int(NOW)))
    held.release()
    assert (tmp_path / ".consolidation_lock").read_text() == str(int(NOW))


RACER = """
import sys, time
from everlog.errors import SessionBusyError
from everlog.memory.dream_state import DreamStateFiles
sys.stdin.readline()
held = DreamStateFiles(sys.argv[1])
try:
    held.acquire()
    print("won", flush=True)
except SessionBusyError:
    print("lost", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_processes_at_once_one_has_the_lock(tmp_path: Path, stale: bool) -> None:
    if stale:
        locked(tmp_path, "1000")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(6)
    ]
    for one in racers:
        assert one.stdin
        one.stdin.write("go\n")
        one.stdin.flush()
    told = [one.stdout.readline().strip() for one in racers if one.stdout]
    for one in racers:
        one.communicate("end\n", timeout=60)
    assert sorted(told) == ["lost"] * 5 + ["won"]
    DreamStateFiles(tmp_path).acquire()  # the winner is gone


# --- gates over real files ------------------------------------------------------------------


def session(path: Path, when: int) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("{}\n")
    os.utime(path, (when, when + 0.9))


def test_sessions_are_counted_once_in_either_layout(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a_part2.jsonl", "b.jsonl", "01J/session.jsonl", "01J/session_part2.jsonl"):
        session(tmp_path / name, 1_000)
    session(tmp_path / "old.jsonl", 500)
    (tmp_path / "other.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    assert count_new_sessions(tmp_path, 999) == 3
    assert count_new_sessions(tmp_path, 1_000) == 0  # whole seconds
    assert count_new_sessions(tmp_path, 0) == 4
    assert count_new_sessions(tmp_path / "nowhere", 0) == 0


def test_check_lock_run_update_unlock(tmp_path: Path) -> None:
    clock = FakeClock(NOW)
    memory, sessions = tmp_path / "memory", tmp_path / "sessions"
    for n in range(5):
        session(sessions / f"{n}.jsonl", int(NOW))
    files = DreamStateFiles(memory, clock=clock)

    def ready() -> bool:
        return files.verdict(lambda since: count_new_sessions(sessions, since)).ready

    assert ready()
    files.acquire()
    assert not ready()
    files.record_run()
    files.release()
    assert not ready()
    clock.now += 24 * 3_600
    assert not ready()  # no new sessions
    for n in range(5):
        session(sessions / f"{n}.jsonl", int(NOW) + 60)
    assert ready()
