"""The usage report for people: totals, lines over time, and the most expensive sessions.

The cost stated by providers and the estimated cost stay separate. Nothing here is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from typing import Literal

import msgspec

from everlog.log.usage_fold import total_usage
from everlog.model import UsageRow
from everlog.ports import UsageReport

Grouping = Literal["day", "week", "month", "model"]
PriceLookup = Callable[[UsageRow], float | None]  # of a row without a stated cost; None: unknown

TARGET_LINES = 31  # about so many, if no grouping is given
# The most lines of a range without gaps. A longer range, as a single wrong date makes it, has
# lines only for periods with usage.
_MAX_FILLED_LINES = {"day": 366, "week": 106, "month": 60}


class UsageLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The usage of a day, a week (named by its Monday), a month, a model, or the total."""

    name: str = ""
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost: float = 0.0  # as stated by the provider
    estimate: float = 0.0  # of usage without a stated cost, by price lists

    @property
    def tokens(self) -> int:
        """Return the number of all tokens."""
        return self.input_tokens + self.output_tokens + self.cached_tokens

    @property
    def cached_tokens(self) -> int:
        """Return the number of tokens read from or written to a cache."""
        return self.cache_read_tokens + self.cache_write_tokens

    @property
    def dollars(self) -> float:
        """Return the stated and the estimated cost together."""
        return self.cost + self.estimate


class SessionCost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session and its usage."""

    session: str
    title: str
    agent: str
    sender: str
    spent: UsageLine


class UsageSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The usage of a store: total, lines, most expensive sessions."""

    by: Grouping
    sessions: int  # with any usage
    behind: int  # foreign sessions that are not read to their end yet
    total: UsageLine
    lines: tuple[UsageLine, ...]  # oldest first; models: the most tokens first
    costliest: tuple[SessionCost, ...]  # most expensive first; only those with tokens or a cost
    unpriced: tuple[str, ...]  # models that have neither a stated cost nor a price


def summarize_usage(
    report: UsageReport,
    price: PriceLookup,
    *,
    by: Grouping | None = None,
    max_sessions: int = 10,
    days: tuple[str, str] = ("", ""),
) -> UsageSummary:
    """Summarize a usage report.

    Without `by` the grouping is chosen for about 31 lines. `max_sessions`: how many sessions to
    list. `days`: the first and the last day to show, even without usage.
    """
    grouping = by or _choose_grouping(report.spent, days)
    costs = [
        SessionCost(
            session=spender.session,
            title=spender.title,
            agent=spender.agent,
            sender=spender.sender,
            spent=make_usage_line(spender.spent, price),
        )
        for spender in report.spenders
        if any(row.tokens or row.cost for row in spender.spent)
    ]
    costs.sort(key=lambda cost: (-cost.spent.dollars, -cost.spent.tokens))
    unpriced = {row.model for row in report.spent if not row.cost and row.tokens > 0 and price(row) is None}
    return UsageSummary(
        by=grouping,
        sessions=report.sessions,
        behind=report.behind,
        total=make_usage_line(report.spent, price),
        lines=tuple(_lines(report.spent, price, grouping, days)),
        costliest=tuple(costs[:max_sessions]),
        unpriced=tuple(sorted(unpriced)),
    )


def make_usage_line(rows: Iterable[UsageRow], price: PriceLookup, name: str = "") -> UsageLine:
    """Sum rows into one line."""
    rows = list(rows)
    sums = total_usage(rows)
    estimate = sum((price(row) or 0.0 for row in rows if not row.cost and row.tokens), 0.0)
    counts = {field: getattr(sums, field) for field in UsageRow.__struct_fields__[2:]}
    return UsageLine(name=name, estimate=estimate, **counts)


def _lines(rows: Sequence[UsageRow], price: PriceLookup, by: Grouping, days: tuple[str, str]) -> list[UsageLine]:
    groups: dict[str, list[UsageRow]] = {name: [] for name in _period_names(rows, by, days)}
    for row in rows:
        groups.setdefault(row.model if by == "model" else _period_name(row.day, by), []).append(row)
    lines = [make_usage_line(groups[name], price, name) for name in sorted(groups)]
    return sorted(lines, key=lambda line: -line.tokens) if by == "model" else lines


def _period_names(rows: Sequence[UsageRow], by: Grouping, days: tuple[str, str]) -> list[str]:
    """Return all days, weeks or months from the first to the last; none if too many, or for models."""
    names: dict[str, None] = {}
    most = _MAX_FILLED_LINES.get(by, -1)
    for number in _day_numbers(rows, days):
        if len(names) > most:
            return []
        names[_period_name(date.fromordinal(number).isoformat(), by)] = None
    return list(names) if len(names) <= most else []


def _day_numbers(rows: Sequence[UsageRow], days: tuple[str, str]) -> range:
    """Return the ordinals of all days from the first to the last."""
    texts = (*(row.day for row in rows), *days)
    numbers = [day.toordinal() for text in texts if (day := _parse_date(text)) is not None]
    return range(min(numbers), max(numbers) + 1) if numbers else range(0)


def _choose_grouping(rows: Sequence[UsageRow], days: tuple[str, str]) -> Grouping:
    span = len(_day_numbers(rows, days))
    if span <= TARGET_LINES:
        return "day"
    if span <= TARGET_LINES * 7:
        return "week"
    if not _period_names(rows, "month", days):
        # There will be gaps, so the span is meaningless: one wrong date must not force months
        # where days would fit.
        finer: tuple[Grouping, ...] = ("day", "week")
        for by in finer:
            if len({_period_name(row.day, by) for row in rows}) <= TARGET_LINES:
                return by
    return "month"


def _period_name(day: str, by: Grouping) -> str:
    if by == "day":
        return day
    if by == "month":
        return day[:7]
    parsed = _parse_date(day)
    return day if parsed is None else (parsed - timedelta(days=parsed.weekday())).isoformat()


def _parse_date(day: str) -> date | None:
    try:
        return date.fromisoformat(day)
    except ValueError:  # from a clock that was never set
        return None
