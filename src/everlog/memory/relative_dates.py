"""Relative dates made absolute: a note is read long after "yesterday".

The day of the statement is given; nothing here asks a clock. What is in backticks or struck through
is a quote and stays. Absolute dates come out as ISO 8601, so a second pass finds nothing to do.
A month without a year is the one nearest to the day of the statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_NUMBERS = {
    **{"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6},
    **{"seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12},
    **{"a couple of": 2, "a couple": 2},
}
_N = rf"(?<![\d\-])(\d{{1,3}}|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))})"
_UNIT = r"(day|week|month|year)s?"
_MONTH = rf"({'|'.join(one.capitalize() for one in _MONTHS)})"
# Behind these a date stands without a preposition of its own.
_BEFORE = r"(?:(?P<before>\b(?:since|by|until|till|before|after|from|of|than|on|due)\s+))?"
# A rule about durations ("tokens expire in 30 days") has no date.
_DURATION = re.compile(
    r"\b(?:expir|every|within|time ?out|per\b|each|rotat|retain|retention|delet)", re.I
)
_HINT = re.compile(
    r"day|week|month|year|night|morrow|\b(?:this|last|next|gestern|ayer|heute|hoy|demain)\b"
    r"|morgen|hier\b|aujourd|\bin [A-Z]",
    re.I,
)
_KEPT = re.compile(r"`[^`]*`|~~.*?~~|\(until \d{4}-\d\d-\d\d\)|https?://\S+")


def absolute(text: str, on: date) -> str:
    """The text as it would read for somebody who does not know on which day it was written."""
    pieces: list[str] = []
    place = 0
    for quoted in _KEPT.finditer(text):
        pieces += (_replaced(text[place : quoted.start()], on), quoted[0])
        place = quoted.end()
    return "".join((*pieces, _replaced(text[place:], on)))


def _replaced(text: str, on: date) -> str:
    if not _HINT.search(text):  # most text has no date at all
        return text
    for pattern, when in _RULES:

        def made(match: re.Match[str], when: When = when, text: str = text) -> str:
            try:
                preposition, shown = when(match, on)
            except (ValueError, OverflowError):  # no date, or one beyond the calendar
                return match[0]
            if match["before"]:
                return str(match["before"]) + shown
            if text.startswith(("'s", "’s"), match.end()):
                return shown
            return f"{preposition.capitalize() if match[0][0].isupper() else preposition} {shown}"

        text = pattern.sub(made, text)
    return text


When = Callable[["re.Match[str]", date], tuple[str, str]]


def _shift(days: int) -> When:
    return lambda match, on: ("on", (on + timedelta(days=days)).isoformat())


def _distance(match: re.Match[str], on: date, sign: int) -> tuple[str, str]:
    if sign > 0 and _DURATION.search(match.string):
        raise ValueError(match[0])
    count = _NUMBERS.get(match[2].lower()) or int(match[2])
    unit = match[3].lower()
    if unit == "day":
        return "on", (on + timedelta(days=sign * count)).isoformat()
    if unit == "week":
        return "around", (on + timedelta(weeks=sign * count)).isoformat()
    if unit == "month":
        return "in", _month(on, sign * count)
    return "in", f"{on.replace(year=on.year + sign * count, day=1).year:04d}"


def _month(on: date, shift: int) -> str:
    months = on.year * 12 + on.month - 1 + shift
    return f"{date(months // 12, months % 12 + 1, 1):%Y-%m}"


def _period(match: re.Match[str], on: date) -> tuple[str, str]:
    step = {"last": -1, "past": -1, "this": 0, "next": 1, "coming": 1}[match[2].lower()]
    unit = match[3].lower()
    if unit == "week":
        monday = on - timedelta(days=on.weekday()) + timedelta(weeks=step)
        return "in", f"the week of {monday.isoformat()}"
    if unit == "month":
        return "in", _month(on, step)
    if unit == "year":
        return "in", f"{on.replace(year=on.year + step, day=1).year:04d}"
    weekday = _DAYS.index(unit)
    ahead = (weekday - on.weekday()) % 7
    if step < 0:
        days = ahead - 7 if ahead else -7
    elif step:
        days = ahead or 7
    else:
        days = weekday - on.weekday()  # the one of this week
    return "on", (on + timedelta(days=days)).isoformat()


def _named_month(match: re.Match[str], on: date) -> tuple[str, str]:
    month = _MONTHS.index(match[3].lower()) + 1
    which = match[2].lower()
    year = on.year
    if which == "last":
        year -= month >= on.month
    elif which == "next":
        year += month <= on.month
    else:
        near = (date(on.year + step, month, 15) for step in (-1, 0, 1))
        year = min(near, key=lambda day: abs(day - on)).year
    return "in", f"{year:04d}-{month:02d}"


def _rule(pattern: str, when: When, flags: int = re.IGNORECASE) -> tuple[re.Pattern[str], When]:
    return re.compile(_BEFORE + pattern, flags), when


_LAST = r"(last|past|this|next|coming)"
_RULES = (
    _rule(r"\bthe day before yesterday\b|\bvorgestern\b|\bavant-hier\b|\banteayer\b", _shift(-2)),
    _rule(r"\bthe day after tomorrow\b|\bübermorgen\b|\baprès-demain\b", _shift(2)),
    _rule(r"\b(?:yesterday|last night|gestern|ayer)\b", _shift(-1)),
    _rule(r"\b(?:tomorrow|demain)\b", _shift(1)),
    _rule(
        r"\b(?:today|tonight|this (?:morning|afternoon|evening)|heute|aujourd'hui|hoy)\b", _shift(0)
    ),
    _rule(rf"\b{_N} {_UNIT} ago\b", lambda match, on: _distance(match, on, -1)),
    _rule(rf"\bin {_N} {_UNIT}(?: from now)?\b(?!['’])", lambda match, on: _distance(match, on, 1)),
    _rule(rf"\b(?:the )?{_LAST} (week|month|year|{'|'.join(_DAYS)})\b", _period),
    # Names of months with a capital only: "may" and "march" are verbs.
    _rule(
        rf"\b(?:[Ii]n|[Tt]his)( ){_MONTH}\b(?!,? (?:of )?\d)",
        _named_month,
        0,
    ),
    _rule(rf"\b([Ll]ast|[Nn]ext) {_MONTH}\b(?!,? (?:of )?\d)", _named_month, 0),
)
