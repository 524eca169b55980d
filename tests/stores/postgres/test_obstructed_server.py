"""A database that is full, takes no changes, says nothing or is gone: reading goes on where it can, and so does
everything once the cause is gone."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from everlog.errors import EverlogError, SettingsError, StoreFailedError, StoreFullError
from everlog.model import user
from everlog.ports import Query
from everlog.settings import PostgresSettings, Settings
from everlog.stores.postgres.append_statement import Appender
from everlog.stores.postgres.driver_errors import Address, ReadOnlyError, map_error
from everlog.stores.postgres.id_columns import rid_of
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.crash.sample_records import mounted
from tests.stores.postgres.obstruction import change, unacknowledged
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.server import USER, Server
from tests.stores.postgres.workers import until

pytestmark = pytest.mark.crash

OUTAGE = float(os.environ.get("EVERLOG_TEST_OUTAGE", "2"))  # seconds


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server whose settings may be changed."""
    with Server() as server:
        yield server


def texts(store: PostgresStore, session: str) -> list[str]:
    return [one.text for one in store.read(session)]  # type: ignore[union-attr]


# --- no changes


def test_a_read_only_database_can_be_read_listed_and_searched_and_then_written_again(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new()
        session = store.create({"key": "sk_v1_a"}).id
        store.append(session, [user("findable")])
        assert store.search(Query(text="findable")).total == 1
        store.append(session, [user("not yet listed")])
        change(own, "default_transaction_read_only", "on")
        try:
            for verb in (
                lambda: store.append(session, [user("refused")]),
                lambda: store.update(session, {"name": "refused"}),
                lambda: store.lease(session),
                lambda: store.fork(session),
                lambda: store.delete(session),
                store.create,
            ):
                with pytest.raises(ReadOnlyError) as raised:
                    verb()
                assert raised.value.hint
            assert texts(store, session) == ["findable", "not yet listed"]
            assert len(list(store.tail(session))) == 2
            assert store.metadata(session).message_count == 2
            assert store.resolve("sk_v1_a") == session
            assert store.list().total == 1
            assert store.usage().sessions == 1
            assert store.search(Query(text="findable")).total == 1
            assert store.verify(session) == ()
            assert any("the listing is behind" in one for one in store.reports)
        finally:
            change(own, "default_transaction_read_only", "off")
        assert store.append(session, [user("after")])[0].seq == 3
        assert store.list()[0].metadata.message_count == 3


def test_a_user_who_may_write_again_does_so_without_a_restart(own: Server) -> None:
    """What a user may do holds for a connection, for as long as that lasts."""
    with Stores(own) as stores, own.connect() as other:
        store = stores.new()
        other.execute("ALTER ROLE everlog SET default_transaction_read_only = on")
        try:
            with pytest.raises(ReadOnlyError):
                store.create()
        finally:
            other.execute("ALTER ROLE everlog RESET default_transaction_read_only")
        session = store.create().id
        assert store.append(session, [user("after")])[0].seq == 1


# --- no room


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_named_reading_goes_on_and_room_is_used_again() -> None:
    # Enough memory for all of it: a server may need to write something else before it can read.
    with Server({"shared_buffers": "128MB"}) as server, server.connect() as other:
        small = server.directory / "small"
        with mounted(small, "-t", "tmpfs", "-o", "size=24m", "none"):
            owner = server.directory.stat()
            os.chown(small, owner.st_uid, owner.st_gid)
            other.execute(f"CREATE TABLESPACE small LOCATION '{small}'")
            other.execute("CREATE DATABASE small TABLESPACE small")
            store = PostgresStore(server.url.replace("/postgres", "/small"))
            session = store.create().id
            other.execute("CHECKPOINT")
            _fill(store, session, small)
            store.close()
            other.execute("DROP DATABASE small WITH (FORCE)")
            other.execute("DROP TABLESPACE small")


def _fill(store: PostgresStore, session: str, small: Path) -> None:
    stored: list[str] = []
    text = ""

    def fill() -> None:
        nonlocal text
        while len(stored) < 1000:
            text = os.urandom(100_000).hex()
            store.append(session, [user(text)])
            stored.append(text)

    with pytest.raises(StoreFullError, match="is full") as raised:
        fill()
    assert "free disk space" in raised.value.hint and "reading still works" in raised.value.hint
    with pytest.raises(StoreFullError):
        store.append(session, [user(text)])
    assert texts(store, session) == stored
    assert store.metadata(session).message_count == len(stored) > 5
    assert store.list().total == 1
    subprocess.run(["mount", "-o", "remount,size=200m", small], check=True)
    assert store.append(session, [user(text)])[0].seq == len(stored) + 1
    assert texts(store, session) == [*stored, text]
    assert store.verify(session) == ()
    assert store.list()[0].metadata.message_count == len(stored) + 1


# --- no answer


def failing(verb: Callable[[], object]) -> float:
    """Seconds until it is told that it failed."""
    begun = time.monotonic()
    with pytest.raises(StoreFailedError) as raised:
        verb()
    assert raised.value.hint
    return time.monotonic() - begun


def test_a_standby_that_is_gone_is_not_waited_for_for_ever(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(statement_seconds=0.5, wait_seconds=0.5)
        session = store.create().id
        store.append(session, [user("one")])
        with unacknowledged(own):
            assert failing(lambda: store.append(session, [user("two", id="two")])) < 20
            assert texts(store, session) == ["one"], "nobody sees what is not on both machines"
        assert store.append(session, [user("two", id="two")])[0].seq == 2
        assert texts(store, session) == ["one", "two"]


@contextmanager
def least_told(server: Server, level: str) -> Iterator[None]:
    """What is less than this is not told to the user of the stores."""
    with server.connect() as other:
        other.execute(f"ALTER ROLE {USER} SET client_min_messages = '{level}'")
        try:
            yield
        finally:
            other.execute(f"ALTER ROLE {USER} RESET client_min_messages")


@pytest.mark.parametrize("least", ["notice", "error"])
def test_no_verb_takes_a_warning_for_an_acknowledgement(own: Server, least: str) -> None:
    """A standby must have it, none is there, and somebody ends every waiting.

    `least`: what a user is told by default; an error alone would be too little.
    """
    with Stores(own) as stores, least_told(own, least):
        store = stores.new(lease_seconds=0.5)
        session = store.create().id
        store.append(session, [user("one")])
        done = threading.Event()

        def end_waiting() -> None:
            with own.connect() as other:
                while not done.wait(0.01):
                    other.execute(
                        """SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                        WHERE wait_event = 'SyncRep'"""
                    )

        with unacknowledged(own):
            ending = threading.Thread(target=end_waiting)
            ending.start()
            try:
                for verb in (
                    lambda: store.append(session, [user("two", id="two")]),
                    lambda: store.append(session, [user("three", id="3"), user("four", id="4")]),
                    lambda: store.update(session, {"name": "named"}),
                    lambda: store.update(session, {"aliases": ["agent:x"]}),
                    lambda: store.fork(session),
                    lambda: store.lease(session),
                    store.create,
                ):
                    assert failing(verb) < 20
            finally:
                done.set()
                ending.join()
        assert [one.seq for one in store.append(session, [user("two", id="two")])] == [2]
        assert store.verify(session) == ()


def test_what_was_found_on_another_server_is_not_acknowledged_on_this_one(own: Server) -> None:
    """Between looking for a record and its acknowledgement a standby without it may take over."""
    with Stores(own) as stores:
        store = stores.new()
        session = store.create().id
        store.append(session, [user("one", id="1")])
        appending = Appender(store.database, store.limits)
        assert appending.confirm_stored(session, [rid_of("1")])
        assert not appending.confirm_stored(session, [rid_of("1"), rid_of("2")])
        store.delete(session)
        assert not appending.confirm_stored(session)


def test_a_server_that_is_stopped_is_given_up_on_and_used_again_when_it_goes_on(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(statement_seconds=0.5, wait_seconds=0.5)
        session = store.create().id
        store.append(session, [user("one")])
        own.pause()
        try:
            assert failing(lambda: store.append(session, [user("two", id="two")])) < 30
            assert failing(lambda: list(store.read(session))) < 30
        finally:
            own.go_on()
        _until_it_works(lambda: store.append(session, [user("two", id="two")]))
        assert texts(store, session) == ["one", "two"]


def test_a_server_that_comes_back_is_found_soon_however_long_it_was_gone() -> None:
    with Server() as server, Stores(server) as stores:
        store = stores.new(wait_seconds=0.5)
        session = store.create().id
        server.kill()
        end = time.monotonic() + OUTAGE
        while time.monotonic() < end:
            failing(lambda: store.append(session, [user("lost")]))
        server.start()
        begun = time.monotonic()
        _until_it_works(lambda: store.append(session, [user("found", id="found")]))
        assert time.monotonic() - begun < 8
        assert texts(store, session) == ["found"]


def _until_it_works(verb: Callable[[], object]) -> None:
    def works() -> bool:
        try:
            verb()
        except StoreFailedError:
            return False
        return True

    until(works, "it works again")


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("FATAL: the database system is starting up", "retry soon"),
        ("FATAL: the database system is not yet accepting connections", "retry soon"),
        ("FATAL: sorry, too many clients already", "postgres.pool_size"),
        ("server is in hot standby mode", "name the primary"),
        ("session is read-only", "name the primary"),
        ("Connection refused", "is the server running"),
    ],
)
def test_what_will_pass_is_no_mistake_in_the_settings(said: str, hint: str) -> None:
    found = map_error(psycopg.OperationalError(said), Address("postgresql://me@127.0.0.1/x"))
    assert isinstance(found, StoreFailedError) and hint in found.hint


@pytest.mark.parametrize("said", ['database "x" does not exist', 'role "me" is not permitted to log in'])
def test_what_will_not_pass_is_one(said: str) -> None:
    found = map_error(psycopg.OperationalError(said), Address("postgresql://me@127.0.0.1/x"))
    assert isinstance(found, SettingsError)


# --- secrets


def test_a_password_is_in_no_log_whatever_happens(own: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for at in (own.port, 1):
        url = f"postgresql://everlog:s3cret-w0rd@127.0.0.1:{at}/postgres"
        settings = Settings(postgres=PostgresSettings(wait_seconds=0.5, schema="secrets"))
        store = PostgresStore(url, settings)
        try:
            store.list()
            with own.connect() as other:
                other.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE application_name = 'everlog'"""
                )
            store.list()
        except EverlogError as error:
            logging.getLogger("test").exception("it failed: %r", error)
        store.close()
    assert "it failed" in caplog.text
    assert "s3cret" not in caplog.text
    assert "s3cret" not in own.log()
