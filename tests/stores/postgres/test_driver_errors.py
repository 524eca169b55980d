"""What goes wrong with a database: typed, with a hint, without a password, and over when it is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors

from everlog.app import open_store
from everlog.errors import EverlogError, FormatError, SessionBusyError, SettingsError, StoreFailedError, StoreFullError
from everlog.model import user
from everlog.settings import PostgresSettings, Settings
from everlog.stores.postgres.driver_errors import (
    Address,
    ConnectionLostError,
    ContentionError,
    ReadOnlyError,
    map_error,
)
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.server import Server

PASSWORD = "s3cret/w@rd"
QUOTED = "s3cret%2Fw%40rd"
URL = f"postgresql://me:{QUOTED}@127.0.0.1:1/name"


def _kinds(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from _kinds(inner)


ALL = sorted(_kinds(psycopg.Error), key=lambda kind: kind.__name__)


@pytest.mark.parametrize("lost", [False, True])
def test_every_error_of_the_driver_is_one_of_ours(lost: bool) -> None:
    address = Address(URL)
    assert len(ALL) > 200
    for kind in ALL:
        assert issubclass(kind, psycopg.Error)
        found = map_error(kind(f"said with {PASSWORD} and {QUOTED}\n in {URL}"), address, lost=lost)
        assert isinstance(found, EverlogError)
        assert PASSWORD not in str(found) and QUOTED not in str(found)
        assert "\n" not in str(found)
        assert "127.0.0.1" in found.message


@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        (errors.SerializationFailure, ContentionError),
        (errors.DeadlockDetected, ContentionError),
        (errors.DiskFull, StoreFullError),
        (errors.TooManyConnections, StoreFailedError),
        (errors.ReadOnlySqlTransaction, ReadOnlyError),
        (errors.LockNotAvailable, SessionBusyError),
        (errors.QueryCanceled, StoreFailedError),
        (errors.AdminShutdown, StoreFailedError),
        (errors.InvalidPassword, SettingsError),
        (errors.InvalidCatalogName, SettingsError),
        (errors.InsufficientPrivilege, SettingsError),
        (errors.UndefinedTable, SettingsError),
        (errors.UntranslatableCharacter, FormatError),
        (psycopg.OperationalError, StoreFailedError),
        (psycopg.InterfaceError, StoreFailedError),
    ],
)
def test_errors_are_told_apart_and_say_what_to_do(kind: type[psycopg.Error], ours: type[EverlogError]) -> None:
    found = map_error(kind("said"), Address(URL))
    assert type(found) is ours
    assert found.hint or ours is FormatError


def test_a_connection_that_is_gone_leaves_the_outcome_open() -> None:
    found = map_error(errors.AdminShutdown("said"), Address(URL), lost=True)
    assert isinstance(found, ConnectionLostError)
    assert "may or may not be stored" in found.hint


@pytest.mark.parametrize(
    "url",
    [
        URL,
        f"postgresql://me:{PASSWORD}@[::1/x",
        f"postgresql://me:{QUOTED}@127.0.0.1:1/x?nonsense=1",
        f"postgresql://me@127.0.0.1:1/x?password={QUOTED}",
        f"mysql://me:{QUOTED}@127.0.0.1/x",
    ],
)
def test_a_password_is_in_no_error_and_in_no_repr(url: str) -> None:
    shown = []
    try:
        with open_store(url, settings=Settings(postgres=PostgresSettings(wait_seconds=0.5))) as store:
            shown.append(repr(store.port))
            store.list()
    except EverlogError as error:
        while error is not None:
            shown += [str(error), repr(error), repr(error.__dict__)]
            error = error.__cause__  # type: ignore[assignment]
    assert len(shown) >= 3
    assert not [text for text in shown if PASSWORD in text or QUOTED in text]


def test_a_wrong_password_and_a_missing_database_are_settings_to_mend() -> None:
    with Server() as server:
        with server.connect() as connection:
            connection.execute(f"CREATE ROLE someone LOGIN PASSWORD '{PASSWORD}'")
        (server.data / "pg_hba.conf").write_text(
            "host all someone 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        )
        with server.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        place = f"127.0.0.1:{server.port}"
        for url in (
            f"postgresql://someone:{QUOTED}x@{place}/postgres",
            f"postgresql://someone:{QUOTED}@{place}/nothing",
            f"postgresql://someone:{QUOTED}@{place}/postgres",  # may not make a schema
        ):
            store = PostgresStore(url)
            with pytest.raises(SettingsError) as raised:
                store.create()
            assert PASSWORD not in str(raised.value)
        with server.connect() as connection:
            connection.execute("CREATE SCHEMA everlog AUTHORIZATION someone")
        store.create()
        store.close()


def test_a_server_that_goes_away_is_an_error_and_one_that_comes_back_is_used_again() -> None:
    with Server() as server, Stores(server) as stores:
        store = stores.new(wait_seconds=0.5)
        session = store.create().id
        store.append(session, [user("before")])
        server.kill()
        for verb in (
            lambda: store.append(session, [user("lost")]),
            lambda: store.metadata(session),
            store.list,
            store.create,
            lambda: store.lease(session),
        ):
            with pytest.raises(StoreFailedError) as raised:
                verb()
            assert raised.value.hint
        server.start()
        store.append(session, [user("after")])
        assert [one.text for one in store.read(session)] == ["before", "after"]  # type: ignore[union-attr]
        with store.lease(session) as lease:
            server.restart()
            store.append(session, [user("same lease")], lease=lease)
        assert store.list()[0].metadata.message_count == 3


def test_only_the_first_one_waits_for_a_server_that_is_away() -> None:
    def refused() -> float:
        begun = time.monotonic()
        with pytest.raises(StoreFailedError, match="cannot be reached"):
            store.metadata(session)
        return time.monotonic() - begun

    with Server() as server, Stores(server) as stores:
        store = stores.new(wait_seconds=2)
        session = store.create().id
        server.kill()
        first = refused()
        assert first > 1.5, "it may be back at once: a restart is waited for"
        assert sum(refused() for _ in range(10)) < first
        server.start()
        assert store.metadata(session).message_count == 0


def test_a_store_can_be_opened_before_its_server_is_there() -> None:
    with Server() as server:
        server.stop()
        store = PostgresStore(server.url, Settings(postgres=PostgresSettings(wait_seconds=0.5)))
        with pytest.raises(StoreFailedError, match="cannot be reached"):
            store.create()
        server.start()
        assert store.create().chat == 1
        store.close()


def test_a_database_that_takes_no_changes_can_still_be_read(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user("before")])
    store.close()
    with stores.server.connect() as connection:
        connection.execute("ALTER ROLE everlog SET default_transaction_read_only = on")
        try:
            with pytest.raises(StoreFailedError, match="is read-only") as raised:
                store.append(session, [user("refused")])
            assert "standby" in raised.value.hint
            assert len(list(store.read(session))) == 1
            assert store.metadata(session).message_count == 1
        finally:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER ROLE everlog RESET default_transaction_read_only")
    store.close()
    assert store.append(session, [user("after")])[0].seq == 2


def test_a_standby_is_refused_since_it_may_lag_behind() -> None:
    with Server() as primary, Server(copy_of=primary) as standby:
        store = PostgresStore(standby.url)
        with pytest.raises(StoreFailedError, match="cannot be reached"):
            store.list()
        both = f"postgresql://everlog@127.0.0.1:{standby.port},127.0.0.1:{primary.port}/postgres"
        store = PostgresStore(both)
        store.append(store.create().id, [user("on the primary")])
        store.close()


def test_waiting_for_a_connection_has_an_end(stores: Stores) -> None:
    store = stores.new(pool_size=1, wait_seconds=0.2)
    session = store.create().id
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        def wait(link: object) -> None:
            held.set()
            go_on.wait(30)

        store.database.run_idempotent(wait)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        with pytest.raises(StoreFailedError, match="are in use") as raised:
            store.append(session, [user("x")])
        assert "pool_size" in raised.value.hint
    finally:
        go_on.set()
        thread.join()
    assert store.append(session, [user("x")])[0].seq == 1


def test_a_statement_that_takes_too_long_is_ended(stores: Stores) -> None:
    store = stores.new(statement_seconds=0.2)
    session = store.create().id
    store.append(session, [user("x")])
    table = f"{store.database.settings.schema}.session"
    with stores.server.connect() as connection, connection.transaction():
        connection.execute(f"SELECT 1 FROM {table} FOR UPDATE")
        with pytest.raises(StoreFailedError, match="took too long"):
            store.append(session, [user("y")])
    assert store.append(session, [user("y")])[0].seq == 2


def test_a_server_that_forgets_what_it_acknowledged_is_told_not_to(stores: Stores) -> None:
    with stores.server.connect() as connection:
        connection.execute("ALTER ROLE everlog SET synchronous_commit = off")
        try:
            store = stores.new()
            asked = "SELECT current_setting('synchronous_commit')"
            found = store.database.run_idempotent(lambda link: link.execute(asked).fetchone())
        finally:
            connection.execute("ALTER ROLE everlog RESET synchronous_commit")
    assert found == ("on",)
