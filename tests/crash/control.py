"""The control: a small log with every care that the crash tests ask for.

A test that the control passes and a twin fails has found the one care that the twin leaves out,
and nothing else. See twin.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import msgspec


class Options(msgspec.Struct, frozen=True):
    """What a log is opened with, ours and the twins'."""

    part_bytes: int = 50_000_000
    lock_seconds: float = 5.0


USUAL = Options()


class Busy(Exception):
    """Somebody else holds the lock."""


class Row(msgspec.Struct, frozen=True):
    """One line."""

    seq: int
    at: float
    text: str


class Careful:
    """Appends lines to `{root}/twin/log.<part>`."""

    def __init__(self, root: Path, options: Options = USUAL, clock: Callable[[], float] = time.time) -> None:
        self.root = root / "twin"
        self.options = options
        self._clock = clock
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        for path in missing:
            self._sync_names(path.parent)
        self._pid = os.getpid()
        self._lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        self._left = (0, -1, 0)  # part, size and seq after our last append

    # --- the face

    def append(self, text: str) -> int:
        """Add one record; its number."""
        return self.append_many([text])[0]

    def append_many(self, texts: Sequence[str]) -> list[int]:
        """Add records in one write; their numbers."""
        with self._held():
            part, size, seq = self._seal()
            data = b"".join(self._line(seq + n, text) for n, text in enumerate(texts, 1))
            if size and size + len(data) > self.options.part_bytes:
                part, size = self._roll(part + 1), 0
            self._put(part, size, data)
            self._left = part, size + len(data), seq + len(texts)
            return list(range(seq + 1, seq + 1 + len(texts)))

    def messages(self) -> list[tuple[int, str]]:
        """Number and text of every record that can be read."""
        return [(row.seq, row.text) for row in self._rows() if row is not None]

    def damage(self) -> list[str]:
        """What is wrong with the log."""
        return [f"line {n} cannot be read" for n, row in enumerate(self._rows()) if row is None]

    def delete(self) -> None:
        """Remove the whole log: moved away first, so that it is there or gone."""
        grave = self.root.with_name("trash")
        os.rename(self.root, grave)
        self._sync_names(grave.parent)
        empty(grave)

    def hold(self) -> None:
        """Take the lock and never give it back."""
        self._kept = self._held()
        self._kept.__enter__()

    def close(self) -> None:
        """Give the lock's descriptor back."""
        os.close(self._lock)

    # --- the cares

    @contextmanager
    def _held(self) -> Iterator[None]:
        if os.getpid() != self._pid:  # a lock of before fork() is our parent's too
            self._lock = os.open(self.root / "lock", os.O_RDWR)
            self._pid = os.getpid()
        deadline = time.monotonic() + self.options.lock_seconds
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Busy("somebody holds the lock") from None
                time.sleep(0.001)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _seal(self) -> tuple[int, int, int]:
        """Part, size and last number of a log whose torn tail is set aside."""
        part = self._last_part()
        path = self._path(part)
        size = path.stat().st_size if path.exists() else 0
        if self._left[:2] == (part, size):
            return self._left
        data = path.read_bytes() if size else b""
        keep = data.rfind(b"\n") + 1
        while keep:
            start = data.rfind(b"\n", 0, keep - 1) + 1
            if self._decode(data[start : keep - 1]) is not None:
                break
            keep = start
        if keep < size:
            self._repair(part, keep, data[keep:])
        if size:
            self._sync_others(part)
        return part, keep, self._number(data[:keep], part)

    def _number(self, data: bytes, part: int) -> int:
        """The last number in a part, or in the one before."""
        while not data and part > 1:
            part -= 1
            data = self._path(part).read_bytes()
        row = self._decode(data[data.rfind(b"\n", 0, -1) + 1 : -1])
        return row.seq if row else 0

    def _repair(self, part: int, keep: int, torn: bytes) -> None:
        self._set_aside(part, keep, torn)
        self._cut(part, keep)

    def _set_aside(self, part: int, keep: int, torn: bytes) -> None:
        path = self.root / f"torn.{part}.{keep}"
        while path.exists() and path.read_bytes() != torn:  # another tail was torn here before
            path = path.with_name(f"{path.name}+")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, torn)
        os.fsync(descriptor)
        os.close(descriptor)
        self._sync_names(self.root)

    def _cut(self, part: int, keep: int) -> None:
        descriptor = os.open(self._path(part), os.O_RDWR)
        os.ftruncate(descriptor, keep)
        os.fsync(descriptor)
        os.close(descriptor)

    def _sync_others(self, part: int) -> None:
        """Who wrote this may have died before its sync; our records must not outlive it."""
        descriptor = os.open(self._path(part), os.O_RDWR)
        os.fdatasync(descriptor)
        os.close(descriptor)
        self._sync_names(self.root)

    def _roll(self, part: int) -> int:
        """Go on in the next part."""
        return part

    def _put(self, part: int, size: int, data: bytes) -> None:
        """Everything or nothing."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self._path(part), flags, 0o600)
        try:
            self._write(descriptor, data)
            self._sync(descriptor)
            if not size:
                self._sync_names(self.root)
        except OSError:
            self._left = (0, -1, 0)
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
            raise
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, data: bytes) -> None:
        while data:
            data = data[os.write(descriptor, data) :]

    def _sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def _sync_names(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    # --- lines and where they are

    def _line(self, seq: int, text: str) -> bytes:
        body = json.dumps({"seq": seq, "at": self._clock(), "text": text}).encode()[:-1]
        return b'%b,"crc":"%08x"}\n' % (body, crc32(body))

    def _decode(self, line: bytes) -> Row | None:
        if line[-18:] != b',"crc":"%08x"}' % crc32(line[:-18]):
            return None
        return msgspec.json.decode(line, type=Row)

    def _path(self, part: int) -> Path:
        return self.root / f"log.{part}"

    def _last_part(self) -> int:
        return max((int(path.name[4:]) for path in self.root.glob("log.*")), default=1)

    def _rows(self) -> list[Row | None]:
        """All lines in order; one that cannot be read is None."""
        paths = [self._path(part) for part in range(1, self._last_part() + 1)]
        data = b"".join(path.read_bytes() for path in paths if path.exists())
        return [self._decode(line) for line in data.split(b"\n")[:-1]]


def empty(directory: Path) -> None:
    """Remove a directory and the files in it."""
    for path in sorted(directory.iterdir()):
        path.unlink()
    directory.rmdir()
