"""The tables: made where there are none, changed only on demand, refused when they are newer."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from everlog.errors import SettingsError, StoreFailedError
from everlog.model import user
from everlog.settings import Settings
from everlog.stores.postgres import schema
from everlog.stores.postgres.postgres_store import PostgresStore
from everlog.stores.postgres.statements import FOLDER, in_schema, load_statements
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.proxy import Proxy
from tests.stores.postgres.server import USER


def test_an_empty_database_is_made_ready_by_whoever_comes_first(stores: Stores) -> None:
    first = stores.new(pool_size=1)
    many = [first, *(stores.again(first) for _ in range(7))]
    made: list[str] = []
    problems: list[BaseException] = []

    def use(number: int) -> None:
        try:
            made.append(many[number].create().id)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert first.list().total == len(set(made)) == 8


def test_tables_that_were_half_made_are_none(stores: Stores) -> None:
    """Whoever makes them is cut off in the middle; nobody takes that for an older version."""
    settings = Settings(postgres=stores.new(wait_seconds=0.5).database.settings)
    with Proxy(stores.server.port) as proxy:
        near = PostgresStore(f"postgresql://{USER}@127.0.0.1:{proxy.port}/postgres", settings)
        proxy.swallow(b"listing_source", for_good=True)
        with pytest.raises(StoreFailedError):
            near.create()
        assert proxy.swallowed.is_set()
    assert stores.opened[0].create().id
    assert stores.opened[0].list().total == 1


def test_older_tables_are_changed_only_on_demand_and_newer_ones_are_refused(stores: Stores) -> None:
    store = stores.new()
    name = store.database.settings.schema
    assert store.migrate() == (0, schema.VERSION)
    assert store.migrate() == (schema.VERSION, schema.VERSION)
    with stores.server.connect() as connection:
        connection.execute(f"INSERT INTO {name}.version (version) VALUES (%s)", (schema.VERSION + 1,))
        for verb in (store.list, store.migrate):
            with pytest.raises(SettingsError, match="this everlog supports") as raised:
                verb()
            assert raised.value.hint == "upgrade everlog"
        connection.execute(f"DELETE FROM {name}.version WHERE version > 0")
        connection.execute(f"INSERT INTO {name}.version (version) VALUES (0)")
    with pytest.raises(SettingsError, match="have version 0") as raised:
        store.list()
    assert "everlog store migrate" in raised.value.hint


def test_a_schema_of_ones_own_keeps_sessions_apart(stores: Stores) -> None:
    one, other = stores.new(), stores.new()
    session = one.create({"key": "sk_v1_a"}).id
    one.append(session, [user("x")])
    assert other.list().total == 0
    assert other.chats("sk_v1_a") is None


def test_every_statement_names_its_tables_with_their_schema() -> None:
    tables = ("session", "rec", "part", "claim", "stripe", "listing", "mark", "spent", "pending",
              "taken", "passage")  # fmt: skip
    for file in FOLDER.glob("*.sql"):
        for name, text in load_statements(file.stem, "elsewhere").items():
            assert "everlog." not in text, name
            words = text.replace("\n", " ").split()
            for before, word in pairwise(words):
                if before in ("FROM", "INTO", "JOIN", "UPDATE") and word.strip("(),") in tables:
                    raise AssertionError(f"{file.name}: {name}: {word}")
    assert in_schema("FROM everlog.rec", "order") == 'FROM "order".rec'


def test_every_statement_has_a_name_of_its_own() -> None:
    names = [name for file in FOLDER.glob("*.sql") for name in load_statements(file.stem)]
    assert sorted(names) == sorted(set(names))


def test_migrations_have_only_what_other_engines_take_too() -> None:
    for file in (FOLDER / "migrations").glob("*.sql"):
        text = " ".join(schema.split_statements(file.read_text(encoding="utf-8"))).upper()
        for word in ("TRIGGER", "SERIAL", "LISTEN", "EXTENSION", "ADVISORY", "JSONB", "FUNCTION"):
            assert word not in text
