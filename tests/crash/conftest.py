"""A server of workers per test process, and strace where it may be used."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.children import Server, Strace
from tests.crash.driver import Job


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Forks workers."""
    if not sys.platform.startswith("linux"):
        pytest.skip("workers are watched through /proc, which only Linux has")
    with Server() as started:
        yield started


@pytest.fixture(scope="session")
def strace(server: Server, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where system calls cannot be disturbed."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing (apt-get install strace)")
    folder = tmp_path_factory.mktemp("strace")
    child = server.start(Job("Careful", str(folder / "root"), []), folder / "acks")
    try:
        tracer = Strace(child, folder / "trace", "trace=fsync")
    except PermissionError as error:
        child.kill()
        pytest.skip(f"strace may not trace here: {error}")
    child.go()
    child.wait()
    tracer.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a log goes; it does not exist yet."""
    return tmp_path / "root"


@pytest.fixture
def as_root() -> None:
    """Skip where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
