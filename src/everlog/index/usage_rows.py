"""What sessions spent as rows: one for each day, model and session.

Written with the session's own row, so both are always of the same log position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everlog.log.usage_fold import WEIGHTS
from everlog.log.usage_fold import used as used_by
from everlog.model import Metadata, UsageRow
from everlog.ports import Spender, UsageReport

_NUMBERS = UsageRow.__struct_fields__[2:-1]
# total() and not sum(): a sum that is too large for SQLite is an error, and files hold anything.
_SUMS = ", ".join(f"CAST(total(spent.{name}) AS INTEGER)" for name in _NUMBERS)
_SUMS += ", total(spent.cost)"
_WEIGHT = " + ".join(f"{each} * total(spent.{name})" for name, each in WEIGHTS.items())
_INSERT = f"INSERT OR REPLACE INTO spent VALUES ({', '.join('?' * (len(_NUMBERS) + 4))})"
_LARGEST = (1 << 63) - 1
_title = msgspec.json.Decoder(Metadata)


def put(cursor: Any, data: Metadata, *, new: bool = False) -> None:
    """Write what a session spent; a `new` one has no rows yet."""
    if not new:
        drop(cursor, data.id)
    rows = used_by(data)
    if rows:
        cursor.executemany(_INSERT, (_row(data.id, one) for one in rows))


def drop(cursor: Any, session: str) -> None:
    """Forget what a session spent."""
    cursor.execute("DELETE FROM spent WHERE session = ?", (session,))


def _row(session: str, one: UsageRow) -> tuple[Any, ...]:
    numbers = (min(getattr(one, name), _LARGEST) for name in _NUMBERS)
    return one.day, one.model, session, *numbers, one.cost


def used(
    cursor: Any,
    conditions: Sequence[str],
    values: Sequence[Any],
    days: tuple[str, str],
    spenders: int,
) -> UsageReport:
    """What was spent in some days by the sessions that meet some conditions."""
    first, last = days
    source = "spent JOIN session ON session.id = spent.session" if conditions else "spent"
    asked, given = list(conditions), list(values)
    if first:
        asked.append("day >= ?")
        given.append(first)
    if last:
        asked.append("day <= ?")
        given.append(last)
    where = f"FROM {source} WHERE {' AND '.join(asked)}" if asked else f"FROM {source}"
    # Behind the rows with a stated cost stand those that can be estimated.
    rows = cursor.execute(
        f"""SELECT day, model, {_SUMS} {where}
        GROUP BY day, model, spent.cost > 0 ORDER BY day, model, spent.cost > 0 DESC""",
        given,
    ).fetchall()
    count = cursor.execute(f"SELECT count(DISTINCT spent.session) {where}", given).fetchone()[0]
    # Prices are not known here: what costs most is among the first by tokens, or by stated costs.
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
        (*given, max(spenders, 0), max(spenders, 0)),
    ).fetchall()
    found = [_spender(cursor, one, where, given) for (one,) in largest]
    return UsageReport(tuple(UsageRow(*row) for row in rows), tuple(found), count)


def _spender(cursor: Any, session: str, where: str, given: Sequence[Any]) -> Spender:
    more = "AND" if "WHERE" in where else "WHERE"
    rows = cursor.execute(
        f"""SELECT max(day), model, {_SUMS} {where} {more} spent.session = ?
        GROUP BY model, spent.cost > 0 ORDER BY model, spent.cost > 0 DESC""",
        (*given, session),
    ).fetchall()
    known = cursor.execute("SELECT metadata FROM session WHERE id = ?", (session,)).fetchone()
    data = _title.decode(known[0]) if known else Metadata(id=session)
    spent = tuple(UsageRow(*row) for row in rows)
    return Spender(session, data.title, data.agent, data.sender, spent)
