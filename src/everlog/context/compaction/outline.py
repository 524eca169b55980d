"""The outline of a summary: lists of one-line items, written in three shapes and parsed back.

An outline has one list per kind of item. `structured` writes it under the fixed headings, `rounds`
as labelled lines, `prose` as paragraphs. `parse` reads all three, and whatever a model wrote under
headings of its own, so that a summary can be updated whoever made it. Items come out of `parse` as
they went in; an item that fits nowhere is kept as a fact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from everlog.context.compaction import prompts
from everlog.context.compaction.file_operations import FileOps, format_tags, list_paths, strip_tags
from everlog.context.compaction.prompts import BLOCKED, CONSTRAINTS, DECISIONS, DONE, GOAL, IN_PROGRESS, NEXT_STEPS
from everlog.context.compaction.quoting import CLOSE, LIST_ITEM, OPEN, STRAIGHT, one_line, sentences, verbatim

FACTS = prompts.CRITICAL
ABOUT, ERRORS = "About", "Errors"  # kinds without a heading of their own
# Label in `rounds`, lead in `prose`, rank of the newest item, step to each older one. The ranks are
# tuned by reading summaries of real sessions; at 4,000 tokens items up to about rank 20 fit.
KINDS = {
    ABOUT: ("About: ", "Of the people involved it is known: ", 1.0, 0.4),
    GOAL: ("Request: ", "The user asked, oldest first: ", 0.0, 2.0),
    CONSTRAINTS: ("Rule: ", "The user set these rules and preferences: ", 1.0, 0.4),
    DONE: ("Done: ", "So far this was done: ", 3.0, 0.9),
    IN_PROGRESS: ("Open: ", "Still open is: ", 1.0, 0.7),
    BLOCKED: ("Blocked: ", "In the way stands: ", 1.0, 0.7),
    DECISIONS: ("Decision: ", "Decisions and findings were: ", 4.0, 1.3),
    NEXT_STEPS: ("Next: ", "Next comes: ", 2.0, 0.7),
    FACTS: ("Fact: ", "To go on one needs to know: ", 2.0, 0.8),
    ERRORS: ("Error: ", "Errors that were seen, word for word: ", 2.0, 0.3),
}
_UNDER = {CONSTRAINTS: (ABOUT, CONSTRAINTS), FACTS: (FACTS, ERRORS)}  # under a heading, with these prefixes:
_PREFIXES = {ABOUT: "About the people: ", ERRORS: "Error: "}
_MARKS = {DONE: "- [x] ", IN_PROGRESS: "- [ ] "}
_FILES = {"rounds": ("Changed files: ", "Read files: "), "prose": ("The files changed are ", "The files read are ")}
FIRST, LATER, LATEST = "First request: ", "Then: ", "Latest request: "
# Not parsed: files are known from the calls, and output was written by earlier versions.
_IGNORED = (*_FILES["rounds"], *_FILES["prose"], "Output: ", "Around them was printed: ")
# Items that begin so describe a state: a newer one replaces an older one. The lasting ones are carried
# over until then, the others never are; some were written by earlier versions only.
LASTING = (WORKING, CWD, TESTS, EDITS, RAN, ANSWER, STATEMENT, LINKS) = (
    *("Working on: ", "Working directory: ", "Tests: ", "Most edits: ", "Ran: "),
    *("Last answer: ", "Last words: ", "Links: "),
)
SHORT_LIVED = (UNANSWERED, FOCUS, GO_ON, QUESTION, ANSWER_LATEST, AWAIT_REQUEST, *_) = (
    *("Not finished: ", "Focus: ", "Go on from: ", "Await the answer to: ", "Go on with the latest request"),
    *("Nothing is open, the next request decides", "Before that: ", "Names: "),
)
_MAX_ITEM = 700  # characters of an item of an earlier summary
Outline = Mapping[str, Sequence[str]]


class Item(NamedTuple):
    """One line of a summary."""

    kind: str
    text: str
    weight: float = 0.0  # 0: dropped last; larger: dropped sooner


# --- writing --------------------------------------------------------------------------------


def write(strategy: str, outline: Outline, ops: FileOps, reads: int, modified: int) -> str:
    """Write the outline, then the given numbers of files, in the shape of a strategy, or else `structured`."""
    if strategy not in _FILES:
        parts = [_write_section(heading, outline) for heading in prompts.HEADINGS]
        return "\n\n".join(filter(None, (*parts, format_tags(ops, reads=reads, modified=modified))))
    lists = list_paths(ops.modified, modified), list_paths(ops.read, reads)
    files = [lead + ", ".join(paths) for lead, paths in zip(_FILES[strategy], lists, strict=True) if paths]
    parts = []
    for kind, (label, lead, *_) in KINDS.items():
        items = outline.get(kind, ())
        if strategy == "rounds":
            parts += [label + item for item in items]
        elif items:
            parts.append(f"{lead}{'; '.join(_write_clause(kind, item) for item in items)}.")
    if strategy == "rounds":
        return "\n".join((*parts, *files)) or "Nothing yet."
    return "\n\n".join(filter(None, (*parts, " ".join(f"{row}." for row in files)))) or "Nothing yet."


def _write_section(heading: str, outline: Outline) -> str:
    name = heading.lstrip("# ")
    items = [_PREFIXES.get(kind, "") + item for kind in _UNDER.get(name, (name,)) for item in outline.get(kind, ())]
    if name == GOAL:
        labels = [FIRST, *[LATER] * (len(items) - 2), LATEST]
        items = [label + goal for label, goal in zip(labels, items, strict=False)]
    elif name == DECISIONS:
        items = [f"**{choice}**{colon}{reason}" for choice, colon, reason in (item.partition(": ") for item in items)]
    rows = [_MARKS.get(name, "- ") + item for item in items] or ["- none"]
    if name == NEXT_STEPS:
        rows = [f"{number}. {item}" for number, item in enumerate(items or ["none"], 1)]
    return "\n".join((heading, *rows) if name in KINDS else (heading,))


# Semicolons separate the items of a paragraph, except inside quotation marks.
_QUOTED = rf"{OPEN}[^{CLOSE}]{{0,1200}}{CLOSE}"
_SEMICOLON = re.compile(rf"({_QUOTED})|; ")
_CLAUSE = re.compile(rf"(?:{_QUOTED}|[^;{OPEN}]|;(?!\s))+")


def _write_clause(kind: str, item: str) -> str:
    if kind == ERRORS:
        return f"{OPEN}{item.translate(STRAIGHT)}{CLOSE}"
    return _SEMICOLON.sub(lambda match: match[1] or ", ", item).rstrip(".")


# --- parsing --------------------------------------------------------------------------------

_HEADING = re.compile(r"^\s{0,3}#{2,6}\s+(\S.*)$")
_WRAPPER = re.compile(r"\s*+(?:</?[\w-]*summary>|# [\w ]*summary|```\w*)?\s*", re.IGNORECASE)
_NOTHING = re.compile(r"[(\[]?(?:none(?: yet| so far| stated)?|n/a|nothing(?: yet)?|[-–])?[)\].]*", re.IGNORECASE)
# In this order: "Open Issues" is work to do, "Errors and Fixes" is not blocked.
_HEADING_KINDS = {
    "in progress|current work|pending|open": IN_PROGRESS,
    "next": NEXT_STEPS,
    "constraint|preference|requirement": CONSTRAINTS,
    "decision": DECISIONS,
    "blocked|blocker": BLOCKED,
    "done|completed|accomplished|progress": DONE,
    "goal|objective|request|intent|task": GOAL,
    "context": FACTS,
}


def parse(summary: str) -> dict[str, list[str]]:
    """Parse a summary of any shape into its outline; empty lists for an empty one."""
    outline: dict[str, list[str]] = {kind: [] for kind in KINDS}
    section, prefix = FACTS, ""
    last = ""  # the kind of the item above, which a plain line continues
    for line in strip_tags(summary).splitlines():
        heading, item = _HEADING.match(line), LIST_ITEM.match(line)
        text = item[2] if item else line.strip()
        kind, clauses = _parse_clauses(line)
        if heading:
            section = next((kind for words, kind in _HEADING_KINDS.items() if re.search(words, heading[1].lower())), "")
            prefix = "" if section else one_line(heading[1], 60).rstrip(" #:") + ": "
            section, last = section or FACTS, ""
        elif _WRAPPER.fullmatch(line) or text.startswith(_IGNORED):
            last = ""
        elif kind:
            for clause in clauses:
                _add_item(outline, kind, clause)
            last = ""
        elif last and not item:
            last = _add_item(outline, last, f"{outline[last].pop()} {text}")
        else:
            ticked = {"x": DONE, "X": DONE, " ": IN_PROGRESS}.get((item and item[1]) or "", section)
            last = _add_item(outline, ticked, prefix + text)
    return outline


def _parse_clauses(line: str) -> tuple[str, list[str]]:
    """Return the kind and the items of a labelled line or of a paragraph, or nothing."""
    for kind, (label, lead, *_) in KINDS.items():
        if line.startswith(label):
            return kind, [line.removeprefix(label)]
        if line.startswith(lead):
            clauses = [clause.strip() for clause in _CLAUSE.findall(line.removeprefix(lead).strip().removesuffix("."))]
            return kind, [c.removeprefix(OPEN).removesuffix(CLOSE) for c in clauses] if kind == ERRORS else clauses
    return "", []


def _add_item(outline: dict[str, list[str]], kind: str, text: str) -> str:
    """Add an item and return its kind, or nothing if the text says that there is none."""
    text = re.sub(rf"^(?:{FIRST}|{LATER}|{LATEST})", "", text.strip())
    if kind in _UNDER:
        kind = next((other for other, prefix in _PREFIXES.items() if text.startswith(prefix)), kind)
        text = text.removeprefix(_PREFIXES.get(kind, ""))
    if kind == DECISIONS:
        text = text.replace("**", "")
    if _NOTHING.fullmatch(text):
        return ""
    # A long paragraph becomes several items, so that it is not kept or dropped as a whole.
    parts = sentences(text) if kind == FACTS and len(text) > _MAX_ITEM else (text,)
    outline[kind] += [verbatim(p, _MAX_ITEM) if kind == ERRORS else one_line(p, _MAX_ITEM) for p in parts]
    return kind
