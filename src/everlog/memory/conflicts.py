"""Contradictions: two facts about the same thing that cannot both hold.

Rules over words, so they are careful: a pair counts only if it has the same words but for one that
is replaced by a rival (tabs and spaces, npm and pnpm), by another number or by its negation, or if
both fill the same single place ("the deadline is …", "uses … for linting") differently. What
is not recognised stays as two facts, which is a smaller harm than one that is lost.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from everlog.memory.facts import NEGATIONS, Category, alike, key, words

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
# Of these there may be several: whoever supports SQLite may support Postgres as well.
_MANY = frozenset({"support", "supported", "speak", "know", "target", "include", "read", "both"})
_NUMBER = re.compile(r"v?\d[\w.\-]*\+?")
_DATE = re.compile(r"\d{4}-\d\d(?:-\d\d)?")
# A number that measures replaces another; one that counts or names things stands beside it.
_MEASURES = frozenset(
    {
        *("version", "port", "limit", "timeout", "budget", "maximum", "minimum", "most", "least"),
        *("under", "above", "below", "within", "exactly", "level", "width", "column", "character"),
        *("m", "ms", "second", "minute", "hour", "day", "week", "kb", "mb", "gb", "percent"),
        *("worker", "thread", "core", "space", "year", "old", "euro", "dollar", "token"),
    }
)
_POSITIVE = frozenset({"alway", "always", "must", "only", "immer", "toujour", "siempre"})
_DECIDED = re.compile(
    r"^(?:we|the user|i|it was)?\s*(?:'ve|have|has)?\s*"
    r"(?:decided|agreed|chose|picked)\s+(?:to|on)?\s*",
    re.IGNORECASE,
)
# Places that hold one thing at a time: what stands in them, and of what.
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
# A reason, or what was passed over, is no part of what holds.
_ASIDE = re.compile(r"\s+(?:because|since|so that|due to|instead of|rather than)\s", re.IGNORECASE)
_OVER = re.compile(r"\bprefer\w*\s+(.+?)\s+(?:over|to|rather than|instead of)\s+(.+)$", re.I)
_ABOUT_PEOPLE: frozenset[Category] = frozenset({"preference", "constraint"})
_ABOUT_WORK: frozenset[Category] = frozenset({"project", "pattern", "decision", "constraint"})


class Claim(NamedTuple):
    """A fact taken apart, so that it can be held against many others."""

    category: Category | None
    key: tuple[str, ...]
    words: tuple[str, ...]
    bag: frozenset[str]  # the same words
    places: dict[tuple[str, ...], tuple[str, tuple[str, ...]]]  # subject → verb and value
    over: tuple[tuple[str, ...], tuple[str, ...]] | None  # what is preferred to what


def claim(text: str, category: Category | None) -> Claim:
    """What a fact claims."""
    plain = _SUBJECT.sub("", _DECIDED.sub("", text.strip().rstrip(".!;。")))
    said = words(_ASIDE.split(plain, maxsplit=1)[0])
    places: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {}
    for frame in _FRAMES:
        match = frame.match(plain)
        if (
            match is not None
            and (subject := words(match["s"]))
            and (value := words(match["value"]))
        ):
            places[subject] = (match["v"].lower(), value)
    pair = _OVER.search(plain)
    over = (key(pair[1]), key(pair[2])) if pair else None
    return Claim(category, key(text), said, frozenset(said), places, over)


def handles(one: Claim) -> Iterator[Hashable]:
    """What to find a claim by: two that contradict each other have one in common."""
    yield from one.places
    if one.over is not None:
        yield frozenset(one.over)
    core = one.bag - NEGATIONS - _POSITIVE
    yield core
    for word in core:
        yield core - {word}


def contradict(one: Claim, other: Claim) -> bool:
    """Whether two facts are about the same thing and say different things of it."""
    given = {one.category, other.category} - {None}
    if not (given <= _ABOUT_PEOPLE or given <= _ABOUT_WORK) or not one.bag & other.bag:
        return False
    found = (
        (one.over is not None and one.over[::-1] == other.over)
        or _one_place(one, other)
        or _one_word(one, other)
    )
    return found and not alike(one.key, other.key)


def _one_place(one: Claim, other: Claim) -> bool:
    for subject, (verb, value) in one.places.items():
        if subject in other.places:
            their_verb, their_value = other.places[subject]
            return value != their_value and (verb == their_verb or "is" in (verb, their_verb))
    return False


def _one_word(one: Claim, other: Claim) -> bool:
    """The same words, but for one that is a rival, another number, or a negation."""
    if abs(len(one.bag) - len(other.bag)) > 3:
        return False  # too many for one word, with its negation
    left, right = one.bag - other.bag, other.bag - one.bag
    if (left | right) & NEGATIONS:
        denied = bool(left & NEGATIONS), bool(right & NEGATIONS)
        return not (left | right) - NEGATIONS - _POSITIVE and denied[0] != denied[1]
    if len(left) != 1 or len(right) != 1:
        return False
    (mine,), (theirs,) = left, right
    if _DATE.fullmatch(mine) or _DATE.fullmatch(theirs):
        return False  # things happen on many days; a deadline has a place of its own
    if _NUMBER.fullmatch(mine) and _NUMBER.fullmatch(theirs):
        return "." in mine + theirs or "+" in mine + theirs or bool(_MEASURES & one.bag)
    rivals = any({mine, theirs} <= group for group in _RIVALS)
    return rivals and not _MANY & one.bag
