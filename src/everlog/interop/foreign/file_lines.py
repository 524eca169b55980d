"""The lines and the checksum of a file that its program may be writing to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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


class RunningChecksum:
    """The crc of a file up to the end of a line, of the chunks that are read for its lines."""

    def __init__(self, start: int, crc: int) -> None:
        """`crc` is that of what precedes the offset `start`."""
        self._line_end, self._line_crc = start, crc  # of the last line that was asked for
        self._start, self._start_crc = start, crc  # of the chunk
        self._chunk = memoryview(b"")

    def add(self, chunk: bytes, line_end: int) -> None:
        """Go on to the next chunk; the last line before it ends at an offset."""
        self.up_to(line_end)
        end = self._start + len(self._chunk)
        self._start, self._start_crc, self._chunk = end, self.of_all(), memoryview(chunk)

    def up_to(self, line_end: int) -> int:
        """Return the crc up to the end of the last line."""
        if line_end > self._line_end:
            self._line_end, self._line_crc = line_end, self._extend(line_end)
        return self._line_crc

    def of_all(self) -> int:
        """Return the crc up to the end of the chunk."""
        return self._extend(self._start + len(self._chunk))

    def _extend(self, end: int) -> int:
        start, crc = max((self._start, self._start_crc), (self._line_end, self._line_crc))
        return crc32(self._chunk[start - self._start : end - self._start], crc)


def iter_lines(
    part: int, start: int, chunk_size: int = _CHUNK, on_chunk: Callable[[bytes], None] = lambda chunk: None
) -> Iterator[Line]:
    """Yield complete lines from an offset on; `on_chunk` gets what is read for them.

    A last line without a newline counts if it ends with a complete record. A line above
    MAX_LINE_BYTES is skipped: it is damage to every reader.
    """
    offset, read = start, start
    chunks: list[bytes] = []  # of the line that starts at the offset
    while chunk := os.pread(part, chunk_size, read):
        read += len(chunk)
        on_chunk(chunk)
        first, *lines = scan.split(chunk)
        chunks.append(first)
        if lines:
            lines[:0] = [b"".join(chunks)]
            chunks = [lines.pop()]
        for line in lines:
            yield Line(offset, line)
            offset += len(line) + 1
        if read - offset > MAX_LINE_BYTES:
            yield from _skip_long_line(part, read, on_chunk)
            return
    last = Line(offset, b"".join(chunks), ended=False)
    if last.data.endswith(b"}") and any(row.value is not None for row in parse_records((last,))):
        yield last


def _skip_long_line(part: int, offset: int, on_chunk: Callable[[bytes], None]) -> Iterator[Line]:
    """Yield the lines after one that is too long, without holding it in memory."""
    while chunk := os.pread(part, _CHUNK, offset):
        newline = chunk.find(b"\n")
        if newline >= 0:
            on_chunk(chunk[: newline + 1])
            yield from iter_lines(part, offset + newline + 1, on_chunk=on_chunk)
            return
        on_chunk(chunk)
        offset += len(chunk)
