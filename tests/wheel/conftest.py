"""The wheel, built once per run of the tests, and clean environments with some of its extras."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT = 280.0  # seconds to download and install the largest extra


class Environment:
    """A virtual environment with the wheel and nothing of the source tree."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.python = directory / "bin" / "python"
        self.everlog = directory / "bin" / "everlog"
        self.home = home
        kept = ("PATH", "LANG", "LC_ALL", "TMPDIR")
        self.variables = {name: os.environ[name] for name in kept if name in os.environ}
        self.variables |= {"HOME": str(home), "EVERLOG_HOME": str(home / "root")}

    def run(self, *command: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command outside the source tree and check its exit code."""
        done = subprocess.run(
            command, cwd=self.home, env=self.variables, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def script(self, text: str, *arguments: str) -> str:
        """Run a Python program and return what it printed."""
        return self.run(self.python, "-W", "error", "-c", text, *arguments).stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel; one worker builds it and the others wait."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "wheel"
    with (shared / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not any(folder.glob("*.whl")):
            _pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def install(wheel: Path, tmp_path: Path) -> Callable[[str], Environment]:
    """Makes an environment with the wheel and one extra."""

    def make(extra: str = "") -> Environment:
        directory, home = tmp_path / "environment", tmp_path / "home"
        home.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=TIMEOUT)
        lock = ROOT / "requirements-dev.lock"
        requirement = f"everlog[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
        _pip("--python", directory, "install", "--no-compile", "--constraint", lock, requirement)
        return Environment(directory, home)

    return make


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
