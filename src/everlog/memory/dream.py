"""A dream: the memory is put in order, in four phases, and only on paper.

    orient        what is there: index, notes, who wrote them
    gather        what is new: extracted lines, summaries of sessions
    consolidate   statements become notes; doubles, dates, contradictions
    prune         the index below its limits, without pointers to nowhere

What comes out is a plan. Notes, lines and summaries are data: a sentence in them that looks like an
instruction is a sentence. With a model its answer is a proposal that is checked first; what it left
undone, and everything when it is not usable, is done by the same rules as without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import NamedTuple

import msgspec

from everlog.memory import dream_proposal, extracted_file, extraction_rules, index_file, note_text
from everlog.memory.consolidation import Statement, consolidate
from everlog.memory.dream_plan import Draft, Plan, Summary
from everlog.memory.facts import Fact, Source, inert, is_command
from everlog.memory.note_files import MemoryFile
from everlog.memory.note_text import INDEX

HOURS = 24
SESSIONS = 5
_DAY = 86_400


class State(msgspec.Struct, frozen=True):
    """`.consolidation_state.json`."""

    last_consolidated_at: int | None = None  # Unix time
    lock_etag: None = None


class Verdict(NamedTuple):
    """Whether to dream, and why or why not."""

    ready: bool
    reason: str


def gate(
    state: State,
    now: float,
    sessions: Callable[[int], int],
    lock: Callable[[], str],
    *,
    hours: float = HOURS,
    least: int = SESSIONS,
) -> Verdict:
    """The three gates, cheapest first: the next is asked only if the one before is open.

    `sessions(since)` counts those that were written after a Unix time; `lock()` says who holds the
    lock, or nothing. `hours` and `least` are what the first two ask for.
    """
    since = last_run(state, now)
    if since is not None and now - since < hours * 3600:
        passed = max((now - since) / 3600, 0.0)
        return Verdict(False, f"{passed:.1f} of {hours:g} hours since the last dream")
    count = sessions(since or 0)
    if count < least:
        return Verdict(False, f"{count} of {least} new sessions since the last dream")
    holder = lock()
    if holder:
        return Verdict(False, f"another dream is under way: {holder}")
    return Verdict(True, f"{count} new sessions")


def last_run(state: State, now: float) -> int | None:
    """When the last dream was. One far in the future is a clock's mistake and counts as none."""
    last = state.last_consolidated_at
    return None if last is None or last - now > _DAY else last


class Oriented(NamedTuple):
    """What is there."""

    draft: Draft
    lines: list[extracted_file.Line]
    known: list[str]  # the facts of all notes


# --- the phases -----------------------------------------------------------------------------


def orient(files: Iterable[MemoryFile]) -> Oriented:
    """Read the index, the notes and the extracted lines."""
    draft = Draft(files)
    known = [note_text.parse(draft.text(path)).fact for path in draft.notes()]
    return Oriented(draft, extracted_file.read(draft.text(extracted_file.FILE)), known)


_SECTION = re.compile(r"^#+\s+(.*\S)\s*$")
_NOTHING = re.compile(r"\W*(?:none|nothing|n/a|no\b.{0,20})\W*$|\S+$", re.IGNORECASE)
_ITEM = re.compile(r"^\s*(?:[-*+]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?(\S.*)$")


def gather(
    lines: Sequence[extracted_file.Line], summaries: Iterable[Summary] = ()
) -> list[Statement]:
    """What is new, oldest first."""
    found = [Statement(one.fact, one.day, one.number) for one in lines]
    for summary in summaries:
        found += (Statement(fact, summary.day) for fact in _told(summary))
    # The newest run of a session stands first in its day, but has its own order inside.
    run, before, runs = 0, "", []
    for said in found:
        session = said.fact.source.session if said.fact.source else ""
        run += session != before
        before = session
        runs.append(run)
    order = sorted(range(len(found)), key=lambda n: (found[n].day, -runs[n], _seq(found[n]), n))
    return [found[n] for n in order]


def _seq(said: Statement) -> int:
    return said.fact.source.seq if said.fact.source else 0


def _told(summary: Summary) -> list[Fact]:
    """Constraints, preferences and decisions of a summary; the rest holds for its session only."""
    source = Source(summary.session)
    found: list[Fact] = []
    section = ""
    for row in summary.text.split("\n"):
        heading, item = _SECTION.match(row), _ITEM.match(row)
        if heading is not None:
            section = heading[1].casefold()
        elif item is None or is_command(item[1]) or _NOTHING.match(item[1]):
            continue
        elif "decision" in section:
            found.append(Fact("decision", inert(item[1].replace("**", "")), 0.4, source))
        elif "constraint" in section or "preference" in section:
            said = item[1].strip("“”\"' ")
            for fact in extraction_rules.facts_in(said, source):
                found.append(msgspec.structs.replace(fact, confidence=min(fact.confidence, 0.4)))
    return found


def prune(draft: Draft, since: float = 0.0) -> None:
    """Bring the index in line with the notes, and below its limits.

    Notes that a person wrote after `since` get a pointer if they have none; what a person took out
    of the index before stays out.
    """
    text = draft.text(INDEX)
    there = {path.casefold() for path in draft.texts}
    stale = [one for one in index_file.pointers(text) if _is_stale(one.file, there)]
    if stale:
        text = index_file.without(text, {one.number for one in stale})
        names = ", ".join(one.file for one in stale)
        draft.write(INDEX, text, f"pointers to files that are gone: {names}")
    added: list[str] = []
    pointed = {one.file for one in index_file.pointers(text)}
    for path in draft.notes():
        line = _line(draft.text(path), path)
        read = draft.read.get(path)
        if path in pointed:
            old = _line(read.text, path) if read else line
            if old != line:
                text = index_file.replaced(text, old, line)
                draft.write(INDEX, text, f"{path} says something else now")
        elif read is None or read.modified > since:
            added.append(line)
    if added:
        text = index_file.extended(text, added)
        draft.write(INDEX, text, f"new: {len(added)}")
    text, dropped = _fitted(text, draft)
    if dropped:
        draft.write(INDEX, text, f"the least certain, left out for room: {dropped}")


def _line(text: str, path: str) -> str:
    note = note_text.parse(text)
    return index_file.pointer(note.name, path, note.description)


def _is_stale(file: str, there: set[str]) -> bool:
    outside = file.startswith(("/", "~", "../")) or "/../" in file or "/." in f"/{file}"
    return not outside and file.casefold() not in there


def _fitted(text: str, draft: Draft) -> tuple[str, int]:
    """The index without as many lines of ours as it takes to be below the limits."""
    if index_file.fits(text):
        return text, 0
    ours: list[tuple[float, str, str, int]] = []
    for one in index_file.pointers(text):
        if one.file in draft.texts and draft.may_change(one.file):
            note = note_text.parse(draft.text(one.file))
            if one.line == index_file.pointer(note.name, one.file, note.description):
                ours.append((note.confidence, note.updated, one.file, one.number))
    ours.sort()
    low, high = 0, len(ours)
    while low < high:  # the fewest that must go
        middle = (low + high) // 2
        fits = index_file.fits(index_file.without(text, {one[3] for one in ours[:middle]}))
        low, high = (low, middle) if fits else (middle + 1, high)
    return index_file.without(text, {one[3] for one in ours[:low]}), low


def make_plan(
    files: Sequence[MemoryFile],
    today: date,
    *,
    summaries: Sequence[Summary] = (),
    since: float = 0.0,
    answer: str | None = None,
) -> Plan:
    """All four phases. `answer` is what a model said to `proposal.request`, if one was asked."""
    there = orient(files)
    draft = there.draft
    if answer is not None:
        proposed = Draft(files)
        problem = dream_proposal.take(proposed, answer, today)
        if problem:
            draft.remarks.append(f"the model's plan was not used: {problem}")
        else:
            draft = proposed
    statements = gather(there.lines, summaries)
    done = consolidate(draft, statements)
    if done:
        text = extracted_file.without(draft.text(extracted_file.FILE), done)
        draft.write(extracted_file.FILE, text, f"{len(done)} lines are in notes now")
    prune(draft, since)
    return draft.plan("model" if draft is not there.draft else "rules")
