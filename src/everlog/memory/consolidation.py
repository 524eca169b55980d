"""Consolidation: turns statements into notes, merges duplicates and resolves contradictions.

A note holds one fact and its past: former facts are kept below it, struck through, with the day
until which they held. Of two contradicting facts the newer one wins. A note that a person wrote or
edited is never changed: a contradicting statement is dropped if it is older than the person's edit
and becomes a separate note if it is newer; both cases are reported.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from datetime import date
from typing import Any, NamedTuple

import msgspec

from everlog.memory import note_text
from everlog.memory.conflicts import Claim, is_contradiction, lookup_keys, parse_claim
from everlog.memory.dream_plan import DreamDraft
from everlog.memory.facts import Category, Fact, FactIndex, Source, fact_key, is_command
from everlog.memory.note_files import file_name
from everlog.memory.note_text import Kind, Note
from everlog.memory.relative_dates import resolve_dates

_MAX_TITLE = 60  # characters
_OPENING = re.compile(r"^(?:the user|please|we decided to|we|the project)\s+", re.IGNORECASE)


class Statement(NamedTuple):
    """A fact that waits to become a note, or part of one."""

    fact: Fact
    day: date
    line: int | None = None  # in extracted.md, if it comes from there


def consolidate(draft: DreamDraft, statements: Sequence[Statement]) -> set[int]:
    """Bring all statements into notes, oldest first; returns the lines that were used."""
    _resolve_note_dates(draft)
    notes = _merge_duplicates(draft)
    consumed: set[int] = set()
    for statement in statements:
        fact = statement.fact
        if is_command(fact.text):
            draft.remarks.append(f"a line that reads like a command: {fact.text[:80]}")
            continue
        if statement.line is not None:
            consumed.add(statement.line)
        fact = msgspec.structs.replace(fact, text=resolve_dates(fact.text, statement.day))
        _add_fact(draft, notes, fact, statement.day)
    return consumed


def _add_fact(draft: DreamDraft, notes: _NoteIndex, fact: Fact, day: date) -> None:
    path = notes.find_same(fact.text)
    if path is not None:
        if draft.may_change(path):
            note = note_text.parse(draft.text(path))
            joined = _add_evidence(note, fact.confidence, (fact.source,), day.isoformat())
            if joined != note:
                draft.write(path, joined.text, "stated again")
        return
    path = notes.find_contradiction(fact)
    if path is not None and not draft.may_change(path):
        edited = note_text.note_day(Note(""), draft.originals[path].modified)
        if day.isoformat() <= edited:
            draft.remarks.append(f"{path}, edited by a person, contradicts “{fact.text}”")
            return
        draft.remarks.append(f"{path}, edited by a person; “{fact.text}” is newer, a separate note")
        path = None
    if path is None:
        path = file_name(_title(fact.text), draft.texts)
        note = _create_note(fact, day)
        draft.write(path, note.text, f"a new {fact.category}: {fact.text}")
    else:
        note = _supersede(note_text.parse(draft.text(path)), fact, day)
        newer = note.fact == fact.text
        reason = "replaced by" if newer else "added the older"
        draft.write(path, note.text, f"{reason} “{fact.text}” ({day.isoformat()})")
    notes.put(path, note)


class _NoteIndex:
    """An index of the current facts by their meaning."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._facts = FactIndex()
        self._paths_by_key: dict[Hashable, set[str]] = {}

    def put(self, path: str, note: Note) -> None:
        """Add a note, or replace its former entry."""
        if path in self._claims:
            self._facts.remove(self._claims[path].key)
        self._claims[path] = parse_claim(note.fact, note.category)
        self._facts.add(self._claims[path].key, path)
        for key in lookup_keys(self._claims[path]):
            self._paths_by_key.setdefault(key, set()).add(path)

    def find_same(self, text: str) -> str | None:
        """Return the note that states this fact already."""
        return self._facts.find(fact_key(text))

    def find_contradiction(self, fact: Fact) -> str | None:
        """Return the note that contradicts this fact."""
        claim = parse_claim(fact.text, fact.category)
        candidates: set[str] = set()
        for key in lookup_keys(claim):
            candidates |= self._paths_by_key.get(key, set())
        paths = (p for p in sorted(candidates) if is_contradiction(self._claims[p], claim))
        return next(paths, None)


# --- existing notes -------------------------------------------------------------------------


def _resolve_note_dates(draft: DreamDraft) -> None:
    """Make relative dates absolute in the notes that we wrote."""
    for path in draft.notes():
        if not draft.may_change(path):
            continue
        note = note_text.parse(draft.text(path))
        original = draft.originals.get(path)
        day = date.fromisoformat(note_text.note_day(note, original.modified if original else 0.0))
        dated = note_text.edit(
            note,
            body=resolve_dates(note.body, day),
            **{
                field: resolve_dates(note.fields[field], day)
                for field in ("name", "description")
                if field in note.fields
            },
        )
        if dated != note:
            draft.write(path, dated.text, f"relative dates made absolute, as of {day.isoformat()}")


def _merge_duplicates(draft: DreamDraft) -> _NoteIndex:
    """Merge notes that repeat or contradict each other; returns the remaining ones.

    A person's note always stays, and so does a note with more text than its fact.
    """
    index = _NoteIndex()
    notes = {path: note_text.parse(draft.text(path)) for path in draft.notes()}
    for path in sorted(notes, key=lambda name: (draft.may_change(name), notes[name].updated, name)):
        note = notes[path]
        duplicate = index.find_same(note.fact)
        into = duplicate
        if not duplicate and note.category is not None:
            into = index.find_contradiction(_note_fact(note, note.category))
        if into is None or not draft.may_change(path) or _has_more(note):
            index.put(path, note)
        elif duplicate is not None:
            draft.remove(path, f"duplicate of {duplicate}")
            if draft.may_change(duplicate):
                merged = _merge_notes(note_text.parse(draft.text(duplicate)), note)
                draft.write(duplicate, merged.text, f"merged with its duplicate {path}")
                index.put(duplicate, merged)
        elif draft.may_change(into) and note.category is not None:
            day = date.fromisoformat(note_text.note_day(note))
            older = note_text.parse(draft.text(into))
            newer = _supersede(older, _note_fact(note, note.category), day)
            newer = _add_evidence(newer, 0.0, note.sources, "")
            draft.remove(path, f"contradicts {into}, which now records both")
            draft.write(into, newer.text, f"replaced by “{note.fact}” ({day.isoformat()})")
            index.put(into, newer)
        else:
            draft.remarks.append(f"{into}, written by a person, contradicts {path}")
            index.put(path, note)
    return index


def _note_fact(note: Note, category: Category) -> Fact:
    return Fact(category, note.fact, note.confidence)


def _merge_notes(first: Note, second: Note) -> Note:
    """Merge two equal notes: the better wording, all sources, the higher confidence."""
    merged = _add_evidence(first, second.confidence, second.sources, second.updated)
    best = second.fact if _is_better(second, first) else first.fact
    body = _compose_body(best, _former_facts(first, second), _remainder(first))
    return note_text.edit(merged, body=body, description=best)


def _has_more(note: Note) -> bool:
    """Return whether a note contains more than its fact and former facts."""
    return bool(_remainder(note))


def _remainder(note: Note) -> str:
    """Return the text of a note besides its fact and former facts."""
    rows = [row for row in note.body.split("\n") if not row.startswith("~~")]
    plain = [row.strip().lstrip("#").strip() for row in rows]
    position = plain.index(note.fact) if note.fact in plain else 0
    return "\n".join(rows[:position] + rows[position + 1 :]).strip()


def _is_better(first: Note, second: Note) -> bool:
    return (first.confidence, len(first.fact)) > (second.confidence, len(second.fact))


def _former_facts(*notes: Note) -> list[tuple[str, str]]:
    until_by_fact = {old: until for note in notes for old, until in note.former_facts}
    return sorted(until_by_fact.items(), key=lambda item: item[1], reverse=True)


# --- new and changed notes ------------------------------------------------------------------


def _create_note(fact: Fact, day: date) -> Note:
    return note_text.compose(
        name=_title(fact.text),
        description=fact.text,
        body=fact.text,
        type=_kind(fact),
        category=fact.category,
        confidence=fact.confidence,
        sources=(fact.source,) if fact.source else (),
        created=day.isoformat(),
        updated=day.isoformat(),
    )


def _add_evidence(note: Note, confidence: float, sources: Iterable[Source | None], updated: str) -> Note:
    """Return the note with more sources, the higher confidence and the later day."""
    all_sources = list(note.sources)
    all_sources += [s for s in sources if s is not None and s not in all_sources]
    changed: dict[str, Any] = {}
    if len(all_sources) > len(note.sources):
        changed["source"] = all_sources
    if confidence > note.confidence:
        changed["confidence"] = confidence
    if updated[:10] > note.updated[:10]:
        changed["updated"] = updated
    return note_text.edit(note, **changed) if changed else note


def _supersede(note: Note, fact: Fact, day: date) -> Note:
    """Return a note of two contradicting facts: the newer, and the older struck through."""
    since = note_text.note_day(note)
    if day.isoformat() >= since:
        former = [(note.fact, day.isoformat()), *_former_facts(note)]
        sources = [source for source in (fact.source, *note.sources) if source is not None]
        return note_text.edit(
            note,
            body=_compose_body(fact.text, former, _remainder(note)),
            name=_title(fact.text),
            description=fact.text,
            category=fact.category,
            confidence=fact.confidence,
            updated=day.isoformat(),
            **({"source": sources} if sources else {}),
        )
    former = [*_former_facts(note), (fact.text, since)]
    return note_text.edit(note, body=_compose_body(note.fact, former, _remainder(note)))


def _compose_body(fact: str, former: Iterable[tuple[str, str]], remainder: str) -> str:
    struck_out = (note_text.strike_out(text, until) for text, until in former)
    return "\n\n".join(filter(None, (fact, *struck_out, remainder)))


def _title(text: str) -> str:
    short = _OPENING.sub("", text).rstrip(".!;。")
    if len(short) > _MAX_TITLE:
        space = short.rfind(" ", 20, _MAX_TITLE)
        short = short[: space if space > 0 else _MAX_TITLE].rstrip(" ,;:.-")
    return short[:1].upper() + short[1:]


def _kind(fact: Fact) -> Kind:
    if fact.category != "preference":
        return "project"
    orders = ("please", "always", "never", "from now on", "bitte")
    return "feedback" if fact.text.casefold().startswith(orders) else "user"
