"""The input history in `run/chat_history` of the home: one JSON string per line, mode 0600.

A chat never fails because of it: if the file cannot be read or written (a full disk, a read-only
home), the history lasts for this chat only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from prompt_toolkit.history import History

MAX_LOADED = 1_000  # newest entries
MAX_BYTES = 4_000_000  # of the file; above it the older half is removed
MAX_CHARS = 100_000  # of an entry; a whole file may be pasted


class JsonFileHistory(History):
    """A history in a file; unreadable lines are skipped."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """Return the entries, newest first."""
        entries: list[str] = []
        for line in reversed(self._read_lines()):
            try:
                entries.append(msgspec.json.decode(line, type=str))
            except (msgspec.DecodeError, UnicodeError):
                continue
            if len(entries) == MAX_LOADED:
                break
        return entries

    def store_string(self, string: str) -> None:
        """Store an entry, if the file can be written."""
        if len(string) > MAX_CHARS:
            return
        line = msgspec.json.encode(string.encode("utf-8", "replace").decode()) + b"\n"
        try:
            if self._append(line) > MAX_BYTES:
                self._halve()
        except OSError:
            pass  # it stays in the history of this chat

    def _append(self, line: bytes) -> int:
        """Append a line and return the size of the file."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open(os.open(self._file, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab") as stream:
            stream.write(line)
            return stream.tell()

    def _read_lines(self) -> list[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC  # links inside a home are not followed
        try:
            with open(os.open(self._file, flags), "rb") as stream:
                return stream.read().split(b"\n")
        except OSError:
            return []  # missing or unreadable

    def _halve(self) -> None:
        lines = self._read_lines()
        new = self._file.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(b"\n".join(lines[len(lines) // 2 :]))
        new.replace(self._file)
