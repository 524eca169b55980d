"""Texts and queries as words of PostgreSQL's full text.

The rules are those of the index of files: words are runs of letters and digits, case and accents
are ignored, English is stemmed, no word is dropped. So texts are split into words here, and the
server's 'english' does the stemming. Two things that it would do differently are prevented:

    stop words          "the" is written as "theé", which is not a stop word
    other scripts       pairs of characters are written as "é" and their code points, since which
                        of them are letters depends on the database's locale

An é is a letter to every server, and in no word of a text or a query, whose accents are removed: no
query can contain the encoded forms.

Queries are FTS5 expressions, as `index.query` makes them, and are translated.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from everlog.index.words import identifiers

_WORD = re.compile(r"[^\W_]+")
_MAX_WORD_CHARS = 100  # the remainder of a longer word is ignored
_MARK = "é"
MAX_TEXT_CHARS = 300_000  # of a text, and of its grams
# Of both: a tsvector is limited to 1 MB, and where the server's locale does not know a letter, it
# splits a word in two, each with its own positions.
_MAX_VECTOR_BYTES = 700_000
_STOP_WORDS = frozenset(
    """i me my myself we our ours ourselves you your yours yourself yourselves he him his himself
    she her hers herself it its itself they them their theirs themselves what which who whom this
    that these those am is are was were be been being have has had having do does did doing a an
    the and but if or because as until while of at by for with about against between into through
    during before after above below to from up down in out on off over under again further then
    once here there when where why how all any both each few more most other some such no nor not
    only own same so than too very s t can will just don should now""".split()  # noqa: SIM905
)
_UNSPACED = re.compile(r"[^\x00-\u0dff]")  # from Thai on: the pairs that `index.words` writes


def encode_words(text: str) -> list[str]:
    """Return the words of a text, encoded for the server."""
    return [encode_word(word) for word in split_words(text)]


def split_words(text: str) -> list[str]:
    """Return the words of a text, without case and accents."""
    return _WORD.findall(normalize(text))


def normalize(text: str) -> str:
    """Return a text without case and accents."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in decomposed if not unicodedata.combining(char))
        text = unicodedata.normalize("NFC", text)
    return text.lower()


def encode_word(word: str) -> str:
    """Return a word encoded for the server."""
    word = word[:_MAX_WORD_CHARS]
    return word + _MARK if word in _STOP_WORDS else word


def encode_gram(word: str) -> str:
    """Encode a pair of characters of a script without spaces, or a word inside a word."""
    if not _UNSPACED.search(word):
        return encode_word(normalize(word))
    return _MARK + "".join(f"{ord(char):05x}" for char in word)


def encode_document(text: str, grams: str) -> str:
    """Return the words of a text and of its grams, separated by a word that no query contains."""
    half = _MAX_VECTOR_BYTES // 2
    gram_words, remaining = _fit_words(map(encode_gram, grams[:MAX_TEXT_CHARS].split()), half)
    text_words, _ = _fit_words(encode_words(text[:MAX_TEXT_CHARS]), half + remaining)
    return " ".join([*text_words, _MARK, *gram_words] if gram_words else text_words)


def encode_trigrams(text: str) -> str:
    """Return the trigrams of the identifiers in a text."""
    names = identifiers(text[:MAX_TEXT_CHARS]).split()
    trigrams = sorted({trigram for name in names for trigram in split_trigrams(name)})
    return " ".join(_fit_words(trigrams, _MAX_VECTOR_BYTES)[0])


def _fit_words(words: Iterable[str], room: int) -> tuple[list[str], int]:
    """Return the first words that fit into `room` bytes of a tsvector, and the room left."""
    fitting: list[str] = []
    seen: set[str] = set()
    for word in words:
        # A word, padded to an even length, the number of its positions, and two bytes for each.
        room -= 2 if word in seen else len(word.encode()) + 5
        if room < 0:
            return fitting, 0
        seen.add(word)
        fitting.append(word)
    return fitting, room


def split_trigrams(name: str) -> list[str]:
    """Return the trigrams of a name, with x before each and q for `_`: words to the server."""
    letters = ["q" if char == "_" else char for char in normalize(name)]
    return ["x" + "".join(letters[start : start + 3]) for start in range(len(letters) - 2)]


# --- queries --------------------------------------------------------------------------------

Stems = Callable[[Iterable[str]], Mapping[str, str]]  # encoded words → lexemes

_TOKEN = re.compile(
    r'(?P<bracket>[()])|(?P<operator>AND|OR|NOT)\b|(?P<column>grams\s*:)|"(?P<text>(?:[^"]|"")*)"(?P<star>\s*\*)?'
)


class Term:
    """Consecutive words, the last of which may be a prefix."""

    def __init__(self, words: list[str], is_prefix: bool) -> None:
        self.words = words
        self.is_prefix = is_prefix


Node = Term | tuple[str, list["Node"]]


@lru_cache(256)
def parse_match(match: str) -> Node | None:
    """Parse an FTS5 expression; None if it is empty."""
    tokens = list(_TOKEN.finditer(match))
    node, _ = _parse_group(tokens, 0)
    return node


def _parse_group(tokens: list[re.Match[str]], position: int) -> tuple[Node | None, int]:
    """Parse up to a closing bracket; all operators are equal, except for NOT at the end."""
    nodes: list[Node] = []
    operator = "AND"
    pending = ""
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token["bracket"] == ")":
            break
        if token["operator"]:
            pending = token["operator"]
            continue
        if token["column"]:
            continue  # encoded pairs match nowhere else
        if token["bracket"] == "(":
            node, position = _parse_group(tokens, position)
        else:
            is_gram = position >= 2 and bool(tokens[position - 2]["column"])
            node = _parse_term(token, is_gram=is_gram)
        if node is None:
            continue
        if pending == "NOT":
            if nodes:
                nodes = [("NOT", [_join_nodes(operator, nodes), node])]
        else:
            operator = pending or operator
            nodes.append(node)
        pending = ""
    return (_join_nodes(operator, nodes) if nodes else None), position


def _join_nodes(operator: str, nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else (operator, nodes)


def _parse_term(token: re.Match[str], *, is_gram: bool) -> Term | None:
    text = token["text"].replace('""', '"')
    is_prefix = token["star"] is not None
    if is_gram:
        words = [encode_gram(word) for word in text.split()]
    else:
        words = split_words(text)
        if words:
            last = words[-1][:_MAX_WORD_CHARS] if is_prefix else encode_word(words[-1])
            words = [*map(encode_word, words[:-1]), last]
    return Term(words, is_prefix) if words else None


def positive_terms(node: Node | None) -> Iterator[Term]:
    """Yield the terms of a query that are not excluded."""
    if isinstance(node, Term):
        yield node
    elif node is not None:
        for inner in node[1][:1] if node[0] == "NOT" else node[1]:
            yield from positive_terms(inner)


def all_words(node: Node | None) -> Iterator[str]:
    """Yield all words of a query."""
    if isinstance(node, Term):
        yield from node.words
    elif node is not None:
        for inner in node[1]:
            yield from all_words(inner)


def to_tsquery(node: Node | None, stems: Mapping[str, str]) -> str:
    """Return a query as the text of a tsquery; empty if it has no terms."""
    if node is None:
        return ""
    if isinstance(node, Term):
        lexemes = [_quote(stems.get(word, word)) for word in node.words]
        if node.is_prefix:
            lexemes[-1] += ":*"
        return f"({' <-> '.join(lexemes)})"
    operator, inner = node
    parts = [text for text in (to_tsquery(child, stems) for child in inner) if text]
    if operator == "NOT":
        return f"({parts[0]} & !{parts[1]})" if len(parts) == 2 else "".join(parts[:1])
    return f"({(' & ' if operator == 'AND' else ' | ').join(parts)})" if parts else ""


def _quote(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
