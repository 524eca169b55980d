"""What somebody typed into a search, as an expression that the index understands.

    words          all of them; function words count only if there are no others
    "two words"    next to each other
    conf*          words that begin so
    a OR b, a AND b, a NOT b, -b, (a OR b) c

A query is never wrong. What makes no sense (a lone operator, a quotation mark without its
partner, the syntax of the index itself) is searched as the words that it contains, and what has no
words is the empty expression. Nothing here touches an index: the expressions are for a table
with the columns of `ranking.WEIGHTS`, whose tokenizer cuts at punctuation and stems.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from everlog.index.words import pairs, parts, segments

# A question of more terms than these is no question; the rest of it is left out.
MOST = 64
# Deeper parentheses are read as if they were not there; the index has a limit of its own.
_DEEPEST = 12
_LONGEST_RUN = 64
_SHORTEST_INSIDE = 3  # a trigram

# Words that nearly all texts have. Not here: `not`, `no`, `off`, `out`, `up`, `down`, `over`,
# which make another thing of the word beside them.
FUNCTION_WORDS = frozenset(
    """a an and are as at be been being but by did do does for from had has have having he her hers
    him his how i if in into is it its me my of on or our ours she so than that the their theirs
    them then there these they this those to us was we were what when where which who whom whose
    why will with would you your yours""".split()  # noqa: SIM905 - words, to be read as such
)

# No text has these in it: the ends of texts in C, and halves of characters that no file can hold.
_UNSAYABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_QUOTES = str.maketrans("“”„‟＂（）", '"""""()')
_TOKEN = re.compile(
    r"""
    "(?P<phrase>[^"]*)"(?P<begun>\*?)
    | (?P<bracket>[()])
    | (?P<minus>(?<![^\s(])-(?=[^\s)-]))
    | (?P<operator>(?:AND|OR|NOT)(?![^\s()"]))
    | (?P<word>[^\s"()]+)
    """,
    re.VERBOSE,
)
_TERMS = ("phrase", "begun", "word", "operator")
_SAID = re.compile(r"\w+\*?")
# The index keeps stems: of `conversation`, `convers`. So `conversat*` is no beginning of what it
# keeps. These finish a word that was broken off in its ending; finished, it has the same stem.
_ENDINGS = tuple(
    """ation ations ational ator ating ated ative ization izing ized izer ing ings ment ments ness
    able ible ability ance ence ities ity ies ied ously ive ively ion ions ional ally ful less
    ed er ers ly es""".split()  # noqa: SIM905
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A query, made ready."""

    # The expression that says what was asked; empty if there is nothing to search for.
    match: str
    # What to try when nothing matches: any of the words.
    any: str
    # And then: words inside of identifiers, for the table of trigrams. Empty if too short.
    inside: str
    # What to mark in a text where the index cannot: runs without spaces, as they were typed.
    marks: tuple[str, ...]


def parse(text: str) -> Parsed:
    """Read a query; every text is one."""
    tokens = _tokens(text)
    reading = _Reading(tokens)
    match = reading.alternatives(0)
    wanted, unwanted = reading.wanted, reading.unwanted
    if not match:
        # Operators without words, or words that are only to be left out: then they are meant.
        wanted = [text for kind, text in tokens if kind in _TERMS]
        match, unwanted = _all([term(word) for word in wanted]), []
    words = (word for text in wanted for word in _SAID.findall(text))
    said = _telling([word for word in words if _sayable(word)])
    long = [name for word in said if len(name := word.rstrip("*")) >= _SHORTEST_INSIDE]
    return Parsed(
        match=match,
        any=_except(_any([term(word) for word in said]), unwanted) or match,
        # It has no words to leave out, so what is unwanted would be found by it.
        inside="" if unwanted else _all([quote(name) for name in long if _sayable(name)]),
        marks=tuple(
            dict.fromkeys(run for word in wanted for run, unspaced in segments(word) if unspaced)
        ),
    )


def quote(text: str) -> str:
    """A text as a phrase: whatever is in it, the index sees words in a row."""
    return '"' + text.replace('"', '""') + '"'


def term(word: str) -> str:
    """One word as an expression, or nothing if it has no letters or digits.

    An identifier is also looked for as its words in a row, as `get_user_name` and the grams of
    `getUserName` have them; a script without spaces in pairs.
    """
    begun = word.endswith("*")
    pieces = segments(word.rstrip("*"))
    found = []
    for number, (piece, unspaced) in enumerate(pieces, 1):
        if unspaced:
            found.append(_run(piece))
        elif not _sayable(piece):
            continue
        elif begun and number == len(pieces):
            found.append(_beginning(piece))
        else:
            inner = [quote(" ".join(parts(piece)))] if parts(piece) else []
            found.append(_any([quote(piece), *inner]))
    return _all(found)


class _Reading:
    """The tokens of a query, read once from left to right."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._negative = 0
        self.wanted: list[str] = []
        self.unwanted: list[str] = []

    def alternatives(self, depth: int) -> str:
        """What stands between brackets, or the whole: one or more, with OR between them."""
        found = [self._together(depth)]
        while self._next() == ("operator", "OR"):
            self._at += 1
            found.append(self._together(depth))
        return _any(found)

    def _together(self, depth: int) -> str:
        """Everything up to an OR or the closing bracket; operators without operands are skipped."""
        plain: list[tuple[str, str]] = []  # words as typed, and what they mean
        marked: list[tuple[str, str]] = []  # phrases and groups
        without: list[str] = []
        negated = False
        while (token := self._next()) is not None and token != ("operator", "OR"):
            kind, text = token
            if kind == "bracket" and text == ")" and depth:
                break
            self._at += 1
            if kind == "minus" or token == ("operator", "NOT"):
                negated = True
                continue
            if kind == "operator" or (kind == "bracket" and text == ")"):
                continue
            self._negative += negated
            if kind == "bracket":
                if depth >= _DEEPEST:
                    self._negative -= negated
                    continue
                meant = self.alternatives(depth + 1)
                if self._next() == ("bracket", ")"):
                    self._at += 1
            else:
                (self.unwanted if self._negative else self.wanted).append(text)
                meant = _phrase(text, kind) if kind in ("phrase", "begun") else term(text)
            self._negative -= negated
            if meant and negated:
                without.append(meant)
            elif meant:
                (plain if kind == "word" else marked).append((text, meant))
            negated = False
        telling = [one for one in plain if one[0] not in FUNCTION_WORDS]
        needed = [*telling, *marked] or plain
        return _less(_all([meant for _, meant in needed]), without)

    def _next(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None


def _tokens(text: str) -> list[tuple[str, str]]:
    text = _UNSAYABLE.sub(" ", text).translate(_QUOTES)
    found: list[tuple[str, str]] = []
    terms = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "begun":
            kind = "begun" if match["begun"] else "phrase"
            found.append((kind, match["phrase"]))
        else:
            found.append((kind, match[kind]))
        terms += kind in _TERMS
        if terms == MOST:
            break
    return found


def _phrase(text: str, kind: str) -> str:
    """Words in a row; where the script changes, each stretch is a row for itself."""
    found = []
    pieces = segments(text)
    for number, (piece, unspaced) in enumerate(pieces, 1):
        if unspaced:
            found.append(_run(piece))
        elif _sayable(piece):
            star = " *" if kind == "begun" and number == len(pieces) else ""
            found.append(quote(piece) + star)
    return _all(found)


def _run(run: str) -> str:
    """A run without spaces: its pairs in a row, or whatever begins with its only character."""
    said = pairs(run[:_LONGEST_RUN]).split()
    if len(said) < 2:
        return f"grams : {quote(said[0])} *" if said else ""
    return f"grams : {quote(' '.join(said[:-1]))}"


def _beginning(piece: str) -> str:
    said = _SAID.findall(piece)
    if len(said) != 1 or not piece.isascii():
        return f"{quote(piece)} *"
    finished = {
        piece[: len(piece) - size] + ending
        for ending in _ENDINGS
        for size in range(1, len(ending) + 1)
        if len(piece) >= size + 3 and piece.lower().endswith(ending[:size])
    }
    return _any([f"{quote(piece)} *", *map(quote, sorted(finished))])


def _sayable(text: str) -> bool:
    """Whether the index sees a word in it: it knows letters and digits, and no signs."""
    return any(map(str.isalnum, text))


def _telling(words: list[str]) -> list[str]:
    """Words without those that every text has, unless there are no others."""
    return [word for word in words if word not in FUNCTION_WORDS] or words


def _all(expressions: list[str]) -> str:
    return _joined(" AND ", expressions)


def _any(expressions: list[str]) -> str:
    return _joined(" OR ", expressions)


def _joined(operator: str, expressions: list[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, expressions)))
    return f"({operator.join(distinct)})" if len(distinct) > 1 else "".join(distinct)


def _less(expression: str, without: list[str]) -> str:
    return f"({expression} NOT {_any(without)})" if expression and without else expression


def _except(expression: str, unwanted: list[str]) -> str:
    return _less(expression, [meant for word in unwanted if (meant := _phrase(word, "phrase"))])
