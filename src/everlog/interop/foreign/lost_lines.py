"""Finding out which of our lines are still in a file that another program rewrote.

Lines may be equal to older ones ("go on"), so only those count that follow the content before ours,
as far as that is still there. They are compared as JSON: a rewrite may order keys differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from everlog.errors import ConflictError

CONTEXT_BYTES = 4096
FIRST_BYTES = 256


class LineContext(NamedTuple):
    """The content of a transcript before our lines, without its metadata line."""

    start: int = 0  # of `last`
    last: bytes = b""  # the last bytes before our lines: whole lines
    first: bytes = b""  # the first bytes of the content


class FileChangedError(ConflictError):
    """Another program changed a file while we wrote to it.

    `lost` are the indexes of the lines that are not in the file, `context` is what precedes them.
    """

    def __init__(self, path: str, lost: Sequence[int] = (), context: LineContext | None = None) -> None:
        super().__init__(
            f"{path} was changed by another program while it was written to", hint="read the session and try again"
        )
        self.lost = frozenset(lost)
        self.context = context or LineContext()


def make_context(start: int, last: bytes, first: bytes) -> LineContext:
    """Make a context of bytes before our lines, which may begin within a line."""
    if start and last:
        cut = last.find(b"\n") + 1
        start, last = start + cut, last[cut:]
    if last and not last.endswith(b"\n"):
        last += b"\n"
    return LineContext(start, last, first)


def find_lost(
    context: LineContext, lines: Sequence[bytes], content: bytes, *, drops_oldest: bool, acknowledged: bool = False
) -> list[int]:
    """Return the indexes of the lines that are missing in the content of a rewritten file.

    `drops_oldest`: its program removes lines at the start, and what it removes so is not lost. That
    may be all of our lines if they were `acknowledged`, and could be read, before.
    """
    later, is_start_gone = _content_after(context, content, drops_oldest=drops_oldest)
    found = Counter(map(_canonical, later.split(b"\n")))
    lost: list[int] = []
    for index, line in enumerate(lines):
        key = _canonical(line)
        if not found[key]:
            lost.append(index)
            continue
        found[key] -= 1
        if is_start_gone:
            lost, is_start_gone = [], False
    return [] if is_start_gone and acknowledged else lost


def _content_after(context: LineContext, content: bytes, *, drops_oldest: bool) -> tuple[bytes, bool]:
    """Return the content in which our lines can be, and whether older lines were removed."""
    if not context.start and content.startswith(context.last):
        return content[len(context.last) :], False
    for suffix in _suffixes(context.last):
        at = content.rfind(suffix)
        while at > 0 and content[at - 1] != 0x0A:
            at = content.rfind(suffix, 0, at + len(suffix) - 1)
        if at >= 0:
            return content[at + len(suffix) :], False
    if not drops_oldest and context.last.startswith(content[context.start :]):
        return b"", False  # it was truncated before our lines
    is_start_gone = bool(content and context.first) and not content.startswith(context.first)
    return content, drops_oldest and is_start_gone


def _suffixes(data: bytes) -> Iterator[bytes]:
    """Yield the last lines: all, then half as many, down to one."""
    lines = data.splitlines(keepends=True)
    count = len(lines)
    while count:
        yield b"".join(lines[-count:])
        count //= 2


def _canonical(line: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(line), order="sorted")
    except (ValueError, RecursionError):
        return line
