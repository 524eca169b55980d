"""A few hundred kills of the 10,000 of `make crash`, and twins that do not survive them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.children import REPOSITORY, environment

pytestmark = pytest.mark.crash


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for _ in range(4):  # on a busy machine too few kills hit a write: then it is tried again
        code, output, figures = kill9("everlog", 200, tmp_path)
        assert "promises" not in output, output
        assert figures["lost"] == figures["unreadable"] == 0
        if code == 0:
            break
    assert code == 0, output
    assert figures["cycles"] == 200 and figures["acked"] >= 400 and figures["torn"] >= 2


def test_the_control_survives_the_same_kills(tmp_path: Path) -> None:
    code, output, _ = kill9("Careful", 100, tmp_path)
    assert code == 0 or "promises" not in output, output


def test_a_buffered_twin_loses_what_it_acknowledged(tmp_path: Path) -> None:
    assert any(kill9("Buffered", 100, tmp_path)[2]["lost"] for _ in range(4))


def test_a_twin_that_cuts_without_setting_aside_is_caught(tmp_path: Path) -> None:
    caught = (kill9("CutsAndForgets", 60, tmp_path) for _ in range(4))
    assert any(code == 1 and "not set aside" in output for code, output, _ in caught)


def kill9(kind: str, cycles: int, folder: Path) -> tuple[int, str, dict[str, int]]:
    """Run the program; its code, what it said, its figures."""
    command = [sys.executable, "-m", "tests.crash.kill9", "--kind", kind, "--cycles", f"{cycles}"]
    done = subprocess.run(
        [*command, "--dir", folder], capture_output=True, text=True, cwd=REPOSITORY, env=environment(), check=False
    )
    (line,) = re.findall(r"^cycles=.* seconds=\d+$", done.stdout, re.MULTILINE)
    figures = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", line)}
    return done.returncode, done.stdout + done.stderr, figures
