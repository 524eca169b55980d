"""What the database keeps, and how much room its tables and indexes take."""

from __future__ import annotations

from psycopg import errors

from everlog.stores.disk_usage import Big, Holdings, Room
from everlog.stores.postgres import schema
from everlog.stores.postgres.connections import Link
from everlog.stores.postgres.id_columns import session_of
from everlog.stores.postgres.metadata_rows import decoded
from everlog.stores.postgres.statements import load


def holdings(link: Link, name: str, biggest: int) -> Holdings:
    """Those of one schema; reads the rows of all sessions, but no record."""
    sql = load("carrying", name)
    counted = link.execute(sql["counted"]).fetchone()
    assert counted is not None
    most = link.execute(sql["biggest"], {"limit": max(biggest, 0)}, binary=True).fetchall()
    try:
        tables = link.execute(sql["tables"], {"schema": name}).fetchall()
    except errors.UndefinedFunction:  # an engine that speaks like PostgreSQL and measures otherwise
        tables = []
    sessions, records, size = counted
    return Holdings(
        sessions=sessions,
        records=records,
        bytes=size,
        version=schema.version(link, name) or 0,
        rooms=tuple(Room(*row) for row in tables),
        biggest=tuple(
            Big(session_of(sid), known.title if (known := decoded(data)) else "", size, head)
            for sid, size, head, data in most
        ),
    )
