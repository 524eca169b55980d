"""Several processes at one log: side by side, one of them stopped, one of them forked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.crash.checker import told, violations
from tests.crash.children import REPOSITORY, Server, Strace, environment, poll, run_traced, summary
from tests.crash.control import USUAL, Options
from tests.crash.driver import Job
from tests.crash.interfaces import newest
from tests.crash.sample_records import clone, grow

pytestmark = pytest.mark.crash

RECORDS = 40
FORKS = 40


# --- side by side


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_append_at_once_lose_and_damage_nothing(processes: int, server: Server, root: Path) -> None:
    found = at_once("everlog", server, root, ["1*100000"] * RECORDS, processes=processes)
    assert not found, summary(found)


def test_batches_of_several_processes_across_parts_stay_together(server: Server, root: Path) -> None:
    plan = ["3*300", "1*300"] * 20
    found = at_once("everlog", server, root, plan, processes=3, options=Options(part_bytes=5000))
    assert not found, summary(found)


def test_the_control_loses_and_damages_nothing(server: Server, root: Path) -> None:
    found = at_once("Careful", server, root, ["1*100000"] * RECORDS, processes=2)
    assert not found, summary(found)


@pytest.mark.parametrize(
    ("twin", "complaint"), [("WritesTwice", "damage"), ("NumbersWithoutLock", "not dense"), ("Buffered", "not dense")]
)
def test_a_twin_without_a_lock_fails_side_by_side(twin: str, complaint: str, server: Server, tmp_path: Path) -> None:
    for attempt in range(20):  # by chance they might not meet
        found = at_once(twin, server, tmp_path / f"{attempt}", ["1*100000"] * RECORDS, processes=4)
        if any(complaint in one for one in found):
            return
    pytest.fail(f"{twin} was never caught")


def at_once(
    kind: str, server: Server, root: Path, plan: list[str], *, processes: int, options: Options = USUAL
) -> list[str]:
    """So many processes carry out the same plan on one log."""
    acked = grow(kind, root, ["1*100"], options, writer="Z0")
    session = newest(root)
    children = [
        server.start(
            Job(kind, str(root), plan, writer=f"W{n}", session=session, options=options),
            root.with_name(f"{root.name}.acks{n}"),
        )
        for n in range(processes)
    ]
    for child in children:
        child.go()
    codes = [child.wait() for child in children]
    seen = told(*(child.acks for child in children))
    wrong = [] if not any(codes) else [f"a process ended with {codes}"]
    records = sum(int(step.split("*")[0]) for step in plan)
    if len(seen.acked) != processes * records:
        wrong.append(f"{len(seen.acked)} were acknowledged: {seen.lines[-1]}")
    return wrong + violations(kind, root, acked | seen.acked, options=options)


# --- one of them stopped

HURRY = Options(lock_seconds=0.5)


@pytest.mark.usefixtures("strace")
def test_a_writer_stopped_inside_its_append_makes_others_busy_and_its_death_frees_them(
    server: Server, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    acked = grow("everlog", root, ["1*300"], writer="B")
    job = Job("everlog", str(root), ["1*300", "1*300"], session=newest(root))
    other = replace(job, root=str(clone(root, tmp_path / "learn")))
    _, calls = run_traced(server, other, tmp_path / "learnt")
    last = [one.n for one in calls if one.name == "fdatasync" and "jsonl>" in one.text][-1]

    holder = server.start(job, tmp_path / "holder")
    # Its second write is done, its append has not returned: it holds the lock.
    rule = f"inject=fdatasync:signal=SIGSTOP:when={last}"
    trace = tmp_path / "trace"  # tells of its first stop too
    tracer = Strace(holder, trace, "trace=fdatasync", rule)
    holder.go()
    poll(lambda: trace.read_text().count("stopped by SIGSTOP") == 2, "the stop")
    told_before = holder.told().acked
    found = others_are_refused("everlog", server, tmp_path, holder.pid)
    holder.kill()
    tracer.close()
    assert list(told_before) == ["A.0.300"]
    found += others_go_on("everlog", server, tmp_path, acked | told_before)
    assert not found, summary(found)


def test_a_stopped_process_that_holds_the_lock_makes_others_busy_and_its_death_frees_them(
    server: Server, tmp_path: Path
) -> None:
    found = beside_a_stopped_holder("everlog", server, tmp_path)
    assert not found, summary(found)


def test_a_twin_with_a_lock_file_stays_locked_when_its_holder_is_dead(server: Server, tmp_path: Path) -> None:
    found = beside_a_stopped_holder("LocksByFile", server, tmp_path)
    assert "it does not go on after the holder's death" in found
    assert "it does not say who holds it" in found


def beside_a_stopped_holder(kind: str, server: Server, folder: Path) -> list[str]:
    root = folder / "root"
    acked = grow(kind, root, ["1*300"], writer="B")
    holder = server.start(Job(kind, str(root), ["hold"], session=newest(root)), folder / "holder")
    holder.go()
    holder.await_line("HELD")
    os.kill(holder.pid, signal.SIGSTOP)
    holder.await_state("T")
    found = others_are_refused(kind, server, folder, holder.pid)
    holder.kill()
    return found + others_go_on(kind, server, folder, acked)


def others_are_refused(kind: str, server: Server, folder: Path, holder: int) -> list[str]:
    """Another process is refused in time, and told by whom; readers do not notice."""
    root = folder / "root"
    job = Job(kind, str(root), ["1*300"], writer="C", session=newest(root), options=HURRY)
    begun = time.monotonic()
    seen = server.run(job, folder / "waiter")
    took = time.monotonic() - begun
    found = []
    busy = next((line for line in seen.lines if line.startswith("BUSY")), None)
    if busy is None:
        found.append(f"not refused: {seen.lines}")
    if not 0.5 <= took < 10:
        found.append(f"refused after {took:.1f} s")
    if busy is not None and not re.search(rf"\b{holder}\b", busy):
        found.append("it does not say who holds it")
    return found


def others_go_on(kind: str, server: Server, folder: Path, acked: dict[str, int]) -> list[str]:
    """After the holder's death the next append succeeds at once."""
    root = folder / "root"
    job = Job(kind, str(root), ["1*300"], writer="D", session=newest(root), options=HURRY)
    seen = server.run(job, folder / "next")
    if not seen.acked:
        return ["it does not go on after the holder's death"]
    return violations(kind, root, acked | seen.acked, options=HURRY)


# --- one of them forked


def test_a_store_opened_before_fork_serves_parent_and_children_at_once(server: Server, tmp_path: Path) -> None:
    found, lines = forked("everlog", server, tmp_path)
    assert not found, summary(found)
    # Three children and one more after them tried to take the parent's turn.
    assert [line for line in lines if line.startswith("TURN")] == ["TURN taken"] * 4


def test_the_control_opened_before_fork_serves_all(server: Server, tmp_path: Path) -> None:
    found, _ = forked("Careful", server, tmp_path)
    assert not found, summary(found)


def test_a_twin_that_keeps_its_lock_across_fork_numbers_twice(server: Server, tmp_path: Path) -> None:
    for attempt in range(5):
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        found, _ = forked("KeepsLockAcrossFork", server, folder)
        if any("not dense" in one for one in found):
            return
    pytest.fail("it was never caught")


def forked(kind: str, server: Server, folder: Path) -> tuple[list[str], list[str]]:
    """A worker opens everything, forks three children, and all append to the same log."""
    root = folder / "root"
    plan = ["1*300", "2*300", "1*20000"] * 15
    options = Options(part_bytes=300_000)
    seen = server.run(Job(kind, str(root), plan, forks=3, options=options), folder / "acks")
    found = [line for line in seen.lines if line.startswith(("ERR", "BUSY"))]
    if len(seen.acked) != 1 + 4 * 60 + (kind == "everlog"):  # one more with the lease
        found.append(f"{len(seen.acked)} records were acknowledged")
    return found + violations(kind, root, seen.acked, options=options), seen.lines


def test_a_store_in_use_by_threads_serves_children_forked_meanwhile(server: Server, tmp_path: Path) -> None:
    found = forked_beside_threads("everlog", server, tmp_path)
    assert not found, summary(found)


def test_a_twin_that_keeps_a_thread_lock_across_fork_gets_stuck(server: Server, tmp_path: Path) -> None:
    found = forked_beside_threads("KeepsThreadLockAcrossFork", server, tmp_path, stuck_seconds=2)
    assert "STUCK" in found


def forked_beside_threads(kind: str, server: Server, folder: Path, *, stuck_seconds: int = 0) -> list[str]:
    """A worker forks again and again while its threads append; each child appends too."""
    root = folder / "root"
    job = Job(kind, str(root), [], forks=FORKS, threads=3)
    if stuck_seconds:
        job = replace(job, forks=1, stuck_seconds=stuck_seconds)
    seen = server.run(job, folder / "acks")
    found = [line for line in seen.lines if line.startswith(("ERR", "BUSY", "STUCK"))]
    if "DONE" not in seen.lines:
        found.append("the job did not come to its end")
    session = seen.made[0] if seen.made else ""
    return found + violations(kind, root, seen.acked, session=session)


def test_a_listing_is_current_with_a_child_whose_parent_closed_the_index(root: Path) -> None:
    assert forked_index(root) == "2 2"


def test_a_twin_that_shares_sqlite_with_its_parent_loses_rows(root: Path) -> None:
    assert forked_index(root, "--twin") != "2 2"


def forked_index(root: Path, *more: str) -> str:
    """What the program says in the end."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.forked_index", root, *more],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment(),
        timeout=60,
        check=False,
    )
    return done.stdout.strip() or done.stderr
