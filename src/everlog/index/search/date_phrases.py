"""Dates in English prose: "yesterday", "two weeks ago", "last Friday", "in March", "3 May 2023".

This is the one parser of such dates. It reads what is written; what that means depends on the day
of the text and on the purpose: a search looks around a date, a note needs one that stays true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_SHORT_MONTHS = [month[:3].lower() for month in MONTHS]
_NUMBERS = {
    **{"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6},
    **{"seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12},
    **{"a couple of": 2, "a couple": 2},
}
_SHIFTS = {
    **{"the day before yesterday": -2, "yesterday": -1, "last night": -1},
    **{"tomorrow": 1, "the day after tomorrow": 2},
}
_STEPS = {"last": -1, "past": -1, "this": 0, "next": 1, "coming": 1}
_COUNT = "|".join((r"\d{1,3}", *map(re.escape, sorted(_NUMBERS, key=len, reverse=True))))
_SHIFT = "|".join(map(re.escape, _SHIFTS))
_MONTH = "|".join((*MONTHS, "sept", *_SHORT_MONTHS))
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_YEAR = r"(?:19|20)\d\d"
# The number at the end of a group's name only makes it unique.
_DATE = re.compile(
    rf"""\b(?:
    (?P<y1>{_YEAR})-(?P<m1>\d\d)-(?P<d1>\d\d)
    | (?P<d2>{_DAY})(?:\ of)?\ (?P<m2>{_MONTH})\b\.?(?:,?\ (?P<y2>{_YEAR}))?
    | (?P<m3>{_MONTH})\b\.?\ (?P<d3>{_DAY})\b(?:,?\ (?P<y3>{_YEAR}))?
    | (?P<m4>{_MONTH})\b\.?,?\ (?:of\ )?(?P<y4>{_YEAR})
    | (?P<modifier>in|of|by|since|until|during|before|after|last|next|this|early|late)
      \ (?P<m5>{_MONTH})\b(?!\.?,?\ (?:of\ )?\d)
    | (?:in|since|during)\ (?P<y6>{_YEAR})(?!-)
    | (?P<shift>{_SHIFT}|today|tonight|this\ (?:morning|afternoon|evening))
    | (?<![\d\-])(?P<count1>{_COUNT})\ (?P<unit1>day|week|month|year)s?\ (?P<ago>ago)
    | in\ (?P<count2>{_COUNT})\ (?P<unit2>day|week|month|year)s?(?:\ from\ now)?(?!\w|['’])
    | (?:the\ )?(?P<step>{"|".join(_STEPS)})\ (?P<unit3>week|month|year|{"|".join(WEEKDAYS)})
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
# Words that take a date without a preposition.
_LEAD = re.compile(r"\b(?:since|by|until|till|before|after|from|of|than|on|due)\s+$", re.IGNORECASE)


class DatePhrase(NamedTuple):
    """A date as it is written: steps from the day of the text, or parts of a calendar date."""

    start: int
    end: int
    has_lead: bool  # a word before it takes a date without a preposition, as in "since yesterday"
    steps: int | None = None  # of the unit; None: a calendar date
    unit: str = "day"  # day, week, month, year or a weekday
    is_period: bool = False  # "last week", as opposed to "a week ago"
    year: int | None = None
    month: int | None = None
    day: int | None = None
    modifier: str = ""  # the word before a month without a year, such as "last"


def find_dates(text: str) -> Iterator[DatePhrase]:
    """Yield the dates of a text in order."""
    for match in _DATE.finditer(text):
        groups = {name.rstrip("123456"): value.lower() for name, value in match.groupdict().items() if value}
        start, end = match.span()
        place = start, end, _LEAD.search(text, max(start - 12, 0), start) is not None
        unit = groups.get("unit", "day")
        if "shift" in groups:
            yield DatePhrase(*place, _SHIFTS.get(groups["shift"], 0))
        elif "count" in groups:
            count = _NUMBERS.get(groups["count"]) or int(groups["count"])
            yield DatePhrase(*place, -count if "ago" in groups else count, unit)
        elif "step" in groups:
            yield DatePhrase(*place, _STEPS[groups["step"]], unit, is_period=True)
        else:
            month = groups.get("m", "")
            number = int(month) if month.isdigit() else _SHORT_MONTHS.index(month[:3]) + 1 if month else None
            day = int(groups["d"].rstrip("stndrh")) if "d" in groups else None
            year = int(groups["y"]) if "y" in groups else None
            modifier = groups.get("modifier", "")
            yield DatePhrase(*place, year=year, month=number, day=day, modifier=modifier)
