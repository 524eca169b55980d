"""The native store of mirrors, for an import target: it has no limits, so that a full disk is just that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlog.errors import StoreFullError
from everlog.model import AnyRecord
from everlog.ports import Store


class DiskFullError(Exception):
    """The disk is full."""

    def __init__(self, cause: StoreFullError) -> None:
        self.cause = cause


class UnlimitedStore:
    """A native store in which StoreFullError means a full disk: no record may be replaced then."""

    def __init__(self, store: Store) -> None:
        self.read = store.read
        self._append = store.append

    def append(self, session: str, records: Sequence[AnyRecord], **options: Any) -> list[AnyRecord]:
        try:
            return self._append(session, records, **options)
        except StoreFullError as error:
            raise DiskFullError(error) from error
