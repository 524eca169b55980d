"""Usage as people are shown it: totals, lines over time, and the sessions that cost most.

What a provider stated and what was estimated stay two numbers. Nothing here is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import Literal

import msgspec

from everlog.log.usage_fold import total
from everlog.model import UsageRow
from everlog.ports import UsageReport

By = Literal["day", "week", "month", "model"]
Price = Callable[[UsageRow], float | None]  # of what has no stated cost; None: nobody knows

LINES = 31  # that time is cut into, about, if nobody says how
# Lines of a stretch without gaps. A longer one, as a single wrong date makes it, has lines only
# for the time in which something was spent.
_FILLED = {"day": 366, "week": 106, "month": 60}


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was spent under one name: a day, a week (its Monday), a month, a model, or in all."""

    name: str = ""
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0  # as it was stated
    estimate: float = 0.0  # of the rest, by price lists

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.input_tokens + self.output_tokens + self.cached_tokens

    @property
    def cached_tokens(self) -> int:
        """Those that were read from a cache or written to one."""
        return self.cache_read_tokens + self.cache_write_tokens

    @property
    def dollars(self) -> float:
        """Stated and estimated."""
        return self.cost + self.estimate


class Costly(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session and what it spent."""

    session: str
    title: str
    agent: str
    sender: str
    spent: Line


class Reckoning(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was spent."""

    by: By
    sessions: int  # that spent something
    behind: int  # sessions of other programs that were not read to their end yet
    total: Line
    lines: tuple[Line, ...]  # oldest first; models: the most tokens first
    costliest: tuple[Costly, ...]  # the most expensive first; none that took nothing
    unpriced: tuple[str, ...]  # models that have neither a stated cost nor a price


def reckon(
    used: UsageReport,
    price: Price,
    *,
    by: By | None = None,
    most: int = 10,
    days: tuple[str, str] = ("", ""),
) -> Reckoning:
    """What was used, as it is shown.

    Without `by` time is cut so that there are about 31 lines. `most`: sessions that are named.
    `days`: the first and the last that are shown even if nothing was spent on them.
    """
    own = by or _fitting(used.spent, days)
    costly = [
        Costly(
            session=one.session,
            title=one.title,
            agent=one.agent,
            sender=one.sender,
            spent=line(one.spent, price),
        )
        for one in used.spenders
        if any(row.tokens or row.cost for row in one.spent)
    ]
    costly.sort(key=lambda one: (-one.spent.dollars, -one.spent.tokens))
    without = {one.model for one in used.spent if _is_unpriced(one, price)}
    return Reckoning(
        by=own,
        sessions=used.sessions,
        behind=used.behind,
        total=line(used.spent, price),
        lines=tuple(_lines(used.spent, price, own, days)),
        costliest=tuple(costly[:most]),
        unpriced=tuple(sorted(without)),
    )


def line(rows: Iterable[UsageRow], price: Price, name: str = "") -> Line:
    """One line for some rows."""
    rows = list(rows)
    sums = total(rows)
    estimate = sum((price(row) or 0.0 for row in rows if not row.cost and row.tokens), 0.0)
    return Line(
        name=name,
        turns=sums.turns,
        tool_calls=sums.tool_calls,
        input_tokens=sums.input_tokens,
        output_tokens=sums.output_tokens,
        cache_read_tokens=sums.cache_read_tokens,
        cache_write_tokens=sums.cache_write_tokens,
        cost=sums.cost,
        estimate=estimate,
    )


def _is_unpriced(row: UsageRow, price: Price) -> bool:
    return not row.cost and row.tokens > 0 and price(row) is None


def _lines(rows: Sequence[UsageRow], price: Price, by: By, days: tuple[str, str]) -> Iterator[Line]:
    if by == "model":
        groups: dict[str, list[UsageRow]] = {}
        for row in rows:
            groups.setdefault(row.model, []).append(row)
        made = [line(groups[name], price, name) for name in groups]
        yield from sorted(made, key=lambda one: (-one.tokens, one.name))
        return
    groups = {name: [] for name in _stretch(rows, by, days)}
    for row in rows:
        groups.setdefault(_name(row.day, by), []).append(row)
    for name in sorted(groups):
        yield line(groups[name], price, name)


def _stretch(rows: Sequence[UsageRow], by: By, days: tuple[str, str]) -> list[str]:
    """The names of all days, weeks or months from the first to the last; none if too many."""
    first, last = _ends(rows, days)
    if first is None or last is None:
        return []
    names: dict[str, None] = {}
    day = first
    while day <= last and len(names) <= _FILLED[by]:
        names[_name(day.isoformat(), by)] = None
        if day == last:  # asked before the next day is made: it may be beyond all years
            break
        day += timedelta(days=1)
    return list(names) if len(names) <= _FILLED[by] else []


def _ends(rows: Sequence[UsageRow], days: tuple[str, str]) -> tuple[date | None, date | None]:
    found = [day for row in rows if (day := _date(row.day)) is not None]
    found += [day for text in days if text and (day := _date(text)) is not None]
    return (min(found), max(found)) if found else (None, None)


def _fitting(rows: Sequence[UsageRow], days: tuple[str, str]) -> By:
    first, last = _ends(rows, days)
    span = (last - first).days + 1 if first is not None and last is not None else 1
    if span <= LINES:
        return "day"
    if span <= LINES * 7:
        return "week"
    if not _stretch(rows, "month", days):
        # There will be gaps, so the length says nothing: one wrong date does not make months of
        # days that would fit.
        fine: tuple[By, ...] = ("day", "week")
        for by in fine:
            if len({_name(row.day, by) for row in rows}) <= LINES:
                return by
    return "month"


def _name(day: str, by: By) -> str:
    if by == "day":
        return day
    if by == "month":
        return day[:7]
    found = _date(day)
    return day if found is None else (found - timedelta(days=found.weekday())).isoformat()


def _date(day: str) -> date | None:
    try:
        return date.fromisoformat(day)
    except ValueError:  # of a clock that nobody set
        return None
