"""Relative dates, seen from Friday, 3 April 2026."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.memory.relative_dates import resolve_dates

FRIDAY = date(2026, 4, 3)
PIECES = (
    *("yesterday", "today", "tomorrow", "last", "next", "this", "week", "month", "Monday", "year"),
    *("in", "March", "May", "ago", "two", "3", "days", "day", "since", "by", "the", "of", "a"),
    *("couple", "before", "after", "'s", "`today`", "(", ",", "."),
)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("We decided yesterday to go", "We decided on 2026-04-02 to go"),
        ("Yesterday we moved", "On 2026-04-02 we moved"),
        ("since yesterday it fails", "since 2026-04-02 it fails"),
        ("the day before yesterday", "on 2026-04-01"),
        ("due tomorrow", "due 2026-04-04"),
        ("today's build", "2026-04-03's build"),
        ("two days ago it ran", "on 2026-04-01 it ran"),
        ("3 weeks ago", "around 2026-03-13"),
        ("five months ago", "in 2025-11"),
        ("a year ago", "in 2025"),
        ("it ships in two weeks", "it ships around 2026-04-17"),
        ("last week it broke", "in the week of 2026-03-23 it broke"),
        ("next month", "in 2026-05"),
        ("last year", "in 2025"),
        ("by next Monday", "by 2026-04-06"),
        ("last Friday", "on 2026-03-27"),
        ("next Friday", "on 2026-04-10"),
        ("this Friday", "on 2026-04-03"),
        ("in March we launched", "in 2026-03 we launched"),
        ("In December it froze", "In 2025-12 it froze"),
        ("in May it starts", "in 2026-05 it starts"),
        ("last April", "in 2025-04"),
        ("next March", "in 2027-03"),
    ],
)
def test_what_was_meant_is_written(said: str, meant: str) -> None:
    assert resolve_dates(said, FRIDAY) == meant


@pytest.mark.parametrize(
    "said",
    [
        "in March 2025 it began",
        "on 2026-04-02",
        "we may march in step",
        "`yesterday` is a variable",
        "~~It shipped yesterday.~~ (until 2026-04-03)",
        "Tokens expire in 30 days",
        "see https://x.test/today",
        "每天",
    ],
)
def test_what_is_absolute_or_no_date_stays(said: str) -> None:
    assert resolve_dates(said, FRIDAY) == said


def test_the_calendar_has_ends() -> None:
    assert resolve_dates("9999 years ago", FRIDAY) == "9999 years ago"
    assert resolve_dates("tomorrow", date.max) == "tomorrow"


@given(st.lists(st.sampled_from(PIECES), max_size=12), st.dates(date(1970, 1, 1), date(2200, 1, 1)))
def test_a_second_pass_on_another_day_finds_nothing(words: list[str], day: date) -> None:
    once = resolve_dates(" ".join(words), FRIDAY)
    assert resolve_dates(once, day) == once


def test_leap_days_and_month_ends_do_no_harm() -> None:
    assert resolve_dates("last year", date(2024, 2, 29)) == "in 2023"
    assert resolve_dates("a month ago", date(2026, 3, 31)) == "in 2026-02"
