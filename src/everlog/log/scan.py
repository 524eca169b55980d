"""Lines out of bytes, forwards, backwards and by bisection, in bounded memory.

The bytes come from a `pread`-like function, so that any store can use this. Lines end at `\\n`
and nothing else. What follows the last newline is not a line: a writer is still at it, or died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from everlog.log.line_codec import peek_seq

Pread = Callable[[int, int], bytes]  # (length, offset); shorter only at the end of the file
Line = tuple[int, int, bytes | None]  # start, end without newline, the bytes (None: too long)

# A longer line is never decoded, only reported. Far above what a writer may write.
READ_CAP = 50_000_000
_CHUNK = 1 << 18
_NEAR = 1 << 16


def forward(pread: Pread, start: int, end: int, cap: int = READ_CAP) -> Iterator[Line]:
    """The terminated lines between two offsets; `start` is the start of a line."""
    pieces: list[bytes] = []  # of a line whose end was not seen yet
    held = 0
    position = start
    while position < end:
        data = pread(min(_CHUNK, end - position), position)
        if not data:
            return
        position += len(data)
        rows = data.split(b"\n")
        if len(rows) > 1:
            stop = start + held + len(rows[0])
            if stop - start > cap:
                yield start, stop, None
            else:
                yield start, stop, b"".join((*pieces, rows[0])) if pieces else rows[0]
            start = stop + 1
            for row in rows[1:-1]:
                stop = start + len(row)
                yield start, stop, row
                start = stop + 1
            pieces, held = [], 0
        if rows[-1]:
            held += len(rows[-1])
            if held <= cap:
                pieces.append(rows[-1])
            else:
                pieces = []  # too long: only its length matters now


def backward(pread: Pread, end: int, cap: int = READ_CAP) -> Iterator[Line]:
    """The terminated lines before an offset, last first."""
    pieces: list[bytes] = []  # of a line whose start was not seen yet, last piece first
    held = 0
    terminated = False  # whether a newline follows the pieces
    chunk = _NEAR
    position = end
    while position > 0:
        size = min(chunk, position)
        position -= size
        data = pread(size, position)
        chunk = _CHUNK
        stop = position + len(data) + held  # where the line at hand ends
        rows = data.split(b"\n")
        while len(rows) > 1:
            row = rows.pop()
            begin = stop - held - len(row)
            if terminated:
                if stop - begin > cap:
                    yield begin, stop, None
                else:
                    pieces.append(row)
                    yield begin, stop, b"".join(reversed(pieces))
            terminated = True
            stop = begin - 1
            pieces, held = [], 0
        held += len(rows[0])
        if held <= cap:
            pieces.append(rows[0])
        else:
            pieces = []
    if terminated:
        yield 0, held, None if held > cap else b"".join(reversed(pieces))


def unterminated(pread: Pread, end: int) -> int:
    """Where the bytes after the last newline begin; `end` if there are none."""
    position = end
    chunk = _NEAR
    while position > 0:
        size = min(chunk, position)
        position -= size
        found = pread(size, position).rfind(b"\n")
        if found >= 0:
            return position + found + 1
        chunk = _CHUNK
    return 0


def seek(pread: Pread, end: int, seq: int) -> int:
    """The start of a line from which a forward scan meets every record from `seq` on.

    Relies on seq growing with the offset; reads about log2(size) short stretches.
    """
    low, high = 0, end
    while high - low > _NEAR:
        middle = (low + high) // 2
        start, found = _next_seq(pread, middle, high)
        if found is not None and found < seq:
            low = start
        else:
            high = middle
    return low


def _next_seq(pread: Pread, offset: int, end: int) -> tuple[int, int | None]:
    """The first line that starts after an offset and has a seq, and that seq."""
    data = b""
    position = offset
    while position < end:
        more = pread(min(_NEAR, end - position), position)
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
