"""Which notes and extracted facts a message is about: BM25 over the few texts of one memory.

The texts are so few that all are looked at each time. There is no index to keep in step with a
person's edits; only the words of a text are not counted twice. They are compared without their
commonest endings, scripts without spaces in pairs of characters. What was struck through is not
found.
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
_LONGEST = 20_000  # characters of a message, or of a note, that are looked at
_ENDINGS = re.compile(r"(?:ing|ed|es|ly|e|s)$")
_LEFT = 3  # letters that an ending leaves at least
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uac00-\ud7a3]+"
)
# Beside those of `facts.words`: they are in every question and say nothing of what it is about.
_ASKING = frozenset(
    """what which who whom whose when where why how can could should would may might me us them he
    she him her his not no any some all about into if then than too use using did tell know want
    need make let get give show help thank""".split()  # noqa: SIM905 - words, to be read as such
)


class Item(NamedTuple):
    """Something remembered."""

    file: str
    text: str  # what holds now
    words: str  # what it is found by, if that is more
    day: str  # of which it tells
    session: str = ""  # where it was said, if that is known


def items(files: Iterable[MemoryFile]) -> list[Item]:
    """What a memory holds: its notes, and the extracted facts that are in no note yet."""
    found: list[Item] = []
    for one in files:
        if is_note(one.path):
            note = note_text.parse(one.text)
            body = "\n".join(row for row in note.body.split("\n") if not row.startswith("~~"))
            session = note.sources[0].session if note.sources else ""
            known = f"{note.name}\n{note.description}\n{body}"
            day = note_text.day_of(note, one.modified)
            found.append(Item(one.path, body.strip() or note.description, known, day, session))
        elif one.path == extracted_file.FILE:
            for line in extracted_file.read(one.text):
                session = line.fact.source.session if line.fact.source else ""
                text = line.fact.text
                found.append(Item(one.path, text, text, line.day.isoformat(), session))
    return found


def best(known: Sequence[Item], message: str, most: int) -> list[Item]:
    """The items that a message is about, best first; of equal ones the newest, then by name."""
    asked = set(_terms(message)) - _ASKING
    if not asked or not known:
        return []
    counts = [_counted(item.words) for item in known]
    lengths = [count.total() for count in counts]
    mean = sum(lengths) / len(lengths) or 1.0
    having = {word: sum(word in count for count in counts) for word in asked}
    weights = {
        word: math.log(1 + (len(known) - number + 0.5) / (number + 0.5))
        for word, number in having.items()
        if number
    }
    scored: list[tuple[float, Item]] = []
    for item, count, length in zip(known, counts, lengths, strict=True):
        room = _K1 * (1 - _B + _B * length / mean)
        score = sum(
            weight * count[word] * (_K1 + 1) / (count[word] + room)
            for word, weight in weights.items()
            if count[word]
        )
        if score > 0:
            scored.append((round(score, 6), item))
    scored.sort(key=lambda one: (one[1].file, one[1].text))
    scored.sort(key=lambda one: (one[0], one[1].day), reverse=True)
    return [item for _, item in scored[:most]]


@lru_cache(maxsize=2_048)
def _counted(text: str) -> Counter[str]:
    return Counter(_terms(text))


def _terms(text: str) -> list[str]:
    found: list[str] = []
    for word in words(text[:_LONGEST]):
        spaced = _UNSPACED.sub(" ", word)
        for run in _UNSPACED.findall(word):
            found += [run[at : at + 2] for at in range(max(len(run) - 1, 1))]
        for piece in re.findall(r"[^\W_]+", spaced):
            found.append(_stem(piece))
    return found


def _stem(word: str) -> str:
    cut = _ENDINGS.sub("", word)
    return cut if len(cut) >= _LEFT else word
