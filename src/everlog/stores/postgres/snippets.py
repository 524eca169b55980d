"""Snippets of a text, with the matches marked."""

from __future__ import annotations

import re
from collections.abc import Callable

from everlog.stores.postgres.text_search_words import encode_word, normalize

_MAX_CHARS = 400
_CONTEXT_CHARS = 151  # on either side of a match, if the snippet would be longer
_WORD = re.compile(r"[^\W_]+")


def make_snippet(text: str, is_match: Callable[[str], bool], marks: tuple[str, str], max_words: int) -> str:
    """Return at most `max_words` words around the most matches; empty if there are none."""
    spans = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    checked: dict[str, bool] = {}
    matches: list[int] = []
    for number, (start, end) in enumerate(spans):
        word = text[start:end]
        if word not in checked:
            checked[word] = is_match(encode_word(normalize(word)))
        if checked[word]:
            matches.append(number)
    if not matches:
        return ""
    first = _best_start(matches, max_words)
    begin = max(min(first, len(spans) - max_words), 0)
    end = min(begin + max_words, len(spans))
    left = spans[begin][0] if begin else 0
    right = spans[end - 1][1] if end < len(spans) else len(text)
    marked = [spans[number] for number in matches if begin <= number < end]
    # Words may be very long: then the snippet is centred on the first match.
    if right - left > _MAX_CHARS:
        left = max(left, marked[0][0] - _CONTEXT_CHARS)
        right = min(right, marked[0][1] + _CONTEXT_CHARS)
    chunks, position = [], left
    for start, stop in marked:
        if stop <= right:
            chunks += [text[position:start], marks[0], text[start:stop], marks[1]]
            position = stop
    chunks.append(text[position:right])
    return f"{'…' if left else ''}{''.join(chunks)}{'…' if right < len(text) else ''}"


def _best_start(matches: list[int], max_words: int) -> int:
    """Return the index of the first word: a little before the range with the most matches."""
    best, count, start = matches[0], 0, 0
    for end, number in enumerate(matches):
        while number - matches[start] >= max_words:
            start += 1
        if end - start + 1 > count:
            count, best = end - start + 1, matches[start]
    return max(best - max_words // 4, 0)
