"""Several processes at once in one directory of another program; `make load` does much more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.load import run


@pytest.mark.parametrize("dialect", ["crabtalk", "cersei", "picoclaw"])
def test_four_processes_lose_nothing_in_a_hundred_sessions(tmp_path: Path, dialect: str) -> None:
    run(tmp_path / "root", tmp_path / "home", dialect, 240)
