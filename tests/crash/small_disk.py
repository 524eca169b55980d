"""A small file system on a loop device: it can be filled, made read-only, and given room again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.crash.sample_records import mounted

Snapshot = dict[str, tuple[int, int, int]]


class SmallDisk:
    """An ext4 file system of a few megabytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, *, but: int = 0) -> None:
        """Take all room, to the last block, but for some bytes."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1024):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue
            file.truncate(file.tell() - but)

    def free(self) -> None:
        """Give the room back, and allow writing."""
        self.remount("rw")
        self._ballast.unlink(missing_ok=True)

    def remount(self, mode: str) -> None:
        """Mount it again, "ro" or "rw"."""
        subprocess.run(["mount", "-o", f"remount,{mode}", self.path], check=True)

    def snapshot(self) -> Snapshot:
        """Every file and directory, with inode, size and time of its last change."""
        paths = [path for path in self.path.rglob("*") if path != self._ballast]
        return {os.fspath(path): _state(path.lstat()) for path in sorted(paths)}


def _state(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def small_disk(folder: Path, megabytes: int = 24) -> Iterator[SmallDisk]:
    """Make a small disk and mount it; skip where nothing can be mounted.

    Its blocks have 1 KiB: a page of SQLite's shared memory is then four of them, and one that has
    no block yet when the disk is full is a signal and no error.
    """
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing (apt-get install e2fsprogs)")
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-b", "1024", "-m", "0", image], check=True)
    with mounted(folder / "disk", "-o", "loop", os.fspath(image)):
        yield SmallDisk(folder / "disk")
