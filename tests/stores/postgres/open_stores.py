"""Stores on a real server, each in a schema of its own."""

from __future__ import annotations

import atexit
from functools import cache
from itertools import count
from typing import Any, Self

from msgspec.structs import replace

from everlog.settings import PostgresSettings, Settings
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.server import Server

_numbers = count(1)


@cache
def shared_server() -> Server:
    """The one server of this process, started when it is first asked for."""
    server = Server()
    atexit.register(server.close)
    return server


class Stores:
    """Makes stores, and closes and drops them at the end."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.opened: list[PostgresStore] = []
        self._schemas: list[str] = []

    def new(self, settings: Settings | None = None, **postgres: Any) -> PostgresStore:
        """A store in a schema that nobody else has."""
        schema = f"t{next(_numbers)}"
        self._schemas.append(schema)
        own = PostgresSettings(schema=schema, **{"pool_size": 10, **postgres})
        return self.open(replace(settings or Settings(), postgres=own))

    def open(self, settings: Settings) -> PostgresStore:
        """A store with settings that name its schema."""
        store = PostgresStore(self.server.url, settings)
        self.opened.append(store)
        return store

    def again(self, store: PostgresStore, **postgres: Any) -> PostgresStore:
        """The same sessions as another process would find them."""
        own = replace(store.database.settings, **postgres)
        return self.open(replace(Settings(session=store.limits), postgres=own))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for store in self.opened:
            store.close()
        with self.server.connect() as connection:
            for schema in self._schemas:
                connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
