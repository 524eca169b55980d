"""Snippets: excerpts of passages, with the matches marked."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everlog.ids import timestamp
from everlog.index.search.passages import PassageText
from everlog.ports import Hit

# Marks in snippets from an index: noncharacters, which no text contains.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
MAX_WORDS = 24
_MAX_CHARACTERS = 400
_LONG_CONTEXT_CHARACTERS = 151  # on either side of a match, if the snippet would be longer
_MARKS = str.maketrans({OPEN: "«", CLOSE: "»"})
_MARKED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_CONTEXT_CHARACTERS = 80  # on either side, where the index makes no snippet


def make_hit(seq: int, passage: PassageText, highlights: Sequence[str]) -> Hit:
    """Return a passage as a hit of a search; `highlights` are marked if the index marked nothing."""
    snippet = _shorten(passage.snippet) if OPEN in passage.snippet else _excerpt(passage.text, highlights)
    spans = tuple(match.span(1) for match in _MARKED.finditer(snippet))
    return Hit(seq, passage.kind, snippet.translate(_MARKS), timestamp(max(passage.time, 0) / 1000), spans)


def _shorten(snippet: str) -> str:
    """Centre a snippet on its first match if its words are very long."""
    first = _MARKED.search(snippet)
    if len(snippet) <= _MAX_CHARACTERS or first is None:
        return snippet
    start, end = max(first.start() - _LONG_CONTEXT_CHARACTERS, 0), first.end() + _LONG_CONTEXT_CHARACTERS
    shortened = snippet[start:end]
    if shortened.count(OPEN) > shortened.count(CLOSE):  # ends within a match
        shortened = shortened[: shortened.rfind(OPEN)]
    return f"{'…' if start else ''}{shortened}{'…' if end < len(snippet) else ''}"


def _excerpt(text: str, highlights: Sequence[str]) -> str:
    """Return an excerpt around the first of some words, which are marked."""
    pattern = re.compile("|".join(map(re.escape, highlights)) or r"(?!)", re.IGNORECASE)
    first = pattern.search(text)
    start = max(first.start() - _CONTEXT_CHARACTERS, 0) if first else 0
    end = (first.end() if first else 0) + _CONTEXT_CHARACTERS
    excerpt = pattern.sub(lambda match: f"{OPEN}{match[0]}{CLOSE}", text[start:end])
    return f"{'…' if start else ''}{excerpt}{'…' if end < len(text) else ''}"
