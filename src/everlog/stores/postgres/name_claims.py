"""Name claims: which session holds a key, alias or pair.

A change of a name locks its stripe, a row of a small table, until the transaction ends. A claim is
written together with the record that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from everlog.model import Metadata
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.id_columns import id_range, name_of, session_of, sid_of, stripe_of
from everlog.stores.postgres.statements import load_statements
from everlog.stores.rules import HolderLookup

# A record that changes one of these changes the names of its session.
NAME_FIELDS = frozenset({"key", "aliases", "generations", "current", "chat", "agent", "sender"})


class NameClaims:
    """The name claims of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load_statements("sessions", database.settings.schema)

    # --- reading

    def holder(self, name: str, connection: Connection | None = None) -> tuple[str, int] | None:
        """Return the session that holds a name, and the generation of its claim."""
        row = self._fetch_row("name_holder", {"name": name_of(name)}, connection)
        return None if row is None else (session_of(row[0]), row[1])

    def newest_chat(self, thread: str, connection: Connection | None = None) -> tuple[str, int] | None:
        """Return the chat of a key or pair with the highest number, and that number."""
        row = self._fetch_row("newest_chat", {"name": name_of(thread)}, connection)
        return None if row is None else (session_of(row[0]), row[1])

    def newest_unnumbered(self, thread: str) -> str | None:
        """Return the newest session with a name under which no chat has a number."""
        row = self._fetch_row("newest_unnumbered", {"name": name_of(thread)}, None)
        return None if row is None else session_of(row[0])

    def ids_with_prefix(self, prefix: str) -> list[str]:
        """Return at most two ids with a prefix."""
        bounds = id_range(prefix)
        if bounds is None:
            return []
        values, statement = {"low": bounds[0], "high": bounds[1]}, self._sql["ids_between"]
        rows = self._database.run_idempotent(
            lambda connection: connection.execute(statement, values, binary=True).fetchall()
        )
        return [session_of(row[0]) for row in rows]

    def _fetch_row(self, name: str, values: Mapping[str, Any], connection: Connection | None) -> Any:
        def fetch(connection: Connection) -> Any:
            return connection.execute(self._sql[name], values, binary=True).fetchone()

        return self._database.run_idempotent(fetch) if connection is None else fetch(connection)

    # --- changing, in a transaction

    def holder_lookup(self, connection: Connection) -> HolderLookup:
        """Return a function that finds the holder of a name, in this transaction."""
        return lambda name: self.holder(name, connection)

    def chat_number_lookup(self, connection: Connection) -> Callable[[str], int]:
        """Return a function that finds the highest chat number, in this transaction."""

        def highest(thread: str) -> int:
            newest = self.newest_chat(thread, connection)
            return newest[1] if newest else 0

        return highest

    def lock(self, connection: Connection, names: Iterable[str]) -> None:
        """Block changes of who holds these names until the transaction ends."""
        stripes = sorted({stripe_of(name_of(name)) for name in names})
        if stripes:
            connection.execute(self._sql["lock_stripes"], {"stripes": stripes})

    def put(self, connection: Connection, metadata: Metadata, *, new: bool = False) -> None:
        """Write the claims of a session."""
        sid = sid_of(metadata.id)
        if not new:
            connection.execute(self._sql["delete_claims"], {"sid": sid})
        with connection.cursor() as cursor:
            cursor.executemany(self._sql["insert_claim"], _claim_rows(metadata, sid))

    def drop(self, connection: Connection, sid: UUID) -> None:
        """Delete the claims of a session."""
        connection.execute(self._sql["delete_claims"], {"sid": sid})


def names_of(metadata: Metadata, changes: Mapping[str, Any] | None = None) -> set[str]:
    """Return all names of a session, including those that it would get by some changes."""
    fields = changes or {}
    key, aliases = fields.get("key") or metadata.key, fields.get("aliases") or ()
    return {metadata.thread, *metadata.names, *aliases, *((key,) if key else ())}


def _claim_rows(metadata: Metadata, sid: UUID) -> list[dict[str, Any]]:
    """Return names with generations, and the chat number for the name that chats count under."""
    generations = metadata.generations
    claims = {
        name_of(name): (generations.get(name, 0), metadata.chat if name == metadata.key else None)
        for name in reversed(metadata.names)  # the key is first, and wins over an equal alias
    }
    if not metadata.key:
        claims[name_of(metadata.thread)] = (metadata.current or 0, metadata.chat)
    return [
        {"name": name, "generation": generation, "sid": sid, "chat": chat}
        for name, (generation, chat) in claims.items()
    ]
