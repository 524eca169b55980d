"""The outline of a summary: lists of one-line items, written in three shapes and parsed back.

An outline has one list per kind of item. `structured` writes it under the fixed headings, `rounds`
as labelled lines, `prose` as paragraphs. `parse` reads all three, and whatever a model wrote under
headings of its own, so that a summary can be updated whoever made it. Items come out of `parse` as
they went in; an item that fits nowhere is kept as a fact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from everlog.context.compaction import prompts
from everlog.context.compaction.file_operations import FileOps, format_path, format_tags, strip_tags
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import CLOSE, OPEN, one_line, sentences, verbatim

FACTS = prompts.CRITICAL
# Kinds without a heading of their own. Output was written by earlier versions, and is only read.
ABOUT, ERRORS, OUTPUT = "About", "Errors", "Output"
# Label in `rounds`, lead in `prose`, rank of the newest item, step to each older one. The ranks are
# tuned by reading summaries of real sessions; at 4,000 tokens items up to about rank 20 fit.
KINDS = {
    ABOUT: ("About", "Of the people involved it is known:", 1.0, 0.4),
    GOAL: ("Request", "The user asked, oldest first:", 0.0, 2.0),
    CONSTRAINTS: ("Rule", "The user set these rules and preferences:", 1.0, 0.4),
    DONE: ("Done", "So far this was done:", 3.0, 0.9),
    IN_PROGRESS: ("Open", "Still open is:", 1.0, 0.7),
    BLOCKED: ("Blocked", "In the way stands:", 1.0, 0.7),
    DECISIONS: ("Decision", "Decisions and findings were:", 4.0, 1.3),
    NEXT_STEPS: ("Next", "Next comes:", 2.0, 0.7),
    FACTS: ("Fact", "To go on one needs to know:", 2.0, 0.8),
    ERRORS: ("Error", "Errors that were seen, word for word:", 2.0, 0.3),
    OUTPUT: ("Output", "Around them was printed:", 0.0, 0.0),
}
_LABELS = {f"{label}: ": kind for kind, (label, *_) in KINDS.items()}
_LEADS = {f"{lead} ": kind for kind, (_, lead, *_) in KINDS.items()}
_PREFIXES = {ABOUT: "About the people: ", ERRORS: "Error: ", OUTPUT: "Output: "}  # under a heading
_UNDER = {CONSTRAINTS: (ABOUT, CONSTRAINTS), FACTS: (FACTS, ERRORS)}
_MARKS = {DONE: "- [x] ", IN_PROGRESS: "- [ ] "}
_FILE_ROWS = {"rounds": ("Changed files: ", "Read files: "), "prose": ("The files changed are ", "The files read are ")}
FIRST, LATER, LATEST = "First request: ", "Then: ", "Latest request: "
_MAX_ITEM, _MAX_CHUNK = 700, 400  # characters of an item of an earlier summary, and of a part of a paragraph
Outline = Mapping[str, Sequence[str]]
Shape = Callable[[Outline, FileOps, int, int], str]  # with the numbers of files listed: read, modified


class Item(NamedTuple):
    """One line of a summary."""

    kind: str
    text: str
    weight: float = 0.0  # 0: dropped last; larger: dropped sooner


# --- writing --------------------------------------------------------------------------------


def as_structured(outline: Outline, ops: FileOps, reads: int, modified: int) -> str:
    """Write the outline under all headings in order, then the file tags."""
    rows: list[str] = []
    for heading in prompts.HEADINGS:
        name = heading.lstrip("# ")
        rows += ["", heading] if rows else [heading]
        if name in KINDS:
            rows += _section_rows(name, outline)
    files = format_tags(ops, reads=reads, modified=modified)
    return "\n".join([*rows, "", files] if files else rows)


def _section_rows(name: str, outline: Outline) -> list[str]:
    items = [_PREFIXES.get(kind, "") + item for kind in _UNDER.get(name, (name,)) for item in outline.get(kind, ())]
    if name == GOAL:
        later = [LATER + goal for goal in items[1:-1]] + [LATEST + goal for goal in items[1:][-1:]]
        items = [FIRST + goal for goal in items[:1]] + later
    elif name == DECISIONS:
        items = [f"**{choice}**{colon}{reason}" for choice, colon, reason in (item.partition(": ") for item in items)]
    if name == NEXT_STEPS:
        return [f"{number}. {item}" for number, item in enumerate(items or ["none"], 1)]
    return [_MARKS.get(name, "- ") + item for item in items] or ["- none"]


def as_rounds(outline: Outline, ops: FileOps, reads: int, modified: int) -> str:
    """Write a labelled line for each item, and the files on lines of their own."""
    rows = [label + item for label, kind in _LABELS.items() for item in outline.get(kind, ())]
    return "\n".join((*rows, *_file_rows("rounds", ops, reads, modified))) or "Nothing yet."


def as_prose(outline: Outline, ops: FileOps, reads: int, modified: int) -> str:
    """Write a paragraph for each kind, then one for the files."""
    paragraphs = []
    for lead, kind in _LEADS.items():
        clauses = [_format_clause(kind, item) for item in outline.get(kind, ())]
        paragraphs += [f"{lead}{'; '.join(clauses)}."] if clauses else []
    files = " ".join(f"{row}." for row in _file_rows("prose", ops, reads, modified))
    return "\n\n".join([*paragraphs, files] if files else paragraphs) or "Nothing yet."


SHAPES: dict[str, Shape] = {"structured": as_structured, "rounds": as_rounds, "prose": as_prose}

# Semicolons separate the items of a paragraph, except inside quotation marks.
_QUOTED = re.compile(rf"{OPEN}[^{CLOSE}]{{0,1200}}{CLOSE}|; ")
_PARTS = re.compile(rf"(?:{OPEN}[^{CLOSE}]{{0,1200}}{CLOSE}|[^;{OPEN}]|;(?!\s))+")


def _format_clause(kind: str, item: str) -> str:
    if kind == ERRORS:
        return f"{OPEN}{item.replace(OPEN, chr(34)).replace(CLOSE, chr(34))}{CLOSE}"
    return _QUOTED.sub(lambda match: match[0] if match[0] != "; " else ", ", item).rstrip(".")


def _file_rows(shape: str, ops: FileOps, reads: int, modified: int) -> list[str]:
    def row(lead: str, paths: Iterable[str], limit: int) -> str:
        ordered = sorted(paths)
        more = f" (and {len(ordered) - limit} more)" if len(ordered) > limit else ""
        return lead + ", ".join(map(format_path, ordered[:limit])) + more if ordered and limit > 0 else ""

    changed, read = _FILE_ROWS[shape]
    return [text for text in (row(changed, ops.modified, modified), row(read, ops.read, reads)) if text]


# --- parsing --------------------------------------------------------------------------------

_HEADING = re.compile(r"^\s{0,3}#{1,6}\s+(.+?)[\s#:]*$")
_BOLD = re.compile(r"^\s{0,3}\*\*([^*]{2,40}?):?\*\*:?\s*(.*)$")
_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[([ xX])\]\s+)?(.*)$")
_WRAPPER = re.compile(r"^\s*</?[\w-]*summary>\s*$", re.IGNORECASE)
_NOTHING = re.compile(r"[(\[]?(?:none(?: yet| so far| stated)?|n/a|nothing(?: yet)?|[-–])?[)\].]*", re.IGNORECASE)
# In this order: "Open Issues" is work to do, "Errors and Fixes" is not blocked.
_HEADING_KINDS = (
    ("in progress|current work|pending|open", IN_PROGRESS),
    ("next", NEXT_STEPS),
    ("constraint|preference|requirement", CONSTRAINTS),
    ("goal|objective|request|intent", GOAL),
    ("decision", DECISIONS),
    ("blocked|blocker", BLOCKED),
    ("done|completed|accomplished|progress", DONE),
    ("task", GOAL),
    ("context", FACTS),
)


def parse(summary: str) -> dict[str, list[str]]:
    """Parse a summary of any shape into its outline; empty lists for an empty one."""
    outline: dict[str, list[str]] = {kind: [] for kind in KINDS}
    kind, prefix = FACTS, ""
    continues = fenced = False  # whether a plain line continues the item above; whether it is code
    for line in strip_tags(summary).splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        heading = None if fenced else _HEADING.match(line) or _BOLD.match(line)
        if heading and (heading.re is _HEADING or _heading_kind(heading[1])):
            kind = _heading_kind(heading[1]) or FACTS
            prefix = "" if _heading_kind(heading[1]) else one_line(heading[1], 60) + ": "
            line, continues = heading[2] if heading.re is _BOLD else "", False
        item = _ITEM.match(line)
        label, lead = (next(filter(line.startswith, starts), "") for starts in (_LABELS, _LEADS))
        if not line.strip() or _WRAPPER.match(line):
            continues = False
        elif label:
            _add_item(outline, _LABELS[label], line.removeprefix(label))
            continues = False
        elif lead:
            for part in map(str.strip, _PARTS.findall(line.removeprefix(lead).strip().removesuffix("."))):
                is_error = _LEADS[lead] == ERRORS
                _add_item(outline, _LEADS[lead], part.removeprefix(OPEN).removesuffix(CLOSE) if is_error else part)
        elif line.startswith((*_FILE_ROWS["rounds"], *_FILE_ROWS["prose"])):
            continue
        elif continues and not item and outline[kind]:
            if len(outline[kind][-1]) < _MAX_ITEM:
                outline[kind][-1] = _sanitize_item(kind, f"{outline[kind][-1]} {line.strip()}")
        else:
            ticked = {"x": DONE, "X": DONE, " ": IN_PROGRESS}.get((item and item[1]) or "", kind)
            _add_item(outline, ticked, prefix + (item[2] if item else line))
            continues = True
    return outline


def _heading_kind(name: str) -> str | None:
    return next((kind for words, kind in _HEADING_KINDS if re.search(words, name.casefold())), None)


def _add_item(outline: dict[str, list[str]], kind: str, item: str) -> None:
    item = re.sub(rf"^(?:{FIRST}|{LATER}|{LATEST})", "", item.strip())
    if kind in _UNDER:
        kind = next((other for other, prefix in _PREFIXES.items() if item.startswith(prefix)), kind)
        item = item.removeprefix(_PREFIXES.get(kind, ""))
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


def _sanitize_item(kind: str, item: str) -> str:
    item = item.replace("**", "") if kind == DECISIONS else item
    return verbatim(item, _MAX_ITEM) if kind == ERRORS else one_line(item, _MAX_ITEM)
