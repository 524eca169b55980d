"""A delete that is interrupted: the session is whole or gone, and no other is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import holdfast
from tests.crash.checker import Told, violations
from tests.crash.children import Server, kills, run_traced, summary
from tests.crash.driver import Holdfast, Job
from tests.crash.material import clone, grow
from tests.crash.control import Options

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("strace")]

SMALL = Options(part_bytes=1000)


def test_a_session_whose_delete_is_killed_is_whole_or_gone(server: Server, tmp_path: Path) -> None:
    found, ends = delete_at_each("holdfast", server, tmp_path)
    assert not found, summary(found)
    assert ends == {"whole", "gone"}


def test_the_control_is_whole_or_gone(server: Server, tmp_path: Path) -> None:
    found, ends = delete_at_each("Careful", server, tmp_path)
    assert not found, summary(found)
    assert ends == {"whole", "gone"}


def test_a_twin_that_deletes_in_place_is_left_half(server: Server, tmp_path: Path) -> None:
    found, _ = delete_at_each("DeletesInPlace", server, tmp_path)
    assert [one for one in found if "lost" in one]


@pytest.mark.parametrize("call", ["renameat", "fsync", "unlinkat", "openat", "fchmod"])
def test_a_delete_that_fails_leaves_the_session_whole_or_gone(
    call: str, server: Server, tmp_path: Path
) -> None:
    base, acked = sessions("holdfast", tmp_path)
    job = deleting("holdfast", base, tmp_path / "state")
    clone(base, tmp_path / "state")
    _, calls = run_traced(server, job, tmp_path / "acks")
    found = []
    for n in [one.n for one in calls if one.name == call and one.inside]:
        again(base, tmp_path / "state")
        (tmp_path / "acks").unlink()
        told, _ = run_traced(server, job, tmp_path / "acks", f"inject={call}:error=EIO:when={n}")
        wrong, end = judge("holdfast", base, tmp_path / "state", acked, told)
        if "DELETED" in told.lines and end != "gone":
            wrong.append("it was deleted and is there")
        found += [f"{call} {n}: {one}" for one in wrong]
    assert not found, summary(found)


def test_an_append_after_a_failed_delete_is_not_acknowledged_into_the_trash(
    server: Server, tmp_path: Path
) -> None:
    """The worker goes on appending after its delete failed; what it is promised must be there."""
    base, acked = sessions("holdfast", tmp_path)
    job = deleting("holdfast", base, tmp_path / "state", "1*300")
    clone(base, tmp_path / "state")
    _, calls = run_traced(server, job, tmp_path / "acks")
    found = []
    for call in [one for one in calls if one.inside and one.name in ("fsync", "unlinkat")]:
        again(base, tmp_path / "state")
        (tmp_path / "acks").unlink()
        rule = f"inject={call.name}:error=EIO:when={call.n}"
        told, _ = run_traced(server, job, tmp_path / "acks", rule)
        wrong, end = judge("holdfast", base, tmp_path / "state", acked | told.acked, told)
        if told.acked and end == "gone":
            wrong.append(f"acknowledged and gone: {told.acked}")
        found += [f"{rule}: {one}" for one in wrong]
    assert not found, summary(found)


def test_an_append_of_another_process_after_a_killed_delete_is_not_acknowledged_into_the_trash(
    server: Server, tmp_path: Path
) -> None:
    base, acked = sessions("holdfast", tmp_path)
    state = clone(base, tmp_path / "state")
    session = doomed(base)
    _, calls = run_traced(server, deleting("holdfast", base, state), tmp_path / "acks")
    found = []
    for rule in kills([one for one in calls if one.name in ("renameat", "fsync", "unlinkat")]):
        again(base, state)
        ours = Holdfast(state, SMALL, session)
        seq = ours.append("before")  # a writer is open
        run_traced(server, deleting("holdfast", base, state), tmp_path / "acks", rule)
        try:
            seq = ours.append("after")
        except holdfast.NotFound:
            pass
        else:
            there = (state / "sessions" / session).exists()
            if not there or seq not in [message.seq for message in ours.session.messages()]:
                found.append(f"{rule}: seq {seq} was acknowledged and is gone")
        ours.close()
    assert not found, summary(found)


# --- how


def sessions(kind: str, folder: Path) -> tuple[Path, dict[str, int]]:
    """A root with a session to delete, of several parts, and one that must stay."""
    base = folder / "base"
    if kind == "holdfast":
        store = holdfast.open_store(base)
        store.create(title="stays").append(holdfast.user("for ever"))
        store.create(title="goes")
        store.close()
    acked = grow(kind, base, ["1*400"] * 4, SMALL)
    return base, acked


def doomed(root: Path) -> str:
    return max(path.name for path in root.glob("sessions/*"))


def deleting(kind: str, base: Path, root: Path, *then: str) -> Job:
    session = doomed(base) if kind == "holdfast" else ""
    return Job(kind, str(root), ["delete", *then], session=session, options=SMALL)


def again(base: Path, root: Path) -> None:
    shutil.rmtree(root)
    clone(base, root)


def delete_at_each(kind: str, server: Server, folder: Path) -> tuple[list[str], set[str]]:
    """Kill a delete at each of its calls; the violations, and what was left."""
    base, acked = sessions(kind, folder)
    state = clone(base, folder / "state")
    _, calls = run_traced(server, deleting(kind, base, state), folder / "acks")
    found, ends = [], set()
    for rule in kills(calls):
        again(base, state)
        (folder / "acks").unlink(missing_ok=True)
        told, _ = run_traced(server, deleting(kind, base, state), folder / "acks", rule)
        wrong, end = judge(kind, base, state, acked, told)
        found += [f"{rule}: {one}" for one in wrong]
        ends.add(end)
    return found, ends


def judge(
    kind: str, base: Path, root: Path, acked: dict[str, int], told: Told
) -> tuple[list[str], str]:
    """Whole or gone, and the other one as it was."""
    if kind != "holdfast":
        if not (root / "twin").exists():
            return [], "gone"
        return violations(kind, root, acked, options=SMALL), "whole"
    wrong = []
    gone, stays = doomed(base), min(path.name for path in base.glob("sessions/*"))
    log = "session.jsonl"
    if (root / "sessions" / stays / log).read_bytes() != (
        base / "sessions" / stays / log
    ).read_bytes():
        wrong.append("another session was touched")
    there = (root / "sessions" / gone).exists()
    with holdfast.open_store(root) as store:
        listed = {row.id for row in store.list()}
    if listed != {stays} | ({gone} if there else set()):
        wrong.append(f"listed are {len(listed)} sessions")
    if there:
        wrong += violations(kind, root, acked, options=SMALL)
    return wrong, "whole" if there else "gone"
