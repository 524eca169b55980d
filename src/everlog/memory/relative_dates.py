"""Relative dates made absolute, since a note is read long after "yesterday".

The day of the statement is a parameter; this module reads no clock. Text in backticks or struck
through is a quotation and stays as it is. Absolute dates are written in ISO 8601, so a second pass
changes nothing. A month without a year is the one nearest to the day of the statement.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from everlog.index.search.date_phrases import MONTHS, WEEKDAYS, DatePhrase, find_dates

# A statement about durations ("tokens expire in 30 days") contains no date.
_DURATION = re.compile(r"\b(?:expir|every|within|time ?out|per\b|each|rotat|retain|retention|delet)", re.I)
_LITERAL = re.compile(r"(`[^`]*`|~~.*?~~|\(until \d{4}-\d\d-\d\d\)|https?://\S+)")


def resolve_dates(text: str, day: date) -> str:
    """Replace the relative dates of a text that was written on `day` by absolute ones."""
    parts = _LITERAL.split(text)  # every other one is a literal
    return "".join(part if number % 2 else _resolve_in(part, day) for number, part in enumerate(parts))


def _resolve_in(text: str, day: date) -> str:
    parts: list[str] = []
    position = 0
    for phrase in find_dates(text):
        try:
            meaning = _find_meaning(phrase, text, day)
        except (ValueError, OverflowError):  # out of range
            continue
        if meaning is None:
            continue
        preposition, absolute = meaning
        if text[phrase.start].isupper():
            preposition = preposition.capitalize()
        needs_none = phrase.has_lead or text.startswith(("'s", "’s"), phrase.end)
        parts += (text[position : phrase.start], absolute if needs_none else f"{preposition} {absolute}")
        position = phrase.end
    return "".join((*parts, text[position:]))


def _find_meaning(phrase: DatePhrase, text: str, day: date) -> tuple[str, str] | None:
    """Return an absolute date with its preposition; None for what is absolute already, or no date."""
    written, unit, steps = text[phrase.start : phrase.end], phrase.unit, phrase.steps
    if steps is None:
        return _find_month(phrase.modifier, written.split(" ")[-1], day)
    if written.lower().startswith("in ") and _DURATION.search(text):
        return None
    if unit == "day":
        return "on", (day + timedelta(steps)).isoformat()
    if unit == "week" and not phrase.is_period:
        return "around", (day + timedelta(weeks=steps)).isoformat()
    if unit == "week":
        return "in", f"the week of {(day + timedelta(weeks=steps) - timedelta(day.weekday())).isoformat()}"
    if unit == "month":
        months = day.year * 12 + day.month - 1 + steps
        return "in", f"{date(months // 12, months % 12 + 1, 1):%Y-%m}"
    if unit == "year":
        return "in", f"{date(day.year + steps, 1, 1):%Y}"
    days = WEEKDAYS.index(unit) - day.weekday()  # in the current week
    if steps:
        days = days % 7 or 7 if steps > 0 else days % 7 - 7
    return "on", (day + timedelta(days)).isoformat()


def _find_month(modifier: str, name: str, day: date) -> tuple[str, str] | None:
    # Only when capitalised: "may" and "march" are verbs.
    if modifier not in ("in", "this", "last", "next") or name not in MONTHS:
        return None
    month, year = MONTHS.index(name) + 1, day.year
    if modifier == "last":
        year -= month >= day.month
    elif modifier == "next":
        year += month <= day.month
    else:
        candidates = (date(day.year + step, month, 15) for step in (-1, 0, 1))
        year = min(candidates, key=lambda middle: abs(middle - day)).year
    return "in", f"{year:04d}-{month:02d}"
