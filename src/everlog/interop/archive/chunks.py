"""Cutting files into chunks, so that a file that grew costs about what it grew by.

A file is cut into blocks of 4 MB. The last block, which is not full, may be several chunks: the
lines added to a growing log become a chunk of their own, and chunks are merged like the digits of a
binary counter, so that there are few of them and each byte is rewritten only a few times. A full
block is always one chunk, however it came about: equal beginnings are stored once.

A file is read up to the size that it had when it was opened. If it changes during the read, it is
read again, and accepted only if that gives the same bytes.
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
from everlog.interop.archive.manifest import Chunk
from everlog.interop.archive.objects import BLOCK_BYTES
from everlog.interop.archive.source_scan import FileStat, file_stat

MAX_ATTEMPTS = 3
TICK_NS = 20_000_000  # two changes within this time may leave the same mtime

StoreBytes = Callable[[memoryview], str]  # stores bytes and returns the name of their object
Submit = Callable[[memoryview, Sequence[Chunk]], "Future[list[Chunk]]"]


class FileContent(NamedTuple):
    """A file that was read; the futures give the chunks of its blocks."""

    stat: FileStat
    mode: int
    sha256: str
    blocks: list[Future[list[Chunk]]]


def read_file(path: bytes, old_chunks: Sequence[Chunk], submit: Submit) -> FileContent:
    """Read a file and submit its blocks, each with the chunks that it was stored as before."""
    # O_NONBLOCK: the file may have been replaced by a FIFO.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        for _ in range(MAX_ATTEMPTS):
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise StoreFailedError("not a regular file any more")
            if 0 <= time.time_ns() - before.st_mtime_ns < TICK_NS:
                time.sleep(TICK_NS / 1e9)  # so that a later change shows in the mtime
                before = os.fstat(descriptor)
            digest, blocks = _read_blocks(descriptor, before.st_size, group_by_block(old_chunks), submit)
            if digest is not None and _is_unchanged(descriptor, before, digest):
                return FileContent(file_stat(before), stat.S_IMODE(before.st_mode), digest, blocks)
        raise ConflictError("changed during each attempt to read it", hint="the next run tries again")
    finally:
        os.close(descriptor)


def _read_blocks(
    descriptor: int, size: int, old_blocks: Sequence[Sequence[Chunk]], submit: Submit
) -> tuple[str | None, list[Future[list[Chunk]]]]:
    digest = sha256()
    blocks: list[Future[list[Chunk]]] = []
    for number, start in enumerate(range(0, size, BLOCK_BYTES)):
        data = _read_block(descriptor, start, min(BLOCK_BYTES, size - start))
        if data is None:
            return None, blocks
        blocks.append(submit(data, old_blocks[number] if number < len(old_blocks) else ()))
        digest.update(data)
    return digest.hexdigest(), blocks


def _read_block(descriptor: int, start: int, size: int) -> memoryview | None:
    """Read exactly `size` bytes; None if the file has become shorter."""
    data = os.pread(descriptor, size, start)
    while len(data) < size:
        more = os.pread(descriptor, size - len(data), start + len(data))
        if not more:
            return None
        data += more
    return memoryview(data)


def _is_unchanged(descriptor: int, before: os.stat_result, digest: str) -> bool:
    after = os.fstat(descriptor)
    if (after.st_size, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ctime_ns,
    ):
        return True
    second_digest = sha256()
    for start in range(0, before.st_size, BLOCK_BYTES):
        data = _read_block(descriptor, start, min(BLOCK_BYTES, before.st_size - start))
        if data is None:
            return False
        second_digest.update(data)
    return second_digest.hexdigest() == digest


def group_by_block(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Group the chunks of a file by the block that they are in."""
    blocks: list[list[Chunk]] = []
    end = 0
    for chunk in chunks:
        if end % BLOCK_BYTES == 0:
            blocks.append([])
        blocks[-1].append(chunk)
        end += chunk.size
    return blocks


def store_block(
    data: memoryview, old_chunks: Sequence[Chunk], store_bytes: StoreBytes, *, recheck: bool
) -> list[Chunk]:
    """Store a block: its old chunks, if it still begins with them, and one for the new bytes."""
    old_size = sum(chunk.size for chunk in old_chunks)
    if old_size > len(data) or not _begins_with(data, old_chunks):
        old_chunks, old_size = (), 0
    if old_size == len(data) and not recheck:
        return list(old_chunks)
    chunks = list(old_chunks)
    start, end = old_size, len(data)
    if end == BLOCK_BYTES:
        chunks, start = [], 0
    while chunks and chunks[-1].size < 2 * (end - start):
        start -= chunks.pop().size
    if recheck:
        offset = 0
        for chunk in chunks:
            store_bytes(data[offset : offset + chunk.size])
            offset += chunk.size
    if start < end:
        chunks.append(Chunk(store_bytes(data[start:]), end - start))
    return chunks


def _begins_with(data: memoryview, chunks: Sequence[Chunk]) -> bool:
    offset = 0
    for chunk in chunks:
        if sha256(data[offset : offset + chunk.size]).hexdigest() != chunk.object:
            return False
        offset += chunk.size
    return True
