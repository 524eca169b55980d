"""Every system call on the store's files fails once, and from then on, for every n.

The job makes a session, appends singles and batches and crosses part boundaries; or it takes a
log with a torn tail, or one of several parts, up again. strace makes the n-th call of a kind
fail. Then: nothing that was acknowledged is lost, nothing that was refused is there, errors are
ours, and the log goes on: in the same process after one failure, in the next after lasting ones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import everlog
from tests.crash.checker import Told, violations
from tests.crash.children import CALLS, Call, Server, run_traced, summary
from tests.crash.control import Options
from tests.crash.driver import Job
from tests.crash.interfaces import newest
from tests.crash.sample_records import grow, tear

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("strace")]

SMALL = Options(part_bytes=1600)
SOME = 12  # of the calls of a kind, evenly chosen, fail for good


class Scenario(NamedTuple):
    """What is there, and what is done to it."""

    before: list[str]
    plan: list[str]
    torn: bytes = b""


SCENARIOS = {
    # The batches go into one part, into two, and into three.
    "new": Scenario([], ["1*300", "2*300", "4*300", "1*300", "1*900"]),
    "torn": Scenario(
        ["1*300", "1*300"], ["1*300", "1*900", "1*300"], b'{"recordType":"message","schemaVersion":1,"seq":3,"id":"00'
    ),
    "parts": Scenario(["1*900", "1*900", "1*900", "1*20"], ["1*20", "1*20"]),
    "grown": Scenario(["1*300", "1*300"], ["1*300", "4*300", "1*300", "1*900", "2*300"]),
}


@pytest.mark.parametrize("scenario", ["new", "torn", "parts"])
@pytest.mark.parametrize(
    "fault",
    [
        "write:EIO",
        "write:ENOSPC",
        "fdatasync:EIO",
        "fsync:EIO",
        "ftruncate:EIO",
        "openat:EIO",
        "pread64:EIO",
        "renameat:EIO",
        "mkdirat:ENOSPC",
        "fchmod:EIO",
        "flock:ENOLCK",
        "pwrite64:EIO",
        "unlink:EIO",
    ],
)
def test_a_call_that_fails_once_or_for_good_loses_nothing(
    fault: str, scenario: str, server: Server, tmp_path: Path
) -> None:
    found, hit = fail_each("everlog", server, tmp_path, fault, SCENARIOS[scenario])
    assert not found, summary(found)
    assert hit or scenario != "new" or fault.startswith("ftruncate")


@pytest.mark.parametrize("way_back", ["ftruncate", "unlinkat", "fsync", "fchmod"])
@pytest.mark.parametrize("fault", ["write:EIO", "fdatasync:EIO"])
def test_a_failed_append_that_cannot_be_taken_back_leaves_a_log_in_order(
    fault: str, way_back: str, server: Server, tmp_path: Path
) -> None:
    also = [f"inject={way_back}:error=EIO:when=1+"]
    found, hit = fail_each("everlog", server, tmp_path, fault, SCENARIOS["grown"], also=also)
    assert not found, summary(found)
    assert hit


@pytest.mark.parametrize("fault", ["write:EIO", "fdatasync:EIO"])
def test_the_control_loses_nothing_when_calls_fail(fault: str, server: Server, tmp_path: Path) -> None:
    found, hit = fail_each("Careful", server, tmp_path, fault, SCENARIOS["new"])
    assert not found, summary(found)
    assert hit


def test_a_twin_that_retries_fsync_acknowledges_what_is_not_on_the_disk(server: Server, tmp_path: Path) -> None:
    found, _ = fail_each("RetriesFsync", server, tmp_path, "fdatasync:EIO", SCENARIOS["new"])
    assert [one for one in found if "was not refused" in one]


def test_a_twin_that_does_not_take_a_failed_write_back_keeps_what_it_refused(server: Server, tmp_path: Path) -> None:
    found, _ = fail_each("Buffered", server, tmp_path, "write:ENOSPC", SCENARIOS["new"])
    assert [one for one in found if "refused and there" in one or "not dense" in one]


# --- how


def fail_each(
    kind: str, server: Server, folder: Path, fault: str, scenario: Scenario, *, also: Sequence[str] = ()
) -> tuple[list[str], int]:
    """Fail each call of a kind, once and for good; the violations, and how many were hit.

    `also`: rules for what fails besides.
    """
    call, error = fault.split(":")
    root = folder / "root"

    def carry_out(*rules: str) -> tuple[dict[str, int], Told, list[Call]]:
        shutil.rmtree(root, ignore_errors=True)
        (folder / "acks").unlink(missing_ok=True)
        acked = grow(kind, root, scenario.before, SMALL, writer="B") if scenario.before else {}
        if scenario.torn:
            tear(kind, root, scenario.torn)
        job = Job(kind, str(root), scenario.plan, session=newest(root), options=SMALL)
        told, calls = run_traced(server, job, folder / "acks", *rules, calls=f"{CALLS},pread64")
        return acked | told.acked, told, calls

    _, told, calls = carry_out()
    assert "DONE" in told.lines and not told.errors
    numbers = [one.n for one in calls if one.name == call and one.inside and _may_fail(one)]
    if call == "pwrite64":  # only the index is written so
        numbers = _some(numbers)
    found, hit = [], 0
    for when in [*map(str, numbers), *(f"{n}+" for n in _some(numbers))]:
        acked, told, calls = carry_out(f"inject={call}:error={error}:when={when}", *also)
        failed = [one for one in calls if one.injected]
        hit += bool(failed)
        once = not (when.endswith("+") or also)
        wrong = judge(kind, told, failed)
        if once:
            wrong += judge_once(told, root)
        wrong += violations(kind, root, acked, options=SMALL, absent=told.refused if once else ())
        where = failed[0].text[:250] if failed else "nothing"
        found += [f"{call} {when} {error}: {one}\n    {where}" for one in wrong]
    return found, hit


def _may_fail(call: Call) -> bool:
    return "LOCK_UN" not in call.text


def _some(numbers: list[int]) -> list[int]:
    return numbers[:: -(-len(numbers) // SOME) or 1]


def judge(kind: str, told: Told, failed: list[Call]) -> list[str]:
    """What the worker should have done otherwise."""
    wrong = []
    if kind == "everlog":
        for name in told.errors:
            error = getattr(everlog, name, None)
            if not (isinstance(error, type) and issubclass(error, everlog.EverlogError)):
                wrong.append(f"an error that is not ours: {name}")
    logs = [one for one in failed if "jsonl>" in one.text or "/log." in one.text]
    if not told.errors and any(one.name in ("fsync", "fdatasync") for one in logs):
        wrong.append("an append whose sync failed was not refused")
    return wrong


def judge_once(told: Told, root: Path) -> list[str]:
    """What one failure alone must not do."""
    wrong = []
    if "DONE" not in told.lines:
        wrong.append("the job did not come to its end")
    if len(told.errors) > 1:
        wrong.append(f"one failure was felt more than once: {told.lines}")
    if told.made and set(os.listdir(root / "sessions")) != set(told.made):
        wrong.append("something of a create that failed was left behind")
    return wrong
