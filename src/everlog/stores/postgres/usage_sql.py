"""Usage of sessions, from the rows that are written with their listing."""

from __future__ import annotations

from typing import Any

from everlog.log.usage_fold import TOKEN_WEIGHTS
from everlog.model import Metadata, UsageRow
from everlog.ports import Filter, Spender, UsageReport
from everlog.stores.postgres.connections import Connection
from everlog.stores.postgres.id_columns import session_of
from everlog.stores.postgres.metadata_rows import decode_metadata, filter_conditions, where_clause

_COUNT_COLUMNS = UsageRow.__struct_fields__[2:-1]
_MAX_BIGINT = (1 << 63) - 1  # a sum may exceed it
_SUMS = ", ".join(f"least(sum(spent.{name}), {_MAX_BIGINT})::bigint" for name in _COUNT_COLUMNS)
_SUMS += ", sum(spent.cost)"
_WEIGHT = " + ".join(f"{weight} * sum(spent.{name})" for name, weight in TOKEN_WEIGHTS.items())


def query_usage(
    connection: Connection, schema: str, criteria: Filter, days: tuple[str, str], spenders: int
) -> UsageReport:
    """Return the usage of some days, of the sessions that match a filter."""
    conditions, values = filter_conditions(criteria, "listing.")
    source = f'"{schema}".spent'
    if conditions:
        source += f' JOIN "{schema}".listing ON listing.sid = spent.sid'
    first, last = days
    if first:
        conditions.append("day >= %(first)s")
    if last:
        conditions.append("day <= %(last)s")
    values |= {"first": first, "last": last, "spenders": max(spenders, 0)}
    selection = f"FROM {source} {where_clause(conditions)}"
    # Rows with a stated cost come before those whose cost can be estimated.
    rows = _fetch_all(
        connection,
        f"""SELECT day, model, {_SUMS} {selection}
        GROUP BY day, model, spent.cost > 0 ORDER BY day, model, spent.cost > 0 DESC""",
        values,
    )
    count = _fetch_all(connection, f"SELECT count(DISTINCT spent.sid) {selection}", values)[0][0]
    # Prices are unknown here: the costliest are among the first by tokens or by stated cost.
    largest = _fetch_all(
        connection,
        f"""WITH sums AS MATERIALIZED (
            SELECT spent.sid AS sid, {_WEIGHT} AS weight, sum(spent.cost) AS stated
            {selection} GROUP BY spent.sid)
        SELECT sid FROM (
            (SELECT * FROM sums ORDER BY weight DESC, stated DESC, sid LIMIT %(spenders)s)
            UNION
            (SELECT * FROM sums WHERE stated > 0
            ORDER BY stated DESC, weight DESC, sid LIMIT %(spenders)s)) AS largest
        ORDER BY weight DESC, stated DESC, sid""",
        values,
    )
    top_spenders = [_spender(connection, schema, sid, selection, values) for (sid,) in largest]
    return UsageReport(tuple(UsageRow(*row) for row in rows), tuple(top_spenders), count)


def _spender(connection: Connection, schema: str, sid: Any, selection: str, values: dict[str, Any]) -> Spender:
    keyword = "AND" if "WHERE" in selection else "WHERE"
    with_sid = {**values, "sid": sid}
    rows = _fetch_all(
        connection,
        f"""SELECT max(day), model, {_SUMS} {selection} {keyword} spent.sid = %(sid)s
        GROUP BY model, spent.cost > 0 ORDER BY model, spent.cost > 0 DESC""",
        with_sid,
    )
    select = f'SELECT metadata FROM "{schema}".listing WHERE sid = %(sid)s'
    listing = _fetch_all(connection, select, with_sid)
    metadata = (decode_metadata(listing[0][0]) if listing else None) or Metadata(id=session_of(sid))
    usage = tuple(UsageRow(*row) for row in rows)
    return Spender(metadata.id, metadata.display_title, metadata.agent, metadata.sender, usage)


def _fetch_all(connection: Connection, statement: str, values: dict[str, Any]) -> list[Any]:
    return connection.execute(statement, values, binary=True).fetchall()
