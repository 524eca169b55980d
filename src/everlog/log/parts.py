"""The parts of a log: their file names, and when a log rolls over into the next one."""

from __future__ import annotations

import re

# Markers and synthetic results may go this far over the total limit: a full session can still
# be rewound, compacted and closed properly.
MARKER_BYTES = 1_000_000

_NAME = re.compile(r"session(?:_part([1-9]\d{0,5}))?\.jsonl")


def part_name(number: int) -> str:
    """Return the file name of a part; the first has no number in it."""
    return "session.jsonl" if number == 1 else f"session_part{number}.jsonl"


def part_number(name: str) -> int | None:
    """Return the number of a part from its file name, or None if the file is not a part."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    number = int(match[1] or 1)
    return number if part_name(number) == name else None


def split_at_boundary(lines: list[bytes], used_bytes: int, limit: int) -> list[list[bytes]]:
    """Group the lines of one append by part; `used_bytes` is the size of the current part.

    The first list, possibly empty, is for the current part. An empty part takes any line.
    """
    groups: list[list[bytes]] = [[]]
    for line in lines:
        size = len(line) + 1
        if used_bytes and used_bytes + size > limit:
            groups.append([])
            used_bytes = 0
        groups[-1].append(line)
        used_bytes += size
    return groups
