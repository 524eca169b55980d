"""Cut a file into pieces, so that one that grew costs about what it grew by.

A file is cut at every 4 MB. The last block, which is not full, may be several pieces: what a
growing log has added becomes a piece of its own, and pieces are joined like the digits of a
binary counter, so that there are few of them and each byte is written again only a few times. A
full block is always one piece, wherever it came from: equal beginnings are stored once.

What is taken is the file as long as it was when it was opened. If it was changed while it was
read, it is read again, and taken only if that gives the same bytes.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from hashlib import sha256
from typing import NamedTuple

from everlog.errors import ConflictError, StoreFailedError
from everlog.interop.archive.manifest import Piece
from everlog.interop.archive.objects import BLOCK
from everlog.interop.archive.source_scan import Seen, seen

TRIES = 3
TICK_NS = 20_000_000  # within so much two changes of a file may leave the same time on it

Keep = Callable[[memoryview], str]  # stores bytes, gives the name of their object
Submit = Callable[[memoryview, Sequence[Piece]], "Future[list[Piece]]"]


class Taken(NamedTuple):
    """A file that was read; its pieces are there when their futures are done."""

    seen: Seen
    mode: int
    sha256: str
    blocks: list[Future[list[Piece]]]


def take(path: bytes, old: Sequence[Piece], submit: Submit) -> Taken:
    """Read a file and hand its blocks on, each with the pieces that it was stored as before."""
    # O_NONBLOCK: what was a file a moment ago may be a FIFO now.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        for _ in range(TRIES):
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise StoreFailedError("it is no longer a regular file")
            if 0 <= time.time_ns() - before.st_mtime_ns < TICK_NS:
                time.sleep(TICK_NS / 1e9)  # so that a later change shows in the time
                before = os.fstat(descriptor)
            digest, blocks = _read(descriptor, before.st_size, cut(old), submit)
            if digest is not None and _unchanged(descriptor, before, digest):
                return Taken(seen(before), stat.S_IMODE(before.st_mode), digest, blocks)
        raise ConflictError(
            "it was changed each time it was read", hint="it is tried again next time"
        )
    finally:
        os.close(descriptor)


def _read(
    descriptor: int, size: int, old: Sequence[Sequence[Piece]], submit: Submit
) -> tuple[str | None, list[Future[list[Piece]]]]:
    whole = sha256()
    blocks: list[Future[list[Piece]]] = []
    for number, start in enumerate(range(0, size, BLOCK)):
        data = _block(descriptor, start, min(BLOCK, size - start))
        if data is None:
            return None, blocks
        blocks.append(submit(data, old[number] if number < len(old) else ()))
        whole.update(data)
    return whole.hexdigest(), blocks


def _block(descriptor: int, start: int, size: int) -> memoryview | None:
    """So many bytes; None if the file has become shorter."""
    data = os.pread(descriptor, size, start)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), start + len(data))
        if not more:
            return None
        data += more
    return memoryview(data)


def _unchanged(descriptor: int, before: os.stat_result, digest: str) -> bool:
    after = os.fstat(descriptor)
    if (after.st_size, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ctime_ns,
    ):
        return True
    again = sha256()
    for start in range(0, before.st_size, BLOCK):
        data = _block(descriptor, start, min(BLOCK, before.st_size - start))
        if data is None:
            return False
        again.update(data)
    return again.hexdigest() == digest


def cut(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces of a file by the block that they are in."""
    blocks: list[list[Piece]] = []
    end = 0
    for piece in pieces:
        if end % BLOCK == 0:
            blocks.append([])
        blocks[-1].append(piece)
        end += piece.size
    return blocks


def keep_block(data: memoryview, old: Sequence[Piece], keep: Keep, *, recheck: bool) -> list[Piece]:
    """Store a block as what it was before, if it still begins with that, and what is new."""
    known = sum(piece.size for piece in old)
    if known > len(data) or not _begins_with(data, old):
        old, known = (), 0
    if known == len(data) and not recheck:
        return list(old)
    kept = list(old)
    start, end = known, len(data)
    if end == BLOCK:
        kept, start = [], 0
    while kept and kept[-1].size < 2 * (end - start):
        start -= kept.pop().size
    if recheck:
        at = 0
        for piece in kept:
            keep(data[at : at + piece.size])
            at += piece.size
    if start < end:
        kept.append(Piece(keep(data[start:]), end - start))
    return kept


def _begins_with(data: memoryview, old: Sequence[Piece]) -> bool:
    at = 0
    for piece in old:
        if sha256(data[at : at + piece.size]).hexdigest() != piece.object:
            return False
        at += piece.size
    return True
