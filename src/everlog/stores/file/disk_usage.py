"""The disk usage of a root, measured on demand."""

from __future__ import annotations

import os
from collections.abc import Iterable
from heapq import nlargest
from pathlib import Path

from everlog.ports import DiskUsage, SessionRow
from everlog.ports.queries import LargeSession, StorageArea


def measure_disk_usage(root: Path, rows: Iterable[SessionRow], biggest: int) -> DiskUsage:
    """Measure the disk usage of a root; `rows` are all its sessions."""
    listed = list(rows)
    largest = nlargest(max(biggest, 0), listed, key=lambda row: (row.bytes, row.id))
    return DiskUsage(
        sessions=len(listed),
        records=sum(row.metadata.through.seq for row in listed),
        bytes=sum(row.bytes for row in listed),
        rooms=tuple(_measure_areas(root)),
        biggest=tuple(
            LargeSession(row.id, row.metadata.display_title, row.bytes, row.metadata.through.seq) for row in largest
        ),
    )


def _measure_areas(root: Path) -> list[StorageArea]:
    """Return the entries of a root, each with the bytes of everything below it."""
    sizes: dict[str, int] = {}
    with os.scandir(root) as entries:
        for entry in entries:
            name = entry.name.removesuffix("-wal").removesuffix("-shm")
            size = (
                _directory_bytes(entry.path)
                if entry.is_dir(follow_symlinks=False)
                else entry.stat(follow_symlinks=False).st_size
            )
            sizes[name] = sizes.get(name, 0) + size
    areas = (StorageArea(name, size) for name, size in sizes.items())
    return sorted(areas, key=lambda area: (-area.bytes, area.name))


def _directory_bytes(directory: str) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue  # deleted meanwhile
    return total
