"""Sessions that come and go while the connection is lost: nobody is told that nothing was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from holdfast.errors import NotFound
from holdfast.model import user
from holdfast.settings import Settings
from holdfast.stores.postgres.failures import ConnectionLost
from holdfast.stores.postgres.store import PostgresStore
from tests.stores.postgres.proxy import Proxy
from tests.stores.postgres.server import USER
from tests.stores.postgres.stores import Stores


@pytest.fixture
def proxy(stores: Stores) -> Iterator[Proxy]:
    with Proxy(stores.server.port) as made:
        yield made


@pytest.fixture
def near(stores: Stores, proxy: Proxy) -> Iterator[PostgresStore]:
    """A store whose way to the server can be cut."""
    settings = Settings(postgres=stores.new(wait_seconds=0.5).database.settings)
    store = PostgresStore(f"postgresql://{USER}@127.0.0.1:{proxy.port}/postgres", settings)
    yield store
    store.close()


@contextmanager
def cut_off(proxy: Proxy, word: bytes) -> Iterator[None]:
    """The server does what has this word in it, and from then on cannot be reached."""
    proxy.swallow(word, for_good=True)
    yield
    assert proxy.swallowed.is_set()


@pytest.mark.parametrize(
    "make",
    [
        lambda store, _: store.create({"key": "agent:main:k"}),
        lambda store, _: store.create({"key": "agent:main:k"}, unless_held=True),
        lambda store, there: store.fork(there),
    ],
    ids=["create", "create unless held", "fork"],
)
def test_a_session_that_may_have_been_made_is_not_called_refused(
    stores: Stores,
    near: PostgresStore,
    proxy: Proxy,
    make: Callable[[PostgresStore, str], object],
) -> None:
    there = near.create().id
    near.append(there, [user("x")])
    with cut_off(proxy, b"COMMIT\0"), pytest.raises(ConnectionLost, match="not known") as raised:
        make(near, there)
    assert raised.value.hint
    assert stores.opened[0].list().total == 2


def test_a_session_that_was_made_is_the_answer_though_the_first_one_was_lost(
    stores: Stores, near: PostgresStore, proxy: Proxy
) -> None:
    near.create()
    proxy.swallow(b"COMMIT\0")
    made = near.create({"key": "agent:main:k"}, unless_held=True)
    assert proxy.swallowed.is_set()
    assert stores.opened[0].resolve("agent:main:k") == made.id
    assert stores.opened[0].list().total == 2


def test_a_deletion_that_is_done_is_told_as_done_and_its_rows_go_later(
    stores: Stores, near: PostgresStore, proxy: Proxy
) -> None:
    session, other = near.create().id, stores.opened[0]
    near.append(session, [user("x")])
    rows = f"SELECT 1 FROM {near.database.settings.schema}.session WHERE deleted_at IS NOT NULL"
    with cut_off(proxy, b".rec WHERE sid"):
        assert near.delete(session) == 1
    with pytest.raises(NotFound):
        other.metadata(session)
    assert any(session in one and "later" in one for one in near.reports)
    other.catch_up()
    with stores.server.connect() as admin:
        assert admin.execute(rows).fetchall() == []
