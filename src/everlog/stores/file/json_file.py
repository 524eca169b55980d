"""A small JSON file in the home, replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from everlog.stores.file.disk import map_errors, opened_directory, read_small_file, replace_small_file

T = TypeVar("T")


class JsonFile(Generic[T]):
    """A JSON file of one type. An unreadable one counts as empty: it holds no user content."""

    def __init__(self, path: Path, value_type: type[T] | Any) -> None:
        self._path = path
        self._value_type = value_type

    def load(self, default: T) -> T:
        """Return the saved value, or `default` if there is none or it is invalid."""
        try:
            with opened_directory(os.fspath(self._path.parent)) as folder:
                data = read_small_file(self._path.name, folder)
                value: T = msgspec.json.decode(data, type=self._value_type)
                return value
        except (OSError, ValueError, RecursionError):
            return default

    def save(self, value: T) -> None:
        """Replace the saved value. Durable on return."""
        with map_errors(f"writing {self._path.name}"):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with opened_directory(os.fspath(self._path.parent)) as folder:
                data = msgspec.json.encode(value)
                replace_small_file(self._path.name, data, folder, durable=True)
