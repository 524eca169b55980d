"""The names of a log's parts, and when a log rolls over into the next one."""

from __future__ import annotations

import re

# Markers and synthetic results may go this far over the total limit: a full session can still
# be rewound, compacted and closed properly.
MARKER_BYTES = 1_000_000

_NAME = re.compile(r"session(?:_part([1-9]\d{0,5}))?\.jsonl")


def part_name(number: int) -> str:
    """The file name of a part; the first has no number."""
    return "session.jsonl" if number == 1 else f"session_part{number}.jsonl"


def part_number(name: str) -> int | None:
    """The number of a part by its file name, or None if the file is no part."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    number = int(match[1] or 1)
    return number if part_name(number) == name else None


def split_at_boundary(lines: list[bytes], used: int, limit: int) -> list[list[bytes]]:
    """The lines of one append by the part they go to; `used` is the size of the current part.

    The first list, possibly empty, is for the current part. An empty part takes any line.
    """
    groups: list[list[bytes]] = [[]]
    for line in lines:
        size = len(line) + 1
        if used and used + size > limit:
            groups.append([])
            used = 0
        groups[-1].append(line)
        used += size
    return groups
