"""How texts and queries become words of the engine's full text.

The word rules are those of the index of files: words are runs of letters and digits without regard
to case and accents, English is stemmed, no word is left out. So a text is cut into words here, and
the server's 'english' does the stemming. Two things it would do otherwise are prevented:

    stop words          "the" is written as "theé", which is none
    other scripts       pairs of characters are written as "é" and their numbers, since which of
                        them are letters depends on the database's locale

An é is a letter to every server, and in no word of a text or a query, which have no accents by
then: no query can spell what is only written here.

Queries come as expressions of FTS5, as `search.query` makes them, and are translated.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from everlog.index.words import identifiers

_WORD = re.compile(r"[^\W_]+")
_LONGEST = 100  # characters of a word; the rest of it is left out
_MARK = "é"
SEARCHED = 300_000  # characters of a text, and of its grams
# Bytes of both in words: an entry of the index has a limit of 1 MB, and where the server's locale
# does not know a letter, it cuts a word in two, each with its own places.
_ROOM = 700_000
_STOP = frozenset(
    """i me my myself we our ours ourselves you your yours yourself yourselves he him his himself
    she her hers herself it its itself they them their theirs themselves what which who whom this
    that these those am is are was were be been being have has had having do does did doing a an
    the and but if or because as until while of at by for with about against between into through
    during before after above below to from up down in out on off over under again further then
    once here there when where why how all any both each few more most other some such no nor not
    only own same so than too very s t can will just don should now""".split()  # noqa: SIM905
)
_UNSPACED = re.compile(r"[^\x00-\u0dff]")  # from Thai on: what `search.words.pairs` writes


def words(text: str) -> list[str]:
    """The words of a text, as they are written for the server."""
    return [written(word) for word in cut(text)]


def cut(text: str) -> list[str]:
    """The words of a text, without case and accents."""
    return _WORD.findall(plain(text))


def plain(text: str) -> str:
    """A text without case and accents."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in decomposed if not unicodedata.combining(char))
        text = unicodedata.normalize("NFC", text)
    return text.lower()


def written(word: str) -> str:
    """A word as the server gets it."""
    word = word[:_LONGEST]
    return word + _MARK if word in _STOP else word


def gram(word: str) -> str:
    """A pair of characters of a script without spaces, or a word inside of a word."""
    if not _UNSPACED.search(word):
        return written(plain(word))
    return _MARK + "".join(f"{ord(char):05x}" for char in word)


def document(text: str, grams: str) -> str:
    """A text and its grams in words, with something between that is in no query."""
    inner, left = _fitting(map(gram, grams[:SEARCHED].split()), _ROOM // 2)
    said, _ = _fitting(words(text[:SEARCHED]), _ROOM // 2 + left)
    return " ".join([*said, _MARK, *inner] if inner else said)


def trigrams(text: str) -> str:
    """The names in a text, in threes of their letters."""
    names = identifiers(text[:SEARCHED]).split()
    return " ".join(_fitting(sorted({one for name in names for one in threes(name)}), _ROOM)[0])


def _fitting(words: Iterable[str], room: int) -> tuple[list[str], int]:
    """The first words that an entry has room for, and the room that is left."""
    fitting: list[str] = []
    known: set[str] = set()
    for word in words:
        # A word, its length made even, how many places it has, and two bytes for each.
        room -= 2 if word in known else len(word.encode()) + 5
        if room < 0:
            return fitting, 0
        known.add(word)
        fitting.append(word)
    return fitting, room


def threes(name: str) -> list[str]:
    """Every three letters of a name; what is none of a-z and 0-9 is written as its number."""
    letters = ["q" if char == "_" else char for char in plain(name)]
    return ["x" + "".join(letters[at : at + 3]) for at in range(len(letters) - 2)]


# --- queries --------------------------------------------------------------------------------

Stems = Callable[[Iterable[str]], Mapping[str, str]]  # words as written → as the index has them

_TOKEN = re.compile(
    r'(?P<bracket>[()])|(?P<operator>AND|OR|NOT)\b|(?P<column>grams\s*:)|"(?P<text>(?:[^"]|"")*)"(?P<star>\s*\*)?'
)


class Term:
    """Words in a row, the last of them perhaps only begun."""

    def __init__(self, said: list[str], begun: bool) -> None:
        self.said = said
        self.begun = begun


Node = Term | tuple[str, list["Node"]]


@lru_cache(256)
def parse(match: str) -> Node | None:
    """An FTS5 expression as a tree; None if nothing is asked for."""
    tokens = list(_TOKEN.finditer(match))
    node, _ = _alternatives(tokens, 0)
    return node


def _alternatives(tokens: list[re.Match[str]], at: int) -> tuple[Node | None, int]:
    """Everything up to a closing bracket; of equal operators only, but for NOT at the end."""
    found: list[Node] = []
    operator = "AND"
    pending = ""
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token["bracket"] == ")":
            break
        if token["operator"]:
            pending = token["operator"]
            continue
        if token["column"]:
            continue  # pairs are written so that they are found nowhere else
        if token["bracket"] == "(":
            node, at = _alternatives(tokens, at)
        else:
            node = _term(token, inner=at >= 2 and bool(tokens[at - 2]["column"]))
        if node is None:
            continue
        if pending == "NOT":
            if found:
                found = [("NOT", [_joined(operator, found), node])]
        else:
            operator = pending or operator
            found.append(node)
        pending = ""
    return (_joined(operator, found) if found else None), at


def _joined(operator: str, found: list[Node]) -> Node:
    return found[0] if len(found) == 1 else (operator, found)


def _term(token: re.Match[str], *, inner: bool) -> Term | None:
    text = token["text"].replace('""', '"')
    begun = token["star"] is not None
    if inner:
        said = [gram(one) for one in text.split()]
    else:
        said = cut(text)
        if said:
            last = said[-1][:_LONGEST] if begun else written(said[-1])
            said = [*map(written, said[:-1]), last]
    return Term(said, begun) if said else None


def terms(node: Node | None) -> Iterator[Term]:
    """What a tree looks for; not what it leaves out."""
    if isinstance(node, Term):
        yield node
    elif node is not None:
        for inner in node[1][:1] if node[0] == "NOT" else node[1]:
            yield from terms(inner)


def every(node: Node | None) -> Iterator[str]:
    """All words of a tree."""
    if isinstance(node, Term):
        yield from node.said
    elif node is not None:
        for inner in node[1]:
            yield from every(inner)


def tsquery(node: Node | None, stems: Mapping[str, str]) -> str:
    """A tree as the text of a tsquery; empty if it looks for nothing."""
    if node is None:
        return ""
    if isinstance(node, Term):
        said = [_quoted(stems.get(word, word)) for word in node.said]
        if node.begun:
            said[-1] += ":*"
        return f"({' <-> '.join(said)})"
    operator, inner = node
    made = [text for text in (tsquery(one, stems) for one in inner) if text]
    if operator == "NOT":
        return f"({made[0]} & !{made[1]})" if len(made) == 2 else "".join(made[:1])
    return f"({(' & ' if operator == 'AND' else ' | ').join(made)})" if made else ""


def _quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
