"""A summary as lists of one-line items, its three shapes, and the way back.

An outline has one list per kind of thing a summary tells. `structured` writes it under the fixed
headings, `rounds` as labelled lines, `prose` as paragraphs. `parse` reads all three, and what a
model wrote under headings of its own, so that a summary can be updated whatever made it. Items
come out of `parse` as they went in; what cannot be placed is kept as a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from everlog.context.compaction import prompts
from everlog.context.compaction.clues import sentences
from everlog.context.compaction.file_operations import FileOps, shown_path, tags, without_tags
from everlog.context.compaction.prompts import (
    BLOCKED,
    CONSTRAINTS,
    DECISIONS,
    DONE,
    GOAL,
    IN_PROGRESS,
    NEXT_STEPS,
)
from everlog.context.compaction.quoting import CLOSE, OPEN, plain, verbatim

FACTS = prompts.CRITICAL
# Kinds without a heading of their own: who is who stands with the constraints, errors and what
# was printed around them with the facts.
ABOUT, ERRORS, OUTPUT = "About", "Errors", "Output"
KINDS = (
    GOAL,
    ABOUT,
    CONSTRAINTS,
    DONE,
    IN_PROGRESS,
    BLOCKED,
    DECISIONS,
    NEXT_STEPS,
    FACTS,
    ERRORS,
    OUTPUT,
)
_VERBATIM = (ERRORS, OUTPUT)
Outline = Mapping[str, Sequence[str]]

# Items with these beginnings tell a state: a later one takes the place of an earlier one.
WORKING, UNANSWERED, TESTS, EDITS = "Working on: ", "Not finished: ", "Tests: ", "Most edits: "
ANSWER, STATEMENT, LATELY = "Last answer: ", "Last words: ", "Before that: "
COMMAND, CWD, LINKS, NAMES = "Ran: ", "Working directory: ", "Links: ", "Names: "
FOCUS, GO_ON, QUESTION = "Focus: ", "Go on from: ", "Await the answer to: "
ANSWER_IT, WAIT = "Go on with the latest request", "Nothing is open, the next request decides"

FIRST, LATER, LATEST = "First request: ", "Then: ", "Latest request: "
_PREFIXES = {"About the people: ": ABOUT, "Error: ": ERRORS, "Output: ": OUTPUT}
_NONE, NOTHING_YET = "none", "Nothing yet."
_NOTHING = re.compile(
    r"[(\[]?(?:none(?: yet| so far| stated)?|n/a|nothing(?: yet)?|[-–])?[)\].]*", re.IGNORECASE
)
_ASKED = re.compile(rf"^(?:{FIRST}|{LATER}|{LATEST})")
_WIDEST = 700  # what one item of an earlier summary may bring along
_PIECE = 400


class Item(NamedTuple):
    """One line of a summary."""

    kind: str
    text: str
    weight: float = 0.0  # 0: keep it if anything is kept; larger: drop it sooner


# --- structured -----------------------------------------------------------------------------


def structured(outline: Outline, ops: FileOps, *, reads: int, modified: int | None) -> str:
    """All headings in their order, then the file tags."""
    rows: list[str] = []
    for heading in prompts.HEADINGS:
        name = heading.lstrip("# ")
        rows += ["", heading] if rows else [heading]
        if name != prompts.PROGRESS:
            rows += _under(name, outline) or [_bullet(name, 1, _NONE)]
    files = tags(ops, reads=reads, modified=modified)
    return "\n".join([*rows, "", files] if files else rows)


def _under(name: str, outline: Outline) -> list[str]:
    items = list(outline.get(name, ()))
    if name == GOAL:
        items = asked(items)
    elif name == CONSTRAINTS:
        items = _prefixed(ABOUT, outline) + items
    elif name == FACTS:
        items += _prefixed(ERRORS, outline) + _prefixed(OUTPUT, outline)
    return [_bullet(name, number, item) for number, item in enumerate(items, 1)]


def _prefixed(kind: str, outline: Outline) -> list[str]:
    prefix = next(prefix for prefix, of in _PREFIXES.items() if of == kind)
    return [prefix + item for item in outline.get(kind, ())]


def _bullet(name: str, number: int, item: str) -> str:
    if item == _NONE:
        return f"{number}. {item}" if name == NEXT_STEPS else f"- {item}"
    if name == DECISIONS and not item.startswith("**"):
        what, colon, why = item.partition(": ")
        item = f"**{what}**{colon}{why}"
    marks = {DONE: "- [x] ", IN_PROGRESS: "- [ ] ", NEXT_STEPS: f"{number}. "}
    return marks.get(name, "- ") + item


def asked(goals: Sequence[str]) -> list[str]:
    """Goals with what they are: the first, those in between, the latest."""
    if len(goals) < 2:
        return [FIRST + goal for goal in goals]
    return [FIRST + goals[0], *(LATER + goal for goal in goals[1:-1]), LATEST + goals[-1]]


# --- rounds ---------------------------------------------------------------------------------

_LABELS = {
    GOAL: "Request",
    ABOUT: "About",
    CONSTRAINTS: "Rule",
    DONE: "Done",
    IN_PROGRESS: "Open",
    BLOCKED: "Blocked",
    DECISIONS: "Decision",
    NEXT_STEPS: "Next",
    FACTS: "Fact",
    ERRORS: "Error",
    OUTPUT: "Output",
}
_CHANGED, _READ = "Changed files: ", "Read files: "


def rounds(outline: Outline, ops: FileOps, *, reads: int, modified: int | None) -> str:
    """A labelled line for each item; files on a line of their own."""
    rows = [
        f"{_LABELS[kind]}: {item if kind in _VERBATIM else _flat(item)}"
        for kind in KINDS
        for item in outline.get(kind, ())
    ]
    changed, read = _files(ops, reads, modified)
    if changed:
        rows.append(_CHANGED + changed)
    if read:
        rows.append(_READ + read)
    return "\n".join(rows) or NOTHING_YET


def _files(ops: FileOps, reads: int, modified: int | None) -> tuple[str, str]:
    def row(paths: Iterable[str], most: int) -> str:
        all_of = sorted(paths)
        more = f" (and {len(all_of) - most} more)" if len(all_of) > most > 0 else ""
        return ", ".join(shown_path(path) for path in all_of[: max(most, 0)]) + more

    most = len(ops.modified) if modified is None else modified
    return row(ops.modified, most), row(ops.read, reads)


def _flat(item: str) -> str:
    """An item without the marks that only Markdown needs."""
    return item.replace("**", "")


# --- prose ----------------------------------------------------------------------------------

_LEADS = {
    ABOUT: "Of the people involved it is known:",
    GOAL: "The user asked, oldest first:",
    CONSTRAINTS: "The user set these rules and preferences:",
    DECISIONS: "Decisions and findings were:",
    DONE: "So far this was done:",
    IN_PROGRESS: "Still open is:",
    BLOCKED: "In the way stands:",
    NEXT_STEPS: "Next comes:",
    FACTS: "To go on one needs to know:",
    ERRORS: "Errors that were seen, word for word:",
    OUTPUT: "Around them was printed:",
}
_FILES_CHANGED, _FILES_READ = "The files changed are", "The files read are"
# Semicolons part the items of a paragraph; those inside quotes do not count.
_QUOTED = re.compile(rf"{OPEN}[^{CLOSE}]{{0,1200}}{CLOSE}|; ")
_PARTS = re.compile(rf"(?:{OPEN}[^{CLOSE}]{{0,1200}}{CLOSE}|[^;{OPEN}]|;(?!\s))+")


def prose(outline: Outline, ops: FileOps, *, reads: int, modified: int | None) -> str:
    """A paragraph for each kind, then one for the files."""
    paragraphs = []
    for kind, lead in _LEADS.items():
        items = [_clause(kind, item) for item in outline.get(kind, ())]
        if items:
            paragraphs.append(f"{lead} {'; '.join(items)}.")
    changed, read = _files(ops, reads, modified)
    files = [
        f"{lead} {paths}."
        for lead, paths in ((_FILES_CHANGED, changed), (_FILES_READ, read))
        if paths
    ]
    return "\n\n".join([*paragraphs, " ".join(files)] if files else paragraphs) or NOTHING_YET


def _clause(kind: str, item: str) -> str:
    if kind in _VERBATIM:
        return f"{OPEN}{item.replace(OPEN, chr(34)).replace(CLOSE, chr(34))}{CLOSE}"
    item = _QUOTED.sub(lambda found: found[0] if found[0] != "; " else ", ", item)
    return _flat(item).rstrip(".")


class Shape(Protocol):
    """Writes an outline; `reads` and `modified` bound how many files are listed."""

    def __call__(
        self, outline: Outline, ops: FileOps, *, reads: int, modified: int | None
    ) -> str: ...


SHAPES: dict[str, Shape] = {"structured": structured, "rounds": rounds, "prose": prose}


# --- the way back ---------------------------------------------------------------------------

_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.+?)[\s#:]*$")
_BOLD = re.compile(r"^\s{0,3}\*\*([^*]{2,40}?):?\*\*:?\s*(.*)$")
_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[([ xX])\]\s+)?(.*)$")
_LABEL = re.compile(rf"^({'|'.join(_LABELS.values())}): (.*)$")
_WRAPPER = re.compile(r"^\s*</?[\w-]*summary>\s*$", re.IGNORECASE)
# In this order: "Open Issues" is work to do, "Errors and Fixes" is not blocked.
_KNOWN = (
    ("in progress", IN_PROGRESS),
    ("current work", IN_PROGRESS),
    ("pending", IN_PROGRESS),
    ("open", IN_PROGRESS),
    ("next", NEXT_STEPS),
    ("constraint", CONSTRAINTS),
    ("preference", CONSTRAINTS),
    ("requirement", CONSTRAINTS),
    ("goal", GOAL),
    ("objective", GOAL),
    ("request", GOAL),
    ("intent", GOAL),
    ("decision", DECISIONS),
    ("blocked", BLOCKED),
    ("blocker", BLOCKED),
    ("done", DONE),
    ("completed", DONE),
    ("accomplished", DONE),
    ("progress", prompts.PROGRESS),
    ("task", GOAL),
    ("critical context", FACTS),
    ("context", FACTS),
)


def parse(summary: str) -> dict[str, list[str]]:
    """The outline of a summary of any shape; an empty one has none."""
    text = without_tags(summary)
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    kind, prefix = FACTS, ""
    fresh = True  # whether the next plain line begins an item
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if not line.strip() or _WRAPPER.match(line):
            fresh = True
            continue
        heading = None if fenced else _HEADING.match(line)
        if heading:
            kind, prefix = _kind_of(heading[1])
            fresh = True
            continue
        bold = None if fenced else _BOLD.match(line)
        if bold and _known(bold[1]):
            kind, prefix = _kind_of(bold[1])
            line, fresh = bold[2], True
            if not line:
                continue
        label = _LABEL.match(line)
        if label:
            _add(found, next(k for k, v in _LABELS.items() if v == label[1]), label[2])
            fresh = True
            continue
        if line.startswith((_CHANGED, _READ, _FILES_CHANGED, _FILES_READ)):
            continue
        lead = next((k for k, v in _LEADS.items() if line.startswith(v + " ")), None)
        if lead:
            for part in _PARTS.findall(line[len(_LEADS[lead]) :].strip().removesuffix(".")):
                _add(found, lead, _bare(part) if lead in _VERBATIM else part)
            continue
        item = _ITEM.match(line)
        if item:
            ticked = {"x": DONE, "X": DONE, " ": IN_PROGRESS}.get(item[1] or "", kind)
            _add(found, ticked, prefix + item[2])
        elif fresh or not found[kind if kind in found else FACTS]:
            _add(found, kind, prefix + line)
        else:
            _append(found, kind, line)
        fresh = False
    return found


def _known(name: str) -> str | None:
    name = name.casefold()
    return next((kind for word, kind in _KNOWN if word in name), None)


def _kind_of(heading: str) -> tuple[str, str]:
    kind = _known(heading)
    return (kind, "") if kind else (FACTS, plain(heading, 60) + ": ")


def _add(found: dict[str, list[str]], kind: str, item: str) -> None:
    item = _ASKED.sub("", item.strip())
    if kind in (CONSTRAINTS, FACTS):
        for prefix, of in _PREFIXES.items():
            if item.startswith(prefix):
                kind, item = of, item.removeprefix(prefix)
                break
    if kind not in found:
        kind = DONE  # what stands directly under "Progress"
    if kind == FACTS and len(item) > _WIDEST:
        found[kind] += [_inert(kind, part) for part in _pieces(item)]
    elif not _NOTHING.fullmatch(item):
        found[kind].append(_inert(kind, item))


def _pieces(paragraph: str) -> list[str]:
    """A long paragraph as several items, so that it need not be kept or dropped as a whole."""
    pieces = [""]
    for sentence in sentences(paragraph):
        if pieces[-1] and len(pieces[-1]) + len(sentence) > _PIECE:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {sentence}".strip()
    return pieces


def _append(found: dict[str, list[str]], kind: str, line: str) -> None:
    items = found[kind if kind in found else DONE]
    if len(items[-1]) < _WIDEST:
        items[-1] = _inert(kind, f"{items[-1]} {line.strip()}")


def _inert(kind: str, item: str) -> str:
    if kind in _VERBATIM:
        return verbatim(item, _WIDEST)
    return plain(item, _WIDEST)


def _bare(part: str) -> str:
    return part.strip().removeprefix(OPEN).removesuffix(CLOSE)
