"""Contradictions: recognised when it is plain, and not guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.memory.facts import is_contradiction, lookup_keys, parse_claim
from everlog.model import Category


def contradict(one: str, other: str, kinds: tuple[Category, Category]) -> bool:
    first, second = parse_claim(one, kinds[0]), parse_claim(other, kinds[1])
    found = is_contradiction(first, second)
    assert not found or set(lookup_keys(first)) & set(lookup_keys(second))
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The user prefers tabs.", "The user prefers spaces."),
        ("The user prefers tabs over spaces", "The user prefers spaces over tabs"),
        ("The user prefers short answers", "The user prefers detailed answers"),
        ("The user likes tea", "The user does not like tea"),
        ("Always use type hints", "Never use type hints"),
        ("The user prefers vim for editing", "The user prefers nano for editing"),
    ],
)
def test_preferences_contradict(one: str, other: str) -> None:
    assert contradict(one, other, ("preference", "preference"))
    assert contradict(other, one, ("preference", "preference"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The project uses ruff for linting", "We use flake8 for linting"),
        ("We decided to use Postgres", "We decided to use MySQL"),
        ("We use Postgres because of its JSON", "We decided to use MySQL instead of Postgres"),
        ("The API must support Python 3.8+", "The API must support Python 3.10+"),
        ("Responses must take under 200 ms", "Responses must take under 100 ms"),
        ("The project is on Python 3.11", "The project is on Python 3.12"),
        ("The deadline is on 2026-04-02", "The deadline is on 2026-05-02"),
        ("The config lives in a/b.toml", "The config lives in c/d.toml"),
    ],
)
def test_facts_of_a_project_contradict(one: str, other: str) -> None:
    assert contradict(one, other, ("project", "decision"))
    assert contradict(other, one, ("constraint", "project"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The user prefers tabs.", "user prefers tabs"),
        ("The user prefers dark mode", "The user prefers tabs"),
        ("Issue 12 must be fixed", "Issue 13 must be fixed"),
        ("Fact number 12 holds", "Fact number 13 holds"),
        ("Meeting on 2026-04-02", "Meeting on 2026-04-03"),
        ("The project uses React", "The project uses Django"),
        ("We support SQLite", "We support Postgres"),
        ("Never push to main", "Never push to production"),
        ("", "anything"),
        ("项目使用 Postgres", "天气很好"),
    ],
)
def test_other_pairs_do_not(one: str, other: str) -> None:
    assert not contradict(one, other, ("project", "project"))


@pytest.mark.parametrize(("one", "other"), [("preference", "project"), ("decision", "preference")])
def test_a_person_and_a_project_do_not_contradict_each_other(one: Category, other: Category) -> None:
    assert not contradict("prefers tabs", "prefers spaces", (one, other))


WORDS = ("prefers", "tabs", "spaces", "over", "not", "always", "never", "uses", "uv", "pip", "for")


@given(*(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join) for _ in range(2)))
def test_whatever_contradicts_is_found_by_a_handle_and_both_ways(one: str, other: str) -> None:
    found = contradict(one, other, ("preference", "preference"))
    assert found == contradict(other, one, ("preference", "preference"))
