"""Sizes, times and counts as people say them."""

from __future__ import annotations

import re
import time


def size(count: int) -> str:
    """Bytes in a readable unit."""
    if count < 1000:
        return f"{count} B"
    value, units = count / 1000, ["kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.1f} {units[0]}" if value < 9.95 else f"{value:.0f} {units[0]}"


def ago(iso: str, now: float) -> str:
    """How long ago a time was; the date when it is long ago; nothing for what is no time."""
    from everlog.ids import epoch_ms  # noqa: PLC0415 - loads datetime, which few commands need

    then = epoch_ms(iso)
    if then is None:
        return ""
    seconds = now - then / 1000
    if seconds < 60:
        return "now" if seconds > -60 else when(iso)
    for limit, step, unit in ((3600, 60, "min"), (86400, 3600, "h"), (60 * 86400, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // step)} {unit} ago"
    return iso[:10]


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def moment(iso: str, now: float) -> str:
    """How long ago a time was if that is less than a day, else its day and minute of UTC."""
    said = ago(iso, now)
    if not said or not when(iso) or said.endswith((" min ago", " h ago")) or said == "now":
        return said
    year = f" {iso[:4]}" if time.gmtime(now).tm_year != int(iso[:4]) else ""
    return f"{int(iso[8:10])} {_MONTHS[int(iso[5:7]) - 1]}{year} {iso[11:16]}"


def when(iso: str) -> str:
    """A time of the files, without its fractions; nothing for what is no time."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z", iso)
    return f"{match[1]} {match[2]}Z" if match else ""


def lasted(milliseconds: float) -> str:
    """A duration."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{milliseconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def plural(count: int, noun: str) -> str:
    """`1 part`, `2 parts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(count: float) -> str:
    """A large number in a few characters: 950, 12.3k, 4.5M."""
    if count < 1000:
        return f"{count:.0f}"
    value, units = count / 1000, ["k", "M", "G", "T"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.1f}{units[0]}" if value < 99.95 else f"{value:.0f}{units[0]}"


def money(dollars: float) -> str:
    """A cost."""
    if 0 < dollars < 0.01:
        return f"${dollars:.4f}"
    return f"${dollars:,.2f}"
