"""Usage as it is shown: lines over time, estimates beside stated costs, an order by cost."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from everlog.log.usage_report import TARGET_LINES, Grouping, summarize_usage
from everlog.model import UsageRow
from everlog.ports import Spender, UsageReport


def _price(spent: UsageRow) -> float | None:
    return None if spent.model == "unknown" else spent.tokens / 1000


def _used(*rows: UsageRow) -> UsageReport:
    spenders = [Spender(row.day, row.day, "main", "user", (row,)) for row in rows]
    return UsageReport(rows, tuple(spenders), len(rows))


def test_a_stated_cost_is_not_estimated_again() -> None:
    stated = UsageRow("2026-11-16", "m", input_tokens=5000, cost=0.5)
    told = UsageRow("2026-11-16", "m", input_tokens=2000)
    found = summarize_usage(_used(stated, told), _price)
    assert (found.total.cost, found.total.estimate, found.total.dollars) == (0.5, 2.0, 2.5)
    assert found.unpriced == ()


def test_what_nobody_has_a_price_for_is_named_once() -> None:
    rows = [UsageRow(f"2026-11-{day}", "unknown", input_tokens=1) for day in (15, 16)]
    found = summarize_usage(_used(*rows, UsageRow("2026-11-16", "idle", turns=1)), _price)
    assert found.unpriced == ("unknown",)
    assert found.total.dollars == 0.0


def test_sessions_are_in_the_order_of_what_they_cost() -> None:
    rows = [UsageRow("a", "m", input_tokens=10), UsageRow("b", "m", input_tokens=20, cost=9.0)]
    rows.append(UsageRow("c", "m", input_tokens=3000))
    found = summarize_usage(_used(*rows), _price, max_sessions=2)
    assert [one.session for one in found.costliest] == ["b", "c"]


def test_a_session_that_took_nothing_is_not_among_those_that_cost_most() -> None:
    rows = [UsageRow("a", "m", turns=9, tool_calls=2), UsageRow("b", "unknown", output_tokens=1)]
    rows.append(UsageRow("c", "m", cost=0.01))
    found = summarize_usage(_used(*rows), _price)
    assert [one.session for one in found.costliest] == ["c", "b"]
    assert (found.sessions, found.total.turns) == (3, 9)


@pytest.mark.parametrize(("last", "by"), [("2026-01-31", "day"), ("2026-02-01", "week"), ("2026-12-31", "month")])
def test_time_is_cut_so_that_it_fits(last: str, by: Grouping) -> None:
    rows = [UsageRow("2026-01-01", "m", 1), UsageRow(last, "m", 1)]
    assert summarize_usage(_used(*rows), _price).by == by


def test_days_without_anything_are_there_too() -> None:
    rows = [UsageRow("2026-02-27", "m", 1), UsageRow("2026-03-02", "m", 1)]
    found = summarize_usage(_used(*rows), _price, by="day", days=("2026-02-26", ""))
    assert [(one.name[5:], one.turns) for one in found.lines] == [
        ("02-26", 0),
        ("02-27", 1),
        ("02-28", 0),
        ("03-01", 0),
        ("03-02", 1),
    ]


def test_a_day_of_a_clock_that_was_wrong_makes_no_thousand_lines() -> None:
    rows = [UsageRow("1970-01-01", "m", 1), UsageRow("2026-11-16", "m", 1), UsageRow("9999-99-99", "m", 1)]
    found = summarize_usage(_used(*rows), _price, by="day")
    assert [one.turns for one in found.lines] == [1, 1, 1]
    assert sum(one.turns for one in summarize_usage(_used(*rows), _price).lines) == 3


@pytest.mark.parametrize("by", [None, "day", "week", "month", "model"])
def test_the_first_and_the_last_day_of_all_are_days_too(by: Grouping | None) -> None:
    for days in (("9999-12-30", "9999-12-31"), ("0001-01-01", "9999-12-31")):
        found = summarize_usage(_used(*(UsageRow(day, "m", 1) for day in days)), _price, by=by)
        assert sum(one.turns for one in found.lines) == 2
        assert len(found.lines) <= 2


def test_one_wrong_date_makes_no_gaps_that_are_filled_and_no_months_of_days() -> None:
    rows = [UsageRow(f"2026-11-{day}", "m", 1) for day in (14, 16)]
    found = summarize_usage(_used(UsageRow("1969-12-31", "m", 1), *rows), _price)
    assert found.by == "day"
    assert [one.name for one in found.lines] == ["1969-12-31", "2026-11-14", "2026-11-16"]
    found = summarize_usage(_used(UsageRow("1969-12-31", "m", 1), *rows), _price, by="month")
    assert [one.name for one in found.lines] == ["1969-12", "2026-11"]


@pytest.mark.parametrize(("step", "by"), [(1, "week"), (7, "month")])
def test_a_wrong_date_beside_much_that_was_spent_leaves_lines_that_fit(step: int, by: Grouping) -> None:
    days = [date(2026, 1, 1) + timedelta(days=step * number) for number in range(40)]
    rows = [UsageRow(day.isoformat(), "m", 1) for day in days]
    found = summarize_usage(_used(UsageRow("1969-12-31", "m", 1), *rows), _price)
    assert found.by == by
    assert len(found.lines) <= TARGET_LINES and sum(one.turns for one in found.lines) == 41


@pytest.mark.parametrize(("last", "lines"), [("2026-12-31", 60), ("2027-01-01", 2)])
def test_five_years_of_months_have_no_gaps_and_more_have(last: str, lines: int) -> None:
    rows = [UsageRow("2022-01-01", "m", 1), UsageRow(last, "m", 1)]
    assert len(summarize_usage(_used(*rows), _price, by="month").lines) == lines
    assert len(summarize_usage(_used(*rows), _price).lines) == lines


def test_a_year_of_days_that_were_asked_for_has_no_gaps() -> None:
    rows = [UsageRow("2026-01-01", "m", 1), UsageRow("2026-12-31", "m", 1)]
    assert len(summarize_usage(_used(*rows), _price, by="day").lines) == 365
    assert len(summarize_usage(_used(*rows), _price).lines) == 12


def test_models_stand_by_their_tokens() -> None:
    rows = [UsageRow("2026-11-16", "b", input_tokens=1), UsageRow("2026-11-15", "a", output_tokens=7)]
    found = summarize_usage(_used(*rows), _price, by="model")
    assert [(one.name, one.tokens) for one in found.lines] == [("a", 7), ("b", 1)]


def test_nothing_is_nothing() -> None:
    found = summarize_usage(UsageReport(), _price)
    assert (found.lines, found.costliest, found.total.tokens) == ((), (), 0)
