"""Power cuts: jobs are traced once, and every disk that a cut could leave is checked."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.crash.checker import tell_apart, violations
from tests.crash.children import Call, Server, Strace, kills, run_traced, summary
from tests.crash.driver import Job, newest
from tests.crash.material import grow, tear
from tests.crash.states import CALLS, History, write_disk
from tests.crash.control import Options

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("strace")]

SMALL = Options(part_bytes=1600)
MOST = 1500  # states of one job


# What stands in the log of a write of several lines whose head is lost. Nothing of it was
# acknowledged; lines that are whole stay, and what is missing before them is reported.
GAP = r"crc does not match|should stand|cannot be read|part is missing"


# --- a new root, a session, parts

NEW = ["1*200", "2*200", "3*300", "1*900", "1*20"]


def test_no_power_cut_while_a_session_is_made_and_grows_loses_anything(
    server: Server, tmp_path: Path
) -> None:
    found, states = after_power_cuts("holdfast", server, tmp_path, [job(NEW)])
    assert not found, summary(found)
    assert states > 100


def test_no_power_cut_loses_a_root_whose_directories_above_are_new_too(
    server: Server, tmp_path: Path
) -> None:
    found, _ = after_power_cuts("holdfast", server, tmp_path, [job(["1*200"])], "new/and/deep")
    assert not found, summary(found)


@pytest.mark.parametrize("place", ["root", "new/and/deep"])
def test_the_control_loses_nothing(place: str, server: Server, tmp_path: Path) -> None:
    found, states = after_power_cuts("Careful", server, tmp_path, [job(NEW)], place)
    assert not found, summary(found)
    assert states > 20


@pytest.mark.parametrize("twin", ["Buffered", "NeverSyncs", "ForgetsNames"])
def test_a_twin_that_does_not_sync_loses_what_it_acknowledged(
    twin: str, server: Server, tmp_path: Path
) -> None:
    found, _ = after_power_cuts(twin, server, tmp_path, [job(NEW)])
    assert [one for one in found if "acknowledged" in one]


# --- a torn tail is sealed

TORN = b'{"recordType":"message","schemaVersion":1,"seq":3,"id":"00'


def test_no_power_cut_while_a_torn_tail_is_sealed_loses_anything(
    server: Server, tmp_path: Path
) -> None:
    found, states = after_power_cuts(
        "holdfast", server, tmp_path, [job(["1*200", "1*1200"])], before=["2*200"], torn=TORN
    )
    assert not found, summary(found)
    assert states > 30


def test_the_control_seals_without_a_loss(server: Server, tmp_path: Path) -> None:
    found, _ = after_power_cuts(
        "Careful", server, tmp_path, [job(["1*200"])], before=["2*200"], torn=TORN
    )
    assert not found, summary(found)


def test_a_twin_that_sets_aside_too_late_loses_torn_bytes(server: Server, tmp_path: Path) -> None:
    found, _ = after_power_cuts(
        "SetsAsideTooLate", server, tmp_path, [job(["1*200"])], before=["2*200"], torn=TORN
    )
    assert [one for one in found if "not set aside" in one]


# --- a sync fails


@pytest.mark.parametrize("plan", [["1*200"] * 3, ["1*1200"] * 2], ids=["in a part", "across parts"])
def test_no_power_cut_after_a_failed_sync_loses_what_was_acknowledged_since(
    plan: list[str], server: Server, tmp_path: Path
) -> None:
    for number in syncs("holdfast", server, tmp_path / "learn", plan):
        rule = f"inject=fdatasync:error=EIO:when={number}"
        found, _ = after_power_cuts(
            "holdfast", server, tmp_path / f"{number}", [job(plan)], before=["1*200"], rules=[rule]
        )
        assert not found, summary(found)


def test_a_twin_that_retries_fsync_loses_what_it_acknowledged(
    server: Server, tmp_path: Path
) -> None:
    rule = "inject=fdatasync:error=EIO:when=2"
    found, _ = after_power_cuts(
        "RetriesFsync", server, tmp_path, [job(["1*200"] * 3)], before=["1*200"], rules=[rule]
    )
    assert [one for one in found if "acknowledged" in one]


def syncs(kind: str, server: Server, folder: Path, plan: list[str]) -> list[int]:
    """The numbers of the calls that sync a log."""
    folder.mkdir()
    grow(kind, folder / "root", ["1*200"], SMALL, writer="B")
    one = job(plan, kind=kind, root=str(folder / "root"), session=newest(folder / "root"))
    _, calls = run_traced(server, one, folder / "acks")
    return [call.n for call in calls if call.name == "fdatasync" and "jsonl>" in call.text]


# --- a writer is killed, the next goes on, and then the power fails

NEXT = {"in the part": ["1*100"], "into the next part": ["1*1300"]}


@pytest.mark.parametrize("then", NEXT)
@pytest.mark.parametrize("first", ["1*300", "1*1300"], ids=["in the part", "into the next part"])
def test_no_power_cut_after_a_kill_makes_a_gap_or_loses_what_the_next_writer_acknowledged(
    first: str, then: str, server: Server, tmp_path: Path
) -> None:
    found = killed_and_cut("holdfast", server, tmp_path, first, NEXT[then])
    assert not found, summary(found)


def test_no_power_cut_loses_a_retry_that_was_acknowledged_because_it_was_there(
    server: Server, tmp_path: Path
) -> None:
    """The writer died between write and sync; the record is there, but not on the disk."""
    found = killed_and_cut("holdfast", server, tmp_path, "1*300", ["1*300"], retry=True)
    assert not found, summary(found)


def test_the_control_syncs_what_a_killed_writer_left(server: Server, tmp_path: Path) -> None:
    for n, then in enumerate(NEXT.values()):
        (tmp_path / f"{n}").mkdir()
        found = killed_and_cut("Careful", server, tmp_path / f"{n}", "1*300", then)
        assert not found, summary(found)


def test_a_twin_that_trusts_what_a_killed_writer_left_has_a_gap(
    server: Server, tmp_path: Path
) -> None:
    found = killed_and_cut("TrustsTheDead", server, tmp_path, "1*300", NEXT["into the next part"])
    assert [one for one in found if "not dense" in one]


def test_no_power_cut_after_a_kill_while_a_root_is_made_loses_what_the_next_writer_acknowledged(
    server: Server, tmp_path: Path
) -> None:
    found = killed_and_cut("holdfast", server, tmp_path, "1*300", ["1*300"], before=[])
    assert not found, summary(found)


def killed_and_cut(
    kind: str,
    server: Server,
    folder: Path,
    first: str,
    then: list[str],
    *,
    retry: bool = False,
    before: Sequence[str] = ("1*200",),
) -> list[str]:
    """Kill a writer before each of its syncs, let another append, then cut the power."""
    learn = folder / "learn"
    learn.mkdir()
    grow(kind, learn / "root", before, SMALL, writer="B") if before else None
    one = job([first], kind=kind, root=str(learn / "root"), session=newest(learn / "root"))
    _, calls = run_traced(server, one, learn / "acks")
    found = []
    for n, rule in enumerate(kills([call for call in calls if _log_sync(call)])):
        again = job(then, writer="A" if retry else "C", ids=retry)
        wrong, _ = after_power_cuts(
            kind,
            server,
            folder / f"{n}",
            [job([first], ids=retry), again],
            before=before,
            rules=[rule],
        )
        found += [f"{rule}: {one}" for one in wrong]
    return found


def _log_sync(call: Call) -> bool:
    """Whether a call makes something durable that is not the index: a kill before it leaves most
    to trust in."""
    return "sync" in call.name and "index.db" not in call.text


# --- a session is deleted


def test_no_power_cut_while_a_session_is_deleted_leaves_half_of_it(
    server: Server, tmp_path: Path
) -> None:
    found = deleted_and_cut("holdfast", server, tmp_path)
    assert not found, summary(found)


def test_the_control_deletes_all_or_nothing(server: Server, tmp_path: Path) -> None:
    found = deleted_and_cut("Careful", server, tmp_path)
    assert not found, summary(found)


def test_a_twin_that_deletes_in_place_leaves_half_of_it(server: Server, tmp_path: Path) -> None:
    found = deleted_and_cut("DeletesInPlace", server, tmp_path)
    assert [one for one in found if "acknowledged" in one]


def deleted_and_cut(kind: str, server: Server, folder: Path) -> list[str]:
    """Delete a log of two parts; after a cut it is whole or gone, and gone once that was told."""
    base = folder / "base"
    acked = grow(kind, base / "root", ["1*900", "1*900"], SMALL, writer="B")
    session = newest(base / "root")
    history = History(base)
    traced(server, job(["delete"]), kind, base / "root", folder, history)
    found = []
    for state in history.states():
        disk = folder / "disk"
        write_disk(state.disk, disk)
        place = disk / "root" / (f"sessions/{session}" if kind == "holdfast" else "twin")
        wrong = []
        if place.exists() and "DELETED" in state.told:
            wrong.append("it was deleted and is there")
        elif place.exists():
            wrong = violations(kind, disk / "root", acked, options=SMALL)
        found += [f"{one}\n    {state.why}" for one in wrong]
        shutil.rmtree(disk)
    return found


# --- how


def job(plan: list[str], **more: object) -> Job:
    return replace(Job("", "", plan, options=SMALL), **more)


def after_power_cuts(
    kind: str,
    server: Server,
    folder: Path,
    jobs: list[Job],
    place: str = "root",
    *,
    rules: Sequence[str] = (),
    before: Sequence[str] = (),
    torn: bytes = b"",
) -> tuple[list[str], int]:
    """Carry out jobs one after the other, the first with a fault; check each state of the last.

    Returns the violations, and how many states there were.
    """
    base = folder / "base"
    base.mkdir(parents=True)
    root = base / place
    acked = grow(kind, root, before, SMALL, writer="B") if before else {}
    if torn:
        tear(kind, root, torn)
    history = History(base)
    for n, one in enumerate(jobs):
        before_it = len(history.ops)
        traced(server, one, kind, root, folder, history, *(rules if n == 0 else ()))
    # After a first job with a fault only what the last one promised is of interest.
    begin = next(
        (n for n in range(before_it, len(history.ops)) if history.ops[n].kind == "told"), 0
    )
    found, count = [], 0
    for count, state in enumerate(islice(history.states(begin if len(jobs) > 1 else 0), MOST), 1):
        disk = folder / "disk"
        write_disk(state.disk, disk)
        wrong = violations(
            kind,
            disk / place,
            acked | tell_apart(state.told).acked,
            options=SMALL,
            torn=[torn] if torn else [],
            expected=GAP if state.gap else "",
        )
        found += [f"{one}\n    {state.why}" for one in wrong]
        shutil.rmtree(disk)
    return found, count


def traced(
    server: Server, one: Job, kind: str, root: Path, folder: Path, history: History, *rules: str
) -> None:
    """Carry out a job and put down what it did."""
    one = replace(one, kind=kind, root=str(root), session=newest(root))
    child = server.start(one, folder / "acks")
    strace = Strace(child, folder / "trace", f"trace={CALLS}", *rules, verbose=True)
    child.go()
    child.wait()
    strace.close()
    history.read(folder / "trace")
