"""Consolidation: turns statements into notes, merges duplicates and resolves contradictions.

A note holds one fact and its past: former facts are kept below it, struck through, with the day
until which they held. Of two contradicting facts the newer one wins. A note that a person wrote or
edited is never changed: a contradicting statement is dropped if it is older than the person's edit
and becomes a separate note if it is newer; both cases are reported.

Nothing here touches a disk: the changes are collected in a draft, and the plan made of it carries
the text of the files as they were read, so that whoever applies it can detect edits in between.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import date
from typing import Literal

import msgspec

from everlog.memory import notes
from everlog.memory.extracted_file import FactLine
from everlog.memory.facts import Claim, FactIndex, fact_key, is_command, is_contradiction, lookup_keys, parse_claim
from everlog.memory.notes import INDEX_FILE, MemoryFile, Note, is_note
from everlog.memory.relative_dates import resolve_dates
from everlog.model import Category
from everlog.ports.memory import Change, DreamPlan, Fact

_MAX_TITLE = 60  # characters
_OPENING = re.compile(r"^(?:the user|please|we decided to|we|the project)\s+", re.IGNORECASE)
_ORDERS = ("please", "always", "never", "from now on")


class DreamDraft:
    """The files of a memory as they would be after a dream."""

    def __init__(self, files: Iterable[MemoryFile]) -> None:
        self.originals: Mapping[str, MemoryFile] = {file.path: file for file in files}
        self.texts = {path: file.text for path, file in self.originals.items()}
        self.remarks: list[str] = []
        self._reasons: dict[str, dict[str, None]] = {}  # by path, in order

    def write(self, path: str, text: str, reason: str) -> None:
        """Set the text of a file."""
        self.texts[path] = text
        self._reasons.setdefault(path, {})[reason] = None

    def remove(self, path: str, reason: str) -> None:
        """Remove a file."""
        del self.texts[path]
        self._reasons.setdefault(path, {})[reason] = None

    def may_change(self, path: str) -> bool:
        """Return whether the file's content was written by us alone."""
        return path not in self.originals or self.originals[path].generated

    def modified(self, path: str) -> float:
        """Return when a file was last changed; 0 for one that does not exist yet."""
        return self.originals[path].modified if path in self.originals else 0.0

    def notes(self) -> list[str]:
        """Return the paths of the notes, in a stable order."""
        return sorted(path for path in self.texts if is_note(path))

    def text(self, path: str) -> str:
        """Return the text that a file would have; nothing if it does not exist."""
        return self.texts.get(path, "")

    def note(self, path: str) -> Note:
        """Return the note that a file would be."""
        return Note(self.text(path))

    def to_plan(self, maker: Literal["rules", "model"] = "rules") -> DreamPlan:
        """Return the effective changes, notes before the index."""
        changes: list[Change] = []
        for path in sorted(self._reasons, key=lambda name: (name == INDEX_FILE, name)):
            before = self.originals[path].text if path in self.originals else None
            after = self.texts.get(path)
            if before != after:
                changes.append(Change(path, before, after, tuple(self._reasons[path])))
        return DreamPlan(tuple(changes), tuple(self.remarks), maker)


def consolidate(draft: DreamDraft, statements: Sequence[FactLine]) -> set[int]:
    """Bring all statements into notes, oldest first; returns the lines that were used."""
    _resolve_note_dates(draft)
    index = _merge_duplicates(draft)
    consumed: set[int] = set()
    for fact, day, line in statements:
        if is_command(fact.text):
            draft.remarks.append(f"a line that reads like a command: {fact.text[:80]}")
            continue
        if line >= 0:
            consumed.add(line)
        _add_fact(draft, index, msgspec.structs.replace(fact, text=resolve_dates(fact.text, day)), day)
    return consumed


def _add_fact(draft: DreamDraft, index: _NoteIndex, fact: Fact, day: date) -> None:
    path = index.find_same(fact.text)
    if path is not None:
        note = draft.note(path)
        joined = notes.add_evidence(note, (fact.source,), fact.confidence, day.isoformat())
        if draft.may_change(path) and joined != note:
            draft.write(path, joined.text, "stated again")
        return
    path = index.find_contradiction(fact.text, fact.category)
    if path is not None and not draft.may_change(path):
        if day <= Note("").day(draft.modified(path)):
            draft.remarks.append(f"{path}, edited by a person, contradicts “{fact.text}”")
            return
        draft.remarks.append(f"{path}, edited by a person; “{fact.text}” is newer, a separate note")
        path = None
    if path is None:
        path = notes.file_name(_title(fact.text), draft.texts)
        note = _create_note(fact, day)
        draft.write(path, note.text, f"a new {fact.category}: {fact.text}")
    else:
        note = _supersede(draft.note(path), fact, day)
        reason = "replaced by" if note.fact == fact.text else "added the older"
        draft.write(path, note.text, f"{reason} “{fact.text}” ({day.isoformat()})")
    index.put(path, note)


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
        claim = self._claims[path] = parse_claim(note.fact, note.category)
        self._facts.add(claim.key, path)
        for key in lookup_keys(claim):
            self._paths_by_key.setdefault(key, set()).add(path)

    def find_same(self, text: str) -> str | None:
        """Return the note that states this fact already."""
        return self._facts.find(fact_key(text))

    def find_contradiction(self, text: str, category: Category) -> str | None:
        """Return the note that contradicts this fact."""
        claim = parse_claim(text, category)
        candidates = {path for key in lookup_keys(claim) for path in self._paths_by_key.get(key, ())}
        return next((path for path in sorted(candidates) if is_contradiction(self._claims[path], claim)), None)


# --- existing notes -------------------------------------------------------------------------


def _resolve_note_dates(draft: DreamDraft) -> None:
    """Make relative dates absolute in the notes that we wrote."""
    for path in filter(draft.may_change, draft.notes()):
        note = draft.note(path)
        day = note.day(draft.modified(path))
        fields = {key: resolve_dates(note.fields[key], day) for key in ("name", "description") if key in note.fields}
        dated = notes.edit(note, body=resolve_dates(note.body, day), **fields)
        if dated != note:
            draft.write(path, dated.text, f"relative dates made absolute, as of {day.isoformat()}")


def _merge_duplicates(draft: DreamDraft) -> _NoteIndex:
    """Merge notes that repeat or contradict each other; returns the remaining ones.

    A person's note always stays, and so does a note with more text than its fact.
    """
    index = _NoteIndex()
    by_path = {path: draft.note(path) for path in draft.notes()}
    for path in sorted(by_path, key=lambda name: (draft.may_change(name), by_path[name].updated, name)):
        note = by_path[path]
        duplicate = index.find_same(note.fact)
        into = duplicate
        if duplicate is None and note.category is not None:
            into = index.find_contradiction(note.fact, note.category)
        if into is None or not draft.may_change(path) or note.remainder:
            index.put(path, note)
        elif duplicate is not None:
            draft.remove(path, f"duplicate of {duplicate}")
            if draft.may_change(duplicate):
                merged = _merge_notes(draft.note(duplicate), note)
                draft.write(duplicate, merged.text, f"merged with its duplicate {path}")
                index.put(duplicate, merged)
        elif draft.may_change(into) and note.category is not None:
            day = note.day()
            newer = _supersede(draft.note(into), Fact(note.category, note.fact, note.confidence), day)
            newer = notes.add_evidence(newer, note.sources)
            draft.remove(path, f"contradicts {into}, which now records both")
            draft.write(into, newer.text, f"replaced by “{note.fact}” ({day.isoformat()})")
            index.put(into, newer)
        else:
            draft.remarks.append(f"{into}, written by a person, contradicts {path}")
            index.put(path, note)
    return index


def _merge_notes(first: Note, second: Note) -> Note:
    """Merge two equal notes: the better wording, all sources, the higher confidence."""
    merged = notes.add_evidence(first, second.sources, second.confidence, second.updated)
    best = max(first, second, key=lambda note: (note.confidence, len(note.fact))).fact
    former = dict(first.former_facts) | dict(second.former_facts)
    return notes.edit(merged, body=_compose_body(best, _newest_first(former), first.remainder), description=best)


# --- new and changed notes ------------------------------------------------------------------


def _create_note(fact: Fact, day: date) -> Note:
    kind = "project"
    if fact.category == "preference":
        kind = "feedback" if fact.text.casefold().startswith(_ORDERS) else "user"
    return notes.compose(
        name=_title(fact.text),
        description=fact.text,
        type=kind,
        category=fact.category,
        confidence=fact.confidence,
        source=(fact.source,) if fact.source else (),
        created=day.isoformat(),
        updated=day.isoformat(),
        body=fact.text,
    )


def _supersede(note: Note, fact: Fact, day: date) -> Note:
    """Return a note of two contradicting facts: the newer, and the older struck through."""
    former = _newest_first(dict(note.former_facts))
    if day < note.day():
        former.append((fact.text, note.day().isoformat()))
        return notes.edit(note, body=_compose_body(note.fact, former, note.remainder))
    sources = [source for source in (fact.source, *note.sources) if source is not None]
    return notes.edit(
        note,
        body=_compose_body(fact.text, [(note.fact, day.isoformat()), *former], note.remainder),
        name=_title(fact.text),
        description=fact.text,
        category=fact.category,
        confidence=fact.confidence,
        updated=day.isoformat(),
        **({"source": sources} if sources else {}),
    )


def _newest_first(until_by_fact: dict[str, str]) -> list[tuple[str, str]]:
    return sorted(until_by_fact.items(), key=lambda item: item[1], reverse=True)


def _compose_body(fact: str, former: Iterable[tuple[str, str]], remainder: str) -> str:
    struck_out = (notes.strike_out(text, until) for text, until in former)
    return "\n\n".join(filter(None, (fact, *struck_out, remainder)))


def _title(text: str) -> str:
    short = _OPENING.sub("", text).rstrip(".!;。")
    if len(short) > _MAX_TITLE:
        space = short.rfind(" ", 20, _MAX_TITLE)
        short = short[: space if space > 0 else _MAX_TITLE].rstrip(" ,;:.-")
    return short[:1].upper() + short[1:]
