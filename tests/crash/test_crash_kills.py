"""kill -9 at each system call: of making a session, of recovery, of crossing a part boundary."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.crash.checker import violations
from tests.crash.children import Call, Server, kills, run_traced, summary
from tests.crash.control import Options
from tests.crash.driver import Job
from tests.crash.interfaces import newest
from tests.crash.sample_records import clone, grow, tear

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("strace")]

SMALL = Options(part_bytes=1600)
TORN = b'{"recordType":"message","schemaVersion":1,"seq":5,"id":"00'
Acked = dict[str, int]


def nothing(kind: str, root: Path) -> Acked:
    return {}


def another(kind: str, root: Path) -> Acked:
    grow(kind, root, ["1*300"], SMALL)
    shutil.rmtree(root / "sessions" / newest(root))  # the root is made, the session is new
    return {}


def in_second_part(kind: str, root: Path) -> Acked:
    return grow(kind, root, ["1*700", "1*700", "1*300", "1*300"], SMALL, writer="B")


def with_torn_tail(kind: str, root: Path) -> Acked:
    acked = in_second_part(kind, root)
    tear(kind, root, TORN)
    return acked


class Scenario(NamedTuple):
    """A log, and a job that is killed at each of its calls."""

    prepare: Callable[[str, Path], Acked]
    plan: list[str]
    least: int  # calls that must be seen, so that it is known to have happened
    with_index: bool = False  # whether it is killed at calls on the index too


SCENARIOS = {
    "first session of a root": Scenario(nothing, ["1*300"], 60, with_index=True),
    "another session": Scenario(another, ["1*300"], 20),
    "append": Scenario(in_second_part, ["1*20", "2*20"], 10, with_index=True),
    "single into the next part": Scenario(in_second_part, ["1*1000"], 12),
    "batch into the next parts": Scenario(in_second_part, ["4*500"], 14),
    "two parts further": Scenario(in_second_part, ["1*1000", "1*1000"], 16),
    "torn tail": Scenario(with_torn_tail, ["1*20"], 14),
    "torn tail and the next part": Scenario(with_torn_tail, ["1*1000"], 16),
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_call_loses_nothing(scenario: str, server: Server, tmp_path: Path) -> None:
    found, count = kill_at_each("everlog", server, tmp_path, SCENARIOS[scenario])
    assert not found, summary(found)
    assert count >= SCENARIOS[scenario].least


@pytest.mark.parametrize("scenario", ["append", "two parts further", "torn tail"])
def test_the_control_loses_nothing_at_the_same_kills(scenario: str, server: Server, tmp_path: Path) -> None:
    found, _ = kill_at_each("Careful", server, tmp_path, SCENARIOS[scenario])
    assert not found, summary(found)


@pytest.mark.parametrize(
    ("twin", "scenario", "complaint"),
    [
        ("PointsAtPart", "first session of a root", "cannot be"),
        ("PointsAtPart", "single into the next part", "cannot be"),
        ("PointsAtPart", "two parts further", "cannot be"),
        ("SetsAsideTooLate", "torn tail", "not set aside"),
        ("LocksByFile", "append", "cannot be used: Busy"),
    ],
)
def test_a_twin_fails_at_one_of_the_same_kills(
    twin: str, scenario: str, complaint: str, server: Server, tmp_path: Path
) -> None:
    found, _ = kill_at_each(twin, server, tmp_path, SCENARIOS[scenario])
    assert [one for one in found if complaint in one]


def kill_at_each(kind: str, server: Server, folder: Path, scenario: Scenario) -> tuple[list[str], int]:
    """Carry the job out again and again, killed at another call each time.

    Returns the violations, and how many kills there were.
    """
    base = folder / "base"
    base.mkdir()
    acked = scenario.prepare(kind, base)
    torn = [TORN] if scenario.prepare is with_torn_tail else []
    options = Options(SMALL.part_bytes, lock_seconds=0.2)

    def run(*rules: str) -> tuple[list[str], list[Call]]:
        root = clone(base, folder / "state")
        job = Job(kind, str(root), scenario.plan, session=newest(root), options=options)
        told, calls = run_traced(server, job, folder / "acks", *rules)
        wrong = [f"ERR {one}" for one in told.errors]
        wrong += violations(kind, root, acked | told.acked, options=options, torn=torn)
        shutil.rmtree(root)
        (folder / "acks").unlink(missing_ok=True)
        return wrong, calls

    calls = [one for one in run()[1] if scenario.with_index or "index.db" not in one.text]
    found, killed = [], 0
    for rule in kills(calls):
        wrong, calls = run(rule)
        found += [f"{rule}: {one}" for one in wrong]
        killed += any(one.last for one in calls)
    return found, killed
