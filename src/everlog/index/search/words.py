"""Additional index words for a text, so that words without spaces around them are found too.

The index splits texts at everything that is not a letter or digit, and stems English. That finds
nothing inside text that is written without spaces, and nothing inside `getUserName`. So a second
column holds the `grams` of a text: pairs of characters for the former, the inner words for the
latter. Prose has none, and is skipped at the speed of memory.

Queries are split in the same way, by `character_pairs` and `split_identifier`. A substring of a
word, such as `serNam`, is found by a table of `identifiers` with a trigram tokenizer.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterable

# --- scripts without spaces -----------------------------------------------------------------

# Korean has spaces, but its words include their particles; pairs find the word in them.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u108f\u1780-\u17d3\u17d7\u17dc-\u17dd"  # Burmese, Khmer
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "\u3005-\u3007\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\uff66-\uff9f\uffa0-\uffdc"  # half-width kana and Hangul
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Chinese characters
)
_RUN = re.compile(f"([{_UNSPACED}]+)")
# UTF-8 bytes that start none of these; E2 is punctuation, and in every text of a model.
_SPACED = bytes((*range(0xE0), 0xE2, 0xEE, *range(0xF1, 0x100)))

# The tokenizer splits at the vowel signs of Thai, Lao, Burmese and Khmer, which are marks and not
# letters. Pairs replace them by private-use characters, which it treats as letters.
_PRIVATE = 0xD200
_MARKS = {
    code: code + _PRIVATE
    for code in (*range(0x0E00, 0x0F00), *range(0x1000, 0x10A0), *range(0x1780, 0x1800))
    if unicodedata.category(chr(code)).startswith("M")
}
_MARKED = re.compile(f"[{''.join(map(chr, _MARKS))}]")

# --- words inside words ---------------------------------------------------------------------

# Kinds of characters, a byte each: a byte search quickly rules out that a text has a boundary.
_KINDS = "".join(
    "A" if char.isupper() else "a" if char.isalpha() else "0" if char in "0123456789" else "_" if char == "_" else " "
    for char in map(chr, range(256))
).encode()
_NAME = re.compile(r"[A-Za-z0-9_\u00c0-\u024f]{4,}")
# `APIs` is one word, `APIServer` is two.
_BOUNDARY = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]{2}|[A-Za-z][0-9]|[0-9][A-Za-z]")
_JOINT = re.compile(r"[^\W_]_+[^\W_]")
_PART = re.compile(r"[A-Z]+(?![a-z]{2})|[A-Z]?[a-z]+|[0-9]+")
# Shorter ones are like `2nd` and `5K`; longer ones are base64, which nobody searches by part.
_MIN_NAME, _MAX_NAME = 4, 64


def grams(text: str) -> str:
    """Return the additional index words of a text; empty for ordinary prose."""
    words: list[str] = []
    if _has_boundary(text.encode("latin-1", "replace").translate(_KINDS)):
        for name in _names(text):
            words += split_identifier(name)
    if not text.isascii() and text.encode("utf-8", "replace").translate(None, _SPACED):
        words.append(character_pairs("\n".join(_RUN.findall(text))))
    return " ".join(words).strip().lower()


def identifiers(text: str) -> str:
    """Return the distinct words of a text that are made of words, for the trigram table."""
    kinds = text.encode("latin-1", "replace").translate(_KINDS)
    if b"_" not in kinds and not _has_boundary(kinds):
        return ""
    return " ".join(name for name in _names(text) if _BOUNDARY.search(name) or _JOINT.search(name))


def split_identifier(name: str) -> list[str]:
    """Split an identifier into its words, if it has boundaries other than punctuation.

    Identifiers are ASCII: elsewhere a capital inside a word is an accident. A hash has as many
    boundaries as characters: a name whose parts have less than two characters on average is not
    made of words.
    """
    if not _MIN_NAME <= len(name) <= _MAX_NAME:
        return []
    if not name.isascii() or not _BOUNDARY.search(name):
        return []
    words = _PART.findall(name)
    return words if sum(map(len, words)) >= 2 * len(words) else []


def character_pairs(runs: str) -> str:
    """Return each character with the next one, and the last one alone; runs are on lines.

    So every character starts a pair, and a single one is found as a prefix. Equivalent forms are
    normalized first: half and full width, letters and their marks.
    """
    runs = unicodedata.normalize("NFKC", runs)
    if _MARKED.search(runs):
        runs = runs.translate(_MARKS)
    # Three characters for each: itself, the next one, a space. With arrays, since a loop over
    # characters would take longer than the remainder of indexing.
    codes = array("I", runs.encode("utf-32-le"))
    triples = array("I", b" \0\0\0") * (3 * len(codes))
    triples[0::3] = codes
    triples[1:-3:3] = codes[1:]
    end = runs.find("\n")
    while end >= 0:
        triples[3 * end + 1] = ord(" ")  # a pair does not cross into the next run
        end = runs.find("\n", end + 1)
    return triples.tobytes().decode("utf-32-le").replace("\n", " ")


def split_scripts(word: str) -> list[tuple[str, bool]]:
    """Split a word where a script without spaces starts or ends; True: a segment in such one."""
    return [(segment, bool(number % 2)) for number, segment in enumerate(_RUN.split(word)) if segment]


def _has_boundary(kinds: bytes) -> bool:
    return (
        b"aA" in kinds
        or (b"AA" in kinds and b"AAaa" in kinds)
        or (b"0" in kinds and any(pair in kinds for pair in (b"a0", b"0a", b"A0", b"0A")))
    )


def _names(text: str) -> Iterable[str]:
    """Return the distinct words that may have a boundary: not too long, not all lower case."""
    return [
        name
        for name in dict.fromkeys(_NAME.findall(text))
        if len(name) <= _MAX_NAME and not (name.isalpha() and name[1:].islower())
    ]
