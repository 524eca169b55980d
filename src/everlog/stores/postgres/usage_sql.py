"""What sessions spent, from the rows that are written with their listing."""

from __future__ import annotations

from typing import Any

from everlog.log.usage_fold import WEIGHTS
from everlog.model import Metadata, UsageRow
from everlog.ports import Filter, Spender, UsageReport
from everlog.stores.postgres.connections import Link
from everlog.stores.postgres.id_columns import session_of
from everlog.stores.postgres.metadata_rows import conditions_of, decoded, where

_NUMBERS = UsageRow.__struct_fields__[2:-1]
_LARGEST = (1 << 63) - 1  # a sum may be larger than a column holds, and files hold anything
_SUMS = ", ".join(f"least(sum(spent.{name}), {_LARGEST})::bigint" for name in _NUMBERS)
_SUMS += ", sum(spent.cost)"
_WEIGHT = " + ".join(f"{each} * sum(spent.{name})" for name, each in WEIGHTS.items())


def used(
    link: Link, schema: str, which: Filter, days: tuple[str, str], spenders: int
) -> UsageReport:
    """What was spent in some days by the sessions that meet a filter."""
    conditions, values = conditions_of(which, "listing.")
    source = f'"{schema}".spent'
    if conditions:
        source += f' JOIN "{schema}".listing ON listing.sid = spent.sid'
    first, last = days
    if first:
        conditions.append("day >= %(first)s")
    if last:
        conditions.append("day <= %(last)s")
    values |= {"first": first, "last": last, "spenders": max(spenders, 0)}
    those = f"FROM {source} {where(conditions)}"
    # Behind the rows with a stated cost stand those that can be estimated.
    rows = _all(
        link,
        f"""SELECT day, model, {_SUMS} {those}
        GROUP BY day, model, spent.cost > 0 ORDER BY day, model, spent.cost > 0 DESC""",
        values,
    )
    count = _all(link, f"SELECT count(DISTINCT spent.sid) {those}", values)[0][0]
    # Prices are not known here: what costs most is among the first by tokens, or by stated costs.
    largest = _all(
        link,
        f"""WITH sums AS MATERIALIZED (
            SELECT spent.sid AS sid, {_WEIGHT} AS weight, sum(spent.cost) AS stated
            {those} GROUP BY spent.sid)
        SELECT sid FROM (
            (SELECT * FROM sums ORDER BY weight DESC, stated DESC, sid LIMIT %(spenders)s)
            UNION
            (SELECT * FROM sums WHERE stated > 0
            ORDER BY stated DESC, weight DESC, sid LIMIT %(spenders)s)) AS largest
        ORDER BY weight DESC, stated DESC, sid""",
        values,
    )
    found = [_spender(link, schema, sid, those, values) for (sid,) in largest]
    return UsageReport(tuple(UsageRow(*row) for row in rows), tuple(found), count)


def _spender(link: Link, schema: str, sid: Any, those: str, values: dict[str, Any]) -> Spender:
    more = "AND" if "WHERE" in those else "WHERE"
    given = {**values, "sid": sid}
    rows = _all(
        link,
        f"""SELECT max(day), model, {_SUMS} {those} {more} spent.sid = %(sid)s
        GROUP BY model, spent.cost > 0 ORDER BY model, spent.cost > 0 DESC""",
        given,
    )
    known = _all(link, f'SELECT metadata FROM "{schema}".listing WHERE sid = %(sid)s', given)
    data = (decoded(known[0][0]) if known else None) or Metadata(id=session_of(sid))
    return Spender(
        data.id, data.title, data.agent, data.sender, tuple(UsageRow(*row) for row in rows)
    )


def _all(link: Link, statement: str, values: dict[str, Any]) -> list[Any]:
    return link.execute(statement, values, binary=True).fetchall()
