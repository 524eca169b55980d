"""Sizes, times, counts and the beginnings of texts in a form for people to read."""

from __future__ import annotations

import re
import time


def size(count: int) -> str:
    """Format a number of bytes in a readable unit."""
    if count < 1000:
        return f"{count} B"
    value, unit = _scale(count)
    return f"{value:.1f} {unit}B" if value < 9.95 else f"{value:.0f} {unit}B"


def _scale(count: float) -> tuple[float, str]:
    value, units = count / 1000, ["k", "M", "G", "T"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return value, units[0]


def ago(iso: str, now: float) -> str:
    """Format how long ago a time was; as a date if long ago; empty if it is not a valid time."""
    seconds = _seconds_until(iso, now)
    if seconds is None:
        return ""
    if seconds > -60:
        return "now" if seconds < 60 else exact_time(iso)
    return f"{_rough(-seconds)} ago" if -seconds < 60 * 86400 else iso[:10]


def until(iso: str, now: float) -> str:
    """Format how long it is until a time; empty if it is not a valid time."""
    seconds = _seconds_until(iso, now)
    if seconds is None:
        return ""
    return "in a moment" if seconds < 60 else f"in {_rough(seconds)}"


def _seconds_until(iso: str, now: float) -> float | None:
    from everlog.ids import epoch_ms  # noqa: PLC0415 - loads datetime, which few commands need

    then = epoch_ms(iso)
    return None if then is None else then / 1000 - now


def _rough(seconds: float) -> str:
    for limit, step, unit in ((3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // step)} {unit}"
    return f"{int(seconds // 86400)} d"


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def ago_or_time(iso: str, now: float) -> str:
    """Format how long ago a time was if less than a day, else as date and minute in UTC."""
    text = ago(iso, now)
    if not text or not exact_time(iso) or text.endswith((" min ago", " h ago")) or text == "now":
        return text
    year = f" {iso[:4]}" if time.gmtime(now).tm_year != int(iso[:4]) else ""
    return f"{int(iso[8:10])} {_MONTHS[int(iso[5:7]) - 1]}{year} {iso[11:16]}"


def exact_time(iso: str) -> str:
    """Format a timestamp without fractions of a second; empty if it is not a valid time."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z", iso)
    return f"{match[1]} {match[2]}Z" if match else ""


def duration(milliseconds: float) -> str:
    """Format a duration."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {remainder} s" if remainder else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: `1 part`, `2 parts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short_number(count: float) -> str:
    """Format a number in a few characters: 950, 12.3k, 4.5M."""
    if count < 1000:
        return f"{count:.0f}"
    value, unit = _scale(count)
    return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"


def money(dollars: float) -> str:
    """Format a cost in dollars."""
    if 0 < dollars < 0.01:
        return f"${dollars:.4f}"
    return f"${dollars:,.2f}"


def one_line(text: str) -> str:
    """Replace line breaks and control characters in a text with single spaces."""
    return " ".join(_CONTROL.sub(" ", text).split())


def first_line(text: str, width: int) -> str:
    """Return the first non-blank line of a text, cut to a width; it ends in … if there is more."""
    head = text[: 20 * width].strip()
    line = shorten(one_line(head.partition("\n")[0]), width)
    is_all = len(text) <= 20 * width and len(line) >= len(head)
    return line if is_all or line.endswith("…") else f"{line} …"


def shorten(text: str, width: int) -> str:
    """Cut text to at most `width` columns, with an ellipsis."""
    if display_width(text) <= width:
        return text
    head = text[: width - 1]
    while display_width(head) > width - 1:
        head = head[:-1]
    return f"{head}…"


def display_width(text: str) -> int:
    """Return the number of terminal columns that a line takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # noqa: PLC0415 - few texts need it

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)
