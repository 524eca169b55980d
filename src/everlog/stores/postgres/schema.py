"""Schema versions and migrations.

An empty database is initialised on first use. Older tables are changed only by
`everlog store migrate`, since other machines may still run an older everlog; newer ones are
refused.
"""

from __future__ import annotations

import re
import time

import psycopg
from psycopg import errors

from everlog.errors import SettingsError
from everlog.stores.postgres.connections import Connection
from everlog.stores.postgres.statements import FOLDER, in_schema

_MIGRATIONS = sorted((FOLDER / "migrations").glob("[0-9]*.sql"))
VERSION = len(_MIGRATIONS)
_ATTEMPTS = 10  # several processes may find an empty database at once
_PAUSE = 0.1  # seconds between attempts
_LOCK_TIMEOUT = "3s"  # later statements queue behind ours, so keep it short
_RACE_ERRORS = (
    errors.UniqueViolation,
    errors.DuplicateTable,
    errors.DuplicateSchema,
    errors.DuplicateObject,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.InternalError_,  # PostgreSQL: tuple concurrently updated
)


def check(connection: Connection, schema: str) -> None:
    """Initialise an empty database; SettingsError for tables of another version."""
    _check_encoding(connection)
    current = version(connection, schema)
    if current is None:
        migrate(connection, schema)
    elif current < VERSION:
        raise SettingsError(
            f"the database tables have version {current}, not {VERSION}",
            hint="upgrade everlog on all machines, then run everlog store migrate",
        )
    elif current > VERSION:
        raise SettingsError(
            f"the database tables have version {current}; this everlog supports {VERSION}", hint="upgrade everlog"
        )


def _check_encoding(connection: Connection) -> None:
    """Refuse a database whose encoding cannot hold every text."""
    row = connection.execute("SHOW server_encoding").fetchone()
    if row is not None and row[0] != "UTF8":
        raise SettingsError(
            f"the database encoding is {row[0]}, not UTF8",
            hint="create another database: createdb -E UTF8 -T template0 NAME",
        )


def version(connection: Connection, schema: str) -> int | None:
    """Return the version of the tables; None if there are none."""
    try:
        row = connection.execute(f'SELECT max(version) FROM "{schema}".version').fetchone()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return None
    return None if row is None or row[0] is None else int(row[0])


def migrate(connection: Connection, schema: str) -> tuple[int, int]:
    """Migrate the tables, each step in a transaction; return the old and the new version.

    Without tables, all steps are one transaction: a half-initialised database must not look like
    one of an older version.
    """
    _check_encoding(connection)
    before = version(connection, schema) or 0
    if before > VERSION:
        check(connection, schema)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _apply_pending(connection, schema, version(connection, schema) or 0)
            return before, VERSION
        except _RACE_ERRORS as error:
            if attempt == _ATTEMPTS:
                raise error from None
            time.sleep(_PAUSE)
    raise AssertionError("unreachable")


def _apply_pending(connection: Connection, schema: str, current: int) -> None:
    pending = range(current + 1, VERSION + 1)
    for steps in [[number] for number in pending] if current else [pending]:
        with connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (_LOCK_TIMEOUT,))
            for number in steps:
                _apply_step(connection, schema, number)


def _apply_step(connection: Connection, schema: str, number: int) -> None:
    if number == 1:
        if not _schema_exists(connection, schema):  # a user without that right can use an existing one
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        connection.execute(
            f"""CREATE TABLE IF NOT EXISTS "{schema}".version
            (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"""
        )
    # First: a concurrent migration waits here, and then fails as a duplicate.
    connection.execute(f'INSERT INTO "{schema}".version (version) VALUES (%s)', (number,))
    text = _MIGRATIONS[number - 1].read_text(encoding="utf-8")
    for statement in split_statements(in_schema(text, schema)):
        connection.execute(statement)


def _schema_exists(connection: psycopg.Connection[tuple[object, ...]], schema: str) -> bool:
    select = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
    return connection.execute(select, (schema,)).fetchone() is not None


def split_statements(text: str) -> list[str]:
    """Split a migration into statements; no literal in it may contain a semicolon or dashes."""
    bare = re.sub(r"--[^\n]*", "", text)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]
