"""Looking for words in every byte below a directory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

_LETTERS = "bcdfghjkmnpqrtvwxz"


def rare_words(count: int, marker: str) -> list[str]:
    """Return words that share no beginning with any other, so that an index cannot shorten them."""
    return [f"{a}{b}{marker}{a}{b}" for a, b in itertools.islice(itertools.product(_LETTERS, repeat=2), count)]


def files_with(directory: Path, words: Iterable[str]) -> dict[str, list[str]]:
    """Return the files below a directory that have one of the words, or the end of one, with those words.

    An index may have the first letters of a word elsewhere.
    """
    found: dict[str, list[str]] = {}
    wanted = list(words)
    for path in sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()):
        data = path.read_bytes().lower()
        if there := [word for word in wanted if word[2:].encode() in data]:
            found[str(path.relative_to(directory))] = there
    return found
