"""What was typed, kept in `run/chat_history` of the root: one JSON string a line, for its owner.

A convenience, and nothing that a conversation may fail by: where the file cannot be read or
written (a full disk, a root that is read-only), what was typed is kept for this conversation only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from prompt_toolkit.history import History

LOADED = 1_000  # entries, the newest
LARGEST = 4_000_000  # bytes; then the older half goes
LONGEST = 100_000  # characters of an entry; what is pasted may be a whole file


class KeptHistory(History):
    """A history in a file; lines that cannot be read are passed over."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def load_history_strings(self) -> Iterable[str]:
        """What was typed, newest first."""
        found: list[str] = []
        for line in reversed(self._lines()):
            try:
                found.append(msgspec.json.decode(line, type=str))
            except (msgspec.DecodeError, UnicodeError):
                continue
            if len(found) == LOADED:
                break
        return found

    def store_string(self, string: str) -> None:
        """Keep an entry, if the disk lets us."""
        if len(string) > LONGEST:
            return
        line = msgspec.json.encode(string.encode("utf-8", "replace").decode()) + b"\n"
        try:
            if self._add(line) > LARGEST:
                self._halve()
        except OSError:
            pass  # it is still among what Up goes through

    def _add(self, line: bytes) -> int:
        """Write a line; how large the file is now."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open(os.open(self._file, kept | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab") as opened:
            opened.write(line)
            return opened.tell()

    def _lines(self) -> list[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC  # no link is followed inside a root
        try:
            with open(os.open(self._file, flags), "rb") as opened:
                return opened.read().split(b"\n")
        except OSError:
            return []  # there is none, or none that can be read

    def _halve(self) -> None:
        lines = self._lines()
        new = self._file.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(b"\n".join(lines[len(lines) // 2 :]))
        new.replace(self._file)
