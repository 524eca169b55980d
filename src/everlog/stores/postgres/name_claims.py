"""Names: keys, aliases and pairs, and how they change hands.

Who changes a name locks its stripe, a row of a small table, for the length of one transaction. What
is claimed is written together with the record that claims it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from everlog.model import Metadata
from everlog.stores.postgres.connections import Database, Link
from everlog.stores.postgres.id_columns import beginning, name_of, session_of, sid_of, stripe_of
from everlog.stores.postgres.statements import load
from everlog.stores.session_names import Holder

# A record that changes one of these changes what its session is called by.
NAMING = frozenset({"key", "aliases", "generations", "current", "chat", "agent", "sender"})


class Claims:
    """The names of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load("sessions", database.settings.schema)

    # --- asking

    def holder(self, name: str, link: Link | None = None) -> tuple[str, int] | None:
        """The session that has a name, and with which generation."""
        row = self._one("holder", {"name": name_of(name)}, link)
        return None if row is None else (session_of(row[0]), row[1])

    def newest_chat(self, thread: str, link: Link | None = None) -> tuple[str, int] | None:
        """The chat of a key or pair with the highest number, and that number."""
        row = self._one("newest_chat", {"name": name_of(thread)}, link)
        return None if row is None else (session_of(row[0]), row[1])

    def unnumbered(self, thread: str) -> str | None:
        """The newest session with a name, where none has a number."""
        row = self._one("unnumbered", {"name": name_of(thread)}, None)
        return None if row is None else session_of(row[0])

    def starting_with(self, prefix: str) -> list[str]:
        """At most two ids that begin so."""
        ends = beginning(prefix)
        if ends is None:
            return []
        values = {"low": ends[0], "high": ends[1]}
        rows = self._database.reading(
            lambda link: link.execute(self._sql["between"], values, binary=True).fetchall()
        )
        return [session_of(row[0]) for row in rows]

    def _one(self, name: str, values: Mapping[str, Any], link: Link | None) -> Any:
        def ask(link: Link) -> Any:
            return link.execute(self._sql[name], values, binary=True).fetchone()

        return self._database.reading(ask) if link is None else ask(link)

    # --- changing, in a transaction

    def holding(self, link: Link) -> Holder:
        """Who has a name, asked in a transaction."""
        return lambda name: self.holder(name, link)

    def numbering(self, link: Link) -> Callable[[str], int]:
        """The highest number of a chat, likewise."""

        def highest(thread: str) -> int:
            newest = self.newest_chat(thread, link)
            return newest[1] if newest else 0

        return highest

    def lock(self, link: Link, names: Iterable[str]) -> None:
        """Nobody else changes who has these names until the transaction ends."""
        stripes = sorted({stripe_of(name_of(name)) for name in names})
        if stripes:
            link.execute(self._sql["lock_stripes"], {"stripes": stripes})

    def put(self, link: Link, data: Metadata, *, new: bool = False) -> None:
        """Write what a session claims."""
        sid = sid_of(data.id)
        if not new:
            link.execute(self._sql["drop_claims"], {"sid": sid})
        with link.cursor() as cursor:
            cursor.executemany(self._sql["put_claim"], _claims(data, sid))

    def drop(self, link: Link, sid: UUID) -> None:
        """A session gives all its names back."""
        link.execute(self._sql["drop_claims"], {"sid": sid})


def names_of(data: Metadata, facts: Mapping[str, Any] | None = None) -> set[str]:
    """All names that a session has, or would have with some facts."""
    given = facts or {}
    key, aliases = given.get("key") or data.key, given.get("aliases") or ()
    return {data.thread, *data.names, *aliases, *((key,) if key else ())}


def _claims(data: Metadata, sid: UUID) -> list[dict[str, Any]]:
    """Name, generation, and for the name that its chats are numbered under, the number."""
    claims = {
        name_of(name): (data.generations.get(name, 0), data.chat if name == data.key else None)
        for name in reversed(data.names)  # the key is first, and counts if an alias is the same
    }
    if not data.key:
        claims[name_of(data.thread)] = (data.current or 0, data.chat)
    return [
        {"name": name, "generation": generation, "sid": sid, "chat": chat}
        for name, (generation, chat) in claims.items()
    ]
