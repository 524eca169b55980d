"""Naive twins: logs that are wrong on purpose, so that every crash test is seen to fail.

Each twin is the control with one care left out, but for the first, which has none.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import msgspec

from tests.crash.control import USUAL, Busy, Careful, Options, Row, empty


class Buffered(Careful):
    """What one writes first: a file opened for appending; no lock, crc, seal or sync."""

    _file: TextIO | None = None
    _seq = 0

    def append_many(self, texts: Sequence[str]) -> list[int]:
        if self._file is None:
            self._file = self._path(1).open("a")
            self._seq = self._path(1).read_bytes().count(b"\n")
        first = self._seq + 1
        for text in texts:
            self._seq += 1
            line = json.dumps({"seq": self._seq, "at": self._clock(), "text": text})
            self._file.write(line + "\n")
        self._file.flush()
        return list(range(first, self._seq + 1))

    def close(self) -> None:
        super().close()
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _decode(self, line: bytes) -> Row | None:
        try:
            return msgspec.json.decode(line, type=Row)
        except ValueError:
            return None


# --- recovery


class NeverSeals(Careful):
    """Writes on behind a torn tail, which swallows the next record."""

    def _seal(self) -> tuple[int, int, int]:
        part = self._last_part()
        path = self._path(part)
        data = path.read_bytes() if path.exists() else b""
        return part, len(data), self._number(data[: data.rfind(b"\n") + 1], part)


class TrustsNewlines(NeverSeals):
    """Takes a line that ends in a newline for whole."""

    def _seal(self) -> tuple[int, int, int]:
        part, size, _ = super()._seal()
        path = self._path(part)
        data = path.read_bytes() if path.exists() else b""
        keep = data.rfind(b"\n") + 1
        if keep < size:
            self._repair(part, keep, data[keep:])
        return part, keep, data.count(b"\n")


class CutsAndForgets(Careful):
    """Cuts a torn tail off without keeping its bytes."""

    def _set_aside(self, part: int, keep: int, torn: bytes) -> None:
        pass


class SetsAsideTooLate(Careful):
    """Cuts a torn tail off first, then keeps its bytes."""

    def _repair(self, part: int, keep: int, torn: bytes) -> None:
        self._cut(part, keep)
        self._set_aside(part, keep, torn)


class TrustsTheDead(Careful):
    """Goes on behind records that a killed writer may not have synced."""

    def _sync_others(self, part: int) -> None:
        pass


# --- writing


class TrustsWrites(Careful):
    """Does not look how much a write wrote."""

    def _write(self, descriptor: int, data: bytes) -> None:
        os.write(descriptor, data)


class NeverSyncs(Careful):
    """Leaves it to the kernel when bytes reach the disk."""

    def _sync(self, descriptor: int) -> None:
        pass


class ForgetsNames(Careful):
    """Syncs files, but not the directory that holds their names."""

    def _sync_names(self, directory: Path) -> None:
        pass


class RetriesFsync(Careful):
    """Asks again when a sync failed; the second answer is yes, and the data is gone."""

    def _sync(self, descriptor: int) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError:
            os.fdatasync(descriptor)


class PointsAtPart(Careful):
    """Keeps the number of the current part in a file that it rewrites in place."""

    def __init__(self, root: Path, options: Options = USUAL) -> None:
        super().__init__(root, options)
        if not (self.root / "current").exists():
            self._roll(1)

    def _roll(self, part: int) -> int:
        (self.root / "current").write_text(str(part))
        return part

    def _last_part(self) -> int:
        return int((self.root / "current").read_text())


class OrdersByTime(Careful):
    """Sorts by the clock."""

    def messages(self) -> list[tuple[int, str]]:
        rows = sorted((row for row in self._rows() if row), key=lambda row: row.at)
        return [(row.seq, row.text) for row in rows]


# --- several processes


class NumbersWithoutLock(Careful):
    """Reads the last number and writes the next one, and another may do so in between."""

    @contextmanager
    def _held(self) -> Iterator[None]:
        yield


class WritesTwice(NumbersWithoutLock):
    """Writes a record in two pieces; another's may come in between."""

    def _write(self, descriptor: int, data: bytes) -> None:
        super()._write(descriptor, data[:-19])
        os.sched_yield()  # on a busy machine the pieces would rarely be apart otherwise
        super()._write(descriptor, data[-19:])


class KeepsLockAcrossFork(Careful):
    """Uses a descriptor of before fork(): parent and children hold one lock together."""

    @contextmanager
    def _held(self) -> Iterator[None]:
        self._pid = os.getpid()
        with super()._held():
            yield


class KeepsThreadLockAcrossFork(Careful):
    """Keeps threads apart by a lock that a child inherits as it was, held or not."""

    def __init__(self, root: Path, options: Options = USUAL) -> None:
        super().__init__(root, options)
        self._mutex = threading.Lock()

    def append_many(self, texts: Sequence[str]) -> list[int]:
        with self._mutex:
            return super().append_many(texts)


class LocksByFile(Careful):
    """Holds a lock by the existence of a file, which outlives its holder."""

    @contextmanager
    def _held(self) -> Iterator[None]:
        path = self.root / "lock.pid"
        deadline = time.monotonic() + self.options.lock_seconds
        while True:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
                break
            except FileExistsError:
                if time.monotonic() > deadline:
                    raise Busy("somebody holds the lock") from None
                time.sleep(0.001)
        try:
            yield
        finally:
            path.unlink()


# --- deleting


class DeletesInPlace(Careful):
    """Unlinks the files of a log one by one where they are."""

    def delete(self) -> None:
        empty(self.root)


class KeepsLogOpen(Careful):
    """Writes to the file that it once opened, wherever that is by now."""

    _log = -1

    def _seal(self) -> tuple[int, int, int]:
        return self._left if self._log >= 0 else super()._seal()

    def _put(self, part: int, size: int, data: bytes) -> None:
        if self._log < 0:
            self._log = os.open(self._path(part), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._write(self._log, data)
        self._sync(self._log)

    def close(self) -> None:
        super().close()
        if self._log >= 0:
            os.close(self._log)


def _all(kind: type[Careful]) -> Iterator[type[Careful]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _all(one)


TWINS = {kind.__name__: kind for kind in _all(Careful)}  # and the control
