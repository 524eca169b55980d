"""What a store keeps, and how much room it takes: counted when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from heapq import nlargest
from pathlib import Path

import msgspec

from everlog.ports import SessionRow


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """A directory or a table, and its bytes."""

    name: str
    bytes: int
    indexes: int = 0  # bytes of its indexes, beside


class Big(msgspec.Struct, frozen=True, rename="camel"):
    """A session that takes much room."""

    session: str
    title: str
    bytes: int
    records: int


class Holdings(msgspec.Struct, frozen=True, rename="camel"):
    """Sessions, their records, and where the bytes are."""

    sessions: int = 0
    records: int = 0
    bytes: int = 0  # of all lines
    version: int = 0  # of the tables; 0: files
    rooms: tuple[Room, ...] = ()
    biggest: tuple[Big, ...] = ()


def holdings(root: Path, rows: Iterable[SessionRow], biggest: int) -> Holdings:
    """Those of a root, by what is listed there."""
    listed = list(rows)
    most = nlargest(max(biggest, 0), listed, key=lambda row: (row.bytes, row.id))
    return Holdings(
        sessions=len(listed),
        records=sum(row.metadata.through.seq for row in listed),
        bytes=sum(row.bytes for row in listed),
        rooms=tuple(_rooms(root)),
        biggest=tuple(
            Big(row.id, row.metadata.title, row.bytes, row.metadata.through.seq) for row in most
        ),
    )


def _rooms(root: Path) -> list[Room]:
    """What lies directly in a root, with all that is below it."""
    found: dict[str, int] = {}
    with os.scandir(root) as entries:
        for entry in entries:
            name = entry.name.removesuffix("-wal").removesuffix("-shm")
            size = (
                _below(entry.path)
                if entry.is_dir(follow_symlinks=False)
                else entry.stat(follow_symlinks=False).st_size
            )
            found[name] = found.get(name, 0) + size
    return sorted((Room(*one) for one in found.items()), key=lambda one: (-one.bytes, one.name))


def _below(directory: str) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue  # gone meanwhile
    return total
