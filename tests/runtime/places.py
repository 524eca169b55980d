"""Runtimes in memory or in a home of their own."""

from __future__ import annotations

from pathlib import Path

from everlog.app import open_runtime
from everlog.runtime.runtime import Runtime
from everlog.settings import Settings


def runtime_on(where: Path | str, settings: Settings) -> Runtime:
    """A runtime in a home, or on "memory:"."""
    if where == "memory:":
        return open_runtime("memory:", settings=settings)
    return open_runtime(home=where, create=True, settings=settings)
