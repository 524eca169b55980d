"""How names change: record, claims and the row of the listing in one transaction.

Claims are rows that all machines see; the record that makes one is in the log as on files. Names
that change hands are locked first, so who holds them is still so when the record is stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from everlog.errors import EverlogError, SessionBusyError
from everlog.log.append_rules import Prepared
from everlog.log.fold import Tally, apply
from everlog.model import AnyRecord, Meta, Metadata
from everlog.ports import SessionRow
from everlog.stores.postgres.append_statement import Appending, Call
from everlog.stores.postgres.connections import Link
from everlog.stores.postgres.driver_errors import ConnectionLost
from everlog.stores.postgres.metadata_rows import Rows
from everlog.stores.postgres.name_claims import Claims, names_of
from everlog.stores.postgres.session_cache import Known

Compose = Callable[[Link, Metadata], dict[str, Any]]  # the changes, from the metadata at the head


class Naming:
    """Changes of names in one store; callers hold the lock of what they give."""

    def __init__(
        self,
        *,
        appending: Appending,
        rows: Rows,
        claims: Claims,
        prepared: Callable[[Meta], Prepared],
        seconds: float,
    ) -> None:
        """`seconds`: how long to try when others write to the same session."""
        self._appending, self._rows, self._claims = appending, rows, claims
        self._prepared, self._seconds = prepared, seconds

    def append(self, known: Known, call: Call) -> list[AnyRecord]:
        """Append records that change names as they stand; what they claim is written with them."""

        def also(link: Link) -> None:
            row, _ = self._rows.fold(link, known.session)
            self._rows.put(link, row)
            self._claims.put(link, row.metadata)

        return self._appending.append(known, call, also)

    def change(self, known: Known, given: dict[str, Any], compose: Compose) -> None:
        """Store a record that `compose` makes of what is given, and of who holds the names."""
        deadline = time.monotonic() + self._seconds
        lost: ConnectionLost | None = None
        while True:
            try:
                if self._changed(known, given, compose):
                    return
            except ConnectionLost as error:
                lost = error
            except EverlogError as error:
                if lost is not None:  # any other word would say that nothing was changed
                    raise lost from error
                raise
            if time.monotonic() > deadline:
                raise lost or SessionBusyError(
                    f"session {known.session} is being written to by others", session=known.session
                )

    def _changed(self, known: Known, given: dict[str, Any], compose: Compose) -> bool:
        held = self._follow(known)

        def record(link: Link) -> Prepared | None:
            self._claims.lock(link, names_of(held, given) | names_of(apply(held, given)))
            changes = compose(link, held)
            return self._prepared(Meta(set=changes)) if changes else None

        def also(link: Link) -> None:
            now = known.folded()
            self._rows.put(link, SessionRow(now, known.bytes, known.part))
            self._claims.put(link, now)

        return self._appending.change(known, record, also)

    def _follow(self, known: Known) -> Metadata:
        """Know the end of a log, and the metadata there."""
        deadline = time.monotonic() + self._seconds
        while True:
            self._appending.look(known)
            if known.tally is not None:
                break
            metadata = self._rows.row(known.session).metadata
            if metadata.through.seq == known.head:
                known.tally = Tally(metadata)
                break
            if time.monotonic() > deadline:
                raise SessionBusyError(
                    f"session {known.session} is being written to by others", session=known.session
                )
        return known.folded()
