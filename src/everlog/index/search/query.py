"""Search queries: what a user types, parsed into a tree that each index compiles.

    words          all of them; function words count only if there are no others
    "two words"    next to each other
    conf*          words that start with it
    a OR b, a AND b, a NOT b, -b, (a OR b) c

A query is never an error. Invalid syntax (a lone operator, an unmatched quotation mark, the
syntax of an index) is searched as the words that it contains; a text without words has no tree.
Nothing here touches an index: the trees are for one that splits texts at punctuation, stems, and
has the `words.grams` of each text beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from everlog.index.search.words import character_pairs, split_identifier, split_scripts

# Further terms of a query are ignored.
MAX_TERMS = 64
# Deeper parentheses are ignored; an index has a limit of its own.
_MAX_DEPTH = 12
_MAX_RUN = 64
_MIN_SUBSTRING = 3  # a trigram

# Words that nearly all texts contain. Without `not`, `no`, `off`, `out`, `up`, `down`, `over`,
# which change the meaning of the word next to them.
FUNCTION_WORDS = frozenset(
    """a an and are as at be been being but by did do does for from had has have having he her hers
    him his how i if in into is it its me my of on or our ours she so than that the their theirs
    them then there these they this those to us was we were what when where which who whom whose
    why will with would you your yours""".split()  # noqa: SIM905 - words, to be read as such
)

# Not in any text: control characters, and lone surrogates, which no file can hold.
_UNSEARCHABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_QUOTES = str.maketrans("“”„‟＂（）", '"""""()')
_TOKEN = re.compile(
    r"""
    "(?P<start>[^"]*)"\*
    | "(?P<phrase>[^"]*)"
    | (?P<bracket>[()])
    | (?P<minus>(?<![^\s(])-(?=[^\s)-]))
    | (?P<operator>(?:AND|OR|NOT)(?![^\s()"]))
    | (?P<word>[^\s"()]+)
    """,
    re.VERBOSE,
)
_TERM_KINDS = ("start", "phrase", "word", "operator")
_WORD = re.compile(r"\w+\*?")
# An index holds stems: `convers` for `conversation`, which `conversat*` is not a prefix of. These
# endings complete a word that stops inside its ending; completed, it has the same stem.
_ENDINGS = tuple(
    """ation ations ational ator ating ated ative ization izing ized izer ing ings ment ments ness
    able ible ability ance ence ities ity ies ied ously ive ively ion ions ional ally ful less
    ed er ers ly es""".split()  # noqa: SIM905
)


# --- the tree -------------------------------------------------------------------------------


class Phrase(msgspec.Struct, frozen=True, gc=False):
    """Consecutive words, whatever separates them; a word is a phrase of one."""

    text: str
    is_prefix: bool = False  # the last word is the start of a word
    # Where to look in place of the words of a text: "grams" for its grams, "names" for characters
    # anywhere in its identifiers. A tree is about identifiers as a whole or not at all.
    field: str = ""


class Group(msgspec.Struct, frozen=True):
    """All of some nodes, any of them, or the first of two without the second."""

    operator: Operator
    nodes: tuple[Node, ...]


Operator = Literal["AND", "OR", "NOT"]
Node: TypeAlias = Phrase | Group


def compile_node(node: Node, compile_phrase: Callable[[Phrase], str], operators: Mapping[Operator, str]) -> str:
    """Return a tree as an infix expression.

    `compile_phrase` returns an empty text for a phrase that has no words in the index; it is left
    out.
    """
    if isinstance(node, Phrase):
        return compile_phrase(node)
    parts = [compile_node(inner, compile_phrase, operators) for inner in node.nodes]
    if node.operator == "NOT" and not parts[0]:
        return ""
    parts = [part for part in parts if part]
    return f"({f' {operators[node.operator]} '.join(parts)})" if len(parts) > 1 else "".join(parts)


def find_phrases(node: Node) -> list[Phrase]:
    """Return all phrases of a tree, the excluded ones too."""
    if isinstance(node, Phrase):
        return [node]
    return [phrase for inner in node.nodes for phrase in find_phrases(inner)]


def any_phrase(node: Node) -> Node:
    """Return a tree for any phrase of a tree, apart from the excluded ones."""
    if isinstance(node, Phrase):
        return node
    wanted = node.nodes[:1] if node.operator == "NOT" else node.nodes
    return join_nodes("OR", map(any_phrase, wanted)) or node


def identifier_parts(node: Node) -> list[str]:
    """Return what a tree looks for in identifiers; empty if it looks for words."""
    return [phrase.text for phrase in find_phrases(node) if phrase.field == "names"]


def join_nodes(operator: Operator, nodes: Iterable[Node | None]) -> Node | None:
    """Join the distinct ones of some nodes; None if there are none."""
    distinct = tuple(dict.fromkeys(node for node in nodes if node is not None))
    return Group(operator, distinct) if len(distinct) > 1 else next(iter(distinct), None)


def _exclude(node: Node | None, excluded: Iterable[Node | None]) -> Node | None:
    unwanted = join_nodes("OR", excluded)
    return Group("NOT", (node, unwanted)) if node is not None and unwanted is not None else node


# --- the parser -----------------------------------------------------------------------------


class ParsedQuery(msgspec.Struct, frozen=True):
    """A query as trees for an index."""

    # The tree of the query; None if there is nothing to search for.
    match: Node | None
    # The first fallback if nothing matches: any of the words.
    match_any: Node | None
    # The second: words inside identifiers. None if they are too short.
    match_inside: Node | None
    # Texts to highlight where the index cannot: runs without spaces, as typed.
    highlights: tuple[str, ...]


def parse_query(text: str) -> ParsedQuery:
    """Parse a query; every text is valid."""
    tokens = _tokenize(text)
    parser = _Parser(tokens)
    match = parser.parse_group()
    required, excluded = parser.required, parser.excluded
    if match is None:
        # Only operators, or only excluded words: then search for those.
        required, excluded = [text for kind, text in tokens if kind in _TERM_KINDS], []
        match = join_nodes("AND", map(parse_word, required))
    words = [word for text in required for word in _WORD.findall(text) if _has_word(word)]
    significant = [word for word in words if word not in FUNCTION_WORDS] or words
    names = [name for word in significant if len(name := word.rstrip("*")) >= _MIN_SUBSTRING and _has_word(name)]
    match_any = join_nodes("OR", map(parse_word, significant))
    return ParsedQuery(
        match=match,
        match_any=_exclude(match_any, [_parse_term(text, is_phrase=True) for text in excluded]) or match,
        # Identifiers cannot exclude words, so what is excluded would be found.
        match_inside=None if excluded else join_nodes("AND", [Phrase(name, field="names") for name in names]),
        highlights=tuple(dict.fromkeys(s for word in required for s, unspaced in split_scripts(word) if unspaced)),
    )


def parse_word(word: str) -> Node | None:
    """Return the tree of one word; None if it has no letters or digits.

    An identifier is also searched as its consecutive words, as in `get_user_name` and in the
    grams of `getUserName`; text in a script without spaces as pairs of characters.
    """
    return _parse_term(word.rstrip("*"), is_prefix=word.endswith("*"))


def _join_conjunction(nodes: Sequence[tuple[str, Node]]) -> Node | None:
    """Join the nodes between two ORs, by kind; function words count only if there is nothing else."""
    words, groups, function_words, excluded = (
        [node for kind, node in nodes if kind == wanted] for wanted in ("word", "group", "function word", "excluded")
    )
    return _exclude(join_nodes("AND", [*words, *groups] or function_words), excluded)


class _Parser:
    """A parser that reads the tokens of a query once, from left to right."""

    def __init__(self, tokens: Iterable[tuple[str, str]]) -> None:
        self._tokens = iter(tokens)
        self._negations = 0
        self.required: list[str] = []
        self.excluded: list[str] = []

    def parse_group(self, depth: int = 0) -> Node | None:
        """Parse up to the closing parenthesis, or all; operators without operands are skipped."""
        alternatives: list[list[tuple[str, Node]]] = [[]]
        is_negated = False
        for kind, text in self._tokens:
            if (kind, text) == ("bracket", ")"):
                if depth:
                    break
            elif (kind, text) == ("operator", "OR"):
                alternatives.append([])
                is_negated = False
            elif kind in ("minus", "operator"):
                is_negated = is_negated or text != "AND"
            elif kind != "bracket" or depth < _MAX_DEPTH:
                self._negations += is_negated
                node = self.parse_group(depth + 1) if kind == "bracket" else self._parse_token(kind, text)
                self._negations -= is_negated
                word_kind = "function word" if text in FUNCTION_WORDS else "word"
                node_kind = "excluded" if is_negated else word_kind if kind == "word" else "group"
                if node is not None:
                    alternatives[-1].append((node_kind, node))
                is_negated = False
        return join_nodes("OR", map(_join_conjunction, alternatives))

    def _parse_token(self, kind: str, text: str) -> Node | None:
        (self.excluded if self._negations else self.required).append(text)
        return parse_word(text) if kind == "word" else _parse_term(text, is_phrase=True, is_prefix=kind == "start")


def _tokenize(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    terms = 0
    for match in _TOKEN.finditer(_UNSEARCHABLE.sub(" ", text).translate(_QUOTES)):
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        terms += kind in _TERM_KINDS
        if terms == MAX_TERMS:
            break
    return tokens


def _parse_term(text: str, *, is_phrase: bool = False, is_prefix: bool = False) -> Node | None:
    """Return the tree of a word or a phrase; each run of one script is its own phrase."""
    nodes: list[Node | None] = []
    segments = split_scripts(text)
    for number, (segment, unspaced) in enumerate(segments, 1):
        is_last_prefix = is_prefix and number == len(segments)
        if unspaced:
            nodes.append(_parse_unspaced(segment))
        elif not _has_word(segment):
            continue
        elif is_phrase:
            nodes.append(Phrase(segment, is_last_prefix))
        elif is_last_prefix:
            nodes.append(join_nodes("OR", [Phrase(segment, is_prefix=True), *map(Phrase, _complete_word(segment))]))
        else:
            inner = split_identifier(segment)
            nodes.append(join_nodes("OR", [Phrase(segment), Phrase(" ".join(inner)) if inner else None]))
    return join_nodes("AND", nodes)


def _parse_unspaced(run: str) -> Node | None:
    """Return the tree of a run without spaces: its pairs, or a one-character prefix."""
    pairs = character_pairs(run[:_MAX_RUN]).split()
    if len(pairs) < 2:
        return Phrase(pairs[0], is_prefix=True, field="grams") if pairs else None
    return Phrase(" ".join(pairs[:-1]), field="grams")


def _complete_word(start: str) -> list[str]:
    """Return the words that the start of a word may stop in the ending of."""
    if len(_WORD.findall(start)) != 1 or not start.isascii():
        return []
    return sorted(
        {
            start[: len(start) - size] + ending
            for ending in _ENDINGS
            for size in range(1, len(ending) + 1)
            if len(start) >= size + 3 and start.lower().endswith(ending[:size])
        }
    )


def _has_word(text: str) -> bool:
    """Return whether an index sees a word in a text: only letters and digits make words."""
    return any(map(str.isalnum, text))
