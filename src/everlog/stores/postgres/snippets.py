"""A piece of a text, with what was found in it marked."""

from __future__ import annotations

import re
from collections.abc import Callable

from everlog.stores.postgres.text_search_words import plain, written

_LONGEST, _AROUND = 400, 151  # characters of a piece; on either side, where it would be longer
_WORD = re.compile(r"[^\W_]+")


def cut_out(text: str, is_found: Callable[[str], bool], marks: tuple[str, str], size: int) -> str:
    """At most `size` words around the most of what was found; empty if nothing was."""
    places = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    known: dict[str, bool] = {}
    found: list[int] = []
    for number, (start, end) in enumerate(places):
        word = text[start:end]
        if word not in known:
            known[word] = is_found(written(plain(word)))
        if known[word]:
            found.append(number)
    if not found:
        return ""
    first = _best(found, size)
    begin = max(min(first, len(places) - size), 0)
    end = min(begin + size, len(places))
    left = places[begin][0] if begin else 0
    right = places[end - 1][1] if end < len(places) else len(text)
    shown = [places[number] for number in found if begin <= number < end]
    # Words may be endless: the first that was found is in the middle of what is left then.
    if right - left > _LONGEST:
        left = max(left, shown[0][0] - _AROUND)
        right = min(right, shown[0][1] + _AROUND)
    pieces, at = [], left
    for start, stop in shown:
        if stop <= right:
            pieces += [text[at:start], marks[0], text[start:stop], marks[1]]
            at = stop
    pieces.append(text[at:right])
    return f"{'…' if left else ''}{''.join(pieces)}{'…' if right < len(text) else ''}"


def _best(found: list[int], size: int) -> int:
    """The number of the word to begin with: a little before the stretch that has most."""
    best, most, start = found[0], 0, 0
    for end, number in enumerate(found):
        while number - found[start] >= size:
            start += 1
        if end - start + 1 > most:
            most, best = end - start + 1, found[start]
    return max(best - size // 4, 0)
