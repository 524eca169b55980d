"""Name claims: which session holds a key, alias or pair.

Claims are rows that all machines see; the record that makes a claim is in the log, as in files, and
is written together with it. A change of a name locks its stripe, a row of a small table, until the
transaction ends, so the holder is still the same when the record is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from everlog.errors import EverlogError
from everlog.index.listing_rows import name_claims
from everlog.log.fold import MetadataFold, apply_changes
from everlog.model import AnyRecord, Metadata
from everlog.ports import SessionRow
from everlog.settings import SessionSettings
from everlog.stores.postgres.append_statement import Appender, contention_error, new_records
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.driver_errors import ConnectionLostError
from everlog.stores.postgres.id_columns import id_range, name_of, session_of, sid_of, stripe_of
from everlog.stores.postgres.metadata_rows import MetadataRows
from everlog.stores.postgres.part_layout import NewRecord
from everlog.stores.postgres.session_cache import CachedSession
from everlog.stores.rules import AppendCall, HolderLookup
from everlog.stores.store_verbs import Compose

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
        """Return at most two ids that start with a prefix, or are those of a key or alias that does."""
        bounds = id_range(prefix)
        rows = [] if bounds is None else self._database.fetch_all("ids_between", {"low": bounds[0], "high": bounds[1]})
        name = name_of(prefix)
        rows += self._database.fetch_all("ids_named_between", {"low": name, "high": name + b"\xff"})
        return list(dict.fromkeys(session_of(row[0]) for row in rows))[:2]

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


class NamingAppender(Appender):
    """The write path of one store, names included; callers hold the lock of the cached session."""

    def __init__(
        self,
        database: Database,
        settings: SessionSettings,
        rows: MetadataRows,
        claims: NameClaims,
        meta_call: Callable[[dict[str, Any]], AppendCall],
    ) -> None:
        super().__init__(database, settings)
        self._rows, self._claims, self._meta_call = rows, claims, meta_call

    def append_names(self, cached: CachedSession, call: AppendCall) -> list[AnyRecord]:
        """Append records that change names, unchanged; their claims are written with them."""

        def follow_up(connection: Connection) -> None:
            self._put(connection, self._rows.fold(connection, cached.session)[0])

        return self.append(cached, call, follow_up)

    def change_names(self, cached: CachedSession, changes: dict[str, Any], compose: Compose) -> None:
        """Store the record that `compose` returns; the names in `changes` are locked for it."""
        deadline = time.monotonic() + self._settings.lock_seconds
        lost: ConnectionLostError | None = None
        while True:
            try:
                if self._try_change(cached, changes, compose):
                    return
            except ConnectionLostError as error:
                lost = error
            except EverlogError as error:
                if lost is not None:  # any other error means that nothing was changed
                    raise lost from error
                raise
            if time.monotonic() > deadline:
                raise lost or contention_error(cached.session)

    def _try_change(self, cached: CachedSession, changes: dict[str, Any], compose: Compose) -> bool:
        """Compose and store a record in one transaction; False if the log has grown meanwhile."""
        metadata = self._refresh_metadata(cached)
        names = names_of(metadata, changes) | names_of(apply_changes(metadata, changes))
        restore = cached.snapshot()
        new: list[NewRecord] = []

        def work(connection: Connection) -> bool:
            restore()  # an earlier attempt may have advanced it
            self._claims.lock(connection, names)
            composed = compose(metadata, self._claims.holder_lookup(connection))
            if not composed:
                return True
            new[:] = new_records(self._meta_call(composed))
            if not self.append_in_transaction(connection, cached, new):
                return False
            self._put(connection, SessionRow(cached.folded_metadata(), cached.end.bytes, cached.end.part))
            return True

        try:
            return self._database.run_transaction(work)
        except ConnectionLostError as lost:
            restore()
            self._database.discard_connections()
            try:
                if new and self.confirm_stored(cached.session, [new[0].rid]):
                    cached.is_current = False  # it was restored to the state before
                    return True
            except EverlogError as error:
                raise lost from error  # any other error means that nothing was stored
            raise
        except BaseException:
            restore()
            raise

    def _put(self, connection: Connection, row: SessionRow) -> None:
        self._rows.put(connection, row)
        self._claims.put(connection, row.metadata)

    def _refresh_metadata(self, cached: CachedSession) -> Metadata:
        """Reload the end of a log; return the metadata there."""
        deadline = time.monotonic() + self._settings.lock_seconds
        while True:
            self.refresh(cached)
            if cached.fold is not None:
                return cached.folded_metadata()
            metadata = self._rows.row(cached.session).metadata
            if metadata.through.seq == cached.end.head:
                cached.fold = MetadataFold(metadata)
                return cached.folded_metadata()
            if time.monotonic() > deadline:
                raise contention_error(cached.session)
