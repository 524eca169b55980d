"""Sessions that come and go while the connection is lost: nobody is told that nothing was done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everlog.errors import NotFoundError
from everlog.interop.store_copy import copy
from everlog.model import user
from everlog.settings import SessionSettings, Settings
from everlog.stores.file.file_store import FileStore
from everlog.stores.postgres.driver_errors import ConnectionLostError
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.proxy import Proxy
from tests.stores.postgres.server import USER
from tests.stores.postgres.test_odd_sessions import waiting
from tests.stores.postgres.workers import until


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
    stores: Stores, near: PostgresStore, proxy: Proxy, make: Callable[[PostgresStore, str], object]
) -> None:
    there = near.create().id
    near.append(there, [user("x")])
    with cut_off(proxy, b"COMMIT\0"), pytest.raises(ConnectionLostError, match="may or may not") as raised:
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
    with pytest.raises(NotFoundError):
        other.metadata(session)
    assert any(session in one and "later" in one for one in near.reports)
    other.catch_up()
    with stores.server.connect() as admin:
        assert admin.execute(rows).fetchall() == []


def delete_only(store: PostgresStore, session: str) -> None:
    """Delete a session as a process does that is paused, or killed, before it removes the rows."""
    with store.lease(session) as lease:
        store._lifecycle.delete(session, lease.epoch)


def test_a_removal_that_comes_late_takes_nothing_from_what_was_copied_in_again(stores: Stores, tmp_path: Path) -> None:
    source = FileStore(tmp_path, Settings(session=SessionSettings(part_bytes=900)))
    session = source.create({"key": "sk_v1_a"}).id
    source.append(session, [user("x" * 200) for _ in range(9)])
    slow = stores.new()
    copy(source, slow)
    delete_only(slow, session)
    quick = stores.again(slow)
    quick.catch_up()
    assert copy(source, quick).copied == 1
    quick.append(session, [user("acknowledged")])
    slow._lifecycle.remove_rows(session)
    assert [one.seq for one in stores.again(slow).read(session)] == list(range(1, 11))
    assert quick.verify(session) == ()
    source.close()


def test_a_session_that_is_deleted_while_it_is_forked_makes_no_fork(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user(f"{number}") for number in range(200)])
    other = stores.again(store)
    schema = store.database.settings.schema
    told: list[BaseException] = []

    def fork() -> None:
        try:
            other.fork(session)
        except NotFoundError as error:
            told.append(error)

    other.list()
    with stores.server.connect() as admin:
        admin.execute("BEGIN")
        admin.execute(f"LOCK TABLE {schema}.rec IN SHARE MODE")
        forking = threading.Thread(target=fork)
        forking.start()
        until(lambda: waiting(stores) == 1)
        delete_only(store, session)
        admin.execute(f"DELETE FROM {schema}.rec WHERE seq <= 100")
        admin.execute("COMMIT")
        forking.join()
    assert len(told) == 1 and session in str(told[0])
    assert store.list().total == 0 and list(store.ids()) == []


def test_lines_of_a_session_that_is_deleted_meanwhile_end_with_an_error(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user(f"{number}") for number in range(1000)])
    carried = stores.again(store).lines(session)
    next(carried)
    store.delete(session)
    with pytest.raises(NotFoundError, match=session):
        list(carried)
