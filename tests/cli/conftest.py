"""A root of its own for each test, and the command line on it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.app import open_store
from everlog.cli.main import main
from everlog.session import Session, Store
from tests.cli.runner import Cli, Result


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the sessions go; it does not exist yet."""
    return tmp_path / "root"


@pytest.fixture
def cli(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run commands in this process."""
    monkeypatch.setenv("EVERLOG_HOME", str(root))
    for name in ("EVERLOG_DEBUG", "EVERLOG_STORE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main(list(arguments))
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """The library on the same root."""
    with open_store(root, create=True) as opened:
        yield opened


@pytest.fixture
def session(store: Store) -> Session:
    """An empty session."""
    return store.create(title="Fix the tests")
