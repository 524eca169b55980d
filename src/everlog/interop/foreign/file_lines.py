"""The lines and the checksum of a file that its program may be writing to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from zlib import crc32

from everlog.interop.formats.format_types import MAX_LINE_BYTES, Line
from everlog.interop.formats.jsonl import parse_records
from everlog.log import scan

_CHUNK = 1 << 20


def crc_between(part: int, start: int, end: int, crc: int) -> int:
    """Continue a crc with the bytes from one offset to another."""
    while start < end and (chunk := os.pread(part, min(_CHUNK, end - start), start)):
        crc, start = crc32(chunk, crc), start + len(chunk)
    return crc


def iter_lines(part: int, start: int, chunk_size: int = _CHUNK) -> Iterator[Line]:
    """Yield complete lines from an offset on.

    A last line without a newline counts if it ends with a complete record. A line above
    MAX_LINE_BYTES is skipped: it is damage to every reader.
    """
    offset, read = start, start
    chunks: list[bytes] = []  # of the line that starts at the offset
    while chunk := os.pread(part, chunk_size, read):
        read += len(chunk)
        first, *lines = scan.split(chunk)
        chunks.append(first)
        if lines:
            lines[:0] = [b"".join(chunks)]
            chunks = [lines.pop()]
        for line in lines:
            yield Line(offset, line)
            offset += len(line) + 1
        if read - offset > MAX_LINE_BYTES:
            yield from _skip_long_line(part, offset)
            return
    last = Line(offset, b"".join(chunks), ended=False)
    if last.data.endswith(b"}") and any(row.value is not None for row in parse_records((last,))):
        yield last


def _skip_long_line(part: int, start: int) -> Iterator[Line]:
    """Yield the lines after one that is too long, without holding it in memory."""
    offset = start
    while chunk := os.pread(part, _CHUNK, offset):
        newline = chunk.find(b"\n")
        if newline >= 0:
            yield from iter_lines(part, offset + newline + 1)
            return
        offset += len(chunk)
