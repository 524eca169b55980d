"""Facts: one-line statements to remember, and the rules for when two of them are the same.

A fact is data: a user stated it or a model extracted it. So it may not contain the syntax of the
files it is kept in, secrets are redacted, and a sentence that tries to instruct whoever reads the
memory is rejected. Two facts are the same if they differ only in case, punctuation, stop words or
a typo; numbers, negations and the order around "over" or "than" make a difference.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher

from everlog.context.fence import strip_invisible
from everlog.ports.memory import Fact
from everlog.redaction import redact

MAX_LENGTH = 500  # characters of one fact

_MARKS = (("<!--", "‹!--"), ("-->", "--›"), ("~~", "~"))  # syntax of provenance comments and former facts
_LEAD = re.compile(r"^(?:[#>]+\s+|[-*+•]\s+|\d{1,3}[.)]\s+|---+\s*)+")

_COMMAND = re.compile(
    r"""
      \b(?:ignore|disregard|forget|override)\b.{0,40}
        \b(?:instructions?|prompts?|rules|previous|above|notes|memor(?:y|ies))\b
    | \b(?:delete|erase|wipe|remove|destroy|clear)\b.{0,30}
        \b(?:all|every|the|your)\b.{0,20}\b(?:notes?|memor(?:y|ies)|memory\.md)\b
    | \bsystem\ prompt\b | \byou\ are\ now\b | \bnew\ instructions?\b\s*:
    | ^\W*(?:system|assistant)\s*:
    """,
    re.VERBOSE | re.IGNORECASE,
)


def sanitize_line(text: str, width: int = MAX_LENGTH) -> str:
    """Return the text on one line, redacted and without the syntax of memory files."""
    text = " ".join(strip_invisible(text[: 8 * width]).split())
    text = redact(_LEAD.sub("", text))[0]
    for mark, replacement in _MARKS:
        while mark in text:  # a replacement may produce the mark again
            text = text.replace(mark, replacement)
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def is_command(text: str) -> bool:
    """Return whether a text tries to instruct its reader; such text is never remembered."""
    return _COMMAND.search(text) is not None


# --- equality -------------------------------------------------------------------------------

_TOKEN = re.compile(r"v?\d[\w.\-]*\+?|[^\W\d_][\w'’.+#/\-]*|[^\W_]")
_STOP_WORDS = frozenset(
    {
        *("a", "an", "the", "this", "that", "these", "those", "it", "its", "there", "and", "or"),
        *("i", "i'm", "i've", "we", "we've", "you", "user", "they", "their", "my", "our", "your"),
        *("is", "are", "was", "be", "been", "am", "do", "does", "has", "have", "had", "will"),
        *("please", "also", "really", "just", "very", "strongly", "generally", "usually", "so"),
        *("of", "in", "on", "at", "by", "with", "as", "for", "to", "now", "still", "currently"),
    }
)
_ORDER_WORDS = frozenset({"over", "than", "instead", "before", "after", "from", "depend", "but", "above", "below"})
NEGATIONS = frozenset(
    {"not", "no", "never", "without", "don't", "doesn't", "won't", "can't", "cannot", "avoid", "stop"}
)
_MIN_SPELLING = 6  # letters; shorter words must be spelt the same


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text that carry its meaning, in order."""
    return tuple(_stem(word) for word in _tokens(text) if word not in _STOP_WORDS)


def _tokens(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return [token for match in _TOKEN.findall(folded) if (token := match.rstrip(".-'/"))]


def _stem(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "'s")):
        return word[:-1]
    return word.removesuffix("'s")


def fact_key(text: str) -> tuple[str, ...]:
    """Return the key of a fact: its words without anything that makes no difference."""
    key = words(text)
    if not key:  # only stop words or symbols: then they are the meaning
        return tuple(_tokens(text)) or tuple(unicodedata.normalize("NFKC", text).casefold().split())
    return key if _ORDER_WORDS & set(key) else tuple(sorted(set(key)))


def is_same_fact(first: str, second: str) -> bool:
    """Return whether two texts state the same fact."""
    return is_same_key(fact_key(first), fact_key(second))


def is_same_key(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Return whether two keys belong to the same fact."""
    if first == second:
        return True
    if len(first) != len(second) or len(first) < 3:
        return False
    # One word may be spelt differently, if it is long and neither a number nor a negation.
    only_first, only_second = set(first) - set(second), set(second) - set(first)
    if len(only_first) != 1 or len(only_second) != 1:
        return False
    a, b = only_first.pop(), only_second.pop()
    if min(len(a), len(b)) < _MIN_SPELLING or not (a + b).isalpha() or {a, b} & NEGATIONS:
        return False
    return SequenceMatcher(None, a, b).ratio() >= 0.88


class FactIndex:
    """Facts by key, with a lookup that does not compare against every fact."""

    def __init__(self) -> None:
        self._locations: dict[tuple[str, ...], str] = {}
        # Keys by each of their versions without one long word.
        self._shortened: dict[tuple[str, ...], list[tuple[str, ...]]] = {}

    def add(self, key: tuple[str, ...], location: str) -> None:
        """Add a fact with this key; the first location of a key wins."""
        if key not in self._locations:
            for shortened in _shortened_keys(key):
                self._shortened.setdefault(shortened, []).append(key)
        self._locations.setdefault(key, location)

    def remove(self, key: tuple[str, ...]) -> None:
        """Remove the fact with this key."""
        self._locations.pop(key, None)

    def find(self, key: tuple[str, ...]) -> str | None:
        """Return the location of the same fact, or None."""
        if key in self._locations:
            return self._locations[key]
        for shortened in _shortened_keys(key):
            for neighbour in self._shortened.get(shortened, ()):
                if neighbour in self._locations and is_same_key(neighbour, key):
                    return self._locations[neighbour]
        return None


def _shortened_keys(key: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for position, word in enumerate(key):
        if len(word) >= _MIN_SPELLING:
            yield key[:position] + key[position + 1 :]


def select_new(facts: Iterable[Fact], known_texts: Iterable[str]) -> list[Fact]:
    """Return the facts that are neither known nor repeated among themselves."""
    index = FactIndex()
    for text in known_texts:
        index.add(fact_key(text), text)
    new: list[Fact] = []
    for fact in facts:
        key = fact_key(fact.text)
        if fact.text and index.find(key) is None:
            index.add(key, fact.text)
            new.append(fact)
    return new
