"""Name changes: record, claims and listing row in one transaction.

Claims are rows that all machines see; the record that makes a claim is in the log, as in files.
Names that move are locked first, so their holders are still the same when the record is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from everlog.errors import EverlogError
from everlog.log.fold import MetadataFold, apply_changes
from everlog.model import AnyRecord, Metadata
from everlog.ports import SessionRow
from everlog.settings import SessionSettings
from everlog.stores.postgres.append_statement import Appender, contention_error, new_records
from everlog.stores.postgres.connections import Connection, Database
from everlog.stores.postgres.driver_errors import ConnectionLostError
from everlog.stores.postgres.metadata_rows import MetadataRows
from everlog.stores.postgres.name_claims import NameClaims, names_of
from everlog.stores.postgres.part_layout import NewRecord
from everlog.stores.postgres.session_cache import CachedSession
from everlog.stores.rules import AppendCall
from everlog.stores.store_verbs import Compose


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
