"""Every store runs the whole suite that we ship."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.ports import Store
from holdfast.settings import Settings
from holdfast.stores.file import FileStore
from holdfast.stores.inmemory import InMemoryStore
from holdfast.testing import StoreConformance


class TestInMemoryStore(StoreConformance):
    def open(self, settings: Settings) -> Store:
        return InMemoryStore(settings)


class TestFileStore(StoreConformance):
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
