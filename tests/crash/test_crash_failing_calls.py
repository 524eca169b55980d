"""Every system call on the store's files fails once, and from then on, for every n.

The job makes a session, appends singles and batches and crosses part boundaries; or it takes a
log with a torn tail up again. strace makes the n-th call of a kind fail. Then: nothing that was
acknowledged is lost, nothing that was refused is there, errors are ours, and the log goes on: in
the same process after one failure, in the next process after lasting ones.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import holdfast
from tests.crash.checker import Told, violations
from tests.crash.children import CALLS, Call, Server, run_traced, summary
from tests.crash.driver import Job, newest
from tests.crash.material import grow, tear
from tests.crash.control import Options

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("strace")]

SMALL = Options(part_bytes=1600)
PLANS = {
    "new": ["1*300", "2*300", "4*300", "1*300", "1*900"],  # a batch goes into two, then three parts
    "torn": ["1*300", "1*900", "1*300"],
    "grown": ["1*300", "4*300", "1*300", "1*900", "2*300"],
    "parts": ["1*20", "1*20"],
}
BEFORE = {"new": [], "parts": ["1*900", "1*900", "1*900", "1*20"]}
SOME = 12  # of the calls of a kind, evenly chosen, fail for good


@pytest.mark.parametrize("plan", ["new", "torn", "parts"])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("write", "EIO"),
        ("write", "ENOSPC"),
        ("fdatasync", "EIO"),
        ("fsync", "EIO"),
        ("ftruncate", "EIO"),
        ("openat", "EIO"),
        ("pread64", "EIO"),
        ("renameat", "EIO"),
        ("mkdirat", "ENOSPC"),
        ("fchmod", "EIO"),
        ("flock", "ENOLCK"),
        ("pwrite64", "EIO"),
        ("unlink", "EIO"),
    ],
)
def test_a_call_that_fails_once_or_for_good_loses_nothing(
    call: str, error: str, plan: str, server: Server, tmp_path: Path
) -> None:
    found, hit = fail_each("holdfast", server, tmp_path, plan, call, error)
    assert not found, summary(found)
    assert hit or not any(one.name == call for one in learn("holdfast", server, tmp_path, plan))


@pytest.mark.parametrize("way_back", ["ftruncate", "unlinkat", "fsync", "fchmod"])
@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_a_failed_append_that_cannot_be_taken_back_leaves_a_log_in_order(
    call: str, way_back: str, server: Server, tmp_path: Path
) -> None:
    also = f"inject={way_back}:error=EIO:when=1+"
    found, hit = fail_each("holdfast", server, tmp_path, "grown", call, "EIO", also)
    assert not found, summary(found)
    assert hit


def test_the_control_loses_nothing_when_calls_fail(server: Server, tmp_path: Path) -> None:
    for call in ("write", "fdatasync"):
        found, hit = fail_each("Careful", server, tmp_path / call, "new", call, "EIO")
        assert not found, summary(found)
        assert hit


def test_a_twin_that_retries_fsync_acknowledges_what_is_not_on_the_disk(
    server: Server, tmp_path: Path
) -> None:
    found, _ = fail_each("RetriesFsync", server, tmp_path, "new", "fdatasync", "EIO")
    assert [one for one in found if "was not refused" in one]


def test_a_twin_that_does_not_take_a_failed_write_back_keeps_what_it_refused(
    server: Server, tmp_path: Path
) -> None:
    found, _ = fail_each("Buffered", server, tmp_path, "new", "write", "ENOSPC")
    assert [one for one in found if "refused and there" in one or "not dense" in one]


# --- how


def fail_each(
    kind: str, server: Server, folder: Path, plan: str, call: str, error: str, *also: str
) -> tuple[list[str], int]:
    """Fail each call of a kind, once and for good; the violations, and how many were hit.

    `also`: rules for what fails besides.
    """
    targets = [
        one.n
        for one in learn(kind, server, folder, plan)
        if one.name == call and one.inside and "LOCK_UN" not in one.text
    ]
    if call == "pwrite64":  # only the index is written so
        targets = _some(targets)
    rules = [f"{n}" for n in targets] + [f"{n}+" for n in _some(targets)]
    found, hit = [], 0
    for when in rules:
        root = folder / "state"
        acked = prepare(kind, root, plan)
        told, calls = run_traced(
            server,
            job_of(kind, root, plan),
            folder / "acks",
            f"inject={call}:error={error}:when={when}",
            *also,
            calls=f"{CALLS},pread64",
        )
        failed = [one for one in calls if one.injected]
        hit += bool(failed)
        lasting = when.endswith("+") or bool(also)
        wrong = judge(kind, told, failed, lasting=lasting)
        if kind == "holdfast" and plan == "new" and not lasting:
            there = set(os.listdir(root / "sessions")) if (root / "sessions").exists() else set()
            wrong += [f"left behind by a create that failed: {one}" for one in there - {*told.made}]
        wrong += violations(
            kind,
            root,
            acked | told.acked,
            options=SMALL,
            absent=() if lasting else told.refused,
        )
        where = failed[0].text[:200] if failed else "nothing"
        found += [f"{call} {when} {error}: {one}\n    {where}" for one in wrong]
        shutil.rmtree(root, ignore_errors=True)
        (folder / "acks").unlink()
    return found, hit


def _some(numbers: list[int]) -> list[int]:
    return numbers[:: -(-len(numbers) // SOME) or 1]


def learn(kind: str, server: Server, folder: Path, plan: str) -> list[Call]:
    """The calls of the job when nothing fails."""
    folder.mkdir(exist_ok=True)
    root = folder / "learn"
    prepare(kind, root, plan)
    told, calls = run_traced(
        server, job_of(kind, root, plan), folder / "learnt", calls=f"{CALLS},pread64"
    )
    assert "DONE" in told.lines and not told.errors
    shutil.rmtree(root)
    (folder / "learnt").unlink()
    return calls


def prepare(kind: str, root: Path, plan: str) -> dict[str, int]:
    """The log before the job; what it has acknowledged."""
    before = BEFORE.get(plan, ["1*300", "1*300"])
    if not before:
        return {}
    acked = grow(kind, root, before, SMALL, writer="B")
    if plan == "torn":
        tear(kind, root, b'{"recordType":"message","schemaVersion":1,"seq":3,"id":"00')
    return acked


def job_of(kind: str, root: Path, plan: str) -> Job:
    return Job(kind, str(root), PLANS[plan], session=newest(root), options=SMALL)


def judge(kind: str, told: Told, failed: list[Call], *, lasting: bool) -> list[str]:
    """What the worker itself should have done otherwise."""
    wrong = []
    if kind == "holdfast":
        for name in told.errors:
            error = getattr(holdfast, name, None)
            if not (isinstance(error, type) and issubclass(error, holdfast.HoldfastError)):
                wrong.append(f"an error that is not ours: {name}")
    if "DONE" not in told.lines and not lasting:
        wrong.append("the job did not come to its end")
    if not lasting and sum(line.startswith("ERR") for line in told.lines) > 1:
        wrong.append(f"one failure was felt more than once: {told.lines}")
    log = [
        one
        for one in failed
        if "sync" in one.name and ("jsonl>" in one.text or "/log." in one.text)
    ]
    if log and not told.errors:
        wrong.append("an append whose sync failed was not refused")
    return wrong
