"""A dream: the consolidation of a memory, planned in four phases without touching the disk.

    orient        read the index and the notes, and who wrote them: a `DreamDraft`
    gather        collect what is new: extracted lines, summaries of sessions
    consolidate   turn statements into notes; resolve duplicates, dates, contradictions
    prune         bring the index below its limits, without dangling pointers

The result is a plan. Notes, lines and summaries are data: a sentence in them that looks like an
instruction is not followed. A model's answer is a proposal that is checked first; what it leaves
undone, or everything if it is unusable, is done by the same rules as without a model.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Literal

import msgspec

from everlog.memory import dream_proposal, extracted_file, extraction, index_file
from everlog.memory.consolidation import DreamDraft, consolidate
from everlog.memory.dream_proposal import SessionSummary
from everlog.memory.extracted_file import FactLine
from everlog.memory.facts import is_command, sanitize_line
from everlog.memory.notes import EXTRACTED_FILE, INDEX_FILE, MemoryFile
from everlog.ports.memory import DreamPlan, Fact, Source

_SECTION = re.compile(r"^#+\s+(.*\S)\s*$")
_NOTHING = re.compile(r"\W*(?:none|nothing|n/a|no\b.{0,20})\W*$|\S+$", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?(\S.*)$")


def gather(lines: Sequence[FactLine], summaries: Iterable[SessionSummary] = ()) -> list[FactLine]:
    """Collect the new statements, oldest first."""
    statements = [*lines]
    for summary in summaries:
        statements += (FactLine(fact, summary.day) for fact in _summary_facts(summary))
    # In the file the newest run comes first within a day; inside a run the order is chronological.
    run, previous = 0, ""
    keyed: list[tuple[tuple[date, int, int], FactLine]] = []
    for statement in statements:
        source = statement.fact.source or Source("")
        run += source.session != previous
        previous = source.session
        keyed.append(((statement.day, -run, source.seq), statement))
    return [statement for _, statement in sorted(keyed, key=lambda pair: pair[0])]


def _summary_facts(summary: SessionSummary) -> list[Fact]:
    """Return the constraints, preferences and decisions of a summary, which outlive its session."""
    source = Source(summary.session)
    facts: list[Fact] = []
    section = ""
    for row in summary.text.split("\n"):
        heading, item = _SECTION.match(row), _ITEM.match(row)
        if heading is not None:
            section = heading[1].casefold()
        elif item is None or is_command(item[1]) or _NOTHING.match(item[1]):
            continue
        elif "decision" in section:
            facts.append(Fact("decision", sanitize_line(item[1].replace("**", "")), 0.4, source))
        elif "constraint" in section or "preference" in section:
            statement = item[1].strip("“”\"' ")
            for fact in extraction.find_facts(statement, source):
                facts.append(msgspec.structs.replace(fact, confidence=min(fact.confidence, 0.4)))
    return facts


def prune(draft: DreamDraft, since: float = 0.0) -> None:
    """Bring the index in line with the notes, and below its limits.

    Notes that a person wrote after `since` get a pointer if they have none; a pointer that a person
    removed earlier is not restored.
    """
    text = draft.text(INDEX_FILE)
    paths = {path.casefold() for path in draft.texts}
    stale = [pointer for pointer in index_file.parse_pointers(text) if _is_stale(pointer.file, paths)]
    if stale:
        text = index_file.remove_lines(text, {pointer.number for pointer in stale})
        names = ", ".join(pointer.file for pointer in stale)
        draft.write(INDEX_FILE, text, f"pointers to missing files: {names}")
    added: list[str] = []
    indexed = {pointer.file for pointer in index_file.parse_pointers(text)}
    for path in draft.notes():
        line = index_file.note_pointer(draft.note(path), path)
        original = draft.originals.get(path)
        if path not in indexed:
            if original is None or original.modified > since:
                added.append(line)
        elif original is not None and (old := index_file.note_pointer(original.note, path)) != line:
            text = index_file.replace_line(text, old, line)
            draft.write(INDEX_FILE, text, f"{path} has changed")
    if added:
        text = index_file.append_pointers(text, added)
        draft.write(INDEX_FILE, text, f"new: {len(added)}")
    text, dropped = _fit_index(text, draft)
    if dropped:
        draft.write(INDEX_FILE, text, f"least certain, dropped to save space: {dropped}")


def _is_stale(file: str, paths: set[str]) -> bool:
    outside = file.startswith(("/", "~", "../")) or "/../" in file or "/." in f"/{file}"
    return not outside and file.casefold() not in paths


def _fit_index(text: str, draft: DreamDraft) -> tuple[str, int]:
    """Remove the fewest of our lines that bring the index below its limits."""
    if index_file.is_within_limits(text):
        return text, 0
    removable: list[tuple[float, str, str, int]] = []
    for pointer in index_file.parse_pointers(text):
        if pointer.file in draft.texts and draft.may_change(pointer.file):
            note = draft.note(pointer.file)
            if pointer.line == index_file.note_pointer(note, pointer.file):
                removable.append((note.confidence, note.updated, pointer.file, pointer.number))
    removable.sort()

    def shorten(count: int) -> str:
        return index_file.remove_lines(text, {entry[3] for entry in removable[:count]})

    counts = range(len(removable))
    count = bisect_left(counts, True, key=lambda number: index_file.is_within_limits(shorten(number)))
    return shorten(count), count


def make_plan(
    files: Sequence[MemoryFile],
    today: date,
    *,
    summaries: Sequence[SessionSummary] = (),
    since: float = 0.0,
    answer: str | None = None,
) -> DreamPlan:
    """Run all four phases. `answer`: the model's reply to `dream_proposal.build_request`."""
    draft = DreamDraft(files)
    lines = extracted_file.parse_lines(draft.text(EXTRACTED_FILE))
    maker: Literal["rules", "model"] = "rules"
    if answer is not None:
        problem = dream_proposal.apply_answer(draft, answer, today)
        if problem:
            draft.remarks.append(f"the model's plan was not used: {problem}")
        else:
            maker = "model"
    consumed = consolidate(draft, gather(lines, summaries))
    if consumed:
        text = extracted_file.remove_lines(draft.text(EXTRACTED_FILE), consumed)
        draft.write(EXTRACTED_FILE, text, f"{len(consumed)} lines moved to notes")
    prune(draft, since)
    return draft.to_plan(maker)
