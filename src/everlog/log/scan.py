"""Scans of bytes for lines: forward, backward and by bisection, in bounded memory.

The bytes come from a `pread`-like function, so that any store can use this. Lines end at `\\n`
and nothing else. Bytes after the last newline are not a line: a writer is at work, or has died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO

from everlog.log.line_codec import peek_seq

Pread = Callable[[int, int], bytes]  # (length, offset); shorter only at the end of the file
ScannedLine = tuple[int, int, bytes | None]  # start, end without newline, bytes (None: too long)

# A longer line is reported, never decoded. Far above the limit for writers.
READ_CAP = 50_000_000
_CHUNK = 1 << 18
_SMALL_CHUNK = 1 << 16


def split(data: bytes) -> list[bytes]:
    """Return `data.split(b"\\n")`, in half the time: long lines are searched by memchr."""
    end = data.rfind(b"\n") + 1
    lines = [line[:-1] for line in BytesIO(data[:end]).readlines()]
    lines.append(data[end:])
    return lines


def forward(pread: Pread, start: int, end: int, cap: int = READ_CAP) -> Iterator[ScannedLine]:
    """Yield the terminated lines between two offsets; `start` must be the start of a line."""
    chunks: list[bytes] = []  # of a line whose end is not read yet
    length = 0
    position = start
    while position < end:
        data = pread(min(_CHUNK, end - position), position)
        if not data:
            return
        position += len(data)
        lines = split(data)
        if len(lines) > 1:
            stop = start + length + len(lines[0])
            if stop - start > cap:
                yield start, stop, None
            else:
                yield start, stop, b"".join((*chunks, lines[0])) if chunks else lines[0]
            start = stop + 1
            for line in lines[1:-1]:
                stop = start + len(line)
                yield start, stop, line
                start = stop + 1
            chunks, length = [], 0
        if lines[-1]:
            length += len(lines[-1])
            if length <= cap:
                chunks.append(lines[-1])
            else:
                chunks = []  # too long: only its length matters now


def backward(pread: Pread, end: int, cap: int = READ_CAP) -> Iterator[ScannedLine]:
    """Yield the terminated lines before an offset, last first."""
    chunks: list[bytes] = []  # of a line whose start is not read yet, last chunk first
    length = 0
    terminated = False  # whether a newline follows the chunks
    chunk_size = _SMALL_CHUNK
    position = end
    while position > 0:
        size = min(chunk_size, position)
        position -= size
        data = pread(size, position)
        chunk_size = _CHUNK
        stop = position + len(data) + length  # where the current line ends
        lines = data.split(b"\n")
        while len(lines) > 1:
            line = lines.pop()
            begin = stop - length - len(line)
            if terminated:
                if stop - begin > cap:
                    yield begin, stop, None
                else:
                    chunks.append(line)
                    yield begin, stop, b"".join(reversed(chunks))
            terminated = True
            stop = begin - 1
            chunks, length = [], 0
        length += len(lines[0])
        if length <= cap:
            chunks.append(lines[0])
        else:
            chunks = []
    if terminated:
        yield 0, length, None if length > cap else b"".join(reversed(chunks))


def find_terminated_end(pread: Pread, end: int) -> int:
    """Return the offset after the last newline before `end`; `end` if nothing follows it."""
    position = end
    chunk_size = _SMALL_CHUNK
    while position > 0:
        size = min(chunk_size, position)
        position -= size
        newline = pread(size, position).rfind(b"\n")
        if newline >= 0:
            return position + newline + 1
        chunk_size = _CHUNK
    return 0


def seek(pread: Pread, end: int, seq: int) -> int:
    """Return the start of a line from which a forward scan meets every record from `seq` on.

    Relies on seq growing with the offset; does about log2(size) short reads.
    """
    low, high = 0, end
    while high - low > _SMALL_CHUNK:
        middle = (low + high) // 2
        start, middle_seq = _next_seq(pread, middle, high)
        if middle_seq is not None and middle_seq < seq:
            low = start
        else:
            high = middle
    return low


def _next_seq(pread: Pread, offset: int, end: int) -> tuple[int, int | None]:
    """Return the start and seq of the first line after an offset that has a seq."""
    data = b""
    position = offset
    while position < end:
        more = pread(min(_SMALL_CHUNK, end - position), position)
        if not more:
            break
        position += len(more)
        data += more
        begin = data.find(b"\n") + 1
        while begin:
            after = data.find(b"\n", begin)
            if after < 0:
                break
            seq = peek_seq(data[begin:after])
            if seq is not None:
                return offset + begin, seq
            begin = after + 1
    return end, None
