"""The tiny face that everlog and the twins share, and texts that say what they must be."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import everlog
from everlog.settings import SessionSettings, Settings
from tests.crash.control import USUAL, Options
from tests.crash.twin import TWINS


class Log(Protocol):
    """One log, open."""

    def append(self, text: str) -> int:
        """Add one record; its number."""
        ...

    def append_many(self, texts: Sequence[str]) -> list[int]:
        """Add records at once; their numbers."""
        ...

    def messages(self) -> list[tuple[int, str]]:
        """Number and text of every message."""
        ...

    def damage(self) -> list[str]:
        """What is wrong with the log."""
        ...

    def delete(self) -> None:
        """Remove it for good."""
        ...

    def hold(self) -> None:
        """Take its lock and never give it back."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Everlog:
    """The product, by its public API alone."""

    def __init__(self, root: Path, options: Options = USUAL, session: str = "", *, ids: bool = False) -> None:
        self.store = everlog.open_store(root, create=True, settings=settings(options))
        self._root = root
        self._ids = ids
        there = session or newest(root)
        self.session = self.store.session(there) if there else self.store.create()
        self.made = "" if there else self.session.id

    def append(self, text: str) -> int:
        return self.session.append(self._said(text)).seq

    def append_many(self, texts: Sequence[str]) -> list[int]:
        return [record.seq for record in self.session.append_many(map(self._said, texts))]

    def messages(self) -> list[tuple[int, str]]:
        return [(message.seq, message.text) for message in self.session.messages()]

    def damage(self) -> list[str]:
        return [f"{one.file}: {one.problem} (seq {one.seq})" for one in self.session.verify()]

    def delete(self) -> None:
        self.session.delete()

    def hold(self) -> None:
        lock = self._root / "sessions" / self.session.id / "lock"
        fcntl.flock(os.open(lock, os.O_RDWR), fcntl.LOCK_EX)

    def close(self) -> None:
        self.store.close()

    def _said(self, text: str) -> everlog.Message:
        if not self._ids:
            return everlog.user(text)
        return everlog.user(text, id=str(uuid.uuid5(uuid.NAMESPACE_OID, text)))


def open_log(kind: str, root: Path, options: Options = USUAL, session: str = "") -> Log:
    """The log of a root, "everlog" or a twin by its name; a new one if there is none."""
    return Everlog(root, options, session) if kind == "everlog" else TWINS[kind](root, options)


def newest(root: Path) -> str:
    """The id of the last session of a root by its directories; none if there is none."""
    there = os.listdir(root / "sessions") if (root / "sessions").is_dir() else []
    return max(there, default="")


def settings(options: Options) -> Settings:
    """The product's settings for what a log is opened with."""
    return Settings(SessionSettings(part_bytes=options.part_bytes, lock_seconds=options.lock_seconds, total_bytes=0))


# --- payloads


def payload(writer: str, number: int, size: int) -> str:
    """A text of `size` bytes, or a little more, that begins with its own name."""
    name = f"{writer}.{number}.{size}"
    piece = f"{name} and on it goes, "
    return f"{name} {piece * (size // len(piece) + 1)}"[: max(size, len(name) + 1)]


def name_of(text: str) -> str:
    """The name of a payload; empty if the text is not exactly what was written."""
    name = text.partition(" ")[0]
    try:
        writer, number, size = name.split(".")
        return name if payload(writer, int(number), int(size)) == text else ""
    except ValueError:
        return ""
