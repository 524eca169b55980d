"""Kills at every point, and a full disk: the archive is valid, and the next run completes it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everlog.errors import StoreFullError
from everlog.interop.archive.archive_listing import list_archive
from everlog.interop.archive.backup import copy
from everlog.interop.archive.restore import restore
from everlog.interop.archive.verify import verify
from tests.archive.trees import log, plant, restored, run, tree
from tests.crash.sample_records import mounted

pytestmark = pytest.mark.crash

HERE = Path(__file__).parents[2]
# The count is one of each thread; pwrite64 is what SQLite writes with.
SYSTEM_CALLS = [("pwrite64", 1), ("pwrite64", 4), ("fdatasync", 1), ("fsync", 2), ("write", 1)]


def _python(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join((str(HERE / "src"), str(HERE)))
    return subprocess.run(
        [*before, sys.executable, *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
        check=False,
    )


def _killed_everywhere(tmp_path: Path, *how: str) -> Any:
    (tmp_path / "work").mkdir()
    source = plant(tmp_path / "home")
    module = ("-m", "tests.archive.kill_points", str(tmp_path / "work"), str(source))
    done = _python(*module, *how)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_run_killed_at_any_point_leaves_a_valid_archive_that_the_next_completes(tmp_path: Path) -> None:
    told = _killed_everywhere(tmp_path)
    assert told["wrong"] == []
    assert told["points"] > 60


@pytest.mark.slow
def test_a_twin_that_writes_objects_in_place_fails(tmp_path: Path) -> None:
    assert _killed_everywhere(tmp_path, "twin")["wrong"]


@pytest.mark.parametrize(("call", "number"), SYSTEM_CALLS)
def test_a_run_killed_in_a_system_call_is_completed_by_the_next(
    root: Path, source: Path, tmp_path: Path, call: str, number: int
) -> None:
    """Also those of SQLite, which the other test does not see."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing (apt-get install strace)")
    program = (
        "import sys; from pathlib import Path; from everlog.interop.archive.backup import copy;"
        "copy(Path(sys.argv[1]), [Path(sys.argv[2])])"
    )
    inject = f"inject={call}:signal=SIGKILL:when={number}"
    strace = ("strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e", inject)
    done = _python("-c", program, str(root), str(source), before=strace)
    assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), done.stderr.decode()
    if (root / "archive" / "manifests").exists():
        assert verify(root).damage == []
    run(root, source)
    assert verify(root).damage == []
    restore(root, tmp_path / "out")
    assert tree(restored(tmp_path / "out", source)) == tree(source)


def test_a_full_disk_says_so_and_leaves_the_archive_valid(source: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        root = disk / "root"
        run(root, source)
        for number in range(5):
            (source / f"large{number}.jsonl").write_bytes(os.urandom(300_000))
            (source / f"small{number}.jsonl").write_bytes(log(3, number))
        with pytest.raises(StoreFullError, match="No space left"):
            copy(root, [source])
        assert verify(root).damage == []
        assert list((root / "archive" / "tmp").iterdir()) == []
        restore(root, tmp_path / "out")
        assert len(tree(restored(tmp_path / "out", source))) == 7
        (root / "archive" / "state.db").unlink()
        with suppress(OSError), (disk / "rest").open("wb", buffering=0) as filler:
            while filler.write(b"x" * 512):
                pass
        assert list_archive(root, limit=1).sources[0].files == 7  # reading needs no space
        for number in range(5):
            (source / f"large{number}.jsonl").unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        run(root, source)
        assert verify(root).damage == []
