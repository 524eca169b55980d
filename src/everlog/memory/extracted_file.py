"""`extracted.md`: the facts of sessions as lines, until a dream turns them into notes.

    ## Auto-extracted memories

    ### Session memories — 2026-04-03
    - **[preference]** The user prefers tabs *(confidence: 80%)* <!-- session:01J… seq:12 -->

The format is Cersei's; the comment at the end is ours and names the source of the fact. A heading
counts only as a whole line, outside a code block and inside its section: a heading quoted in a
fact is text. Everything else in the file belongs to whoever wrote it and is preserved.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from itertools import pairwise
from typing import NamedTuple

from everlog.memory.facts import sanitize_line
from everlog.ports.memory import CATEGORIES, Fact, Source

SECTION = "## Auto-extracted memories"
_DAY_HEADING = "### Session memories — "
_LINE = re.compile(
    rf"- \*\*\[({'|'.join(CATEGORIES)})\]\*\* (\S.*?)"
    r"(?: \*\(confidence: (\d{1,3})%\)\*)?"
    r"(?:\s*<!-- session:([^\s<>]+) seq:(\d{1,15}) -->)?\s*"
)
_UNSAFE = re.compile(r"[\s<>]|--")


class FactLine(NamedTuple):
    """A fact that waits to become a note, or part of one: a line of the file."""

    fact: Fact
    day: date  # on which it was stated
    number: int = -1  # of the line, from 0; -1 if it is not from the file


def percent(confidence: float) -> int:
    """Return a confidence in whole percent, rounded half up."""
    return int(min(max(confidence, 0.0), 1.0) * 100 + 0.5)


def format_line(fact: Fact) -> str:
    """Format a fact as a line."""
    confidence = f"*(confidence: {percent(fact.confidence)}%)*"
    line = f"- **[{fact.category}]** {sanitize_line(fact.text)} {confidence}"
    if fact.source is None or not fact.source.session:
        return line
    session = _UNSAFE.sub("_", fact.source.session)
    return f"{line} <!-- session:{session} seq:{max(fact.source.seq, 0)} -->"


def add_facts(text: str, facts: Sequence[Fact], day: date) -> str:
    """Return the file with these facts under their day, the newest day first."""
    if not facts:
        return text
    ending = "\r\n" if "\r\n" in text else "\n"
    rows = text.split("\n")
    section = _section_lines(rows)
    heading = f"{_DAY_HEADING}{day.isoformat()}"
    new = [format_line(fact) for fact in facts]
    if not section:
        body = text if not text or text.endswith("\n") else text + ending
        above = ending if body.strip() else ""
        return body + above + ending.join((SECTION, "", heading, *new, ""))
    for number in section:
        if rows[number].rstrip() == heading:
            return _insert_rows(rows, number + 1, new, ending)
    position = section[0] + 1
    below = position < len(rows) and not rows[position].strip()  # keep the empty line below the heading
    position += below
    gap = [""] if position < len(rows) and rows[position].strip() else []
    return _insert_rows(rows, position, [*([] if below else [""]), heading, *new, *gap], ending)


def _insert_rows(rows: list[str], position: int, new: list[str], ending: str) -> str:
    if position >= len(rows):  # the file ends without a newline
        return "\n".join(rows) + ending + ending.join((*new, ""))
    inserted = [row + ending[:-1] for row in new]
    return "\n".join((*rows[:position], *inserted, *rows[position:]))


def parse_lines(text: str) -> list[FactLine]:
    """Return the facts of the section in file order; other lines are skipped."""
    lines: list[FactLine] = []
    day: date | None = None
    rows = text.split("\n")
    for number in _section_lines(rows):
        row = rows[number].rstrip()
        if row.startswith("### "):
            day = _parse_day(row)
        elif day is not None and (match := _LINE.fullmatch(row)):
            lines.append(FactLine(_parse_fact(match), day, number))
    return lines


def remove_lines(text: str, numbers: Collection[int]) -> str:
    """Return the file without these lines and without days that become empty."""
    removed = set(numbers)
    rows = text.split("\n")
    headings = [number for number, row in enumerate(rows) if row.startswith("#")]
    ends_with_day = False  # the last day of the file becomes empty
    for start, end in pairwise((*headings, len(rows))):
        lines = range(start + 1, end)
        is_empty = not any(rows[number].strip() for number in lines if number not in removed)
        if rows[start].startswith(_DAY_HEADING) and is_empty and not removed.isdisjoint(lines):
            removed.update(range(start, end))
            ends_with_day = end == len(rows)
    kept = [row for number, row in enumerate(rows) if number not in removed]
    if ends_with_day and kept and kept[-1].strip():
        kept.append("")  # the file still ends with a newline
    return "\n".join(kept)


def _parse_fact(match: re.Match[str]) -> Fact:
    category = next(name for name in CATEGORIES if name == match[1])
    confidence = min(int(match[3] or 100), 100) / 100  # a person need not state one
    source = Source(match[4], int(match[5])) if match[4] else None
    return Fact(category, sanitize_line(match[2]), confidence, source)


def _parse_day(heading: str) -> date | None:
    try:
        return date.fromisoformat(heading.removeprefix(_DAY_HEADING))
    except ValueError:
        return None


def _section_lines(rows: Sequence[str]) -> list[int]:
    """Return the lines of our section outside code blocks, its heading first."""
    numbers: list[int] = []
    for number in lines_outside_code(rows):
        row = rows[number].rstrip()
        if numbers and row.startswith(("# ", "## ")):
            break
        if numbers or row == SECTION:
            numbers.append(number)
    return numbers


def lines_outside_code(rows: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of lines outside code blocks; an unclosed block counts as none."""
    fences = [(number, mark) for number, row in enumerate(rows) if (mark := row.lstrip()[:3]) in ("```", "~~~")]
    inside: set[int] = set()
    for index, (number, mark) in enumerate(fences):
        if number not in inside:
            end = next((later for later, later_mark in fences[index + 1 :] if later_mark == mark), number - 1)
            inside.update(range(number, end + 1))
    return (number for number in range(len(rows)) if number not in inside)
