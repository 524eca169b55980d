"""`make demo`: the demo tells the whole story, ends well and cleans up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runner import environment


@pytest.mark.crash
@pytest.mark.slow
def test_demo_kills_a_writer_recovers_and_cleans_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.demo"],
        capture_output=True,
        env=environment(tmp_path / "unused", TMPDIR=str(tmp_path)),
        cwd=Path(__file__).parents[2],
        timeout=300,
        check=False,
    )
    out = done.stdout.decode()
    assert (done.returncode, out.count("Traceback")) == (0, 0), done.stderr
    assert "kill 1: " in out
    assert "set aside, not deleted: torn." in out or "there is no torn tail" in out
    assert "1 session verified, no damage" in out
    assert list(tmp_path.iterdir()) == []
