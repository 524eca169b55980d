"""Power cuts: jobs are traced once, and every disk that a cut could leave is checked.

What a disk may look like after a cut is told in states.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.crash.checker import tell_apart, violations
from tests.crash.children import Call, Server, Strace, kills, run_traced, summary
from tests.crash.control import Options
from tests.crash.driver import Job
from tests.crash.interfaces import newest
from tests.crash.sample_records import grow, tear
from tests.crash.states import CALLS, History, State, write_disk

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("strace")]

SMALL = Options(part_bytes=1600)
# What a write of several lines may leave when its head is lost and its last lines are not: these
# stay, though nothing of them was acknowledged, and what is missing before them is reported.
GAP = r"crc does not match|was expected|cannot be read"


class PowerCuts:
    """A folder that jobs work in, and all disks that a power cut could leave of it."""

    def __init__(self, kind: str, server: Server, folder: Path, place: str = "root") -> None:
        self._kind = kind
        self._server = server
        self._folder = folder
        self._place = place
        self._base = folder / "base"
        self._base.mkdir(parents=True)
        self._root = self._base / place
        self._acked: dict[str, int] = {}
        self._torn: list[bytes] = []
        self._history: History | None = None

    def before(self, plan: Sequence[str], torn: bytes = b"") -> None:
        """What is there from the beginning, on the disk."""
        self._acked = grow(self._kind, self._root, plan, SMALL, writer="B")
        if torn:
            tear(self._kind, self._root, torn)
            self._torn = [torn]

    def job(self, plan: list[str], *, writer: str = "A", ids: bool = False) -> Job:
        """A job on the log."""
        session = newest(self._root)
        root = str(self._root)
        return Job(self._kind, root, plan, writer, ids=ids, session=session, options=SMALL)

    def run(self, job: Job, *rules: str) -> int:
        """Carry out a job, perhaps with a fault; the number of operations before its first ack."""
        if self._history is None:
            self._history = History(self._base)
        begin = len(self._history.ops)
        child = self._server.start(job, self._folder / "acks")
        trace = self._folder / "trace"
        strace = Strace(child, trace, f"trace={CALLS}", *rules, verbose=True)
        child.go()
        child.wait()
        strace.close()
        self._history.read(trace)
        ops = self._history.ops
        return next((n for n in range(begin, len(ops)) if ops[n].name.startswith("ACK")), begin)

    def violations(self, begin: int = 0) -> tuple[list[str], int]:
        """What is wrong with the disks of cuts after so many operations, and how many they are."""
        return self._check(begin, self._lost)

    def half_deleted(self) -> tuple[list[str], int]:
        """The same for a log that was deleted: whole or gone, and gone once that was told."""
        place = f"sessions/{newest(self._root)}" if self._kind == "everlog" else "twin"
        self.run(self.job(["delete"]))

        def wrong(state: State, root: Path) -> list[str]:
            if not (root / place).exists():
                return []
            return ["deleted and there"] if "DELETED" in state.told else self._lost(state, root)

        return self._check(0, wrong)

    def _lost(self, state: State, root: Path) -> list[str]:
        return violations(
            self._kind,
            root,
            self._acked | tell_apart(state.told).acked,
            options=SMALL,
            torn=self._torn,
            expected=GAP if state.gap else "",
        )

    def _check(self, begin: int, judge: Callable[[State, Path], list[str]]) -> tuple[list[str], int]:
        assert self._history is not None
        disk = self._folder / "disk"
        found, count = [], 0
        for state in self._history.states(begin):
            write_disk(state.disk, disk)
            found += [f"{one}\n    {state.why}" for one in judge(state, disk / self._place)]
            count += 1
            shutil.rmtree(disk)
        return found, count


# --- a new root, a session, parts

NEW = ["1*200", "2*200", "3*300", "1*900", "1*20"]


def test_no_power_cut_while_a_session_is_made_and_grows_loses_anything(server: Server, tmp_path: Path) -> None:
    found, states = made_and_grown("everlog", server, tmp_path, NEW)
    assert not found, summary(found)
    assert states > 80


def test_no_power_cut_loses_a_root_whose_directories_above_are_new_too(server: Server, tmp_path: Path) -> None:
    found, _ = made_and_grown("everlog", server, tmp_path, ["1*200"], "new/and/deep")
    assert not found, summary(found)


@pytest.mark.parametrize("place", ["root", "new/and/deep"])
def test_the_control_loses_nothing(place: str, server: Server, tmp_path: Path) -> None:
    found, states = made_and_grown("Careful", server, tmp_path, NEW, place)
    assert not found, summary(found)
    assert states > 20


@pytest.mark.parametrize("twin", ["Buffered", "NeverSyncs", "ForgetsNames"])
def test_a_twin_that_does_not_sync_loses_what_it_acknowledged(twin: str, server: Server, tmp_path: Path) -> None:
    found, _ = made_and_grown(twin, server, tmp_path, NEW)
    assert [one for one in found if "acknowledged" in one]


def made_and_grown(
    kind: str, server: Server, folder: Path, plan: list[str], place: str = "root"
) -> tuple[list[str], int]:
    cuts = PowerCuts(kind, server, folder, place)
    cuts.run(cuts.job(plan))
    return cuts.violations()


# --- a torn tail is sealed

TORN = b'{"recordType":"message","schemaVersion":1,"seq":3,"id":"00'


def test_no_power_cut_while_a_torn_tail_is_sealed_loses_anything(server: Server, tmp_path: Path) -> None:
    found, states = sealed("everlog", server, tmp_path)
    assert not found, summary(found)
    assert states > 20


def test_the_control_seals_without_a_loss(server: Server, tmp_path: Path) -> None:
    found, _ = sealed("Careful", server, tmp_path)
    assert not found, summary(found)


def test_a_twin_that_sets_aside_too_late_loses_torn_bytes(server: Server, tmp_path: Path) -> None:
    found, _ = sealed("SetsAsideTooLate", server, tmp_path)
    assert [one for one in found if "not set aside" in one]


def sealed(kind: str, server: Server, folder: Path) -> tuple[list[str], int]:
    cuts = PowerCuts(kind, server, folder)
    cuts.before(["2*200"], TORN)
    cuts.run(cuts.job(["1*200", "1*1200"]))
    return cuts.violations()


# --- a sync fails


@pytest.mark.parametrize("plan", [["1*200"] * 3, ["1*1200"] * 2], ids=["in a part", "across parts"])
def test_no_power_cut_after_a_failed_sync_loses_what_was_acknowledged_since(
    plan: list[str], server: Server, tmp_path: Path
) -> None:
    found, faults = after_failed_syncs("everlog", server, tmp_path, plan)
    assert not found, summary(found)
    assert faults == len(plan)


def test_the_control_loses_nothing_after_a_failed_sync(server: Server, tmp_path: Path) -> None:
    found, _ = after_failed_syncs("Careful", server, tmp_path, ["1*200"] * 3)
    assert not found, summary(found)


def test_a_twin_that_retries_fsync_loses_what_it_acknowledged(server: Server, tmp_path: Path) -> None:
    found, _ = after_failed_syncs("RetriesFsync", server, tmp_path, ["1*200"] * 3)
    assert [one for one in found if "acknowledged" in one]


def after_failed_syncs(kind: str, server: Server, folder: Path, plan: list[str]) -> tuple[list[str], int]:
    """Fail each sync of the log in turn; the violations, and how many syncs there were."""
    calls = learn(kind, server, folder, plan)
    logs = [one for one in calls if "jsonl>" in one.text or "/log." in one.text]
    syncs = [one.n for one in logs if one.name == "fdatasync"][-len(plan) :]
    found = []
    for number in syncs:
        cuts = PowerCuts(kind, server, folder / f"{number}")
        cuts.before(["1*200"])
        cuts.run(cuts.job(plan), f"inject=fdatasync:error=EIO:when={number}")
        found += [f"sync {number}: {one}" for one in cuts.violations()[0]]
    return found, len(syncs)


# --- a writer is killed, the next goes on, and then the power fails

NEXT = {"in the part": ["1*100"], "into the next part": ["1*1300"]}


@pytest.mark.parametrize("then", NEXT)
@pytest.mark.parametrize("first", ["1*300", "1*1300"], ids=["in the part", "into the next part"])
def test_no_power_cut_after_a_kill_makes_a_gap_or_loses_what_the_next_writer_acknowledged(
    first: str, then: str, server: Server, tmp_path: Path
) -> None:
    found = killed_and_cut("everlog", server, tmp_path, first, NEXT[then])
    assert not found, summary(found)


def test_no_power_cut_after_a_kill_while_a_root_is_made_loses_what_the_next_writer_acknowledged(
    server: Server, tmp_path: Path
) -> None:
    found = killed_and_cut("everlog", server, tmp_path, "1*300", ["1*300"], new=True)
    assert not found, summary(found)


def test_no_power_cut_loses_a_retry_that_was_acknowledged_because_it_was_there(server: Server, tmp_path: Path) -> None:
    """The writer died between write and sync; the record is there, but not on the disk."""
    found = killed_and_cut("everlog", server, tmp_path, "1*300", ["1*300"], retry=True)
    assert not found, summary(found)


@pytest.mark.parametrize("then", NEXT)
def test_the_control_syncs_what_a_killed_writer_left(then: str, server: Server, tmp_path: Path) -> None:
    found = killed_and_cut("Careful", server, tmp_path, "1*300", NEXT[then])
    assert not found, summary(found)


def test_a_twin_that_trusts_what_a_killed_writer_left_has_a_gap(server: Server, tmp_path: Path) -> None:
    found = killed_and_cut("TrustsTheDead", server, tmp_path, "1*300", NEXT["into the next part"])
    assert [one for one in found if "not dense" in one]


def killed_and_cut(
    kind: str, server: Server, folder: Path, first: str, then: list[str], *, retry: bool = False, new: bool = False
) -> list[str]:
    """Kill a writer before each of its syncs, let another append, then cut the power.

    A kill before a sync leaves the most that is there and not on the disk.
    """
    calls = learn(kind, server, folder, [first], new=new)
    syncs = [one for one in calls if "sync" in one.name and "index.db" not in one.text]
    found = []
    for n, rule in enumerate(kills(syncs)):
        cuts = PowerCuts(kind, server, folder / f"{n}")
        if not new:
            cuts.before(["1*200"])
        cuts.run(cuts.job([first], ids=retry), rule)
        begin = cuts.run(cuts.job(then, writer="A" if retry else "C", ids=retry))
        found += [f"{rule}: {one}" for one in cuts.violations(begin)[0]]
    return found


def learn(kind: str, server: Server, folder: Path, plan: list[str], *, new: bool = False) -> list[Call]:
    """The calls of a job when nothing fails."""
    cuts = PowerCuts(kind, server, folder / "learn")
    if not new:
        cuts.before(["1*200"])
    return run_traced(server, cuts.job(plan), folder / "learnt")[1]


# --- a session is deleted


def test_no_power_cut_while_a_session_is_deleted_leaves_half_of_it(server: Server, tmp_path: Path) -> None:
    found, states = deleted("everlog", server, tmp_path)
    assert not found, summary(found)
    assert states > 8


def test_the_control_deletes_all_or_nothing(server: Server, tmp_path: Path) -> None:
    found, _ = deleted("Careful", server, tmp_path)
    assert not found, summary(found)


def test_a_twin_that_deletes_in_place_leaves_half_of_it(server: Server, tmp_path: Path) -> None:
    found, _ = deleted("DeletesInPlace", server, tmp_path)
    assert [one for one in found if "acknowledged" in one]


def deleted(kind: str, server: Server, folder: Path) -> tuple[list[str], int]:
    cuts = PowerCuts(kind, server, folder)
    cuts.before(["1*900", "1*900"])
    return cuts.half_deleted()
