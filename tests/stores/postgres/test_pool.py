"""Connections: never more than allowed, each to one thread at a time, and nobody waits in vain."""

from __future__ import annotations

import threading

import pytest

from everlog.errors import StoreFailedError
from everlog.model import user
from everlog.settings import PostgresSettings, Settings
from everlog.stores.postgres.connections import Connection
from everlog.stores.postgres.pool import ConnectionPool
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.server import USER
from tests.stores.postgres.workers import until

MOST, THREADS, EACH = 3, 12, 60


def test_many_threads_share_few_connections_while_some_are_lost(stores: Stores) -> None:
    store = stores.new(pool_size=MOST)
    store.create()
    database = store.database
    at_once: set[int] = set()  # connections that somebody uses
    used: set[int] = set()  # by their processes
    most = 0
    wrong: list[BaseException] = []

    def work(link: Connection) -> None:
        nonlocal most
        assert id(link) not in at_once, "one thread at a time"
        at_once.add(id(link))
        most = max(most, len(at_once))
        used.add(link.pgconn.backend_pid)
        link.execute("SELECT 1")
        at_once.discard(id(link))

    def run(which: int) -> None:
        try:
            for number in range(EACH):
                database.run_once(work)
                if number % 20 == which:
                    database.discard_connections()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert not wrong and not any(one.is_alive() for one in threads)
    assert 1 <= most <= MOST < len(used)


def test_who_waits_gets_what_is_given_back_and_else_is_told(stores: Stores) -> None:
    store = stores.new(pool_size=1, wait_seconds=0.3)
    store.create()
    database = store.database
    links = database._pool
    assert isinstance(links, ConnectionPool)
    mine = links.acquire()
    with pytest.raises(StoreFailedError, match="are in use") as raised:
        links.acquire()
    assert "pool_size" in raised.value.hint
    got: list[Connection] = []
    waiting = threading.Thread(target=lambda: got.append(links.acquire()))
    waiting.start()
    until(lambda: links._waiters, "somebody waits")
    links.release(mine)
    waiting.join(60)
    assert got == [mine]
    links.release(mine)


def test_a_connection_in_the_middle_of_something_is_not_given_to_another(stores: Stores) -> None:
    store = stores.new(pool_size=2)
    store.create()

    def begin(link: Connection) -> int:
        link.execute("BEGIN")
        return link.pgconn.backend_pid

    left = store.database.run_once(begin)
    assert store.database.run_once(lambda link: link.pgconn.backend_pid) != left
    with stores.server.connect() as admin:
        there = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        until(lambda: not admin.execute(there, (left,)).fetchall(), "it is closed")


def test_a_closed_store_has_no_connection_and_can_be_used_again(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    mine = store.database.run_once(lambda link: link)
    store.close()
    assert mine.closed
    with stores.server.connect() as admin:
        schema = store.database.settings.schema
        left = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'everlog' AND query LIKE %s"
        until(lambda: not admin.execute(left, (f'%"{schema}"%',)).fetchall(), "all are closed")
    assert store.metadata(session).message_count == 0


def test_who_waits_is_served_in_turn_however_busy_the_others_are(stores: Stores) -> None:
    store = stores.new(pool_size=2, wait_seconds=3)
    store.create()
    done = threading.Event()
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            while not done.is_set():
                store.database.run_once(lambda link: link.execute("SELECT 1"))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    try:
        for _ in range(50):
            store.database.run_once(lambda link: link.execute("SELECT 1"))
    finally:
        done.set()
        for one in threads:
            one.join()
    assert not wrong


def test_connections_that_there_are_do_when_the_server_allows_no_more(stores: Stores) -> None:
    with stores.server.connect() as admin:
        admin.execute("CREATE ROLE modest LOGIN CONNECTION LIMIT 2")
        schema = stores.new().database.settings.schema
        admin.execute(f'CREATE SCHEMA "{schema}" AUTHORIZATION modest')
    try:
        url = stores.server.url.replace(f"//{USER}@", "//modest@")
        own = PostgresSettings(schema=schema, pool_size=6, wait_seconds=2)
        store = PostgresStore(url, Settings(postgres=own))
        store.create()
        wrong: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(100):
                    store.database.run_once(lambda link: link.execute("SELECT pg_sleep(0.001)"))
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        store.close()
        assert not wrong
    finally:
        with stores.server.connect() as admin:
            admin.execute("DROP OWNED BY modest CASCADE")
            admin.execute("DROP ROLE modest")


def test_a_server_that_has_forgotten_its_statements_costs_a_connection_and_nothing_else(stores: Stores) -> None:
    """As behind a pooler that gives another server to each transaction."""
    store = stores.new(pool_size=1)
    session = store.create().id
    for number in range(12):
        store.append(session, [user(f"{number}")])
    store.database.run_once(lambda link: link.pgconn.exec_(b"DEALLOCATE ALL"))
    assert store.append(session, [user("again")])[0].seq == 13
    store.database.run_once(lambda link: link.pgconn.exec_(b"DEALLOCATE ALL"))
    assert len(list(store.read(session))) == 13


def test_a_connection_that_is_taken_while_a_store_closes_is_closed_too(stores: Stores) -> None:
    store = stores.new()
    store.create()
    links = store.database._pool
    assert isinstance(links, ConnectionPool)
    store.close()
    late = links.acquire()
    links.release(late)
    assert late.closed


def _taken(store: PostgresStore, count: int) -> list[Connection]:
    links = store.database._pool
    assert isinstance(links, ConnectionPool)
    return [links.acquire() for _ in range(count)]


def test_who_is_urgent_has_one_more_connection_and_no_other_gets_it(stores: Stores) -> None:
    store = stores.new(pool_size=2, wait_seconds=0.2)
    store.create()
    links = store.database._pool
    assert isinstance(links, ConnectionPool)
    mine = _taken(store, 2)
    for _ in range(2):
        store.database.run_once(lambda link: link.execute("SELECT 1"), urgent=True)
        with pytest.raises(StoreFailedError, match="are in use"):
            links.acquire()
    for one in mine:
        links.release(one)
    for one in _taken(store, 2):
        links.release(one)


def test_who_is_urgent_is_the_first_in_line_where_the_server_allows_no_more(stores: Stores) -> None:
    with stores.server.connect() as admin:
        admin.execute("CREATE ROLE humble LOGIN CONNECTION LIMIT 1")
        schema = stores.new().database.settings.schema
        admin.execute(f'CREATE SCHEMA "{schema}" AUTHORIZATION humble')
    try:
        url = stores.server.url.replace(f"//{USER}@", "//humble@")
        own = PostgresSettings(schema=schema, pool_size=1, wait_seconds=20)
        store = PostgresStore(url, Settings(postgres=own))
        store.create()
        links = store.database._pool
        assert isinstance(links, ConnectionPool)
        order: list[bool] = []
        mine = links.acquire()

        def work(urgent: bool) -> None:
            store.database.run_once(lambda _: order.append(urgent), urgent=urgent)

        threads = [threading.Thread(target=work, args=(one,)) for one in (False, True)]
        for number, one in enumerate(threads, 1):
            one.start()
            until(lambda number=number: len(links._waiters) == number, "it waits")  # type: ignore[misc]
        links.release(mine)
        for one in threads:
            one.join(30)
        store.close()
        assert order == [True, False]
    finally:
        with stores.server.connect() as admin:
            admin.execute("DROP OWNED BY humble CASCADE")
            admin.execute("DROP ROLE humble")
