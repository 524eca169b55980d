"""One server for all tests of a process, and a schema of its own for each store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.postgres.open_stores import Stores, shared_server
from tests.stores.postgres.server import Server


@pytest.fixture(scope="session")
def server() -> Server:
    return shared_server()


@pytest.fixture
def stores(server: Server) -> Iterator[Stores]:
    with Stores(server) as made:
        yield made
