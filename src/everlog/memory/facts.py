"""Facts: one-line statements to remember, and the rules for when two are the same or contradict.

A fact is data: a user stated it or a model extracted it. So it may not contain the syntax of the
files it is kept in, secrets are redacted, and a sentence that tries to instruct whoever reads the
memory is rejected. Two facts are the same if they differ only in case, punctuation, stop words or
a typo; numbers, negations and the order around "over" or "than" make a difference.

Two facts contradict each other if they are about the same subject and cannot both hold. The rules
compare words and are careful: a pair counts only if it has the same words except for one that is
replaced by a rival (tabs and spaces, npm and pnpm), by another number or by its negation, or if
both fill the same single slot ("the deadline is …", "uses … for linting") differently. An
unrecognised contradiction stays as two facts, which does less harm than losing one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable, Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from everlog.context.fence import strip_invisible
from everlog.model import Category
from everlog.ports.memory import Fact
from everlog.redaction import redact

MAX_LENGTH = 500  # characters of one fact

_MARKS = (("<!--", "‹!--"), ("-->", "--›"), ("~~", "~"))  # syntax of provenance comments and former facts
_LEAD = re.compile(r"^(?:[#>]+\s+|[-*+•]\s+|\d{1,3}[.)]\s+|---+\s*)+")

_COMMAND = re.compile(
    r"""
      \b(?:ignore|disregard|forget|override)\b.{0,40}
        \b(?:instructions?|prompts?|rules|previous|above|notes|memor(?:y|ies))\b
    | \b(?:delete|erase|wipe|remove|destroy|clear)\b.{0,30}
        \b(?:all|every|the|your)\b.{0,20}\b(?:notes?|memor(?:y|ies)|memory\.md)\b
    | \bsystem\ prompt\b | \byou\ are\ now\b | \bnew\ instructions?\b\s*:
    | ^\W*(?:system|assistant)\s*:
    """,
    re.VERBOSE | re.IGNORECASE,
)


def sanitize_line(text: str, width: int = MAX_LENGTH) -> str:
    """Return the text on one line, redacted and without the syntax of memory files."""
    text = " ".join(strip_invisible(text[: 8 * width]).split())
    text = redact(_LEAD.sub("", text))[0]
    for mark, replacement in _MARKS:
        while mark in text:  # a replacement may produce the mark again
            text = text.replace(mark, replacement)
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def is_command(text: str) -> bool:
    """Return whether a text tries to instruct its reader; such text is never remembered."""
    return _COMMAND.search(text) is not None


# --- equality -------------------------------------------------------------------------------

_TOKEN = re.compile(r"v?\d[\w.\-]*\+?|[^\W\d_][\w'’.+#/\-]*|[^\W_]")
_STOP_WORDS = frozenset(
    {
        *("a", "an", "the", "this", "that", "these", "those", "it", "its", "there", "and", "or"),
        *("i", "i'm", "i've", "we", "we've", "you", "user", "they", "their", "my", "our", "your"),
        *("is", "are", "was", "be", "been", "am", "do", "does", "has", "have", "had", "will"),
        *("please", "also", "really", "just", "very", "strongly", "generally", "usually", "so"),
        *("of", "in", "on", "at", "by", "with", "as", "for", "to", "now", "still", "currently"),
    }
)
_ORDER_WORDS = frozenset({"over", "than", "instead", "before", "after", "from", "depend", "but", "above", "below"})
NEGATIONS = frozenset(
    {"not", "no", "never", "without", "don't", "doesn't", "won't", "can't", "cannot", "avoid", "stop"}
)
_MIN_SPELLING = 6  # letters; shorter words must be spelt the same


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text that carry its meaning, in order."""
    return tuple(_stem(word) for word in _tokens(text) if word not in _STOP_WORDS)


def _tokens(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    return [token for match in _TOKEN.findall(folded) if (token := match.rstrip(".-'/"))]


def _stem(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is", "'s")):
        return word[:-1]
    return word.removesuffix("'s")


def fact_key(text: str) -> tuple[str, ...]:
    """Return the key of a fact: its words without anything that makes no difference."""
    key = words(text)
    if not key:  # only stop words or symbols: then they are the meaning
        return tuple(_tokens(text)) or tuple(unicodedata.normalize("NFKC", text).casefold().split())
    return key if _ORDER_WORDS & set(key) else tuple(sorted(set(key)))


def is_same_fact(first: str, second: str) -> bool:
    """Return whether two texts state the same fact."""
    return is_same_key(fact_key(first), fact_key(second))


def is_same_key(first: tuple[str, ...], second: tuple[str, ...]) -> bool:
    """Return whether two keys belong to the same fact."""
    if first == second:
        return True
    if len(first) != len(second) or len(first) < 3:
        return False
    # One word may be spelt differently, if it is long and neither a number nor a negation.
    only_first, only_second = set(first) - set(second), set(second) - set(first)
    if len(only_first) != 1 or len(only_second) != 1:
        return False
    a, b = only_first.pop(), only_second.pop()
    if min(len(a), len(b)) < _MIN_SPELLING or not (a + b).isalpha() or {a, b} & NEGATIONS:
        return False
    return SequenceMatcher(None, a, b).ratio() >= 0.88


class FactIndex:
    """Facts by key, with a lookup that does not compare against every fact."""

    def __init__(self) -> None:
        self._locations: dict[tuple[str, ...], str] = {}
        # Keys by each of their versions without one long word.
        self._shortened: dict[tuple[str, ...], list[tuple[str, ...]]] = {}

    def add(self, key: tuple[str, ...], location: str) -> None:
        """Add a fact with this key; the first location of a key wins."""
        if key not in self._locations:
            for shortened in _shortened_keys(key):
                self._shortened.setdefault(shortened, []).append(key)
        self._locations.setdefault(key, location)

    def remove(self, key: tuple[str, ...]) -> None:
        """Remove the fact with this key."""
        self._locations.pop(key, None)

    def find(self, key: tuple[str, ...]) -> str | None:
        """Return the location of the same fact, or None."""
        if key in self._locations:
            return self._locations[key]
        for shortened in _shortened_keys(key):
            for neighbour in self._shortened.get(shortened, ()):
                if neighbour in self._locations and is_same_key(neighbour, key):
                    return self._locations[neighbour]
        return None


def _shortened_keys(key: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for position, word in enumerate(key):
        if len(word) >= _MIN_SPELLING:
            yield key[:position] + key[position + 1 :]


def select_new(facts: Iterable[Fact], known_texts: Iterable[str]) -> list[Fact]:
    """Return the facts that are neither known nor repeated among themselves."""
    index = FactIndex()
    for text in known_texts:
        index.add(fact_key(text), text)
    new: list[Fact] = []
    for fact in facts:
        key = fact_key(fact.text)
        if fact.text and index.find(key) is None:
            index.add(key, fact.text)
            new.append(fact)
    return new


# --- contradictions -------------------------------------------------------------------------

# Words that exclude each other, as `words` returns them.
_RIVAL_GROUPS = """
    tab space | dark light | npm yarn pnpm bun | vim emacs neovim vscode nano | pytest unittest nose |
    jest vitest mocha | black yapf autopep8 ruff flake8 pylint | prettier eslint biome |
    poetry pip uv pipenv conda pdm | postgre postgresql postgres mysql sqlite mongodb mariadb oracle |
    redi redis memcached | rest graphql grpc | react vue svelte angular | aw aws gcp azure |
    github gitlab bitbucket | merge rebase squash | snake_case camelcase kebab-case pascalcase |
    single double | short long brief detailed concise verbose | formal informal casual |
    small large big | sync async synchronou asynchronou | metric imperial |
    django flask fastapi litestar | docker podman | bash zsh fish |
    monday tuesday wednesday thursday friday saturday sunday
"""
_RIVALS = tuple(frozenset(group.split()) for group in _RIVAL_GROUPS.split("|"))
# These allow several values: whoever supports SQLite may support Postgres as well.
_MULTI_VALUE = frozenset({"support", "supported", "speak", "know", "target", "include", "read", "both"})
_NUMBER = re.compile(r"v?\d[\w.\-]*\+?")
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d)?")
# A measurement replaces another one; a number that counts or names things does not.
_MEASURES = frozenset(
    {
        *("version", "port", "limit", "timeout", "budget", "maximum", "minimum", "most", "least"),
        *("under", "above", "below", "within", "exactly", "level", "width", "column", "character"),
        *("m", "ms", "second", "minute", "hour", "day", "week", "kb", "mb", "gb", "percent"),
        *("worker", "thread", "core", "space", "year", "old", "euro", "dollar", "token"),
    }
)
_POSITIVE = frozenset({"alway", "always", "must", "only"})
_DECIDED = re.compile(
    r"^(?:we|the user|i|it was)?\s*(?:'ve|have|has)?\s*"
    r"(?:decided|agreed|chose|picked)\s+(?:to|on)?\s*",
    re.IGNORECASE,
)
# Slots that hold one value at a time: the value, and the subject it belongs to.
_FRAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^(?P<v>prefer|like|favou?r)s?\s+(?P<value>.+?)\s+(?P<s>(?:for|when|in|as)\s+.+)$",
        r"^(?P<v>use|run|deploy)s?\s+(?P<value>.+?)\s+(?P<s>(?:for|as|to manage)\s+.+)$",
        r"^(?P<s>(?:\S+\s+){0,4}(?:deadline|name|branch|database|port|version|owner|release|launch"
        r"|licen[cs]e|editor|time ?zone|language|domain|url|path|directory|framework|manager|limit"
        r"|timeout|command|entry point|meeting|birthday|email|budget))\s+(?P<v>is|are|will be|was)"
        r"\s+(?:now\s+)?(?P<value>.+)$",
        r"^(?P<s>(?:\S+\s+){1,5}?)(?P<v>live|lie|belong|go)(?:s|es)?\s+(?:in|at|under)\s+(?P<value>.+)$",
    )
)
_SUBJECT = re.compile(
    r"^(?:the |this |our )?(?:user|project|repo(?:sitory)?|team|we|i|app|code ?base)\s+"
    r"(?:now |also |always |really |usually |strongly )*",
    re.IGNORECASE,
)
# A reason or a rejected alternative is not part of the claim.
_ASIDE = re.compile(r"\s+(?:because|since|so that|due to|instead of|rather than)\s", re.IGNORECASE)
_PREFERENCE = re.compile(r"\bprefer\w*\s+(.+?)\s+(?:over|to|rather than|instead of)\s+(.+)$", re.I)
_ABOUT_PEOPLE: frozenset[Category] = frozenset({"preference", "constraint"})
_ABOUT_WORK: frozenset[Category] = frozenset({"project", "pattern", "decision", "constraint"})


class Claim(NamedTuple):
    """A fact taken apart, for comparison with many others."""

    category: Category | None
    key: tuple[str, ...]
    words: frozenset[str]
    slots: dict[tuple[str, ...], tuple[str, tuple[str, ...]]]  # subject → verb and value
    preference: tuple[tuple[str, ...], tuple[str, ...]] | None  # preferred, rejected


def parse_claim(text: str, category: Category | None) -> Claim:
    """Take a fact apart."""
    plain = _SUBJECT.sub("", _DECIDED.sub("", text.strip().rstrip(".!;。")))
    claim_words = frozenset(words(_ASIDE.split(plain, maxsplit=1)[0]))
    slots: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}
    for frame in _FRAMES:
        match = frame.match(plain)
        subject, value = (words(match["s"]), words(match["value"])) if match else ((), ())
        if match is not None and subject and value:
            slots[subject] = (match["v"].lower(), value)
    pair = _PREFERENCE.search(plain)
    preference = (fact_key(pair[1]), fact_key(pair[2])) if pair else None
    return Claim(category, fact_key(text), claim_words, slots, preference)


def lookup_keys(claim: Claim) -> Iterator[Hashable]:
    """Yield lookup keys; two claims that contradict each other share at least one."""
    yield from claim.slots
    if claim.preference is not None:
        yield frozenset(claim.preference)
    core = claim.words - NEGATIONS - _POSITIVE
    yield core
    for word in core:
        yield core - {word}


def is_contradiction(first: Claim, second: Claim) -> bool:
    """Return whether two facts say different things about the same subject."""
    categories = {first.category, second.category} - {None}
    comparable = categories <= _ABOUT_PEOPLE or categories <= _ABOUT_WORK
    if not comparable or not first.words & second.words:
        return False
    differs = (
        (first.preference is not None and first.preference[::-1] == second.preference)
        or _differ_in_slot(first, second)
        or _differ_in_one_word(first, second)
    )
    return differs and not is_same_key(first.key, second.key)


def _differ_in_slot(first: Claim, second: Claim) -> bool:
    for subject, (verb, value) in first.slots.items():
        if subject in second.slots:
            other_verb, other_value = second.slots[subject]
            return value != other_value and (verb == other_verb or "is" in (verb, other_verb))
    return False


def _differ_in_one_word(first: Claim, second: Claim) -> bool:
    """Return whether one word differs: a rival, another number, or a negation."""
    if abs(len(first.words) - len(second.words)) > 3:
        return False  # more than one word and its negation
    only_first, only_second = first.words - second.words, second.words - first.words
    if (only_first | only_second) & NEGATIONS:
        negated = bool(only_first & NEGATIONS), bool(only_second & NEGATIONS)
        return not (only_first | only_second) - NEGATIONS - _POSITIVE and negated[0] != negated[1]
    if len(only_first) != 1 or len(only_second) != 1:
        return False
    (first_word,), (second_word,) = only_first, only_second
    if _DATE.fullmatch(first_word) or _DATE.fullmatch(second_word):
        return False  # things happen on many days; a deadline is a slot
    if _NUMBER.fullmatch(first_word) and _NUMBER.fullmatch(second_word):
        numbers = first_word + second_word
        return "." in numbers or "+" in numbers or bool(_MEASURES & first.words)
    rivals = any({first_word, second_word} <= group for group in _RIVALS)
    return rivals and not _MULTI_VALUE & first.words
