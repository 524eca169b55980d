"""A daemon for all tests of a run that do not need one of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everlog.client import Client
from tests.daemon.running_daemon import FAST, Daemon


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One that many tests share."""
    made = Daemon(tmp_path_factory.mktemp("shared") / "root")
    yield made
    assert made.stop() == 0
    assert [line for line in made.log() if line["level"] == "error"] == []


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    """A client of the shared one."""
    with daemon.client() as made:
        yield made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Start daemons of the test's own."""
    made: list[Daemon] = []

    def begin(*arguments: str, config: str = FAST, name: str = "root") -> Daemon:
        made.append(Daemon(tmp_path / name, *arguments, config=config))
        return made[-1]

    yield begin
    for one in made:
        one.stop()
