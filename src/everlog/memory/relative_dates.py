"""Relative dates made absolute, since a note is read long after "yesterday".

The day of the statement is a parameter; this module reads no clock. Text in backticks or struck
through is a quotation and stays as it is. Absolute dates are written in ISO 8601, so a second pass
changes nothing. A month without a year is the one nearest to the day of the statement.
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
_MONTH = rf"({'|'.join(month.capitalize() for month in _MONTHS)})"
# After these words a date needs no preposition.
_BEFORE = r"(?:(?P<before>\b(?:since|by|until|till|before|after|from|of|than|on|due)\s+))?"
# A statement about durations ("tokens expire in 30 days") contains no date.
_DURATION = re.compile(r"\b(?:expir|every|within|time ?out|per\b|each|rotat|retain|retention|delet)", re.I)
_HINT = re.compile(r"day|week|month|year|night|morrow|\b(?:this|last|next)\b|\bin [A-Z]", re.I)
_LITERAL = re.compile(r"`[^`]*`|~~.*?~~|\(until \d{4}-\d\d-\d\d\)|https?://\S+")


def resolve_dates(text: str, day: date) -> str:
    """Replace the relative dates of a text that was written on `day` by absolute ones."""
    parts: list[str] = []
    position = 0
    for quoted in _LITERAL.finditer(text):
        parts += (_resolve_in(text[position : quoted.start()], day), quoted[0])
        position = quoted.end()
    return "".join((*parts, _resolve_in(text[position:], day)))


def _resolve_in(text: str, day: date) -> str:
    if not _HINT.search(text):  # most text has no date at all
        return text
    for pattern, resolve in _RULES:

        def replace(match: re.Match[str], resolve: Resolver = resolve, text: str = text) -> str:
            try:
                preposition, phrase = resolve(match, day)
            except (ValueError, OverflowError):  # not a date, or out of range
                return match[0]
            if match["before"]:
                return str(match["before"]) + phrase
            if text.startswith(("'s", "’s"), match.end()):
                return phrase
            return f"{preposition.capitalize() if match[0][0].isupper() else preposition} {phrase}"

        text = pattern.sub(replace, text)
    return text


Resolver = Callable[["re.Match[str]", date], tuple[str, str]]


def _shift(days: int) -> Resolver:
    return lambda match, day: ("on", (day + timedelta(days=days)).isoformat())


def _distance(match: re.Match[str], day: date, sign: int) -> tuple[str, str]:
    if sign > 0 and _DURATION.search(match.string):
        raise ValueError(match[0])
    count = _NUMBERS.get(match[2].lower()) or int(match[2])
    unit = match[3].lower()
    if unit == "day":
        return "on", (day + timedelta(days=sign * count)).isoformat()
    if unit == "week":
        return "around", (day + timedelta(weeks=sign * count)).isoformat()
    if unit == "month":
        return "in", _month(day, sign * count)
    return "in", f"{day.replace(year=day.year + sign * count, day=1).year:04d}"


def _month(day: date, shift: int) -> str:
    months = day.year * 12 + day.month - 1 + shift
    return f"{date(months // 12, months % 12 + 1, 1):%Y-%m}"


def _period(match: re.Match[str], day: date) -> tuple[str, str]:
    step = {"last": -1, "past": -1, "this": 0, "next": 1, "coming": 1}[match[2].lower()]
    unit = match[3].lower()
    if unit == "week":
        monday = day - timedelta(days=day.weekday()) + timedelta(weeks=step)
        return "in", f"the week of {monday.isoformat()}"
    if unit == "month":
        return "in", _month(day, step)
    if unit == "year":
        return "in", f"{day.replace(year=day.year + step, day=1).year:04d}"
    weekday = _DAYS.index(unit)
    ahead = (weekday - day.weekday()) % 7
    if step < 0:
        days = ahead - 7 if ahead else -7
    elif step:
        days = ahead or 7
    else:
        days = weekday - day.weekday()  # in the current week
    return "on", (day + timedelta(days=days)).isoformat()


def _named_month(match: re.Match[str], day: date) -> tuple[str, str]:
    month = _MONTHS.index(match[3].lower()) + 1
    modifier = match[2].lower()
    year = day.year
    if modifier == "last":
        year -= month >= day.month
    elif modifier == "next":
        year += month <= day.month
    else:
        candidates = (date(day.year + step, month, 15) for step in (-1, 0, 1))
        year = min(candidates, key=lambda middle: abs(middle - day)).year
    return "in", f"{year:04d}-{month:02d}"


def _rule(pattern: str, resolve: Resolver, flags: int = re.I) -> tuple[re.Pattern[str], Resolver]:
    return re.compile(_BEFORE + pattern, flags), resolve


_RELATIVE = r"(last|past|this|next|coming)"
_RULES = (
    _rule(r"\bthe day before yesterday\b", _shift(-2)),
    _rule(r"\bthe day after tomorrow\b", _shift(2)),
    _rule(r"\b(?:yesterday|last night)\b", _shift(-1)),
    _rule(r"\btomorrow\b", _shift(1)),
    _rule(r"\b(?:today|tonight|this (?:morning|afternoon|evening))\b", _shift(0)),
    _rule(rf"\b{_N} {_UNIT} ago\b", lambda m, day: _distance(m, day, -1)),
    _rule(rf"\bin {_N} {_UNIT}(?: from now)?\b(?!['’])", lambda m, day: _distance(m, day, 1)),
    _rule(rf"\b(?:the )?{_RELATIVE} (week|month|year|{'|'.join(_DAYS)})\b", _period),
    # Month names only when capitalised: "may" and "march" are verbs.
    _rule(rf"\b(?:[Ii]n|[Tt]his)( ){_MONTH}\b(?!,? (?:of )?\d)", _named_month, 0),
    _rule(rf"\b([Ll]ast|[Nn]ext) {_MONTH}\b(?!,? (?:of )?\d)", _named_month, 0),
)
