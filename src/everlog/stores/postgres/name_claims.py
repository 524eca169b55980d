"""Name claims: which session holds a key, alias or pair.

A change of a name locks its stripe, a row of a small table, until the transaction ends. A claim is
written together with the record that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from everlog.index.listing_rows import name_claims
from everlog.model import Metadata
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.id_columns import id_range, name_of, session_of, sid_of, stripe_of
from everlog.stores.rules import HolderLookup

# A record that changes one of these changes the names of its session.
NAME_FIELDS = frozenset({"key", "aliases", "generations", "current", "chat", "agent", "sender"})


class NameClaims:
    """The name claims of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- reading

    def holder(self, name: str, connection: Connection | None = None) -> tuple[str, int] | None:
        """Return the session that holds a name, and the generation of its claim."""
        row = self._fetch_row("name_holder", name, connection)
        return None if row is None else (session_of(row[0]), row[1])

    def newest_chat(self, thread: str, connection: Connection | None = None) -> tuple[str, int] | None:
        """Return the chat of a key or pair with the highest number, and that number."""
        row = self._fetch_row("newest_chat", thread, connection)
        return None if row is None else (session_of(row[0]), row[1])

    def newest_unnumbered(self, thread: str) -> str | None:
        """Return the newest session with a name under which no chat has a number."""
        row = self._fetch_row("newest_unnumbered", thread, None)
        return None if row is None else session_of(row[0])

    def ids_with_prefix(self, prefix: str) -> list[str]:
        """Return at most two ids with a prefix."""
        bounds = id_range(prefix)
        rows = [] if bounds is None else self._database.fetch_all("ids_between", {"low": bounds[0], "high": bounds[1]})
        return [session_of(row[0]) for row in rows]

    def _fetch_row(self, label: str, name: str, connection: Connection | None) -> Any:
        values = {"name": name_of(name)}
        return connection.run(label, values).fetchone() if connection else self._database.fetch_row(label, values)

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
            connection.run("lock_stripes", {"stripes": stripes})

    def put(self, connection: Connection, metadata: Metadata, *, new: bool = False) -> None:
        """Write the claims of a session."""
        sid = sid_of(metadata.id)
        if not new:
            connection.run("delete_claims", {"sid": sid})
        connection.run_many("insert_claim", _claim_rows(metadata, sid))

    def drop(self, connection: Connection, sid: UUID) -> None:
        """Delete the claims of a session."""
        connection.run("delete_claims", {"sid": sid})


def names_of(metadata: Metadata, changes: Mapping[str, Any] | None = None) -> set[str]:
    """Return all names of a session, including those that it would get by some changes."""
    fields = changes or {}
    key, aliases = fields.get("key") or metadata.key, fields.get("aliases") or ()
    return {metadata.thread, *metadata.names, *aliases, *((key,) if key else ())}


def _claim_rows(metadata: Metadata, sid: UUID) -> list[dict[str, Any]]:
    """Return the claims of a session as rows; of two names that are stored as one, the key's wins."""
    claims = {name_of(name): (generation, chat) for name, generation, chat in reversed(name_claims(metadata))}
    return [
        {"name": name, "generation": generation, "sid": sid, "chat": chat}
        for name, (generation, chat) in claims.items()
    ]
