"""The wheel is typed: a user's program passes mypy --strict, and a wrong one does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheel.conftest import Environment

SAMPLE = Path(__file__).with_name("sample.py")
# What is wrong, and the code of the error that says so.
MISTAKES = {
    'session.append("hello", expected_seq=0)': ("session.append(7, expected_seq=0)", "call-overload"),
    'store.search("hello", agent="main"': ('store.search("hello", agnet="main"', "call-arg"),
    "await store.create(agent=": ("await store.create(agent=1, aliases=", "arg-type"),
    'agent.run("!say hi", session=session)': ('agent.run("!say hi", session=3)', "arg-type"),
    'session.update(title="More help", model=None)': ('session.update(title=b"x")', "arg-type"),
    'runtime.inbound(inbound, "!say hi"': ('runtime.inbound("telegram", "!say hi"', "arg-type"),
}

pytestmark = pytest.mark.slow


def test_a_program_of_a_user_is_checked_by_mypy_strict_and_runs(
    install: Callable[[str], Environment], tmp_path: Path
) -> None:
    environment = install("cli")
    text = SAMPLE.read_text(encoding="utf-8")
    assert _mypy(environment, tmp_path, text) == "Success: no issues found in 1 source file\n"
    for right, (wrong, code) in MISTAKES.items():
        assert text.count(right) == 1, right
        found = _mypy(environment, tmp_path, text.replace(right, wrong))
        assert f"[{code}]" in found, (wrong, found)
    program = environment.home / "program.py"
    program.write_text(text, encoding="utf-8")
    assert environment.run(environment.python, "-W", "error", program).stdout == "True 1 hi hi hi\n"


def _mypy(environment: Environment, folder: Path, text: str) -> str:
    program = folder / "program.py"
    program.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable"]
    return subprocess.run(
        [*command, environment.python, program], cwd=folder, capture_output=True, text=True, timeout=250, check=False
    ).stdout
