"""Dates in prose: what is written, before anybody says what it means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.index.search.date_phrases import DatePhrase, find_dates


def read(text: str) -> list[tuple[str, DatePhrase]]:
    return [(text[one.start : one.end], one) for one in find_dates(text)]


@pytest.mark.parametrize(
    ("text", "steps", "unit"),
    [
        ("yesterday", -1, "day"),
        ("the day after tomorrow", 2, "day"),
        ("this morning", 0, "day"),
        ("a couple of weeks ago", -2, "week"),
        ("12 months ago", -12, "month"),
        ("in five years", 5, "year"),
        ("last Friday", -1, "friday"),
        ("the coming week", 1, "week"),
    ],
)
def test_steps_are_counted_from_the_day_of_the_text(text: str, steps: int, unit: str) -> None:
    ((written, found),) = read(f"and {text} it rained")
    assert (written, found.steps, found.unit) == (text, steps, unit)
    assert not found.has_lead


@pytest.mark.parametrize(
    ("text", "year", "month", "day", "modifier"),
    [
        ("2024-05-06", 2024, 5, 6, ""),
        ("6 May 2024", 2024, 5, 6, ""),
        ("Sept. 6th, 2024", 2024, 9, 6, ""),
        ("May of 2024", 2024, 5, None, ""),
        ("in 2024", 2024, None, None, ""),
        ("last May", None, 5, None, "last"),
    ],
)
def test_a_calendar_date_has_the_parts_that_are_written(
    text: str, year: int | None, month: int | None, day: int | None, modifier: str
) -> None:
    ((written, found),) = read(f"it rained {text}")
    assert written == text and found.steps is None
    assert (found.year, found.month, found.day, found.modifier) == (year, month, day, modifier)


@pytest.mark.parametrize("text", ["since 2024-05-06", "by  yesterday", "due next Monday", "until last March"])
def test_a_word_that_takes_a_date_is_noticed_and_left_out(text: str) -> None:
    ((written, found),) = read(f"it holds {text}.")
    assert found.has_lead and written == text.split(" ", 1)[1].strip()


@pytest.mark.parametrize("text", ["we may march on", "version 2023", "2026-04-23 days ago", "a day", "in 5 days' time"])
def test_other_words_are_no_dates(text: str) -> None:
    assert [one for one in find_dates(text) if one.steps is not None or not one.day] == []


@given(st.text())
def test_any_text_is_read_and_phrases_do_not_overlap(text: str) -> None:
    end = 0
    for found in find_dates(text):
        assert end <= found.start < found.end <= len(text)
        end = found.end
