"""The versions of the tables.

A database without any is made ready when it is first used. An older one is changed only by
`everlog store migrate`, since other machines may still run an older everlog; a newer one is
refused.
"""

from __future__ import annotations

import re
import time

import psycopg
from psycopg import errors

from everlog.errors import SettingsError
from everlog.stores.postgres.connections import Link
from everlog.stores.postgres.statements import FOLDER, in_schema

_FILES = sorted((FOLDER / "migrations").glob("[0-9]*.sql"))
VERSION = len(_FILES)
_ATTEMPTS = 10  # several processes may meet an empty database at once
_PAUSE = 0.1  # seconds between them
_PATIENCE = "3s"  # for a table: whoever comes after waits behind us, so not for longer
_RACED = (
    errors.UniqueViolation,
    errors.DuplicateTable,
    errors.DuplicateSchema,
    errors.DuplicateObject,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.InternalError_,  # PostgreSQL: tuple concurrently updated
)


def check(link: Link, schema: str) -> None:
    """Make an empty database ready; refuse tables of another version."""
    _check_encoding(link)
    found = version(link, schema)
    if found is None:
        migrate(link, schema)
    elif found < VERSION:
        raise SettingsError(
            f"the tables of the database have version {found}, not {VERSION}",
            hint="everlog store migrate changes them, once all machines have this everlog",
        )
    elif found > VERSION:
        raise SettingsError(
            f"the tables of the database have version {found}; this everlog knows {VERSION}",
            hint="upgrade everlog",
        )


def _check_encoding(link: Link) -> None:
    """Refuse a database that cannot hold every text, or does not know where a letter ends."""
    row = link.execute("SHOW server_encoding").fetchone()
    if row is not None and row[0] != "UTF8":
        raise SettingsError(
            f"the database holds text as {row[0]}, not as UTF8",
            hint="make another one, by createdb -E UTF8 -T template0 NAME, and name it instead",
        )


def version(link: Link, schema: str) -> int | None:
    """The version of the tables; None if there are none."""
    try:
        row = link.execute(f'SELECT max(version) FROM "{schema}".version').fetchone()
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        return None
    return None if row is None or row[0] is None else int(row[0])


def migrate(link: Link, schema: str) -> tuple[int, int]:
    """Bring the tables to this version, each step whole or not at all; from which, to which.

    All steps are one where there are no tables yet: nobody else must take what is half made for
    tables of an older version.
    """
    _check_encoding(link)
    before = version(link, schema) or 0
    if before > VERSION:
        check(link, schema)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _go_on(link, schema, version(link, schema) or 0)
            return before, VERSION
        except _RACED as error:
            if attempt == _ATTEMPTS:
                raise error from None
            time.sleep(_PAUSE)
    raise AssertionError("unreachable")


def _go_on(link: Link, schema: str, found: int) -> None:
    left = range(found + 1, VERSION + 1)
    for steps in [[number] for number in left] if found else [left]:
        with link.transaction():
            link.execute("SELECT set_config('lock_timeout', %s, true)", (_PATIENCE,))
            for number in steps:
                _step(link, schema, number)


def _step(link: Link, schema: str, number: int) -> None:
    if number == 1:
        if not _exists(link, schema):  # who may not make schemas can be given one
            link.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        link.execute(
            f"""CREATE TABLE IF NOT EXISTS "{schema}".version
            (version integer PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"""
        )
    # First of all: whoever is second waits here, and then knows it.
    link.execute(f'INSERT INTO "{schema}".version (version) VALUES (%s)', (number,))
    text = _FILES[number - 1].read_text(encoding="utf-8")
    for statement in statements(in_schema(text, schema)):
        link.execute(statement)


def _exists(link: psycopg.Connection[tuple[object, ...]], schema: str) -> bool:
    found = link.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone()
    return found is not None


def statements(text: str) -> list[str]:
    """The statements of a file of migrations: no text of it has a semicolon or a dash in it."""
    bare = re.sub(r"--[^\n]*", "", text)
    return [one.strip() for one in bare.split(";") if one.strip()]
