"""Facts: what is remembered, in one line, and when two of them say the same.

A fact is data. It was said by a user or found by a model, so nothing in it may look like a mark
of the files it is kept in, secrets are covered, and a sentence that tries to command whoever reads
the memory is no fact. Two facts are the same when they differ in case, punctuation, words that
say nothing, or a slip of the pen; numbers, negations and the order around "over" or "than" count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import Literal, get_args

import msgspec

from everlog.redaction import redact

Category = Literal["preference", "project", "pattern", "decision", "constraint"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
LONGEST = 500  # characters of one fact


class Source(msgspec.Struct, frozen=True):
    """Where a fact was said."""

    session: str
    seq: int = 0  # of the message; 0: it is not known which


class Fact(msgspec.Struct, frozen=True):
    """One thing worth knowing in later sessions."""

    category: Category
    text: str  # one line, see `inert`
    confidence: float  # 0.0 to 1.0
    source: Source | None = None


# Controls and marks of writing direction: they show as nothing, or as something else.
_INVISIBLE: dict[int, str | None] = {
    **dict.fromkeys((*range(9), *range(0x0E, 0x20), *range(0x7F, 0x85), *range(0x86, 0xA0)), " "),
    **dict.fromkeys((0x200B, 0x200E, 0x200F, 0xFEFF)),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2060, 0x206A))),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}
_MARKS = (("<!--", "‹!--"), ("-->", "--›"), ("~~", "~"))  # what provenance and old facts use
_LEAD = re.compile(r"^(?:[#>]+\s+|[-*+•]\s+|\d{1,3}[.)]\s+|---+\s*)+")

_COMMAND = re.compile(
    r"""
      \b(?:ignore|disregard|forget|override)\b.{0,40}
        \b(?:instructions?|prompts?|rules|previous|above|notes|memor(?:y|ies))\b
    | \b(?:delete|erase|wipe|remove|destroy|clear)\b.{0,30}
        \b(?:all|every|the|your)\b.{0,20}\b(?:notes?|memor(?:y|ies)|memory\.md)\b
    | \bsystem\ prompt\b | \byou\ are\ now\b | \bnew\ instructions?\b\s*:
    | ^\W*(?:system|assistant)\s*:
    | \bvergiss\b.{0,30}\b(?:anweisungen|notizen)\b | \boublie[zr]?\b.{0,30}\binstructions\b
    | \bignora\b.{0,30}\binstrucciones\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def inert(text: str, width: int = LONGEST) -> str:
    """A text on one line that no file of the memory takes for a mark of its own."""
    text = " ".join(text[: 8 * width].translate(_INVISIBLE).split())
    text = redact(_LEAD.sub("", text))[0]
    for mark, shown in _MARKS:
        while mark in text:  # what is left after one pass may form another
            text = text.replace(mark, shown)
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def is_command(text: str) -> bool:
    """Whether a text tries to command its reader: such text is never remembered."""
    return _COMMAND.search(text) is not None


# --- sameness -------------------------------------------------------------------------------

_TOKEN = re.compile(r"v?\d[\w.\-]*\+?|[^\W\d_][\w'’.+#/\-]*|[^\W_]")
_STOP = frozenset(
    {
        *("a", "an", "the", "this", "that", "these", "those", "it", "its", "there", "and", "or"),
        *("i", "i'm", "i've", "we", "we've", "you", "user", "they", "their", "my", "our", "your"),
        *("is", "are", "was", "be", "been", "am", "do", "does", "has", "have", "had", "will"),
        *("please", "also", "really", "just", "very", "strongly", "generally", "usually", "so"),
        *("of", "in", "on", "at", "by", "with", "as", "for", "to", "now", "still", "currently"),
        *("der", "die", "das", "ein", "eine", "ist", "ich", "wir", "bitte", "le", "la", "les"),
        *("un", "une", "est", "je", "nous", "el", "los", "las", "una", "es", "yo", "por", "s'il"),
    }
)
_ORDERED = frozenset(
    {"over", "than", "instead", "before", "after", "from", "depend", "but", "above", "below"}
)
NEGATIONS = frozenset(
    {
        *("not", "no", "never", "without", "don't", "doesn't", "won't", "can't", "cannot"),
        *("avoid", "stop", "nie", "niemals", "nicht", "kein", "keine", "jamais", "pas", "nunca"),
    }
)


_SPELT = 6  # letters of a word that may be spelt differently


def words(text: str) -> tuple[str, ...]:
    """The words of a text that carry its meaning, in their order."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    found = (match.rstrip(".-'/") for match in _TOKEN.findall(folded))
    return tuple(_stem(word) for word in found if word and word not in _STOP)


def _stem(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "'s")):
        return word[:-1]
    return word.removesuffix("'s")


def key(text: str) -> tuple[str, ...]:
    """What is left of a text when all that makes no difference is gone."""
    kept = words(text)
    if not kept:  # nothing but empty words, or but signs: these are its meaning, then
        folded = unicodedata.normalize("NFKC", text).casefold()
        said = (match.rstrip(".-'/") for match in _TOKEN.findall(folded))
        return tuple(filter(None, said)) or tuple(folded.split())
    return kept if _ORDERED & set(kept) else tuple(sorted(set(kept)))


def same(one: str, other: str) -> bool:
    """Whether two texts state the same fact."""
    return alike(key(one), key(other))


def alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two keys are those of the same fact."""
    if one == other:
        return True
    if len(one) != len(other) or len(one) < 3:
        return False
    # One word may be spelt differently, if it is long and no number or negation.
    left, right = set(one) - set(other), set(other) - set(one)
    if len(left) != 1 or len(right) != 1:
        return False
    a, b = left.pop(), right.pop()
    if min(len(a), len(b)) < _SPELT or not (a + b).isalpha() or {a, b} & NEGATIONS:
        return False
    return SequenceMatcher(None, a, b).ratio() >= 0.88


class Sayings:
    """Facts by what they say: whether one is known is found without going through all."""

    def __init__(self) -> None:
        self._where: dict[tuple[str, ...], str] = {}
        self._near: dict[tuple[str, ...], list[tuple[str, ...]]] = {}  # without one word → keys

    def add(self, said: tuple[str, ...], where: str) -> None:
        """A fact with this key is known; the first place that says it counts."""
        if said not in self._where:
            for rest in _shortened(said):
                self._near.setdefault(rest, []).append(said)
        self._where.setdefault(said, where)

    def forget(self, said: tuple[str, ...]) -> None:
        """It is said no longer."""
        self._where.pop(said, None)

    def find(self, said: tuple[str, ...]) -> str | None:
        """Where the same is said, or None."""
        if said in self._where:
            return self._where[said]
        for rest in _shortened(said):
            for other in self._near.get(rest, ()):
                if other in self._where and alike(other, said):
                    return self._where[other]
        return None


def _shortened(said: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for at, word in enumerate(said):
        if len(word) >= _SPELT:
            yield said[:at] + said[at + 1 :]


def fresh(found: Iterable[Fact], known: Iterable[str]) -> list[Fact]:
    """The facts that are neither known nor repeated among themselves."""
    sayings = Sayings()
    for text in known:
        sayings.add(key(text), text)
    kept: list[Fact] = []
    for fact in found:
        mine = key(fact.text)
        if fact.text and sayings.find(mine) is None:
            sayings.add(mine, fact.text)
            kept.append(fact)
    return kept
