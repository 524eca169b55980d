"""Disk usage of the database: sessions, tables and indexes."""

from __future__ import annotations

from psycopg import errors

from everlog.ports import DiskUsage, LargeSession, StorageArea
from everlog.stores.postgres import schema
from everlog.stores.postgres.connections import Connection
from everlog.stores.postgres.id_columns import session_of
from everlog.stores.postgres.metadata_rows import decode_metadata
from everlog.stores.postgres.statements import load_statements


def query_disk_usage(connection: Connection, name: str, biggest: int) -> DiskUsage:
    """Return the disk usage of one schema; reads the rows of all sessions, but no records."""
    sql = load_statements("transfer", name)
    totals = connection.execute(sql["totals"]).fetchone()
    assert totals is not None
    limit = {"limit": max(biggest, 0)}
    largest = connection.execute(sql["largest_sessions"], limit, binary=True).fetchall()
    try:
        tables = connection.execute(sql["table_sizes"], {"schema": name}).fetchall()
    except errors.UndefinedFunction:  # a compatible database without these functions
        tables = []
    sessions, records, size = totals
    return DiskUsage(
        sessions=sessions,
        records=records,
        bytes=size,
        version=schema.version(connection, name) or 0,
        rooms=tuple(StorageArea(*row) for row in tables),
        biggest=tuple(
            LargeSession(session_of(sid), m.display_title if (m := decode_metadata(data)) else "", size, head)
            for sid, size, head, data in largest
        ),
    )
