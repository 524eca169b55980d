"""What the suites of a store share: the store, and how a test goes on with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everlog.errors import EverlogError
from everlog.ports import Store as Port
from everlog.session import Session, Store
from everlog.settings import SessionSettings, Settings

SMALL = Settings(session=SessionSettings(part_bytes=2000, total_bytes=20_000, line_bytes=5000))


class Suite:
    """What a store gives to be tested."""

    def open(self, settings: Settings) -> Port:
        """A new, empty store."""
        raise NotImplementedError

    def reopen(self, port: Port) -> Port:
        """The same store as another process would find it."""
        return port

    def tear(self, port: Port, session: str) -> None:
        """Leave half a record at the end of a log, as a crash would; nothing where none can."""

    def _store(self, settings: Settings | None = None) -> Store:
        return Store(self.open(settings or Settings()))

    def _again(self, store: Store, session: Session) -> Session:
        return Store(self.reopen(store.port)).session(session.id)


@contextmanager
def raises(kind: type[EverlogError]) -> Iterator[None]:
    """Exactly this kind of error must come out of the block."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
