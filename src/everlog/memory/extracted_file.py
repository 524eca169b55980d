"""`extracted.md`: the facts of sessions as lines, until a dream makes notes of them.

    ## Auto-extracted memories

    ### Session memories — 2026-04-03
    - **[preference]** The user prefers tabs *(confidence: 80%)* <!-- session:01J… seq:12 -->

The form is Cersei's; the comment at the end is ours and says where the fact comes from. A heading
counts only as a whole line outside a code block and inside its section: one that is quoted in a
fact is text. Everything else in the file belongs to whoever wrote it and stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import date
from typing import NamedTuple

from everlog.memory.facts import CATEGORIES, Fact, Source, inert

FILE = "extracted.md"
SECTION = "## Auto-extracted memories"
_DAY = "### Session memories — "
_LINE = re.compile(
    rf"- \*\*\[({'|'.join(CATEGORIES)})\]\*\* (\S.*?)"
    r"(?: \*\(confidence: (\d{1,3})%\)\*)?"
    r"(?:\s*<!-- session:([^\s<>]+) seq:(\d{1,15}) -->)?\s*"
)
_UNSAFE = re.compile(r"[\s<>]|--")


class Line(NamedTuple):
    """A fact as it stands in the file."""

    number: int  # of the line, from 0
    day: date  # on which it was written down
    fact: Fact


def percent(confidence: float) -> int:
    """A confidence in whole percent, rounded half up."""
    return int(min(max(confidence, 0.0), 1.0) * 100 + 0.5)


def line(fact: Fact) -> str:
    """A fact as a line."""
    made = f"- **[{fact.category}]** {inert(fact.text)} *(confidence: {percent(fact.confidence)}%)*"
    if fact.source is None or not fact.source.session:
        return made
    session = _UNSAFE.sub("_", fact.source.session)
    return f"{made} <!-- session:{session} seq:{max(fact.source.seq, 0)} -->"


def add(text: str, facts: Sequence[Fact], day: date) -> str:
    """The file with these facts under their day, the newest day first."""
    if not facts:
        return text
    ending = "\r\n" if "\r\n" in text else "\n"
    new = [line(fact) for fact in facts]
    rows = text.split("\n")
    section, end = _section(rows)
    heading = f"{_DAY}{day.isoformat()}"
    if section is None:
        body = text if not text or text.endswith("\n") else text + ending
        above = ending if body.strip() else ""
        return body + above + ending.join((SECTION, "", heading, *new, ""))
    for number in outside_code(rows):
        if section < number < end and rows[number].rstrip() == heading:
            return _inserted(rows, number + 1, new, ending)
    at = section + 1
    below = at < end and not rows[at].strip()  # the empty line below the heading stays there
    at += below
    gap = [""] if at < len(rows) and rows[at].strip() else []
    return _inserted(rows, at, [*([] if below else [""]), heading, *new, *gap], ending)


def _inserted(rows: list[str], at: int, new: list[str], ending: str) -> str:
    if at >= len(rows):  # the file ends without a newline
        return "\n".join(rows) + ending + ending.join((*new, ""))
    fresh = [row + ending[:-1] for row in new]
    return "\n".join((*rows[:at], *fresh, *rows[at:]))


def read(text: str) -> list[Line]:
    """The facts of the section, in the order of the file; what is no fact is passed over."""
    rows = text.split("\n")
    section, end = _section(rows)
    if section is None:
        return []
    found: list[Line] = []
    day: date | None = None
    for number in outside_code(rows):
        if not section < number < end:
            continue
        row = rows[number].rstrip()
        if row.startswith("### "):
            day = _day(row)
        elif day is not None and (match := _LINE.fullmatch(row)):
            found.append(Line(number, day, _fact(match)))
    return found


def without(text: str, numbers: Collection[int]) -> str:
    """The file without these lines, and without the days that are empty then."""
    gone = set(numbers)
    rows = text.split("\n")
    kept: list[str] = []
    held: list[str] = []  # a day's heading and what follows it, until something is kept there
    dropped = False
    for number, row in enumerate(rows):
        if number in gone:
            dropped = True
            continue
        if held and row.strip() and not row.startswith("#"):
            kept += held
            held = []
        if row.startswith("#") and held:
            kept += [] if dropped else held
            held = []
        if row.startswith(_DAY):
            held, dropped = [row], False
        elif held:
            held.append(row)
        else:
            kept.append(row)
    if held:
        kept += [""] if dropped and kept and kept[-1].strip() else [] if dropped else held
    return "\n".join(kept)


def _fact(match: re.Match[str]) -> Fact:
    category = next(one for one in CATEGORIES if one == match[1])
    confidence = 1.0 if match[3] is None else min(int(match[3]), 100) / 100  # a person needs none
    source = Source(match[4], int(match[5])) if match[4] else None
    return Fact(category, inert(match[2]), confidence, source)


def _day(heading: str) -> date | None:
    try:
        return date.fromisoformat(heading.removeprefix(_DAY))
    except ValueError:
        return None


def _section(rows: Sequence[str]) -> tuple[int | None, int]:
    """The line of our heading, and the line where the section ends."""
    start: int | None = None
    for number in outside_code(rows):
        row = rows[number].rstrip()
        if start is None:
            start = number if row == SECTION else None
        elif row.startswith(("# ", "## ")):
            return start, number
    return start, len(rows)


def outside_code(rows: Sequence[str]) -> Iterator[int]:
    """The numbers of the lines outside code blocks; one that is never closed is none."""
    fences = [(number, row.lstrip()[:3]) for number, row in enumerate(rows)]
    fences = [(number, mark) for number, mark in fences if mark in ("```", "~~~")]
    inside: set[int] = set()
    closed = -1
    for at, (number, mark) in enumerate(fences):
        if number <= closed:
            continue
        end = next((other for other, same in fences[at + 1 :] if same == mark), None)
        if end is not None:
            inside.update(range(number, end + 1))
            closed = end
    return (number for number in range(len(rows)) if number not in inside)
