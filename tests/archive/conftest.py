"""A root and a source of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.trees import plant


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the archive goes; it does not exist yet."""
    return tmp_path / "root"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small tree of sessions."""
    return plant(tmp_path / "home")
