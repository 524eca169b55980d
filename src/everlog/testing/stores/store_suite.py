"""The base of the store suites: opening, reopening and tearing a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everlog.errors import EverlogError
from everlog.ports import Store as Port
from everlog.session import Session, Store
from everlog.settings import SessionSettings, Settings

SMALL = Settings(session=SessionSettings(part_bytes=2000, total_bytes=20_000, line_bytes=5000))


class StoreSuite:
    """The methods that a store under test provides."""

    def open(self, settings: Settings) -> Port:
        """Open a new, empty store."""
        raise NotImplementedError

    def reopen(self, port: Port) -> Port:
        """Open a store again, as another process would."""
        return port

    def tear(self, port: Port, session: str) -> None:
        """Append half a record to a log, as a crash would; do nothing if that is impossible."""

    def _open_store(self, settings: Settings | None = None) -> Store:
        return Store(self.open(settings or Settings()))

    def _reopen_session(self, store: Store, session: Session) -> Session:
        return Store(self.reopen(store.port)).session(session.id)


@contextmanager
def raises(kind: type[EverlogError]) -> Iterator[None]:
    """Fail unless the block raises an error of this kind."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
