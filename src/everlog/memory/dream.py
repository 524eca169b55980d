"""A dream: the consolidation of a memory, planned in four phases without touching the disk.

    orient        read the index and the notes, and who wrote them
    gather        collect what is new: extracted lines, summaries of sessions
    consolidate   turn statements into notes; resolve duplicates, dates, contradictions
    prune         bring the index below its limits, without dangling pointers

The result is a plan. Notes, lines and summaries are data: a sentence in them that looks like an
instruction is not followed. A model's answer is a proposal that is checked first; what it leaves
undone, or everything if it is unusable, is done by the same rules as without a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import NamedTuple

import msgspec

from everlog.memory import dream_proposal, extracted_file, extraction_rules, index_file, note_text
from everlog.memory.consolidation import Statement, consolidate
from everlog.memory.dream_plan import DreamDraft, DreamPlan, SessionSummary
from everlog.memory.extracted_file import EXTRACTED_FILE, FactLine
from everlog.memory.facts import Fact, Source, is_command, sanitize_line
from everlog.memory.note_files import MemoryFile
from everlog.memory.note_text import INDEX_FILE

MIN_HOURS = 24
MIN_SESSIONS = 5
_DAY = 86_400


class ConsolidationState(msgspec.Struct, frozen=True):
    """The content of `.consolidation_state.json`."""

    last_consolidated_at: int | None = None  # Unix time
    lock_etag: None = None


class Verdict(NamedTuple):
    """Whether to dream, and why or why not."""

    ready: bool
    reason: str


def check_gates(
    state: ConsolidationState,
    now: float,
    count_sessions: Callable[[int], int],
    lock_holder: Callable[[], str],
    *,
    min_hours: float = MIN_HOURS,
    min_sessions: int = MIN_SESSIONS,
) -> Verdict:
    """Check the three gates, cheapest first; the first closed one decides.

    `count_sessions(since)` counts the sessions written after a Unix time; `lock_holder()` returns
    who holds the lock, or nothing.
    """
    since = last_run(state, now)
    if since is not None and now - since < min_hours * 3600:
        hours = max((now - since) / 3600, 0.0)
        return Verdict(False, f"{hours:.1f} of {min_hours:g} hours since the last dream")
    count = count_sessions(since or 0)
    if count < min_sessions:
        return Verdict(False, f"{count} of {min_sessions} new sessions since the last dream")
    holder = lock_holder()
    if holder:
        return Verdict(False, f"another dream is running: {holder}")
    return Verdict(True, f"{count} new sessions")


def last_run(state: ConsolidationState, now: float) -> int | None:
    """Return when the last dream was; a time far in the future is a clock error, so None."""
    last = state.last_consolidated_at
    return None if last is None or last - now > _DAY else last


class MemoryOverview(NamedTuple):
    """The content of a memory before a dream."""

    draft: DreamDraft
    lines: list[FactLine]
    known_facts: list[str]  # of all notes


# --- the phases -----------------------------------------------------------------------------


def orient(files: Iterable[MemoryFile]) -> MemoryOverview:
    """Read the index, the notes and the extracted lines."""
    draft = DreamDraft(files)
    known_facts = [note_text.parse(draft.text(path)).fact for path in draft.notes()]
    lines = extracted_file.parse_lines(draft.text(EXTRACTED_FILE))
    return MemoryOverview(draft, lines, known_facts)


_SECTION = re.compile(r"^#+\s+(.*\S)\s*$")
_NOTHING = re.compile(r"\W*(?:none|nothing|n/a|no\b.{0,20})\W*$|\S+$", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?(\S.*)$")


def gather(lines: Sequence[FactLine], summaries: Iterable[SessionSummary] = ()) -> list[Statement]:
    """Collect the new statements, oldest first."""
    statements = [Statement(line.fact, line.day, line.number) for line in lines]
    for summary in summaries:
        statements += (Statement(fact, summary.day) for fact in _summary_facts(summary))
    # In the file the newest run comes first within a day; inside a run the order is chronological.
    run, previous, run_numbers = 0, "", []
    for statement in statements:
        session = statement.fact.source.session if statement.fact.source else ""
        run += session != previous
        previous = session
        run_numbers.append(run)

    def order(n: int) -> tuple[date, int, int, int]:
        return statements[n].day, -run_numbers[n], _seq(statements[n]), n

    return [statements[n] for n in sorted(range(len(statements)), key=order)]


def _seq(statement: Statement) -> int:
    return statement.fact.source.seq if statement.fact.source else 0


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
            for fact in extraction_rules.find_facts(statement, source):
                facts.append(msgspec.structs.replace(fact, confidence=min(fact.confidence, 0.4)))
    return facts


def prune(draft: DreamDraft, since: float = 0.0) -> None:
    """Bring the index in line with the notes, and below its limits.

    Notes that a person wrote after `since` get a pointer if they have none; a pointer that a person
    removed earlier is not restored.
    """
    text = draft.text(INDEX_FILE)
    paths = {path.casefold() for path in draft.texts}
    pointers = index_file.parse_pointers(text)
    stale = [pointer for pointer in pointers if _is_stale(pointer.file, paths)]
    if stale:
        text = index_file.remove_lines(text, {pointer.number for pointer in stale})
        names = ", ".join(pointer.file for pointer in stale)
        draft.write(INDEX_FILE, text, f"pointers to missing files: {names}")
    added: list[str] = []
    indexed = {pointer.file for pointer in index_file.parse_pointers(text)}
    for path in draft.notes():
        line = _pointer_line(draft.text(path), path)
        original = draft.originals.get(path)
        if path in indexed:
            old = _pointer_line(original.text, path) if original else line
            if old != line:
                text = index_file.replace_line(text, old, line)
                draft.write(INDEX_FILE, text, f"{path} has changed")
        elif original is None or original.modified > since:
            added.append(line)
    if added:
        text = index_file.append_pointers(text, added)
        draft.write(INDEX_FILE, text, f"new: {len(added)}")
    text, dropped = _fit_index(text, draft)
    if dropped:
        draft.write(INDEX_FILE, text, f"least certain, dropped to save space: {dropped}")


def _pointer_line(text: str, path: str) -> str:
    note = note_text.parse(text)
    return index_file.format_pointer(note.name, path, note.description)


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
            note = note_text.parse(draft.text(pointer.file))
            if pointer.line == index_file.format_pointer(note.name, pointer.file, note.description):
                removable.append((note.confidence, note.updated, pointer.file, pointer.number))
    removable.sort()
    low, high = 0, len(removable)
    while low < high:  # bisect for the fewest lines to remove
        middle = (low + high) // 2
        shorter = index_file.remove_lines(text, {entry[3] for entry in removable[:middle]})
        fits = index_file.is_within_limits(shorter)
        low, high = (low, middle) if fits else (middle + 1, high)
    return index_file.remove_lines(text, {entry[3] for entry in removable[:low]}), low


def make_plan(
    files: Sequence[MemoryFile],
    today: date,
    *,
    summaries: Sequence[SessionSummary] = (),
    since: float = 0.0,
    answer: str | None = None,
) -> DreamPlan:
    """Run all four phases. `answer`: the model's reply to `dream_proposal.build_request`."""
    overview = orient(files)
    draft = overview.draft
    if answer is not None:
        proposal = DreamDraft(files)
        problem = dream_proposal.apply_answer(proposal, answer, today)
        if problem:
            draft.remarks.append(f"the model's plan was not used: {problem}")
        else:
            draft = proposal
    statements = gather(overview.lines, summaries)
    consumed = consolidate(draft, statements)
    if consumed:
        text = extracted_file.remove_lines(draft.text(EXTRACTED_FILE), consumed)
        draft.write(EXTRACTED_FILE, text, f"{len(consumed)} lines moved to notes")
    prune(draft, since)
    return draft.to_plan("model" if draft is not overview.draft else "rules")
