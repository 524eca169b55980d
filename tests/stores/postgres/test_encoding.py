"""Text is UTF-8 everywhere: on every connection, whatever is set, and in the database itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everlog.errors import SettingsError
from everlog.model import user
from everlog.ports import Query
from everlog.settings import Settings
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.server import USER, Server

TITLE = "日本語 ☃"


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("place", ["address", "options", "environment", "role"])
def test_a_client_is_always_one_that_speaks_utf_8(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, encoding: str, place: str
) -> None:
    settings = Settings(postgres=stores.new().database.settings)
    url = stores.server.url
    if place == "address":
        url += f"?client_encoding={encoding}"
    elif place == "options":
        url += f"?options=-cclient_encoding%3D{encoding}"
    elif place == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", encoding)
    else:
        with stores.server.connect() as admin:
            admin.execute(f"ALTER ROLE {USER} SET client_encoding = '{encoding}'")
    try:
        store = PostgresStore(url, settings)
        session = store.create({"name": TITLE}).id
        store.append(session, [user("hello, 日本語")])
        assert store.list()[0].metadata.title == TITLE
        assert store.search(Query(text="日本語")).total == 1
        store.close()
        assert not store.reports
    finally:
        with stores.server.connect() as admin:
            admin.execute(f"ALTER ROLE {USER} RESET client_encoding")


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
def foreign(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database that holds other text."""
    name = f"db_{request.param.lower()}"
    with server.connect() as admin:
        admin.execute(
            f"CREATE DATABASE {name} ENCODING '{request.param}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        )
        yield server.url.removesuffix("postgres") + name
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_database_of_another_encoding_is_refused_and_nothing_is_made_in_it(foreign: str, server: Server) -> None:
    store = PostgresStore(foreign)
    for verb in (store.create, store.list, store.migrate):
        with pytest.raises(SettingsError, match=r"LATIN1|SQL_ASCII") as raised:
            verb()
        assert "createdb -E UTF8" in raised.value.hint
    there = "SELECT 1 FROM pg_namespace WHERE nspname = 'everlog'"
    found = store.database.run_separately(lambda link: link.execute(there).fetchall())
    assert found == []
