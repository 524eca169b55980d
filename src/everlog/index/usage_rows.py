"""Usage rows: one for each day, model and session.

They are written with the session's own row, so both always cover the same log position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everlog.log.usage_fold import TOKEN_WEIGHTS, session_usage
from everlog.model import Metadata, UsageRow
from everlog.ports import Spender, UsageReport

_NUMBERS = UsageRow.__struct_fields__[2:-1]
# total() and not sum(): a sum that overflows in SQLite is an error, and files may hold anything.
_SUMS = ", ".join(f"CAST(total(spent.{name}) AS INTEGER)" for name in _NUMBERS)
_SUMS += ", total(spent.cost)"
_WEIGHT = " + ".join(f"{weight} * total(spent.{name})" for name, weight in TOKEN_WEIGHTS.items())
_INSERT = f"INSERT OR REPLACE INTO spent VALUES ({', '.join('?' * (len(_NUMBERS) + 4))})"
_MAX_INTEGER = (1 << 63) - 1
_metadata_decoder = msgspec.json.Decoder(Metadata)


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


def query_usage(
    cursor: Any, conditions: Sequence[str], values: Sequence[Any], days: tuple[str, str], spenders: int
) -> UsageReport:
    """Return the usage of the sessions that meet some conditions, between two days."""
    first, last = days
    source = "spent JOIN session ON session.id = spent.session" if conditions else "spent"
    all_conditions, parameters = list(conditions), list(values)
    if first:
        all_conditions.append("day >= ?")
        parameters.append(first)
    if last:
        all_conditions.append("day <= ?")
        parameters.append(last)
    where = f"FROM {source}"
    if all_conditions:
        where += f" WHERE {' AND '.join(all_conditions)}"
    # Rows with a stated cost come before those whose cost can be estimated.
    rows = cursor.execute(
        f"""SELECT day, model, {_SUMS} {where}
        GROUP BY day, model, spent.cost > 0 ORDER BY day, model, spent.cost > 0 DESC""",
        parameters,
    ).fetchall()
    count_query = f"SELECT count(DISTINCT spent.session) {where}"
    count = cursor.execute(count_query, parameters).fetchone()[0]
    # Prices are unknown here: the most expensive are among the first by tokens or by stated cost.
    largest = cursor.execute(
        f"""WITH sums AS MATERIALIZED (
            SELECT spent.session AS name, {_WEIGHT} AS weight, total(spent.cost) AS stated
            {where} GROUP BY spent.session)
        SELECT name FROM (
            SELECT * FROM (
                SELECT * FROM sums ORDER BY weight DESC, stated DESC, name LIMIT ?)
            UNION SELECT * FROM (
                SELECT * FROM sums WHERE stated > 0
                ORDER BY stated DESC, weight DESC, name LIMIT ?))
        ORDER BY weight DESC, stated DESC, name""",
        (*parameters, max(spenders, 0), max(spenders, 0)),
    ).fetchall()
    top_spenders = [_spender(cursor, session, where, parameters) for (session,) in largest]
    return UsageReport(tuple(UsageRow(*row) for row in rows), tuple(top_spenders), count)


def _spender(cursor: Any, session: str, where: str, parameters: Sequence[Any]) -> Spender:
    keyword = "AND" if "WHERE" in where else "WHERE"
    rows = cursor.execute(
        f"""SELECT max(day), model, {_SUMS} {where} {keyword} spent.session = ?
        GROUP BY model, spent.cost > 0 ORDER BY model, spent.cost > 0 DESC""",
        (*parameters, session),
    ).fetchall()
    stored = cursor.execute("SELECT metadata FROM session WHERE id = ?", (session,)).fetchone()
    data = _metadata_decoder.decode(stored[0]) if stored else Metadata(id=session)
    spent = tuple(UsageRow(*row) for row in rows)
    return Spender(session, data.display_title, data.agent, data.sender, spent)
