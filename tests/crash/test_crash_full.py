"""Short writes and full disks, real ones: nothing torn stays, reading works, writing resumes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import everlog
from tests.crash.checker import Told, violations
from tests.crash.children import Server, run_traced, summary
from tests.crash.driver import Job
from tests.crash.interfaces import Log, name_of, newest, open_log, payload
from tests.crash.sample_records import grow, mounted, parts

pytestmark = pytest.mark.crash


# --- a limit on the size of files: the kernel writes what fits, and says so


@pytest.mark.parametrize("room", [1, 17, 400, 4999, 5200, 5400, 9000])
def test_a_short_write_is_taken_back_and_writing_resumes(room: int, server: Server, tmp_path: Path) -> None:
    found, seen = with_limit("everlog", server, tmp_path, room)
    assert not found, summary(found)
    assert seen.errors and set(seen.errors) == {"StoreFullError"}


def test_the_control_takes_a_short_write_back(server: Server, tmp_path: Path) -> None:
    found, seen = with_limit("Careful", server, tmp_path, 400)
    assert not found, summary(found)
    assert seen.errors


@pytest.mark.parametrize("twin", ["TrustsWrites", "Buffered"])
def test_a_twin_that_does_not_look_at_what_was_written_fails(twin: str, server: Server, tmp_path: Path) -> None:
    found, _ = with_limit(twin, server, tmp_path, 400)
    assert found


def with_limit(kind: str, server: Server, folder: Path, room: int) -> tuple[list[str], Told]:
    """Append with so many bytes of room in the file, then without a limit."""
    root = folder / "root"
    acked = grow(kind, root, ["1*300", "1*300"], writer="B")
    limit = parts(kind, root)[-1].stat().st_size + room
    plan = [f"limit:{limit}", "1*5000", "3*5000", "1*5000", "lift", "1*5000", "2*5000"]
    job = Job(kind, str(root), plan, session=newest(root))
    seen = server.run(job, folder / "acks")
    found = [] if "DONE" in seen.lines else ["the job did not come to its end"]
    if "A.5.5000" not in seen.acked:
        found.append("writing did not resume")
    found += [f"torn bytes were left: {path.name}" for path in root.rglob("torn.*")]
    return found + violations(kind, root, acked | seen.acked, absent=seen.refused), seen


@pytest.mark.usefixtures("strace")
def test_a_short_write_that_cannot_be_taken_back_makes_the_session_read_only_until_reopened(
    server: Server, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    acked = grow("everlog", root, ["1*300", "1*300"], writer="B")
    (log,) = parts("everlog", root)
    size = log.stat().st_size
    plan = [f"limit:{size + 400}", "1*5000", "lift", "1*5000", "1*10"]
    job = Job("everlog", str(root), plan, session=newest(root))
    seen, _ = run_traced(server, job, tmp_path / "acks", "inject=ftruncate:error=EIO")
    assert seen.errors == ["StoreFullError", "StoreFailedError", "StoreFailedError"]
    torn = log.read_bytes()[size:]
    assert len(torn) == 400
    found = violations("everlog", root, acked, torn=[torn], absent=seen.refused)
    assert not found, summary(found)


# --- writes that lie


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("part", ["some", "all"])
def test_a_write_that_lies_about_what_it_wrote_is_not_acknowledged(part: str, server: Server, tmp_path: Path) -> None:
    found, seen = with_lie("everlog", server, tmp_path, whole=part == "all")
    assert not found, summary(found)
    assert seen.errors == ["StoreFailedError"]


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("part", ["some", "all"])
def test_a_twin_that_trusts_a_lying_write_loses_what_it_acknowledged(part: str, server: Server, tmp_path: Path) -> None:
    found, _ = with_lie("TrustsWrites", server, tmp_path, whole=part == "all")
    assert [one for one in found if "lost" in one]


def with_lie(kind: str, server: Server, folder: Path, *, whole: bool) -> tuple[list[str], Told]:
    """The second write of a job writes nothing and claims to have written 50 bytes, or all."""
    root = folder / "root"
    acked = grow(kind, root, ["1*300"], writer="B")
    before = parts(kind, root)[-1].stat().st_size
    acked |= grow(kind, root, ["1*300"], writer="C")
    line = parts(kind, root)[-1].stat().st_size - before
    job = Job(kind, str(root), ["1*300"] * 4, session=newest(root))
    rule = f"inject=write:retval={line if whole else 50}:when=2"
    seen, calls = run_traced(server, job, folder / "acks", rule)
    assert sum(one.injected for one in calls) == 1
    return violations(kind, root, acked | seen.acked, absent=seen.refused), seen


# --- a disk that is full


@pytest.mark.usefixtures("as_root")
def test_a_full_disk_is_a_typed_error_reading_works_and_writing_resumes(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        found, refused = until_full("everlog", tmp_path / "disk")
        assert not found, summary(found)
        assert len(refused) > 10 and set(refused) == {"StoreFullError"}


@pytest.mark.usefixtures("as_root")
def test_the_control_resumes_on_a_disk_that_was_full(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        found, refused = until_full("Careful", tmp_path / "disk")
        assert not found, summary(found)
        assert refused


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("twin", ["Buffered", "TrustsWrites"])
def test_a_twin_fails_on_a_full_disk(twin: str, tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        found, _ = until_full(twin, tmp_path / "disk")
        assert found


@pytest.mark.usefixtures("as_root")
def test_on_a_full_disk_nothing_of_a_new_session_stays_and_old_ones_can_be_deleted(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    few = "size=1m,nr_inodes=60"
    with mounted(disk, "-t", "tmpfs", "-o", few, "tmpfs"), everlog.open_store(disk / "root", create=True) as store:
        first = store.create()
        first.append(everlog.user("x" * 100_000))
        made = {first.id}

        def make_for_ever() -> None:
            while True:
                made.add(store.create().id)

        with pytest.raises(everlog.StoreFullError):
            make_for_ever()
        assert set(os.listdir(disk / "root" / "sessions")) == made
        assert os.listdir(disk / "root" / "tmp") == []
        assert [message.seq for message in first.messages()] == [1]
        first.delete()
        assert first.id not in os.listdir(disk / "root" / "sessions")
        store.create().append(everlog.user("goes on"))


def until_full(kind: str, disk: Path) -> tuple[list[str], list[str]]:
    """Fill the disk again and again, with records of many sizes; each time some room is made."""
    ballast, room = disk / "ballast", 400_000
    ballast.write_bytes(bytes(room))
    log = open_log(kind, disk / "root")
    acked: dict[str, int] = {}
    refused: dict[str, str] = {}
    wrong: list[str] = []
    number = 0
    for size in (3000, 700, 9000, 100, 5000, 12_000):
        for _ in range(3):
            number = _fill(log, number, size, acked, refused)
            if len(log.messages()) < len(acked):
                wrong.append(f"reading on a full disk gives {len(log.messages())} of {len(acked)}")
            room -= 20_000
            os.truncate(ballast, room)
    log.close()
    ballast.unlink()
    wrong += [f"torn bytes were left: {path.name}" for path in disk.rglob("torn.*")]
    wrong += violations(kind, disk / "root", acked, absent=refused)
    return wrong, list(refused.values())


def _fill(log: Log, number: int, size: int, acked: dict[str, int], refused: dict[str, str]) -> int:
    """Append until it is refused."""
    while True:
        text = payload("A", number, size)
        number += 1
        try:
            acked[name_of(text)] = log.append(text)
        except (everlog.EverlogError, OSError) as error:
            refused[name_of(text)] = type(error).__name__
            return number
