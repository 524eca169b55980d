"""The outline of a summary: lists of one-line items, written in three shapes and parsed back.

An outline has one list per kind of item. `structured` writes it under the fixed headings, `rounds`
as labelled lines, `prose` as paragraphs. `parse` reads all three, and whatever a model wrote under
headings of its own, so that a summary can be updated whoever made it. Items come out of `parse` as
they went in; an item that fits nowhere is kept as a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from everlog.context.compaction import prompts
from everlog.context.compaction.clues import sentences
from everlog.context.compaction.file_operations import FileOps, format_path, format_tags, strip_tags
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import CLOSE, OPEN, one_line, verbatim

FACTS = prompts.CRITICAL
# Kinds without a heading of their own: people are listed with the constraints, errors and output
# with the facts.
ABOUT, ERRORS, OUTPUT = "About", "Errors", "Output"
KINDS = (GOAL, ABOUT, CONSTRAINTS, DONE, IN_PROGRESS, BLOCKED, DECISIONS, NEXT_STEPS, FACTS, ERRORS, OUTPUT)
_VERBATIM = (ERRORS, OUTPUT)
Outline = Mapping[str, Sequence[str]]

# Items with these prefixes describe a state: a later one replaces an earlier one.
WORKING, UNANSWERED, TESTS, EDITS = "Working on: ", "Not finished: ", "Tests: ", "Most edits: "
ANSWER, STATEMENT, EARLIER_WORDS = "Last answer: ", "Last words: ", "Before that: "
COMMAND, CWD, LINKS, NAMES = "Ran: ", "Working directory: ", "Links: ", "Names: "
FOCUS, GO_ON, QUESTION = "Focus: ", "Go on from: ", "Await the answer to: "
ANSWER_LATEST = "Go on with the latest request"
AWAIT_REQUEST = "Nothing is open, the next request decides"

FIRST, LATER, LATEST = "First request: ", "Then: ", "Latest request: "
_PREFIXES = {"About the people: ": ABOUT, "Error: ": ERRORS, "Output: ": OUTPUT}
_NONE, NOTHING_YET = "none", "Nothing yet."
_NOTHING = re.compile(r"[(\[]?(?:none(?: yet| so far| stated)?|n/a|nothing(?: yet)?|[-–])?[)\].]*", re.IGNORECASE)
_GOAL_PREFIX = re.compile(rf"^(?:{FIRST}|{LATER}|{LATEST})")
_MAX_ITEM = 700  # characters of one item of an earlier summary
_MAX_CHUNK = 400


class Item(NamedTuple):
    """One line of a summary."""

    kind: str
    text: str
    weight: float = 0.0  # 0: dropped last; larger: dropped sooner


# --- structured -----------------------------------------------------------------------------


def as_structured(outline: Outline, ops: FileOps, *, reads: int, modified: int | None) -> str:
    """Write the outline under all headings in order, then the file tags."""
    rows: list[str] = []
    for heading in prompts.HEADINGS:
        name = heading.lstrip("# ")
        rows += ["", heading] if rows else [heading]
        if name != prompts.PROGRESS:
            rows += _section_rows(name, outline) or [_bullet(name, 1, _NONE)]
    files = format_tags(ops, reads=reads, modified=modified)
    return "\n".join([*rows, "", files] if files else rows)


def _section_rows(name: str, outline: Outline) -> list[str]:
    items = list(outline.get(name, ()))
    if name == GOAL:
        items = label_goals(items)
    elif name == CONSTRAINTS:
        items = _prefix_items(ABOUT, outline) + items
    elif name == FACTS:
        items += _prefix_items(ERRORS, outline) + _prefix_items(OUTPUT, outline)
    return [_bullet(name, number, item) for number, item in enumerate(items, 1)]


def _prefix_items(kind: str, outline: Outline) -> list[str]:
    prefix = next(prefix for prefix, target in _PREFIXES.items() if target == kind)
    return [prefix + item for item in outline.get(kind, ())]


def _bullet(name: str, number: int, item: str) -> str:
    if item == _NONE:
        return f"{number}. {item}" if name == NEXT_STEPS else f"- {item}"
    if name == DECISIONS and not item.startswith("**"):
        choice, colon, reason = item.partition(": ")
        item = f"**{choice}**{colon}{reason}"
    marks = {DONE: "- [x] ", IN_PROGRESS: "- [ ] ", NEXT_STEPS: f"{number}. "}
    return marks.get(name, "- ") + item


def label_goals(goals: Sequence[str]) -> list[str]:
    """Label the goals: the first, those in between, the latest."""
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


def as_rounds(outline: Outline, ops: FileOps, *, reads: int, modified: int | None) -> str:
    """Write a labelled line for each item, and the files on lines of their own."""
    rows = [
        f"{_LABELS[kind]}: {item if kind in _VERBATIM else _strip_bold(item)}"
        for kind in KINDS
        for item in outline.get(kind, ())
    ]
    changed, read = _file_rows(ops, reads, modified)
    if changed:
        rows.append(_CHANGED + changed)
    if read:
        rows.append(_READ + read)
    return "\n".join(rows) or NOTHING_YET


def _file_rows(ops: FileOps, reads: int, modified: int | None) -> tuple[str, str]:
    def row(paths: Iterable[str], limit: int) -> str:
        ordered = sorted(paths)
        more = f" (and {len(ordered) - limit} more)" if len(ordered) > limit > 0 else ""
        return ", ".join(format_path(path) for path in ordered[: max(limit, 0)]) + more

    limit = len(ops.modified) if modified is None else modified
    return row(ops.modified, limit), row(ops.read, reads)


def _strip_bold(item: str) -> str:
    """Return an item without the marks that only Markdown needs."""
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
# Semicolons separate the items of a paragraph, except inside quotation marks.
_QUOTED = re.compile(rf"{OPEN}[^{CLOSE}]{{0,1200}}{CLOSE}|; ")
_PARTS = re.compile(rf"(?:{OPEN}[^{CLOSE}]{{0,1200}}{CLOSE}|[^;{OPEN}]|;(?!\s))+")


def as_prose(outline: Outline, ops: FileOps, *, reads: int, modified: int | None) -> str:
    """Write a paragraph for each kind, then one for the files."""
    paragraphs = []
    for kind, lead in _LEADS.items():
        items = [_format_clause(kind, item) for item in outline.get(kind, ())]
        if items:
            paragraphs.append(f"{lead} {'; '.join(items)}.")
    changed, read = _file_rows(ops, reads, modified)
    files = [f"{lead} {paths}." for lead, paths in ((_FILES_CHANGED, changed), (_FILES_READ, read)) if paths]
    return "\n\n".join([*paragraphs, " ".join(files)] if files else paragraphs) or NOTHING_YET


def _format_clause(kind: str, item: str) -> str:
    if kind in _VERBATIM:
        return f"{OPEN}{item.replace(OPEN, chr(34)).replace(CLOSE, chr(34))}{CLOSE}"
    item = _QUOTED.sub(lambda match: match[0] if match[0] != "; " else ", ", item)
    return _strip_bold(item).rstrip(".")


class Shape(Protocol):
    """A function that writes an outline; `reads` and `modified` limit the files listed."""

    def __call__(self, outline: Outline, ops: FileOps, *, reads: int, modified: int | None) -> str: ...


SHAPES: dict[str, Shape] = {"structured": as_structured, "rounds": as_rounds, "prose": as_prose}


# --- parsing --------------------------------------------------------------------------------

_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.+?)[\s#:]*$")
_BOLD = re.compile(r"^\s{0,3}\*\*([^*]{2,40}?):?\*\*:?\s*(.*)$")
_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[([ xX])\]\s+)?(.*)$")
_LABEL = re.compile(rf"^({'|'.join(_LABELS.values())}): (.*)$")
_WRAPPER = re.compile(r"^\s*</?[\w-]*summary>\s*$", re.IGNORECASE)
# In this order: "Open Issues" is work to do, "Errors and Fixes" is not blocked.
_HEADING_KINDS = (
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
    """Parse a summary of any shape into its outline; empty lists for an empty one."""
    text = strip_tags(summary)
    outline: dict[str, list[str]] = {kind: [] for kind in KINDS}
    kind, prefix = FACTS, ""
    starts_item = True  # whether the next plain line starts an item
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        if not line.strip() or _WRAPPER.match(line):
            starts_item = True
            continue
        heading = None if fenced else _HEADING.match(line)
        if heading:
            kind, prefix = _kind_of(heading[1])
            starts_item = True
            continue
        bold = None if fenced else _BOLD.match(line)
        if bold and _match_heading(bold[1]):
            kind, prefix = _kind_of(bold[1])
            line, starts_item = bold[2], True
            if not line:
                continue
        label = _LABEL.match(line)
        if label:
            _add_item(outline, next(k for k, v in _LABELS.items() if v == label[1]), label[2])
            starts_item = True
            continue
        if line.startswith((_CHANGED, _READ, _FILES_CHANGED, _FILES_READ)):
            continue
        lead = next((k for k, v in _LEADS.items() if line.startswith(v + " ")), None)
        if lead:
            for part in _PARTS.findall(line[len(_LEADS[lead]) :].strip().removesuffix(".")):
                _add_item(outline, lead, _strip_quotes(part) if lead in _VERBATIM else part)
            continue
        item = _ITEM.match(line)
        if item:
            ticked = {"x": DONE, "X": DONE, " ": IN_PROGRESS}.get(item[1] or "", kind)
            _add_item(outline, ticked, prefix + item[2])
        elif starts_item or not outline[kind if kind in outline else FACTS]:
            _add_item(outline, kind, prefix + line)
        else:
            _extend_item(outline, kind, line)
        starts_item = False
    return outline


def _match_heading(name: str) -> str | None:
    name = name.casefold()
    return next((kind for word, kind in _HEADING_KINDS if word in name), None)


def _kind_of(heading: str) -> tuple[str, str]:
    kind = _match_heading(heading)
    return (kind, "") if kind else (FACTS, one_line(heading, 60) + ": ")


def _add_item(outline: dict[str, list[str]], kind: str, item: str) -> None:
    item = _GOAL_PREFIX.sub("", item.strip())
    if kind in (CONSTRAINTS, FACTS):
        for prefix, target in _PREFIXES.items():
            if item.startswith(prefix):
                kind, item = target, item.removeprefix(prefix)
                break
    if kind not in outline:
        kind = DONE  # directly under "Progress"
    if kind == FACTS and len(item) > _MAX_ITEM:
        outline[kind] += [_sanitize_item(kind, part) for part in _split_paragraph(item)]
    elif not _NOTHING.fullmatch(item):
        outline[kind].append(_sanitize_item(kind, item))


def _split_paragraph(paragraph: str) -> list[str]:
    """Split a long paragraph into items, so that it is not kept or dropped as a whole."""
    chunks = [""]
    for sentence in sentences(paragraph):
        if chunks[-1] and len(chunks[-1]) + len(sentence) > _MAX_CHUNK:
            chunks.append("")
        chunks[-1] = f"{chunks[-1]} {sentence}".strip()
    return chunks


def _extend_item(outline: dict[str, list[str]], kind: str, line: str) -> None:
    items = outline[kind if kind in outline else DONE]
    if len(items[-1]) < _MAX_ITEM:
        items[-1] = _sanitize_item(kind, f"{items[-1]} {line.strip()}")


def _sanitize_item(kind: str, item: str) -> str:
    if kind in _VERBATIM:
        return verbatim(item, _MAX_ITEM)
    return one_line(item, _MAX_ITEM)


def _strip_quotes(part: str) -> str:
    return part.strip().removeprefix(OPEN).removesuffix(CLOSE)
