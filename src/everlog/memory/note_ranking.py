"""Ranking of notes and extracted facts against a message: BM25 over the texts of one memory.

The texts are few, so all of them are scanned each time and there is no index to keep in step with
a person's edits; only the terms of a text are cached. Words are compared without their commonest
endings, scripts without spaces in pairs of characters. Text that is struck through is ignored.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from everlog.memory import extracted_file, note_text
from everlog.memory.facts import words
from everlog.memory.note_files import MemoryFile, is_note

_K1, _B = 1.2, 0.75
_MAX_TEXT = 20_000  # characters of a message or a note that are read
_ENDINGS = re.compile(r"(?:ing|ed|es|ly|e|s)$")
_MIN_STEM = 3  # letters
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7a3]+")
# In addition to those of `facts.words`: frequent in questions, without a meaning of their own.
_QUESTION_WORDS = frozenset(
    """what which who whom whose when where why how can could should would may might me us them he
    she him her his not no any some all about into if then than too use using did tell know want
    need make let get give show help thank""".split()  # noqa: SIM905 - words, to be read as such
)


class MemoryItem(NamedTuple):
    """A note or an extracted fact."""

    file: str
    text: str  # the current fact
    words: str  # the text that is searched
    day: str  # of the last update
    session: str = ""  # where it was stated, if known


def collect_items(files: Iterable[MemoryFile]) -> list[MemoryItem]:
    """Return the notes of a memory, and the extracted facts that are in no note yet."""
    items: list[MemoryItem] = []
    for file in files:
        if is_note(file.path):
            note = note_text.parse(file.text)
            body = "\n".join(row for row in note.body.split("\n") if not row.startswith("~~"))
            session = note.sources[0].session if note.sources else ""
            searchable = f"{note.name}\n{note.description}\n{body}"
            day = note_text.note_day(note, file.modified)
            text = body.strip() or note.description
            items.append(MemoryItem(file.path, text, searchable, day, session))
        elif file.path == extracted_file.EXTRACTED_FILE:
            for line in extracted_file.parse_lines(file.text):
                session = line.fact.source.session if line.fact.source else ""
                text = line.fact.text
                items.append(MemoryItem(file.path, text, text, line.day.isoformat(), session))
    return items


def rank_items(items: Sequence[MemoryItem], message: str, limit: int) -> list[MemoryItem]:
    """Return the items a message is about, best first; ties by newest day, then by name."""
    terms = set(_terms(message)) - _QUESTION_WORDS
    if not terms or not items:
        return []
    counts = [_term_counts(item.words) for item in items]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths) or 1.0
    frequencies = {word: sum(word in count for count in counts) for word in terms}
    weights = {
        word: math.log(1 + (len(items) - number + 0.5) / (number + 0.5))
        for word, number in frequencies.items()
        if number
    }
    scored: list[tuple[float, MemoryItem]] = []
    for item, count, length in zip(items, counts, lengths, strict=True):
        room = _K1 * (1 - _B + _B * length / mean)
        score = sum(
            weight * count[word] * (_K1 + 1) / (count[word] + room) for word, weight in weights.items() if count[word]
        )
        if score > 0:
            scored.append((round(score, 6), item))
    scored.sort(key=lambda pair: (pair[1].file, pair[1].text))
    scored.sort(key=lambda pair: (pair[0], pair[1].day), reverse=True)
    return [item for _, item in scored[:limit]]


@lru_cache(maxsize=2_048)
def _term_counts(text: str) -> Counter[str]:
    return Counter(_terms(text))


def _terms(text: str) -> list[str]:
    terms: list[str] = []
    for word in words(text[:_MAX_TEXT]):
        spaced = _UNSPACED.sub(" ", word)
        for run in _UNSPACED.findall(word):
            terms += [run[start : start + 2] for start in range(max(len(run) - 1, 1))]
        for part in re.findall(r"[^\W_]+", spaced):
            terms.append(_stem(part))
    return terms


def _stem(word: str) -> str:
    cut = _ENDINGS.sub("", word)
    return cut if len(cut) >= _MIN_STEM else word
