"""Crash states: from one trace of a job, all the disks that a power cut could leave.

The model is the least that POSIX promises. Bytes and sizes of a file are durable after a sync of
that file; a name (create, rename, unlink, mkdir) after a sync of its directory; a mode after an
fsync. Whatever is not durable at the cut may be there or not, in any order, and the last write
that survives may be torn. A sync that failed makes nothing durable, and no later one makes good
what was written before it.

`index.db` is a projection that SQLite looks after: it is as it was at the cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

CALLS = (
    "openat,creat,write,pwrite64,writev,fsync,fdatasync,ftruncate,rename,renameat,renameat2,"
    "unlink,unlinkat,rmdir,mkdir,mkdirat,fchmod"
)
TORN = ("whole", "head", "zero", "tail")
_LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_WORD = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PLACE = re.compile(r"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2}|[^<>\\])*)>")

Disk = dict[str, tuple[bytes, int] | None]  # path → bytes and mode; None is a directory


class Op(msgspec.Struct, frozen=True):
    """One change, or one sync."""

    kind: str
    inode: int = 0  # of the file, or of the directory that holds the name
    name: str = ""
    child: int = 0  # what the name stands for
    target: int = 0  # rename: the other directory and the other name
    new_name: str = ""
    offset: int = 0  # also: size, mode
    data: bytes = b""


class State(NamedTuple):
    """A disk after a cut, and what had been promised by then."""

    disk: Disk
    told: list[str]
    gap: bool  # the head of a write of several lines is lost and its last lines are not
    why: str


class History:
    """What jobs did to a folder, as operations on inodes."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.ops: list[Op] = []
        self._last = 0  # inode; 0 is the folder
        self._directories: dict[int, dict[str, int]] = {0: {}}  # as of now
        self._sizes: dict[int, int] = {}
        self._files: dict[int, tuple[bytes, int]] = {}  # of the beginning, durable
        self._entries: dict[int, dict[str, int]] = {}  # of the beginning, durable
        self._free: set[int] = set()  # of the index
        self._load(0, folder)
        self._entries = {inode: dict(names) for inode, names in self._directories.items()}

    def _load(self, inode: int, folder: Path) -> None:
        for path in folder.iterdir():
            child = self._new(inode, path.name)
            if path.is_dir():
                self._directories[child] = {}
                self._load(child, path)
            else:
                self._files[child] = path.read_bytes(), path.stat().st_mode & 0o777
                self._sizes[child] = path.stat().st_size

    def _new(self, parent: int, name: str) -> int:
        self._last += 1
        self._directories[parent][name] = self._last
        if name.startswith("index.db"):
            self._free.add(self._last)
        return self._last

    # --- from a trace to operations

    def read(self, trace: Path) -> None:
        """Go on with what a trace tells."""
        for line in trace.read_text(errors="replace").splitlines():
            match = _LINE.match(line)
            if match is None:
                continue
            call, arguments, result = match.groups()
            if int(result) < 0 and "sync" not in call:
                continue
            self._call(call, arguments, int(result), failed=int(result) < 0)

    def _call(self, call: str, arguments: str, result: int, *, failed: bool) -> None:
        words = [_unhex(word) for word in _WORD.findall(arguments)]
        places = [_unhex(place).decode() for place in _PLACE.findall(arguments)]
        if call in ("write", "writev", "pwrite64"):
            self._write(call, arguments, places[0], b"".join(words)[:result])
            return
        if call in ("fsync", "fdatasync", "ftruncate", "fchmod"):
            found = self._find(places[0])
            if found is None:
                return
            number = arguments.rsplit(",", 1)[-1].strip()
            if call == "ftruncate":
                self._sizes[found] = int(number)
                self._add(Op("cut", found, offset=int(number)))
            elif call == "fchmod":
                self._add(Op("mode", found, offset=int(number, 8)))
            else:
                self._add(Op("failed sync" if failed else call, found))
            return
        names = [os.path.join(places[n] if n < len(places) else "", word.decode()) for n, word in enumerate(words)]
        if call.startswith("rename"):
            self._rename(*names)
        elif call in ("openat", "creat"):
            self._open(names[0], arguments)
        elif call.startswith("mkdir"):
            place = self._place(names[0])
            if place is not None:
                child = self._new(*place)
                self._directories[child] = {}
                self._add(Op("make directory", place[0], place[1], child))
        else:
            place = self._place(names[0])
            if place is not None and place[1] in self._directories[place[0]]:
                child = self._directories[place[0]].pop(place[1])
                self._add(Op("unlink", place[0], place[1], child))

    def _write(self, call: str, arguments: str, place: str, data: bytes) -> None:
        found = self._find(place)
        if found is None:
            if call == "writev":
                self.ops += [Op("told", name=line) for line in data.decode().splitlines()]
            return
        size = self._sizes.get(found, 0)
        offset = int(arguments.rsplit(",", 1)[-1]) if call == "pwrite64" else size
        self._sizes[found] = max(size, offset + len(data))
        self._add(Op("data", found, offset=offset, data=data))

    def _open(self, name: str, arguments: str) -> None:
        place = self._place(name)
        if place is None:
            return
        found = self._directories[place[0]].get(place[1])
        if found is None and "O_CREAT" in arguments and not name.endswith("-shm"):
            found = self._new(*place)
            self._sizes[found] = 0
            self._add(Op("create", place[0], place[1], found))
        elif found is not None and "O_TRUNC" in arguments:
            self._sizes[found] = 0
            self._add(Op("cut", found, offset=0))

    def _rename(self, name: str, new: str) -> None:
        place, target = self._place(name), self._place(new)
        if place is None or target is None:
            return
        child = self._directories[place[0]].pop(place[1])
        self._directories[target[0]][target[1]] = child
        self._add(Op("rename", place[0], place[1], child, target[0], target[1]))

    def _add(self, op: Op) -> None:
        self.ops.append(op)

    def _place(self, path: str) -> tuple[int, str] | None:
        """The inode of the directory that a path is in, and its name there."""
        parent, _, name = path.rpartition("/")
        inode = self._find(parent)
        return None if inode is None or inode not in self._directories else (inode, name)

    def _find(self, path: str) -> int | None:
        if path != self._folder and not path.startswith(f"{self._folder}/"):
            return None
        inode: int | None = 0
        for name in path[len(self._folder) :].split("/")[1:]:
            inode = self._directories.get(inode if inode is not None else -1, {}).get(name)
        return inode

    # --- from operations to disks

    def states(self, begin: int = 0) -> Iterator[State]:
        """Every different disk, each with the most that can have been promised before it.

        `begin`: cuts come after so many operations.
        """
        seen = set()
        durable_at = [self._durable_at(n, op) for n, op in enumerate(self.ops)]
        for cut in range(len(self.ops), begin, -1):
            changes = [n for n in range(cut) if self.ops[n].kind in _CHANGES]
            sure = [n for n in changes if durable_at[n] < cut]
            open_ = [n for n in changes if durable_at[n] >= cut]
            for kept in _choices(open_):
                last = max(kept, default=-1)
                for torn in TORN if last >= 0 and self.ops[last].kind == "data" else TORN[:1]:
                    disk = self._disk(sorted({*sure, *kept}), last if torn != "whole" else -1, torn)
                    key = hash(tuple(sorted(_but_index(disk).items())))
                    if key in seen:
                        continue
                    seen.add(key)
                    told = [op.name for op in self.ops[:cut] if op.kind == "told"]
                    gap = torn == "tail" and self.ops[last].data.count(b"\n") > 1
                    story = ", ".join(map(self._describe, kept))
                    yield State(disk, told, gap, f"cut after {self._describe(cut - 1)}; {torn}: {story}")

    def _describe(self, number: int) -> str:
        op = self.ops[number]
        return f"{number}:{op.kind} {op.inode} {op.new_name or op.name}".strip()

    def _durable_at(self, number: int, op: Op) -> int:
        """The number of the sync that makes a change durable; beyond all if none does."""
        if op.inode in self._free or op.child in self._free:
            return number
        files = op.kind in ("data", "cut", "mode")
        where = {op.inode} if op.kind != "rename" else {op.inode, op.target}
        for n in range(number + 1, len(self.ops)):
            sync = self.ops[n]
            if sync.inode not in where:
                continue
            if sync.kind == "failed sync" and files:
                break
            if sync.kind == "fsync" or (sync.kind == "fdatasync" and op.kind != "mode"):
                return n
        return len(self.ops) + 1

    def _disk(self, numbers: list[int], torn: int, how: str) -> Disk:
        entries = {inode: dict(names) for inode, names in self._entries.items()}
        data = {inode: bytearray(content) for inode, (content, _) in self._files.items()}
        modes = {inode: mode for inode, (_, mode) in self._files.items()}
        for number in numbers:
            op = self.ops[number]
            names = entries.setdefault(op.inode, {}) if op.kind in _NAMES else {}
            if op.kind == "make directory":
                names[op.name] = op.child
                entries.setdefault(op.child, {})
            elif op.kind == "create":
                names[op.name] = op.child
            elif op.kind == "unlink":
                if names.get(op.name) == op.child:
                    del names[op.name]
            elif op.kind == "rename":
                if names.get(op.name) == op.child:
                    del names[op.name]
                entries.setdefault(op.target, {})[op.new_name] = op.child
            elif op.kind == "mode":
                modes[op.inode] = op.offset
            else:
                _apply(data.setdefault(op.inode, bytearray()), op, how if number == torn else "whole")
        directories = {*entries, *self._directories}
        disk: Disk = {}

        def walk(inode: int, path: str) -> None:
            for name, child in entries.get(inode, {}).items():
                if child in directories:
                    disk[f"{path}{name}"] = None
                    walk(child, f"{path}{name}/")
                else:
                    disk[f"{path}{name}"] = bytes(data.get(child, b"")), modes.get(child, 0o600)

        walk(0, "")
        return disk


_NAMES = frozenset({"make directory", "create", "unlink", "rename"})
_CHANGES = _NAMES | {"data", "cut", "mode"}


def _choices(numbers: list[int]) -> Iterator[tuple[int, ...]]:
    """Which of the open changes survive: the first ones, one alone, all but one."""
    for n in range(len(numbers), -1, -1):
        yield tuple(numbers[:n])
    for one in numbers:
        yield (one,)
        yield tuple(number for number in numbers if number != one)


def _apply(data: bytearray, op: Op, how: str) -> None:
    if op.kind == "cut":
        data.extend(bytes(max(0, op.offset - len(data))))
        del data[op.offset :]
        return
    new, half = op.data, len(op.data) // 2
    if how == "head":
        new = new[:half]
    elif how == "zero":
        new = new[:half] + bytes(len(new) - half)
    elif how == "tail":
        new = bytes(half) + new[half:]
    data.extend(bytes(max(0, op.offset - len(data))))
    data[op.offset : op.offset + len(new)] = new


def _but_index(disk: Disk) -> Disk:
    """What makes a disk different from others; the index is rebuilt from it."""
    return {path: content for path, content in disk.items() if "/index.db" not in path}


def write_disk(disk: Disk, folder: Path) -> None:
    """Make a disk real."""
    folder.mkdir()
    for path, content in sorted(disk.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content[0])
            (folder / path).chmod(content[1])


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()
