"""Every store runs the whole suite that we ship."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everlog.ports import Store
from everlog.ports.capabilities import (
    CAPABILITIES,
    FileBacked,
    Measurable,
    Purgeable,
    RawReadable,
    Reporting,
    SharedBetweenMachines,
    Sweepable,
    Transferable,
    Watchable,
)
from everlog.settings import Settings
from everlog.stores.file.file_store import FileStore
from everlog.stores.in_memory import InMemoryStore
from everlog.stores.postgres.postgres_store import PostgresStore
from everlog.testing import StoreConformance
from tests.stores.postgres.open_stores import Stores, shared_server


def capabilities(port: Store) -> set[type]:
    return {kind for kind in CAPABILITIES if port.capability(kind) is not None}


class TestInMemoryStore(StoreConformance):
    def test_has_no_capabilities(self) -> None:
        assert capabilities(InMemoryStore()) == set()

    def open(self, settings: Settings) -> Store:
        return InMemoryStore(settings)


class TestFileStore(StoreConformance):
    def test_has_the_capabilities_of_files(self) -> None:
        port = self.open(Settings())
        assert capabilities(port) == {
            Reporting,
            Watchable,
            Sweepable,
            Purgeable,
            FileBacked,
            Measurable,
            RawReadable,
            Transferable,
        }
        assert port.capability(FileStore) is port

    @pytest.fixture(autouse=True)
    def _roots(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.count = 0
        self.opened: dict[int, tuple[Path, Settings]] = {}

    def open(self, settings: Settings) -> Store:
        self.count += 1
        return self._open(self.tmp_path / f"root{self.count}", settings)

    def reopen(self, port: Store) -> Store:
        return self._open(*self.opened[id(port)])  # without closing: as after a crash

    def tear(self, port: Store, session: str) -> None:
        root, _ = self.opened[id(port)]
        with open(root / "sessions" / session / "session.jsonl", "ab") as log:
            log.write(b'{"recordType":"message","schemaVersion":1,"seq":3,"role":"us')

    def _open(self, root: Path, settings: Settings) -> Store:
        store = FileStore(root, settings)
        self.opened[id(store)] = (root, settings)
        return store


class TestPostgresStore(StoreConformance):
    """On a real server; it keeps no bytes that a crash could tear."""

    def test_has_the_capabilities_of_a_shared_database(self) -> None:
        port = self.open(Settings())
        assert capabilities(port) == {Reporting, Measurable, Transferable, SharedBetweenMachines}
        sharing = port.capability(SharedBetweenMachines)
        assert sharing is not None and sharing.heads([]) == {}

    @pytest.fixture(autouse=True)
    def _stores(self) -> Iterator[None]:
        with Stores(shared_server()) as self.stores:
            yield

    def open(self, settings: Settings) -> Store:
        return self.stores.new(settings)

    def reopen(self, port: Store) -> Store:
        assert isinstance(port, PostgresStore)
        return self.stores.again(port)  # without closing: as after a crash
