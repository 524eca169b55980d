"""What goes on behind the verbs: leases are renewed, whatever else waits, and their end is told in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from everlog.errors import StoreFailedError
from everlog.model import TURN_END, Event, user
from everlog.stores.postgres.background import BackgroundThreads
from everlog.stores.postgres.id_columns import sid_of
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.server import Server
from tests.stores.postgres.workers import until

LEASE = 3.0  # seconds: renewed each second, so that a slow machine loses none


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server that may be paused."""
    with Server() as server:
        yield server


@contextmanager
def held(stores: Stores, store: PostgresStore, session: str, table: str = "session") -> Iterator[None]:
    """The row of a session, held as by who adopts or repairs it."""
    name = f"{store.database.settings.schema}.{table}"
    with stores.server.connect() as other, other.transaction():
        other.execute(f"SELECT 1 FROM {name} WHERE sid = %s FOR UPDATE", (sid_of(session),))
        yield


def left(stores: Stores, store: PostgresStore, session: str) -> float:
    """When a turn ends, in seconds of the server's clock."""
    with stores.server.connect() as other:
        row = other.execute(
            f"""SELECT extract(epoch FROM lease_until)::double precision
            FROM {store.database.settings.schema}.session WHERE sid = %s""",
            (sid_of(session),),
        ).fetchone()
    assert row is not None
    return float(row[0])


# --- rows that others hold


def test_a_row_that_another_holds_costs_its_own_lease_and_no_other(stores: Stores) -> None:
    store = stores.new(lease_seconds=LEASE)
    sessions = [store.create().id for _ in range(3)]
    leases = [store.lease(one) for one in sessions]
    begun = left(stores, store, sessions[2])
    with held(stores, store, sessions[0]):
        until(lambda: leases[0].lost)
        until(lambda: left(stores, store, sessions[2]) > begun + 2 * LEASE)
    assert [one.lost for one in leases] == [True, False, False]


def test_a_row_that_is_free_again_in_time_costs_nothing(stores: Stores) -> None:
    store = stores.new(lease_seconds=LEASE)
    first, second = store.create().id, store.create().id
    leases = store.lease(first), store.lease(second)
    begun = left(stores, store, second)
    with held(stores, store, first):
        until(lambda: left(stores, store, second) > begun)
    until(lambda: left(stores, store, first) > begun + 2 * LEASE)
    assert not any(one.lost for one in leases)


def test_an_append_that_waits_in_its_own_row_costs_no_lease(stores: Stores) -> None:
    store = stores.new(lease_seconds=LEASE)
    first, second = store.create().id, store.create().id
    store.append(first, [user("one")])
    leases = store.lease(first), store.lease(second)
    begun = left(stores, store, second)
    table = f"{store.database.settings.schema}.rec"
    with ThreadPoolExecutor(1) as threads, stores.server.connect() as other:
        with other.transaction(force_rollback=True):
            other.execute(
                f"""INSERT INTO {table} (sid, seq, rid, epoch, part, kind, body)
                SELECT sid, 2, gen_random_uuid(), epoch, part, kind, body FROM {table} WHERE seq = 1"""
            )
            waiting = threads.submit(store.append, first, [user("two")], lease=leases[0])
            until(lambda: left(stores, store, second) > begun)
            assert not waiting.done()
        assert waiting.result()[0].seq == 2
    until(lambda: left(stores, store, first) > begun + 2 * LEASE)
    assert not any(one.lost for one in leases)


def test_a_session_that_is_never_quiet_keeps_its_lease(stores: Stores) -> None:
    store = stores.new(lease_seconds=LEASE)
    others = [stores.again(store) for _ in range(3)]
    session = store.create().id
    lease = store.lease(session)
    begun = left(stores, store, session)
    done = threading.Event()

    def write(by: PostgresStore) -> None:
        while not done.is_set():
            by.append(session, [user("on and on")])

    with ThreadPoolExecutor(len(others)) as threads:
        writing = [threads.submit(write, one) for one in others]
        until(lambda: left(stores, store, session) > begun + LEASE)
        done.set()
    assert [one.result() for one in writing] and not lease.lost


def test_a_row_of_the_listing_that_another_holds_costs_no_lease(stores: Stores) -> None:
    store = stores.new(lease_seconds=LEASE)
    session = store.create().id
    store.append(session, [user("hello")])
    lease = store.lease(session)
    begun = left(stores, store, session)
    with held(stores, store, session, table="listing"):
        store.append(session, [Event(kind=TURN_END)])  # whose row is written at once
        until(lambda: left(stores, store, session) > begun + LEASE)
    assert not lease.lost


# --- a server that says nothing


def test_who_holds_a_lease_is_told_of_its_end_by_a_server_that_is_silent(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(lease_seconds=1.0, wait_seconds=1.0, statement_seconds=10.0)
        lease = store.lease(store.create().id)
        told = threading.Event()
        lease.on_lost(told.set)
        own.pause()
        try:
            assert told.wait(30)
        finally:
            own.go_on()


def test_closing_waits_for_a_silent_server_once_and_not_for_each_session(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(wait_seconds=1.0, statement_seconds=0.5)
        sessions = [store.create().id for _ in range(40)]
        for one in sessions:
            store.append(one, [user("hello")])
        own.pause()
        try:
            begun = time.monotonic()
            store.close()
            assert time.monotonic() - begun < 16  # 40 sessions, half a second each
        finally:
            own.go_on()
        assert len(stores.again(store).list()) == len(sessions)


# --- what nobody thought of


def test_an_error_of_any_kind_ends_neither_renewing_nor_writing_rows() -> None:
    reports: list[str] = []
    written: list[str] = []
    keeper = BackgroundThreads(LEASE, reports.append)

    def refresh(session: str, *, unmark: bool) -> None:
        if session == "bad":
            raise OverflowError("too large")
        written.append(session)

    keeper.refresh_row = refresh
    keeper.schedule_refresh("bad", immediately=True)
    until(lambda: reports)
    keeper.schedule_refresh("good", immediately=True)
    until(lambda: written)
    keeper.close()
    assert reports[0] == "the listing of session bad is behind: OverflowError: too large"


def test_who_fails_when_told_does_not_keep_others_from_being_told(stores: Stores) -> None:
    store = stores.new(lease_seconds=0.3)
    one, two = (store.lease(store.create().id) for _ in range(2))
    told = threading.Event()

    def fail() -> None:
        raise RuntimeError("the loop is closed")

    one.on_lost(fail)
    two.on_lost(told.set)
    table = f"{store.database.settings.schema}.session"
    with stores.server.connect() as other:
        other.execute(f"UPDATE {table} SET epoch = epoch + 1 WHERE sid = %s", (sid_of(one.session),))
        until(lambda: one.lost)
        other.execute(f"UPDATE {table} SET epoch = epoch + 1")
    assert told.wait(30)


def test_a_lease_that_is_held_over_the_end_of_its_store_is_renewed_on(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(lease_seconds=2.0)
        lease = store._leases.acquire(store.create().id)
        store.close()
        first = lease.expires_at
        until(lambda: lease.expires_at > first + 1, "it is renewed")
        assert not lease.lost
        lease.release()


# --- what others ask


def test_questions_that_take_long_cost_no_turn_however_few_connections_there_are(stores: Stores) -> None:
    store = stores.new(pool_size=2, lease_seconds=LEASE, wait_seconds=0.5)
    session = store.create().id
    lease = store.lease(session)
    begun = left(stores, store, session)
    over = threading.Event()

    def ask() -> None:
        store.database.run_idempotent(lambda _: over.wait(30))

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for one in asking:
        one.start()
    try:
        until(lambda: lease.lost or left(stores, store, session) > begun + 2 * LEASE)
        assert lease.held
    finally:
        over.set()
        for one in asking:
            one.join()
    lease.release()


# --- threads that there is no room for


@contextmanager
def no_more_threads() -> Iterator[None]:
    """No thread can be started: none has room for a stack of so many bytes."""
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="can't start"):
            threading.Thread(target=int).start()
        yield
    finally:
        threading.stack_size(before)


def test_a_thread_that_cannot_be_started_is_tried_again_and_costs_no_append(stores: Stores) -> None:
    store = stores.new(lease_seconds=LEASE)
    session = store.create().id
    with no_more_threads():
        assert store.append(session, [user("one")])[0].seq == 1
        with pytest.raises(StoreFailedError, match="thread") as raised:
            store.lease(session)
    assert raised.value.hint
    assert any("thread" in one for one in store.reports)
    lease = store.lease(session)  # which was given back, and not left taken
    begun = left(stores, store, session)
    assert store.append(session, [user("two")])[0].seq == 2
    until(lambda: left(stores, store, session) > begun + LEASE, "it is renewed")
    assert lease.held
    until(lambda: store._rows.metadata(session).through.seq == 2, "its row follows")  # type: ignore[union-attr]
    lease.release()
    store.close()


def test_a_store_that_could_start_no_thread_can_be_closed(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    with no_more_threads():
        store.append(session, [user("one")])
        store.close()
    assert stores.again(store).list()[0].metadata.message_count == 1


# --- connections that are gone


def test_a_row_follows_though_its_connection_was_lost(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user("one")])
    mine = store.database.run_once(lambda link: link.pgconn.backend_pid)
    with stores.server.connect() as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", (mine,))
    store._rows.refresh(session, unmark=True)
    assert store._rows.metadata(session).through.seq == 1  # type: ignore[union-attr]
    assert not store.reports
