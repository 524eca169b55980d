"""What is indexed beside a text, so that words without spaces around them are found too.

The index cuts texts at everything that is no letter or digit, and stems English. That finds
nothing inside of text that is written without spaces, and nothing inside of `getUserName`. So a
second column holds its `grams`: pairs of characters for the former, the words inside of it for the
latter. Prose has none, and is passed over at the speed of memory.

What was indexed in pairs is searched in pairs: `pairs` and `parts` serve queries as well. A part of
a word, such as `serNam`, is found by a table of `identifiers` with a tokenizer of trigrams.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterable

# --- scripts without spaces -----------------------------------------------------------------

# Korean has spaces, but its words carry their particles; pairs find the word in them.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf"  # Thai, Lao
    "\u1000-\u103f\u1050-\u108f\u1780-\u17d3\u17d7\u17dc-\u17dd"  # Burmese, Khmer
    "\u1100-\u11ff\u3130-\u318f\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb"  # Hangul
    "\u3005-\u3007\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # kana
    "\uff66-\uff9f\uffa0-\uffdc"  # kana and Hangul of half width
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"  # Chinese characters
)
_RUN = re.compile(f"[{_UNSPACED}]+")
# Bytes of UTF-8 that begin none of these; E2 is punctuation, and in every text of a model.
_SPACED = bytes((*range(0xE0), 0xE2, 0xEE, *range(0xF1, 0x100)))

# The tokenizer cuts at the vowel signs of Thai, Lao, Burmese and Khmer, which are marks and no
# letters. In pairs they stand as characters of private use, which it takes for letters.
_PRIVATE = 0xD200
_MARKS = {
    code: code + _PRIVATE
    for code in (*range(0x0E00, 0x0F00), *range(0x1000, 0x10A0), *range(0x1780, 0x1800))
    if unicodedata.category(chr(code)).startswith("M")
}
_MARKED = re.compile(f"[{''.join(map(chr, _MARKS))}]")

# --- words inside of words ------------------------------------------------------------------

# Kinds of characters, a byte each: a search for bytes tells in no time that a text has no boundary.
_KINDS = bytes(
    ord("0")
    if chr(code) in "0123456789"
    else ord("_" if code == ord("_") else " ")
    if not chr(code).isalpha()
    else ord("A" if chr(code).isupper() else "a")
    for code in range(256)
)
_NAME = re.compile(r"[A-Za-z0-9_\u00c0-\u024f]{4,}")
# `APIs` is one word, `APIServer` is two.
_BOUNDARY = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]{2}|[A-Za-z][0-9]|[0-9][A-Za-z]")
_JOINT = re.compile(r"[^\W_]_+[^\W_]")
_PART = re.compile(r"[A-Z]+(?![a-z]{2})|[A-Z]?[a-z]+|[0-9]+")
# Shorter ones are `2nd` and `5K`; longer ones are base64, of which nobody remembers a part.
_SHORTEST, _LONGEST = 4, 64


def grams(text: str) -> str:
    """What to index beside a text; nothing for ordinary prose."""
    found: list[str] = []
    if _has_boundary(text.encode("latin-1", "replace").translate(_KINDS)):
        for name in _names(text):
            found += parts(name)
    if not text.isascii() and text.encode("utf-8", "replace").translate(None, _SPACED):
        found.append(pairs("\n".join(_RUN.findall(text))))
    return " ".join(found).strip().lower()


def identifiers(text: str) -> str:
    """The words of a text that are made of words, each once, for a table of trigrams."""
    kinds = text.encode("latin-1", "replace").translate(_KINDS)
    if b"_" not in kinds and not _has_boundary(kinds):
        return ""
    return " ".join(name for name in _names(text) if _BOUNDARY.search(name) or _JOINT.search(name))


def parts(name: str) -> list[str]:
    """The words that an identifier is made of, if it has boundaries other than punctuation.

    Identifiers are ASCII: elsewhere a capital inside of a word is an accident. A hash has as many
    boundaries as characters: what falls to pieces of less than two characters on average is not
    made of words.
    """
    if not _SHORTEST <= len(name) <= _LONGEST:
        return []
    if not name.isascii() or not _BOUNDARY.search(name):
        return []
    found = _PART.findall(name)
    return found if sum(map(len, found)) >= 2 * len(found) else []


def pairs(runs: str) -> str:
    """Each character of a run with the next one, and the last one alone; runs stand on lines.

    So every character begins something, and a single one is found as a prefix. What looks the
    same is made the same first: half and full width, letters and their marks.
    """
    runs = unicodedata.normalize("NFKC", runs)
    if _MARKED.search(runs):
        runs = runs.translate(_MARKS)
    # Three characters for each: itself, the next one, a space. By arrays, since a loop over
    # characters would take longer than all the rest of indexing.
    codes = array("I", runs.encode("utf-32-le"))
    triples = array("I", b" \0\0\0") * (3 * len(codes))
    triples[0::3] = codes
    triples[1:-3:3] = codes[1:]
    end = runs.find("\n")
    while end >= 0:
        triples[3 * end + 1] = ord(" ")  # the next run does not begin alone
        end = runs.find("\n", end + 1)
    return triples.tobytes().decode("utf-32-le").replace("\n", " ")


def segments(word: str) -> list[tuple[str, bool]]:
    """A word cut where a script without spaces begins or ends; whether each piece is in one."""
    found: list[tuple[str, bool]] = []
    at = 0
    for match in _RUN.finditer(word):
        found += [(word[at : match.start()], False), (match[0], True)]
        at = match.end()
    return [piece for piece in (*found, (word[at:], False)) if piece[0]]


def _has_boundary(kinds: bytes) -> bool:
    return (
        b"aA" in kinds
        or (b"AA" in kinds and b"AAaa" in kinds)
        or (b"0" in kinds and any(pair in kinds for pair in (b"a0", b"0a", b"A0", b"0A")))
    )


def _names(text: str) -> Iterable[str]:
    """The distinct words of a text that may have a boundary: not too long, not all lower case."""
    return [
        name
        for name in dict.fromkeys(_NAME.findall(text))
        if len(name) <= _LONGEST and not (name.isalpha() and name[1:].islower())
    ]
