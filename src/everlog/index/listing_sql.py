"""SQL for filters and pages, in the dialects of the stores that have tables.

What a filter and a cursor mean is said in `ports.listing`; the columns have the same names in every
database. Parameters are named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from everlog.log.line_codec import replace_surrogates
from everlog.ports import Filter, Order
from everlog.ports.listing import conditions_of


class SqlDialect(NamedTuple):
    """How a database spells what differs; `{}` stands for a column or a name."""

    parameter: str
    contains: str
    booleans: tuple[str, str]
    sum: str
    count_sum: str  # a sum of integers, as an integer, which cannot overflow
    text: Callable[[str], str]  # a text as a column holds it
    key: Callable[[str], str]  # a text as an indexed column holds it
    among: str  # that a session is one of some
    session_ids: Callable[[Collection[str]], Any]  # those, as a parameter


# total() and not sum(): a sum that overflows in SQLite is an error, and files may hold anything.
SQLITE = SqlDialect(
    parameter=":{}",
    contains="instr({}, {}) > 0",
    booleans=("0", "1"),
    sum="total({})",
    count_sum="CAST(total({}) AS INTEGER)",
    text=replace_surrogates,
    key=replace_surrogates,
    among="id IN (SELECT value FROM json_each({}))",
    session_ids=lambda sessions: msgspec.json.encode(sorted(sessions)).decode(),
)


def filter_conditions(
    criteria: Filter, table: str = "", *, dialect: SqlDialect = SQLITE
) -> tuple[list[str], dict[str, Any]]:
    """Return a filter as SQL conditions and their values; `table` is put before each column."""
    conditions: list[str] = []
    values: dict[str, Any] = {}
    for name, test, value in conditions_of(criteria):
        column, parameter = f"{table}{name}", dialect.parameter.format(name)
        if isinstance(value, bool):  # a literal, so that the index on unfinished sessions is used
            conditions.append(f"{column} = {dialect.booleans[value]}")
        elif test == "contains":
            conditions.append(dialect.contains.format(column, parameter))
            values[name] = dialect.text(value)
        else:
            conditions.append(f"{column} {test} {parameter}")
            values[name] = dialect.key(value) if isinstance(value, str) else value
    return conditions, values


def page_clauses(
    criteria: Filter, start: tuple[int, Any] | None, order: Order, id_column: str, *, dialect: SqlDialect = SQLITE
) -> tuple[str, str, dict[str, Any]]:
    """Return the clauses that select a page, those that count the whole listing, and their values.

    `start` is the time and the id of the cursor. The values lack the `limit`.
    """
    conditions, values = filter_conditions(criteria, dialect=dialect)
    counted = where_clause(conditions)
    columns = ("active", id_column) if order == "active" else (id_column,)
    if start is not None:
        values |= {"start_active": start[0], "start_id": start[1]}
        parameters = [dialect.parameter.format(name) for name in ("start_active", "start_id")[-len(columns) :]]
        conditions.append(f"({', '.join(columns)}) < ({', '.join(parameters)})")
    ordering = ", ".join(f"{column} DESC" for column in columns)
    limit = dialect.parameter.format("limit")
    return f"{where_clause(conditions)} ORDER BY {ordering} LIMIT {limit}", counted, values


def where_clause(conditions: Sequence[str]) -> str:
    """Return conditions as a WHERE clause, empty if there are none."""
    return "WHERE " + " AND ".join(conditions) if conditions else ""
