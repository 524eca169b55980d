"""Consolidation: statements become notes, doubles become one, the newer of two contradicting wins.

A note holds one fact and its past: what it said before stands below, struck through, with the day
until which it held. A note that a person wrote or edited is never changed. A statement that
contradicts it counts for nothing if it is older than the person's edit, and becomes a note of its
own if it is newer; both are reported.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from datetime import date
from typing import Any, NamedTuple

import msgspec

from everlog.memory import note_text
from everlog.memory.conflicts import Claim, claim, contradict, handles
from everlog.memory.dream_plan import Draft
from everlog.memory.facts import Category, Fact, Sayings, Source, is_command, key
from everlog.memory.note_files import file_name
from everlog.memory.note_text import Kind, Note
from everlog.memory.relative_dates import absolute

_TITLE = 60  # characters of a note's name
_BEGIN = re.compile(r"^(?:the user|please|we decided to|we|the project)\s+", re.IGNORECASE)


class Statement(NamedTuple):
    """A fact that waits to become a note, or part of one."""

    fact: Fact
    day: date
    line: int | None = None  # of extracted.md, from which it is taken


def consolidate(draft: Draft, statements: Sequence[Statement]) -> set[int]:
    """Bring all statements into notes, oldest first; returns the lines that are done with."""
    _date(draft)
    known = _join_doubles(draft)
    done: set[int] = set()
    for said in statements:
        fact = said.fact
        if is_command(fact.text):
            draft.remarks.append(f"a line that reads like a command: {fact.text[:80]}")
            continue
        if said.line is not None:
            done.add(said.line)
        fact = msgspec.structs.replace(fact, text=absolute(fact.text, said.day))
        _take(draft, known, fact, said.day)
    return done


def _take(draft: Draft, known: _Known, fact: Fact, day: date) -> None:
    path = known.same(fact.text)
    if path is not None:
        if draft.may_change(path):
            note = note_text.parse(draft.text(path))
            joined = _joined(note, fact.confidence, (fact.source,), day.isoformat())
            if joined != note:
                draft.write(path, joined.text, "said again")
        return
    path = known.rival(fact)
    if path is not None and not draft.may_change(path):
        edited = note_text.day_of(Note(""), draft.read[path].modified)
        if day.isoformat() <= edited:
            draft.remarks.append(f"{path}, which a person edited, against “{fact.text}”")
            return
        draft.remarks.append(
            f"{path}, which a person edited; the newer “{fact.text}” stands beside"
        )
        path = None
    if path is None:
        path = file_name(_title(fact.text), draft.texts)
        note = _new(fact, day)
        draft.write(path, note.text, f"a new {fact.category}: {fact.text}")
    else:
        note = _superseded(note_text.parse(draft.text(path)), fact, day)
        newer = note.fact == fact.text
        reason = "replaced by" if newer else "told of the older"
        draft.write(path, note.text, f"{reason} “{fact.text}” ({day.isoformat()})")
    known.put(path, note)


class _Known:
    """The facts that hold, found by what they say."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._sayings = Sayings()
        self._handles: dict[Hashable, set[str]] = {}

    def put(self, path: str, note: Note) -> None:
        """A note is there, or says something else now."""
        if path in self._claims:
            self._sayings.forget(self._claims[path].key)
        self._claims[path] = claim(note.fact, note.category)
        self._sayings.add(self._claims[path].key, path)
        for handle in handles(self._claims[path]):
            self._handles.setdefault(handle, set()).add(path)

    def same(self, text: str) -> str | None:
        """The note that says this already."""
        return self._sayings.find(key(text))

    def rival(self, fact: Fact) -> str | None:
        """The note that says the contrary."""
        mine = claim(fact.text, fact.category)
        near: set[str] = set()
        for handle in handles(mine):
            near |= self._handles.get(handle, set())
        rivals = (one for one in sorted(near) if contradict(self._claims[one], mine))
        return next(rivals, None)


# --- notes that are there already -----------------------------------------------------------


def _date(draft: Draft) -> None:
    """In notes of ours, relative dates become those that were meant."""
    for path in draft.notes():
        if not draft.may_change(path):
            continue
        note = note_text.parse(draft.text(path))
        read = draft.read.get(path)
        day = date.fromisoformat(note_text.day_of(note, read.modified if read else 0.0))
        dated = note_text.edited(
            note,
            body=absolute(note.body, day),
            **{
                field: absolute(note.fields[field], day)
                for field in ("name", "description")
                if field in note.fields
            },
        )
        if dated != note:
            draft.write(path, dated.text, f"relative dates made absolute, as of {day.isoformat()}")


def _join_doubles(draft: Draft) -> _Known:
    """Of notes that say the same, or the contrary, one stays; returns what is left.

    A person's always stays, and so does a note that says more than its fact.
    """
    known = _Known()
    order = {path: note_text.parse(draft.text(path)) for path in draft.notes()}
    for path in sorted(order, key=lambda one: (draft.may_change(one), order[one].updated, one)):
        note = order[path]
        twin = known.same(note.fact)
        rival = None if twin or note.category is None else known.rival(_fact(note, note.category))
        into = twin or rival
        if into is None or not draft.may_change(path) or _says_more(note):
            known.put(path, note)
        elif twin is not None:
            draft.remove(path, f"says the same as {twin}")
            if draft.may_change(twin):
                joined = _doubled(note_text.parse(draft.text(twin)), note)
                draft.write(twin, joined.text, f"joined with {path}, which said the same")
                known.put(twin, joined)
        elif draft.may_change(into) and note.category is not None:
            day = date.fromisoformat(note_text.day_of(note))
            older = note_text.parse(draft.text(into))
            newer = _superseded(older, _fact(note, note.category), day)
            newer = _joined(newer, 0.0, note.sources, "")
            draft.remove(path, f"says the contrary of {into}, which tells of both now")
            draft.write(into, newer.text, f"replaced by “{note.fact}” ({day.isoformat()})")
            known.put(into, newer)
        else:
            draft.remarks.append(f"{into}, which a person wrote, against {path}")
            known.put(path, note)
    return known


def _fact(note: Note, category: Category) -> Fact:
    return Fact(category, note.fact, note.confidence)


def _doubled(one: Note, other: Note) -> Note:
    """One note of two that say the same: the better words, all sources, the higher confidence."""
    joined = _joined(one, other.confidence, other.sources, other.updated)
    best = other.fact if _better(other, one) else one.fact
    body = _body(best, _former(one, other), _rest(one))
    return note_text.edited(joined, body=body, description=best)


def _says_more(note: Note) -> bool:
    """Whether a note has more than its fact and what it replaced."""
    return bool(_rest(note))


def _rest(note: Note) -> str:
    """What a note says beside its fact and what held before."""
    rows = [row for row in note.body.split("\n") if not row.startswith("~~")]
    at = next((n for n, row in enumerate(rows) if row.strip().lstrip("#").strip() == note.fact), 0)
    return "\n".join(rows[:at] + rows[at + 1 :]).strip()


def _better(one: Note, other: Note) -> bool:
    return (one.confidence, len(one.fact)) > (other.confidence, len(other.fact))


def _former(*given: Note) -> list[tuple[str, str]]:
    found = {old: until for note in given for old, until in note.former}
    return sorted(found.items(), key=lambda one: one[1], reverse=True)


# --- making notes ---------------------------------------------------------------------------


def _new(fact: Fact, day: date) -> Note:
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


def _joined(note: Note, confidence: float, sources: Iterable[Source | None], updated: str) -> Note:
    """The note with more sources, the higher confidence and the later day."""
    every = list(note.sources)
    every += [one for one in sources if one is not None and one not in every]
    changed: dict[str, Any] = {}
    if len(every) > len(note.sources):
        changed["source"] = every
    if confidence > note.confidence:
        changed["confidence"] = confidence
    if updated[:10] > note.updated[:10]:
        changed["updated"] = updated
    return note_text.edited(note, **changed) if changed else note


def _superseded(note: Note, fact: Fact, day: date) -> Note:
    """The note of two contradicting facts: the newer, and below it the older, struck through."""
    since = note_text.day_of(note)
    if day.isoformat() >= since:
        former = [(note.fact, day.isoformat()), *_former(note)]  # all of them: nothing is lost
        sources = [one for one in (fact.source, *note.sources) if one is not None]
        return note_text.edited(
            note,
            body=_body(fact.text, former, _rest(note)),
            name=_title(fact.text),
            description=fact.text,
            category=fact.category,
            confidence=fact.confidence,
            updated=day.isoformat(),
            **({"source": sources} if sources else {}),
        )
    former = [*_former(note), (fact.text, since)]
    return note_text.edited(note, body=_body(note.fact, former, _rest(note)))


def _body(fact: str, former: Iterable[tuple[str, str]], rest: str) -> str:
    old = (note_text.struck(text, until) for text, until in former)
    return "\n\n".join(filter(None, (fact, *old, rest)))


def _title(text: str) -> str:
    short = _BEGIN.sub("", text).rstrip(".!;。")
    if len(short) > _TITLE:
        near = short.rfind(" ", 20, _TITLE)
        short = short[: near if near > 0 else _TITLE].rstrip(" ,;:.-")
    return short[:1].upper() + short[1:]


def _kind(fact: Fact) -> Kind:
    if fact.category != "preference":
        return "project"
    orders = ("please", "always", "never", "from now on", "bitte")
    return "feedback" if fact.text.casefold().startswith(orders) else "user"
