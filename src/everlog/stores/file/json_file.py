"""A small JSON file beside the sessions, replaced as a whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from everlog.stores.file.disk import errors_mapped, get, open_directory, put

T = TypeVar("T")


class Notebook(Generic[T]):
    """One file of one type. What cannot be read counts as empty: none of it is anybody's words."""

    def __init__(self, path: Path, kind: type[T] | Any) -> None:
        self._path = path
        self._kind = kind

    def load(self, empty: T) -> T:
        """What was saved last, or `empty`."""
        try:
            with _opened(self._path.parent) as folder:
                noted: T = msgspec.json.decode(get(self._path.name, folder), type=self._kind)
                return noted
        except (OSError, ValueError, RecursionError):
            return empty

    def save(self, noted: T) -> None:
        """Put it in place of what was there. Durable on return."""
        with errors_mapped(f"writing {self._path.name}"):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(self._path.parent) as folder:
                put(self._path.name, msgspec.json.encode(noted), folder, durable=True)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = open_directory(os.fspath(path))
    try:
        yield descriptor
    finally:
        os.close(descriptor)
