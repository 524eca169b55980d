"""`MEMORY.md`: one line per note, plus whatever a person wrote there.

    - [Prefers tabs](prefers-tabs.md) — The user prefers tabs over spaces.

A line is ours only while it reads exactly as we would write it. All other lines are a person's and
are never changed, except that a pointer to a missing file is removed. A model is shown at most 200
lines and 25,000 bytes, cut at the end of a line, with a notice that the index was truncated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple
from urllib.parse import unquote

from everlog.memory.extracted_file import lines_outside_code
from everlog.memory.facts import sanitize_line
from everlog.memory.notes import Note

MAX_LINES = 200
MAX_BYTES = 25_000
_MAX_DESCRIPTION = 160  # characters
_POINTER = re.compile(r"\s*[-*+] \[([^\]\n]*)\]\(<?([^()<>\n]+?\.md)>?\)(?:\s*[—–-]+\s*(.*))?\s*")


class Pointer(NamedTuple):
    """A line that links to a note."""

    number: int  # of the line, from 0
    file: str
    name: str
    line: str


def format_pointer(name: str, file: str, description: str) -> str:
    """Format the line of a note."""
    title = sanitize_line(name, 80).replace("[", "(").replace("]", ")") or file
    return f"- [{title}]({file}) — {sanitize_line(description, _MAX_DESCRIPTION)}".rstrip(" —")


def note_pointer(note: Note, file: str) -> str:
    """Format the line of a note as it is now."""
    return format_pointer(note.name, file, note.description)


def parse_pointers(text: str) -> list[Pointer]:
    """Return the lines that link to notes, in order."""
    pointers: list[Pointer] = []
    rows = text.split("\n")
    for number in lines_outside_code(rows):
        match = _POINTER.fullmatch(rows[number])
        if match is not None and "://" not in match[2]:
            file = unquote(match[2]).removeprefix("./")
            pointers.append(Pointer(number, file, match[1], rows[number]))
    return pointers


def remove_lines(text: str, numbers: Collection[int]) -> str:
    """Return the index without these lines."""
    rows = text.split("\n")
    return "\n".join(row for number, row in enumerate(rows) if number not in set(numbers))


def replace_line(text: str, old: str, new: str) -> str:
    """Replace one of our lines, if it is still there as we wrote it."""
    rows = text.split("\n")
    if old in rows:
        rows[rows.index(old)] = new
    return "\n".join(rows)


def append_pointers(text: str, lines: Iterable[str]) -> str:
    """Insert lines below the last pointer, so that a person's text stays in one piece."""
    new = list(lines)
    if not new:
        return text
    rows = text.split("\n")
    existing = parse_pointers(text)
    if existing:
        position = existing[-1].number + 1
        return "\n".join((*rows[:position], *new, *(rows[position:] or [""])))
    if not text.strip():
        return "\n".join((*new, ""))
    gap = "" if text.endswith("\n") else "\n"
    return f"{text}{gap}\n" + "\n".join((*new, ""))


def is_within_limits(text: str) -> bool:
    """Return whether an index is below its limits, so that it is never truncated."""
    return _count_lines(text) < MAX_LINES and len(_encode(text)) <= MAX_BYTES


def truncate(text: str) -> str:
    """Return an index as a model is shown it: whole if within the limits, else its beginning."""
    total = _count_lines(text)
    if total <= MAX_LINES and len(_encode(text)) <= MAX_BYTES:
        return text
    lines: list[str] = []
    size = 0
    for row in text.split("\n")[: min(total, MAX_LINES)]:
        row = row.removesuffix("\r")
        size += len(_encode(row)) + bool(lines)
        if size > MAX_BYTES:
            break
        lines.append(row)
    if not lines:  # a single line above the limit: show its beginning
        lines = [_encode(text)[:MAX_BYTES].decode(errors="ignore")]
    notice = f"<!-- MEMORY.md truncated: {total} total lines, showing {len(lines)} -->"
    return "\n".join(lines) + f"\n\n{notice}"


def _count_lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")  # an invalid byte counts as one
