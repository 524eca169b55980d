"""Naive twins: logs that are wrong on purpose, so that every crash test is seen to fail.

`Careful` is a small log without a known fault, the control. Every twin is the same log with one
care left out: a test that a twin passes does not test that care.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO
from zlib import crc32

import msgspec

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT


class Options(msgspec.Struct, frozen=True):
    """What a log is opened with, ours and the twins'."""

    part_bytes: int = 50_000_000
    lock_seconds: float = 5.0


class Busy(Exception):
    """Somebody else holds the lock."""


class Careful:
    """Appends lines to `{root}/twin/log.<part>`, with all care."""

    def __init__(
        self, root: Path, options: Options = Options(), clock: Callable[[], float] = time.time
    ) -> None:
        self.root = root / "twin"
        self.options = options
        self._clock = clock
        made = [path for path in (self.root, *self.root.parents) if not path.exists()]
        self.root.mkdir(parents=True, exist_ok=True)
        for path in made:
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
        return [(row["seq"], row["text"]) for row in self._rows() if row is not None]

    def damage(self) -> list[str]:
        """What is wrong with the log."""
        return [f"line {n} cannot be read" for n, row in enumerate(self._rows()) if row is None]

    def delete(self) -> None:
        """Remove the whole log: moved away first, so that it is there or gone."""
        grave = self.root.with_name("trash")
        os.rename(self.root, grave)
        self._sync_names(grave.parent)
        _empty(grave)

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
            if self._decode(data[start:keep]) is not None:
                break
            keep = start
        if keep < size:
            self._repair(part, keep, data[keep:])
        if size:
            self._sync_others(part)
        return part, keep, self._number(data[:keep], part)

    def _sync_others(self, part: int) -> None:
        """Who wrote this may have died before its sync; our records must not outlive it."""
        descriptor = os.open(self._path(part), os.O_RDWR)
        os.fdatasync(descriptor)
        os.close(descriptor)
        self._sync_names(self.root)

    def _repair(self, part: int, keep: int, torn: bytes) -> None:
        self._set_aside(part, keep, torn)
        self._cut(part, keep)

    def _number(self, data: bytes, part: int) -> int:
        """The last number in a part, or in the one before."""
        while not data and part > 1:
            part -= 1
            data = self._path(part).read_bytes()
        row = self._decode(data[data.rfind(b"\n", 0, -1) + 1 :]) if data else None
        return row["seq"] if row else 0

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

    def _line(self, seq: int, text: str) -> bytes:
        body = json.dumps({"seq": seq, "at": self._clock(), "text": text}).encode()[:-1]
        return b'%b,"crc":"%08x"}\n' % (body, crc32(body))

    def _decode(self, line: bytes) -> dict[str, Any] | None:
        line = line.rstrip(b"\n")
        if line[-18:] != b',"crc":"%08x"}' % crc32(line[:-18]):
            return None
        return json.loads(line)

    def _roll(self, part: int) -> int:
        return part

    def _put(self, part: int, size: int, data: bytes) -> None:
        descriptor = os.open(self._path(part), _APPEND, 0o600)
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

    # --- where things are

    def _path(self, part: int) -> Path:
        return self.root / f"log.{part}"

    def _last_part(self) -> int:
        return max((int(path.name[4:]) for path in self.root.glob("log.*")), default=1)

    def _rows(self) -> list[dict[str, Any] | None]:
        """All lines in order; one that cannot be read is None."""
        paths = [self._path(part) for part in range(1, self._last_part() + 1)]
        data = b"".join(path.read_bytes() for path in paths if path.exists())
        return [self._decode(line) for line in data.split(b"\n")[:-1]]


# --- the twins: each leaves one care out


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

    def _decode(self, line: bytes) -> dict[str, Any] | None:
        try:
            return json.loads(line)
        except ValueError:
            return None


class NeverSeals(Careful):
    """Writes on behind a torn tail, which swallows the next record."""

    def _seal(self) -> tuple[int, int, int]:
        part = self._last_part()
        path = self._path(part)
        data = path.read_bytes() if path.exists() else b""
        return part, len(data), self._number(data[: data.rfind(b"\n") + 1], part)


class CutsAndForgets(Careful):
    """Cuts a torn tail off without keeping its bytes."""

    def _set_aside(self, part: int, keep: int, torn: bytes) -> None:
        pass


class SetsAsideTooLate(Careful):
    """Cuts a torn tail off first, then keeps its bytes."""

    def _repair(self, part: int, keep: int, torn: bytes) -> None:
        self._cut(part, keep)
        self._set_aside(part, keep, torn)


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


class TrustsTheDead(Careful):
    """Goes on behind records that a killed writer may not have synced."""

    def _sync_others(self, part: int) -> None:
        pass


class RetriesFsync(Careful):
    """Asks again when a sync failed; the second answer is yes, and the data is gone."""

    def _sync(self, descriptor: int) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError:
            os.fdatasync(descriptor)


class OrdersByTime(Careful):
    """Sorts by the clock."""

    def messages(self) -> list[tuple[int, str]]:
        rows = sorted((row for row in self._rows() if row), key=lambda row: float(row["at"]))
        return [(row["seq"], row["text"]) for row in rows]


class KeepsLockAcrossFork(Careful):
    """Uses a descriptor of before fork(): parent and children hold one lock together."""

    @contextmanager
    def _held(self) -> Iterator[None]:
        self._pid = os.getpid()
        with super()._held():
            yield


class NumbersWithoutLock(Careful):
    """Reads the last number and writes the next one, and another may do so in between."""

    @contextmanager
    def _held(self) -> Iterator[None]:
        yield


class WritesTwice(NumbersWithoutLock):
    """Writes a record in two pieces; another's may come in between."""

    def _write(self, descriptor: int, data: bytes) -> None:
        super()._write(descriptor, data[:-19])
        super()._write(descriptor, data[-19:])


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


class PointsAtPart(Careful):
    """Keeps the number of the current part in a file that it rewrites in place."""

    def __init__(self, root: Path, options: Options = Options()) -> None:
        super().__init__(root, options)
        if not (self.root / "current").exists():
            self._roll(1)

    def _roll(self, part: int) -> int:
        (self.root / "current").write_text(str(part))
        return part

    def _last_part(self) -> int:
        return int((self.root / "current").read_text())


class DeletesInPlace(Careful):
    """Unlinks the files of a log one by one where they are."""

    def delete(self) -> None:
        _empty(self.root)


def _empty(directory: Path) -> None:
    for path in sorted(directory.iterdir()):
        path.unlink()
    directory.rmdir()


def _all(kind: type[Careful]) -> Iterator[type[Careful]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _all(one)


TWINS = {kind.__name__: kind for kind in _all(Careful)}
