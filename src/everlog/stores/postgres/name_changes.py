"""Name changes: record, claims and listing row in one transaction.

Claims are rows that all machines see; the record that makes a claim is in the log, as in files.
Names that move are locked first, so their holders are still the same when the record is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from everlog.errors import EverlogError, SessionBusyError
from everlog.log.fold import MetadataFold, apply_changes
from everlog.model import AnyRecord, Metadata
from everlog.ports import SessionRow
from everlog.stores.postgres.append_statement import Appender
from everlog.stores.postgres.connections import Connection
from everlog.stores.postgres.driver_errors import ConnectionLostError
from everlog.stores.postgres.metadata_rows import MetadataRows
from everlog.stores.postgres.name_claims import NameClaims, names_of
from everlog.stores.postgres.session_cache import CachedSession
from everlog.stores.rules import AppendCall, PreparedRecord
from everlog.stores.store_verbs import Compose


class NameChanges:
    """Changes of names in one store; callers hold the lock of the cached session."""

    def __init__(
        self,
        *,
        appender: Appender,
        rows: MetadataRows,
        claims: NameClaims,
        meta_call: Callable[[dict[str, Any]], AppendCall],
        seconds: float,
    ) -> None:
        """`seconds`: how long to retry while other processes write to the same session."""
        self._appender, self._rows, self._claims = appender, rows, claims
        self._meta_call, self._seconds = meta_call, seconds

    def append(self, cached: CachedSession, call: AppendCall) -> list[AnyRecord]:
        """Append records that change names, unchanged; their claims are written with them."""

        def follow_up(connection: Connection) -> None:
            row, _ = self._rows.fold(connection, cached.session)
            self._rows.put(connection, row)
            self._claims.put(connection, row.metadata)

        return self._appender.append(cached, call, follow_up)

    def change(self, cached: CachedSession, changes: dict[str, Any], compose: Compose) -> None:
        """Store the record that `compose` returns; the names in `changes` are locked for it."""
        deadline = time.monotonic() + self._seconds
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
                raise lost or SessionBusyError(
                    f"other processes are writing to session {cached.session}", session=cached.session
                )

    def _try_change(self, cached: CachedSession, changes: dict[str, Any], compose: Compose) -> bool:
        metadata = self._refresh(cached)

        def compose_record(connection: Connection) -> PreparedRecord | None:
            changed = apply_changes(metadata, changes)
            self._claims.lock(connection, names_of(metadata, changes) | names_of(changed))
            composed = compose(metadata, self._claims.holder_lookup(connection))
            return self._meta_call(composed).prepared[0] if composed else None

        def follow_up(connection: Connection) -> None:
            metadata_after = cached.folded_metadata()
            self._rows.put(connection, SessionRow(metadata_after, cached.bytes, cached.part))
            self._claims.put(connection, metadata_after)

        return self._appender.append_composed(cached, compose_record, follow_up)

    def _refresh(self, cached: CachedSession) -> Metadata:
        """Reload the end of a log; return the metadata there."""
        deadline = time.monotonic() + self._seconds
        while True:
            self._appender.refresh(cached)
            if cached.fold is not None:
                break
            metadata = self._rows.row(cached.session).metadata
            if metadata.through.seq == cached.head:
                cached.fold = MetadataFold(metadata)
                break
            if time.monotonic() > deadline:
                raise SessionBusyError(
                    f"other processes are writing to session {cached.session}", session=cached.session
                )
        return cached.folded_metadata()
