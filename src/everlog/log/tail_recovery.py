"""Diagnosis of a part's tail after a crash. Pure; the store acts on it.

Torn is a last line without newline, or one with a bad crc and NUL bytes (a power cut can keep
the newline and lose the blocks before it). Neither was ever acknowledged. A complete line that
only lacks its newline is kept. A terminated line with a bad crc and no NUL is damage: it may have
been acknowledged, so it stays, and its seq is not reused.
"""

from __future__ import annotations

import msgspec

from everlog.log.line_codec import crc_matches, decode
from everlog.log.scan import READ_CAP, Pread, backward, find_terminated_end


class TailState(msgspec.Struct, frozen=True):
    """The state of one part's tail."""

    lines_end: int  # bytes before it are terminated lines
    torn: bool = False  # what follows `lines_end` must be quarantined, then cut
    complete: bool = False  # what follows is a complete line that lacks its newline


def examine_tail(pread: Pread, size: int) -> TailState:
    """Diagnose the tail of a part of `size` bytes; the cost depends on its last lines only."""
    lines_end = find_terminated_end(pread, size)
    remainder = pread(size - lines_end, lines_end) if 0 < size - lines_end <= READ_CAP else b""
    if remainder and crc_matches(remainder):
        return TailState(lines_end, complete=True)
    torn = lines_end < size
    for start, _, line in backward(pread, lines_end):
        if line is None or b"\0" not in line or decode(line).record is not None:
            break
        lines_end, torn = start, True
    return TailState(lines_end, torn=torn)
