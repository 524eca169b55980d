"""Others in the way: what the database wants to be run again is run again, whatever is set there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from everlog.model import user
from everlog.ports import Query
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.server import USER
from tests.stores.postgres.test_lifecycle import delete_only
from tests.stores.postgres.test_metadata_rows import ask
from tests.stores.postgres.test_odd_sessions import waiting
from tests.stores.postgres.workers import until


@contextmanager
def isolated(stores: Stores, level: str) -> Iterator[None]:
    """What a user's transactions are by default."""
    with stores.server.connect() as admin:
        admin.execute(f"ALTER ROLE {USER} SET default_transaction_isolation = '{level}'")
        try:
            yield
        finally:
            admin.execute(f"ALTER ROLE {USER} RESET default_transaction_isolation")


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_default_keeps_no_turn_taken(stores: Stores, level: str) -> None:
    with isolated(stores, level):
        store = stores.new()
        session = store.create().id
        lease = store.lease(session)
        table = f"{store.database.settings.schema}.session"
        with stores.server.connect() as admin:
            admin.execute("BEGIN")
            admin.execute(f"UPDATE {table} SET head = head")
            releasing = threading.Thread(target=lease.release)
            releasing.start()
            until(lambda: waiting(stores) == 1)
            admin.execute("COMMIT")
            releasing.join()
        assert not store.reports
        stores.again(store).lease(session).release()


def refuse_once(stores: Stores, store: PostgresStore, what: str) -> None:
    """The next such change is one that the database wants again."""
    ask(stores, store, "CREATE SEQUENCE everlog.tries")
    ask(
        stores,
        store,
        """CREATE FUNCTION everlog.once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('everlog.tries') = 1 THEN
                RAISE EXCEPTION 'others were first' USING ERRCODE = '40001';
            END IF;
            IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
            RETURN NEW;
        END $$""",
    )
    ask(stores, store, f"CREATE TRIGGER once BEFORE {what} FOR EACH ROW EXECUTE FUNCTION everlog.once()")


def tries(stores: Stores, store: PostgresStore) -> int:
    return int(ask(stores, store, "SELECT last_value FROM everlog.tries")[0][0])


def test_a_turn_that_cannot_be_given_back_at_once_is_given_back_then(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    lease = store.lease(session)
    refuse_once(stores, store, "UPDATE ON everlog.session")
    lease.release()
    assert tries(stores, store) == 2 and not store.reports
    stores.again(store).lease(session).release()


def test_a_search_goes_on_though_rows_cannot_be_removed_at_once(stores: Stores) -> None:
    store = stores.new()
    gone, there = store.create().id, store.create().id
    for session in (gone, there):
        store.append(session, [user("apples")])
    delete_only(store, gone)
    refuse_once(stores, store, "DELETE ON everlog.rec")
    (found,) = store.search(Query(text="apples")).results
    assert found.session == there
    assert tries(stores, store) > 1
    assert ask(stores, store, "SELECT 1 FROM everlog.session WHERE deleted_at IS NOT NULL") == []
