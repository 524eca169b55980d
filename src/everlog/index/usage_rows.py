"""Usage rows: one for each day, model and session.

They are written with the session's own row, so both always cover the same log position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everlog.index.listing_sql import SqlDialect, filter_conditions, where_clause
from everlog.log.usage_fold import TOKEN_WEIGHTS, session_usage
from everlog.log.usage_query import query_usage as summarize_sessions
from everlog.model import Metadata, UsageRow
from everlog.ports import Filter, UsageReport

_NUMBERS = UsageRow.__struct_fields__[2:-1]
_INSERT = f"INSERT OR REPLACE INTO spent VALUES ({', '.join('?' * (len(_NUMBERS) + 4))})"
_MAX_INTEGER = (1 << 63) - 1


def put(cursor: Any, data: Metadata, *, new: bool = False) -> None:
    """Write the usage of a session; a `new` one has no rows yet."""
    if not new:
        drop(cursor, data.id)
    rows = session_usage(data)
    if rows:
        cursor.executemany(_INSERT, (_row(data.id, row) for row in rows))


def drop(cursor: Any, session: str) -> None:
    """Delete the usage rows of a session."""
    cursor.execute("DELETE FROM spent WHERE session = ?", (session,))


def _row(session: str, row: UsageRow) -> tuple[Any, ...]:
    numbers = (min(getattr(row, name), _MAX_INTEGER) for name in _NUMBERS)
    return row.day, row.model, session, *numbers, row.cost


class UsageTables(NamedTuple):
    """The tables of a database that hold usage and listing rows, and how to query them."""

    fetch: Callable[[str, dict[str, Any]], Sequence[Sequence[Any]]]
    dialect: SqlDialect
    spent: str
    listing: str
    spent_id: str  # the column with the session
    listing_id: str
    read_metadata: Callable[[Any, bytes | None], Metadata]  # from a session's id and its row


def query_usage(tables: UsageTables, criteria: Filter, days: tuple[str, str], spenders: int) -> UsageReport:
    """Return the usage of the sessions that match a filter, between two days."""
    dialect, session = tables.dialect, f"spent.{tables.spent_id}"
    conditions, values = filter_conditions(criteria, "listed.", dialect=dialect)
    source = f"FROM {tables.spent} AS spent"
    if conditions:
        source += f" JOIN {tables.listing} AS listed ON listed.{tables.listing_id} = {session}"
    for name, test, day in zip(("first", "last"), (">=", "<="), days, strict=True):
        if day:
            conditions.append(f"day {test} {dialect.parameter.format(name)}")
            values[name] = day
    values["spenders"] = max(spenders, 0)
    selection = f"{source} {where_clause(conditions)}"
    sums = ", ".join(dialect.count_sum.format(f"spent.{name}") for name in _NUMBERS)
    sums += f", {dialect.sum.format('spent.cost')}"
    weight = " + ".join(f"{factor} * {dialect.sum.format(f'spent.{name}')}" for name, factor in TOKEN_WEIGHTS.items())
    limit = f"LIMIT {dialect.parameter.format('spenders')}"
    # Rows with a stated cost come before those whose cost can be estimated.
    rows = tables.fetch(
        f"""SELECT day, model, {sums} {selection}
        GROUP BY day, model, spent.cost > 0 ORDER BY day, model, spent.cost > 0 DESC""",
        values,
    )
    count = tables.fetch(f"SELECT count(DISTINCT {session}) {selection}", values)[0][0]
    # Prices are unknown here: the most expensive are among the first by tokens or by stated cost.
    sessions = tables.fetch(
        f"""WITH sums AS MATERIALIZED (
            SELECT {session} AS name, {weight} AS weight, {dialect.sum.format("spent.cost")} AS stated
            {selection} GROUP BY {session})
        SELECT {tables.listing_id}, metadata FROM {tables.listing} WHERE {tables.listing_id} IN (
            SELECT name FROM (SELECT name FROM sums ORDER BY weight DESC, stated DESC, name {limit}) AS heaviest
            UNION SELECT name FROM (SELECT name FROM sums WHERE stated > 0
                ORDER BY stated DESC, weight DESC, name {limit}) AS dearest)""",
        values,
    )
    largest = summarize_sessions((tables.read_metadata(*row) for row in sessions), days, spenders).spenders
    return UsageReport(tuple(UsageRow(*row) for row in rows), largest, count)
