"""`MEMORY.md`: one line per note, and whatever a person wrote there besides.

    - [Prefers tabs](prefers-tabs.md) — The user prefers tabs over spaces.

A line counts as ours only while it reads exactly as we would write it; anything else is a person's
and is never changed, save that a pointer to a file that is gone is taken out. What a model is shown
is cut at 200 lines, then at 25,000 bytes on the boundary of a line, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple
from urllib.parse import unquote

from everlog.memory.extracted_file import outside_code
from everlog.memory.facts import inert

MOST_LINES = 200
MOST_BYTES = 25_000
_DESCRIPTION = 160  # characters
_POINTER = re.compile(r"\s*[-*+] \[([^\]\n]*)\]\(<?([^()<>\n]+?\.md)>?\)(?:\s*[—–-]+\s*(.*))?\s*")


class Pointer(NamedTuple):
    """A line that points to a note."""

    number: int  # of the line, from 0
    file: str
    name: str
    line: str


def pointer(name: str, file: str, description: str) -> str:
    """The line of a note."""
    shown = inert(name, 80).replace("[", "(").replace("]", ")") or file
    return f"- [{shown}]({file}) — {inert(description, _DESCRIPTION)}".rstrip(" —")


def pointers(text: str) -> list[Pointer]:
    """The lines that point to notes, in their order."""
    found: list[Pointer] = []
    rows = text.split("\n")
    for number in outside_code(rows):
        match = _POINTER.fullmatch(rows[number])
        if match is not None and "://" not in match[2]:
            file = unquote(match[2]).removeprefix("./")
            found.append(Pointer(number, file, match[1], rows[number]))
    return found


def without(text: str, numbers: Collection[int]) -> str:
    """The index without these lines."""
    rows = text.split("\n")
    return "\n".join(row for number, row in enumerate(rows) if number not in set(numbers))


def replaced(text: str, old: str, new: str) -> str:
    """The index with one line of ours instead of another, if it stands there as we wrote it."""
    rows = text.split("\n")
    if old in rows:
        rows[rows.index(old)] = new
    return "\n".join(rows)


def extended(text: str, lines: Iterable[str]) -> str:
    """The index with more lines, below the last pointer so that a person's text stays whole."""
    new = list(lines)
    if not new:
        return text
    rows = text.split("\n")
    known = pointers(text)
    if known:
        at = known[-1].number + 1
        return "\n".join((*rows[:at], *new, *(rows[at:] or [""])))
    if not text.strip():
        return "\n".join((*new, ""))
    gap = "" if text.endswith("\n") else "\n"
    return f"{text}{gap}\n" + "\n".join((*new, ""))


def fits(text: str) -> bool:
    """Whether an index is below its limits, so that nothing of it is ever cut."""
    return _count(text) < MOST_LINES and len(_bytes(text)) <= MOST_BYTES


def cut(text: str) -> str:
    """An index as a model is shown it: whole if it is within the limits, else its beginning."""
    total = _count(text)
    if total <= MOST_LINES and len(_bytes(text)) <= MOST_BYTES:
        return text
    kept: list[str] = []
    size = 0
    for row in text.split("\n")[: min(total, MOST_LINES)]:
        row = row.removesuffix("\r")
        size += len(_bytes(row)) + bool(kept)
        if size > MOST_BYTES:
            break
        kept.append(row)
    if not kept:  # one line that is too long alone: its beginning is better than nothing
        kept = [_bytes(text)[:MOST_BYTES].decode(errors="ignore")]
    notice = f"<!-- MEMORY.md truncated: {total} total lines, showing {len(kept)} -->"
    return "\n".join(kept) + f"\n\n{notice}"


def _count(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # a byte that was no UTF-8 counts as one
