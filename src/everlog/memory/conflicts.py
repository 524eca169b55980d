"""Contradictions: two facts about the same subject that cannot both hold.

The rules compare words and are careful: a pair counts only if it has the same words except for one
that is replaced by a rival (tabs and spaces, npm and pnpm), by another number or by its negation,
or if both fill the same single slot ("the deadline is …", "uses … for linting") differently. An
unrecognised contradiction stays as two facts, which does less harm than losing one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from everlog.memory.facts import NEGATIONS, fact_key, is_same_key, words
from everlog.model import Category

_RIVALS = tuple(
    frozenset(group.split())
    for group in (
        "tab space",
        "dark light",
        "npm yarn pnpm bun",
        "vim emacs neovim vscode nano",
        "pytest unittest nose",
        "jest vitest mocha",
        "black yapf autopep8 ruff flake8 pylint",
        "prettier eslint biome",
        "poetry pip uv pipenv conda pdm",
        "postgre postgresql postgres mysql sqlite mongodb mariadb oracle",
        "redi redis memcached",
        "rest graphql grpc",
        "react vue svelte angular",
        "aw aws gcp azure",
        "github gitlab bitbucket",
        "merge rebase squash",
        "snake_case camelcase kebab-case pascalcase",
        "single double",
        "short long brief detailed concise verbose",
        "formal informal casual",
        "small large big",
        "sync async synchronou asynchronou",
        "metric imperial",
        "django flask fastapi litestar",
        "docker podman",
        "bash zsh fish",
        "monday tuesday wednesday thursday friday saturday sunday",
    )
)
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
