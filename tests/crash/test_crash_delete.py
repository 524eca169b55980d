"""A delete that is interrupted: the session is whole or gone, and no other is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import everlog
from tests.crash.checker import Told, violations
from tests.crash.children import Call, Server, kills, run_traced, summary
from tests.crash.control import Options
from tests.crash.driver import REFUSALS, Job
from tests.crash.interfaces import Everlog, Log, newest, open_log
from tests.crash.sample_records import clone, grow

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("strace")]

SMALL = Options(part_bytes=1000)


class Deletion:
    """A root with a log to delete, of several parts, and one that must stay; again and again."""

    def __init__(self, kind: str, server: Server, folder: Path) -> None:
        self.kind = kind
        self.root = folder / "root"
        self._server = server
        self._folder = folder
        self._base = folder / "base"
        self.stays = ""
        if kind == "everlog":
            with everlog.open_store(self._base, create=True) as store:
                session = store.create()
                session.append(everlog.user("for ever"))
                self.stays = session.id
                store.create()
        self.goes = newest(self._base)
        self.acked = grow(kind, self._base, ["1*400"] * 4, SMALL)
        self.renew()
        _, self.calls = self.run()

    def renew(self) -> None:
        """Everything as before."""
        shutil.rmtree(self.root, ignore_errors=True)
        clone(self._base, self.root)
        (self._folder / "acks").unlink(missing_ok=True)

    def run(self, *rules: str, then: str = "") -> tuple[Told, list[Call]]:
        """Delete, with a fault; then perhaps append."""
        plan = ["delete", *([then] if then else [])]
        job = Job(self.kind, str(self.root), plan, session=self.goes, options=SMALL)
        return run_traced(self._server, job, self._folder / "acks", *rules)

    @property
    def there(self) -> bool:
        """Whether the log is where it was."""
        place = f"sessions/{self.goes}" if self.kind == "everlog" else "twin"
        return (self.root / place).exists()

    def judge(self, acked: dict[str, int]) -> list[str]:
        """Whole or gone, and the other as it was."""
        wrong = []
        if self.kind == "everlog":
            log = f"sessions/{self.stays}/session.jsonl"
            if (self.root / log).read_bytes() != (self._base / log).read_bytes():
                wrong.append("another session was touched")
            with everlog.open_store(self.root, create=True) as store:
                listed = {row.id for row in store.list()}
            if listed != ({self.stays, self.goes} if self.there else {self.stays}):
                wrong.append(f"{len(listed)} sessions are listed")
        if self.there:
            wrong += violations(self.kind, self.root, acked, options=SMALL)
        return wrong


# --- the deleting process is killed


def test_a_session_whose_delete_is_killed_is_whole_or_gone(server: Server, tmp_path: Path) -> None:
    found, ends = kill_each("everlog", server, tmp_path)
    assert not found, summary(found)
    assert ends == {True, False}


def test_the_control_is_whole_or_gone(server: Server, tmp_path: Path) -> None:
    found, ends = kill_each("Careful", server, tmp_path)
    assert not found, summary(found)
    assert ends == {True, False}


def test_a_twin_that_deletes_in_place_is_left_half(server: Server, tmp_path: Path) -> None:
    found, _ = kill_each("DeletesInPlace", server, tmp_path)
    assert [one for one in found if "lost" in one]


def kill_each(kind: str, server: Server, folder: Path) -> tuple[list[str], set[bool]]:
    """Kill a delete at each of its calls; the violations, and whether the log was there."""
    deletion = Deletion(kind, server, folder)
    found, ends = [], set()
    for rule in kills(deletion.calls):
        deletion.renew()
        deletion.run(rule)
        ends.add(deletion.there)
        found += [f"{rule}: {one}" for one in deletion.judge(deletion.acked)]
    return found, ends


# --- another process has the log open when that happens


def test_no_append_after_a_killed_delete_is_acknowledged_into_the_trash(server: Server, tmp_path: Path) -> None:
    found = append_beside("everlog", server, tmp_path)
    assert not found, summary(found)


def test_the_control_acknowledges_nothing_into_the_trash(server: Server, tmp_path: Path) -> None:
    found = append_beside("Careful", server, tmp_path)
    assert not found, summary(found)


def test_a_twin_that_keeps_its_log_open_acknowledges_into_the_trash(server: Server, tmp_path: Path) -> None:
    assert append_beside("KeepsLogOpen", server, tmp_path)


def append_beside(kind: str, server: Server, folder: Path) -> list[str]:
    """A writer is open while another process is killed in its delete; then it appends."""
    deletion = Deletion(kind, server, folder)
    calls = [one for one in deletion.calls if one.name != "openat"]
    found = []
    for rule in kills(calls):
        deletion.renew()
        log: Log = (
            Everlog(deletion.root, SMALL, deletion.goes) if kind == "everlog" else open_log(kind, deletion.root, SMALL)
        )
        log.append("before")
        deletion.run(rule)
        try:
            seq = log.append("after")
            if not deletion.there or (seq, "after") not in log.messages():
                found.append(f"{rule}: seq {seq} was acknowledged and is gone")
        except REFUSALS:
            pass
        log.close()
    return found


# --- the delete fails


@pytest.mark.parametrize("call", ["renameat", "fsync", "unlinkat", "openat", "fchmod"])
def test_a_delete_that_fails_leaves_the_session_whole_or_gone(call: str, server: Server, tmp_path: Path) -> None:
    deletion = Deletion("everlog", server, tmp_path)
    found = []
    for n in [one.n for one in deletion.calls if one.name == call and one.inside]:
        deletion.renew()
        told, _ = deletion.run(f"inject={call}:error=EIO:when={n}")
        wrong = deletion.judge(deletion.acked)
        if "DELETED" in told.lines and deletion.there:
            wrong.append("it was deleted and is there")
        found += [f"{call} {n}: {one}" for one in wrong]
    assert not found, summary(found)


@pytest.mark.parametrize("call", ["renameat", "fsync", "unlinkat"])
def test_no_append_after_a_failed_delete_is_acknowledged_into_the_trash(
    call: str, server: Server, tmp_path: Path
) -> None:
    deletion = Deletion("everlog", server, tmp_path)
    found = []
    for n in [one.n for one in deletion.calls if one.name == call and one.inside]:
        deletion.renew()
        told, _ = deletion.run(f"inject={call}:error=EIO:when={n}", then="1*300")
        wrong = deletion.judge(deletion.acked | told.acked)
        if told.acked and not deletion.there:
            wrong.append(f"acknowledged and gone: {told.acked}")
        found += [f"{call} {n}: {one}" for one in wrong]
    assert not found, summary(found)
