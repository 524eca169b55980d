"""Search queries: what a user types, parsed into an expression for the index.

    words          all of them; function words count only if there are no others
    "two words"    next to each other
    conf*          words that start with it
    a OR b, a AND b, a NOT b, -b, (a OR b) c

A query is never an error. Invalid syntax (a lone operator, an unmatched quotation mark, the
syntax of the index itself) is searched as the words that it contains; a text without words is the
empty expression. Nothing here touches an index: the expressions are for a table with the columns
of `ranking.WEIGHTS`, whose tokenizer splits at punctuation and stems.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from everlog.index.words import character_pairs, split_identifier, split_scripts

# Further terms of a query are ignored.
MAX_TERMS = 64
# Deeper parentheses are ignored; the index has a limit of its own.
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
    "(?P<phrase>[^"]*)"(?P<prefix>\*?)
    | (?P<bracket>[()])
    | (?P<minus>(?<![^\s(])-(?=[^\s)-]))
    | (?P<operator>(?:AND|OR|NOT)(?![^\s()"]))
    | (?P<word>[^\s"()]+)
    """,
    re.VERBOSE,
)
_TERM_KINDS = ("phrase", "prefix", "word", "operator")
_WORD = re.compile(r"\w+\*?")
# The index holds stems: `convers` for `conversation`, which `conversat*` is not a prefix of. These
# endings complete a word that stops inside its ending; completed, it has the same stem.
_ENDINGS = tuple(
    """ation ations ational ator ating ated ative ization izing ized izer ing ings ment ments ness
    able ible ability ance ence ities ity ies ied ously ive ively ion ions ional ally ful less
    ed er ers ly es""".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query as expressions for the index."""

    # The expression for the query; empty if there is nothing to search for.
    match: str
    # The first fallback if nothing matches: any of the words.
    match_any: str
    # The second: words inside identifiers, for the trigram table. Empty if too short.
    match_substring: str
    # Texts to highlight where the index cannot: runs without spaces, as typed.
    highlights: tuple[str, ...]


def parse_query(text: str) -> ParsedQuery:
    """Parse a query; every text is valid."""
    tokens = _tokenize(text)
    parser = _Parser(tokens)
    match = parser.parse_alternatives(0)
    required, excluded = parser.required, parser.excluded
    if not match:
        # Only operators, or only excluded words: then search for those.
        required = [text for kind, text in tokens if kind in _TERM_KINDS]
        match, excluded = _join_and([term_expression(word) for word in required]), []
    words = (word for text in required for word in _WORD.findall(text))
    significant = _significant_words([word for word in words if _has_word(word)])
    names = [name for word in significant if len(name := word.rstrip("*")) >= _MIN_SUBSTRING]
    return ParsedQuery(
        match=match,
        match_any=_exclude_words(_join_or(list(map(term_expression, significant))), excluded) or match,
        # The trigram table cannot exclude words, so it would find what is excluded.
        match_substring="" if excluded else _join_and([quote(n) for n in names if _has_word(n)]),
        highlights=tuple(dict.fromkeys(s for word in required for s, unspaced in split_scripts(word) if unspaced)),
    )


def quote(text: str) -> str:
    """Quote a text as a phrase: whatever it contains, the index sees consecutive words."""
    return '"' + text.replace('"', '""') + '"'


def term_expression(word: str) -> str:
    """Return the expression for one word; empty if it has no letters or digits.

    An identifier is also searched as its consecutive words, as in `get_user_name` and in the
    grams of `getUserName`; text in a script without spaces as pairs of characters.
    """
    is_prefix = word.endswith("*")
    segments = split_scripts(word.rstrip("*"))
    expressions = []
    for number, (segment, unspaced) in enumerate(segments, 1):
        if unspaced:
            expressions.append(_unspaced_expression(segment))
        elif not _has_word(segment):
            continue
        elif is_prefix and number == len(segments):
            expressions.append(_prefix_expression(segment))
        else:
            inner = split_identifier(segment)
            expressions.append(_join_or([quote(segment), quote(" ".join(inner)) if inner else ""]))
    return _join_and(expressions)


class _Parser:
    """A parser that reads the tokens of a query once, from left to right."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._position = 0
        self._negations = 0
        self.required: list[str] = []
        self.excluded: list[str] = []

    def parse_alternatives(self, depth: int) -> str:
        """Parse a group in parentheses, or the whole query: conjunctions joined by OR."""
        expressions = [self._parse_conjunction(depth)]
        while self._peek() == ("operator", "OR"):
            self._position += 1
            expressions.append(self._parse_conjunction(depth))
        return _join_or(expressions)

    def _parse_conjunction(self, depth: int) -> str:
        """Parse up to an OR or the closing parenthesis; operators without operands are skipped."""
        words: list[tuple[str, str]] = []  # words as typed, and their expressions
        groups: list[tuple[str, str]] = []  # phrases and groups, likewise
        excluded: list[str] = []
        is_negated = False
        while (token := self._peek()) is not None and token != ("operator", "OR"):
            kind, text = token
            if kind == "bracket" and text == ")" and depth:
                break
            self._position += 1
            if kind == "minus" or token == ("operator", "NOT"):
                is_negated = True
                continue
            if kind == "operator" or (kind == "bracket" and text == ")"):
                continue
            self._negations += is_negated
            if kind == "bracket":
                if depth >= _MAX_DEPTH:
                    self._negations -= is_negated
                    continue
                expression = self.parse_alternatives(depth + 1)
                if self._peek() == ("bracket", ")"):
                    self._position += 1
            else:
                (self.excluded if self._negations else self.required).append(text)
                is_phrase = kind in ("phrase", "prefix")
                expression = _phrase_expression(text, kind) if is_phrase else term_expression(text)
            self._negations -= is_negated
            if expression and is_negated:
                excluded.append(expression)
            elif expression:
                (words if kind == "word" else groups).append((text, expression))
            is_negated = False
        significant = [word for word in words if word[0] not in FUNCTION_WORDS]
        required = [*significant, *groups] or words
        return _exclude(_join_and([expression for _, expression in required]), excluded)

    def _peek(self) -> tuple[str, str] | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None


def _tokenize(text: str) -> list[tuple[str, str]]:
    text = _UNSEARCHABLE.sub(" ", text).translate(_QUOTES)
    tokens: list[tuple[str, str]] = []
    terms = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "prefix":
            kind = "prefix" if match["prefix"] else "phrase"
            tokens.append((kind, match["phrase"]))
        else:
            tokens.append((kind, match[kind]))
        terms += kind in _TERM_KINDS
        if terms == MAX_TERMS:
            break
    return tokens


def _phrase_expression(text: str, kind: str) -> str:
    """Return the expression for consecutive words; each run of one script is its own phrase."""
    expressions = []
    segments = split_scripts(text)
    for number, (segment, unspaced) in enumerate(segments, 1):
        if unspaced:
            expressions.append(_unspaced_expression(segment))
        elif _has_word(segment):
            star = " *" if kind == "prefix" and number == len(segments) else ""
            expressions.append(quote(segment) + star)
    return _join_and(expressions)


def _unspaced_expression(run: str) -> str:
    """Return the expression for a run without spaces: its pairs, or a one-character prefix."""
    pairs = character_pairs(run[:_MAX_RUN]).split()
    if len(pairs) < 2:
        return f"grams : {quote(pairs[0])} *" if pairs else ""
    return f"grams : {quote(' '.join(pairs[:-1]))}"


def _prefix_expression(word: str) -> str:
    words = _WORD.findall(word)
    if len(words) != 1 or not word.isascii():
        return f"{quote(word)} *"
    completions = {
        word[: len(word) - size] + ending
        for ending in _ENDINGS
        for size in range(1, len(ending) + 1)
        if len(word) >= size + 3 and word.lower().endswith(ending[:size])
    }
    return _join_or([f"{quote(word)} *", *map(quote, sorted(completions))])


def _has_word(text: str) -> bool:
    """Return whether the index sees a word in a text: only letters and digits make words."""
    return any(map(str.isalnum, text))


def _significant_words(words: list[str]) -> list[str]:
    """Return the words without function words, unless there are no others."""
    return [word for word in words if word not in FUNCTION_WORDS] or words


def _join_and(expressions: list[str]) -> str:
    return _join(" AND ", expressions)


def _join_or(expressions: list[str]) -> str:
    return _join(" OR ", expressions)


def _join(operator: str, expressions: list[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, expressions)))
    return f"({operator.join(distinct)})" if len(distinct) > 1 else "".join(distinct)


def _exclude(expression: str, excluded: list[str]) -> str:
    return f"({expression} NOT {_join_or(excluded)})" if expression and excluded else expression


def _exclude_words(expression: str, words: list[str]) -> str:
    return _exclude(expression, [p for word in words if (p := _phrase_expression(word, "phrase"))])
