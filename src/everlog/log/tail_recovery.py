"""What the end of a part says after a crash: pure diagnosis, the store acts on it.

Torn is a last line without newline, or one with a bad crc and NUL bytes (a power cut can keep
the newline and lose the blocks before it). Neither was ever acknowledged. A whole line that only
lacks its newline is kept. A terminated line with a bad crc and no NUL is damage: it may have
been acknowledged, so it stays, and its number is not given away again.
"""

from __future__ import annotations

import msgspec

from everlog.log.line_codec import crc_matches, decode
from everlog.log.scan import READ_CAP, Pread, backward, unterminated


class Tail(msgspec.Struct, frozen=True):
    """The end of one part."""

    keep: int  # bytes up to here are lines
    torn: bool = False  # what follows `keep` must be set aside, then cut
    complete: bool = False  # what follows `keep` is a whole line that lacks its newline


def examine(pread: Pread, size: int) -> Tail:
    """Diagnose the end of a part of `size` bytes, in time that depends on its last lines."""
    keep = unterminated(pread, size)
    rest = pread(size - keep, keep) if 0 < size - keep <= READ_CAP else b""
    if rest and crc_matches(rest):
        return Tail(keep, complete=True)
    torn = keep < size
    for start, _, line in backward(pread, keep):
        if line is None or b"\0" not in line or decode(line).record is not None:
            break
        keep, torn = start, True
    return Tail(keep, torn=torn)
