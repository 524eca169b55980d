"""Attempts whose outcome is not known: nobody is told that nothing was stored when something was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg.errors
import pytest

from everlog.errors import ConflictError, StoreFailedError
from everlog.model import Message, Meta, user
from everlog.settings import SessionSettings, Settings
from everlog.stores.postgres.driver_errors import Address, ConnectionLostError, map_error
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.obstruction import unacknowledged
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.server import Server
from tests.stores.postgres.workers import until

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server whose settings may be changed."""
    with Server() as server:
        yield server


def texts(store: PostgresStore, session: str) -> list[str]:
    return [one.text for one in store.read(session) if isinstance(one, Message)]


@pytest.mark.parametrize(
    "append",
    [
        lambda store, session: store.append(session, [user("a", id="a"), user("b", id="b")]),
        lambda store, session: store.append(session, [user("a", id="a")]),
        lambda store, session: store.append(session, [user("a", id="a"), user("b", id="b")], expected_seq=2),
        lambda store, session: store.update(session, {"aliases": ["agent:other"]}),
    ],
    ids=["batch", "single", "expecting", "naming"],
)
def test_an_attempt_that_may_still_come_through_is_never_called_refused(
    own: Server, append: Callable[[PostgresStore, str], object]
) -> None:
    with Stores(own) as stores:
        limits = Settings(session=SessionSettings(lock_seconds=0.2))
        store = stores.new(limits, statement_seconds=0.5, wait_seconds=0.5)
        session = store.create().id
        store.append(session, [user("one")])
        store.append(session, [user("two")])
        with unacknowledged(own):
            store.database.discard_connections()  # one that was there may hear of the setting later
            with pytest.raises(ConnectionLostError) as raised:
                append(store, session)
        assert "may or may not be stored" in raised.value.hint
        append(store, session)
        assert texts(store, session) in (["one", "two", *more] for more in ("ab", "a", ""))


def test_what_comes_through_late_is_the_answer_and_no_conflict(own: Server) -> None:
    """An attempt that was given up on, with `expect`, is stored while it is looked for."""
    with Stores(own) as stores:
        store = stores.new(statement_seconds=0.5, wait_seconds=0.5)
        session = store.create().id
        store.append(session, [user("one")])
        done = threading.Event()
        failed: list[StoreFailedError] = []
        given = [user("a", id="a"), user("b", id="b")]

        def insist() -> None:
            while not done.is_set():
                try:
                    found = store.append(session, given, expected_seq=1)
                except ConnectionLostError as error:
                    failed.append(error)
                    continue
                assert [one.seq for one in found] == [2, 3]
                done.set()

        with unacknowledged(own):
            store.database.discard_connections()
            insisting = threading.Thread(target=insist)
            insisting.start()
            until(lambda: failed or done.is_set(), "an attempt that is given up on")
        assert done.wait(30), failed
        insisting.join()
        assert failed and texts(store, session) == ["one", "a", "b"]


def test_an_id_that_a_call_has_twice_is_found_twice_after_a_loss(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(statement_seconds=0.5, wait_seconds=0.5)
        session = store.create().id
        twice = [user("first", id="same"), user("second", id="same"), user("third", id="same")]
        stored = store.append(session, twice)
        again = store.append(session, twice)
        assert [one.seq for one in again] == [one.seq for one in stored] == [1, 2, 3]
        assert texts(store, session) == ["first", "second", "third"]
        with pytest.raises(ConflictError):
            store.append(session, [user("other", id="same")])


# The first change of the listing fails after a while, as one that is ended for a deadlock does.
AGAIN = """
CREATE SEQUENCE {0}.tries;
CREATE FUNCTION {0}.again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('{0}.tries') = 1 THEN
        PERFORM pg_sleep(1);
        RAISE EXCEPTION 'again' USING ERRCODE = '40P01';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER again BEFORE UPDATE ON {0}.listing FOR EACH ROW EXECUTE FUNCTION {0}.again()
"""


def test_a_change_that_the_database_wants_again_leaves_nothing_of_its_first_attempt(own: Server) -> None:
    """Between both, another process appends a record: as many as the first attempt had."""
    with Stores(own) as stores, own.connect() as admin:
        store = stores.new()
        session = store.create().id
        store.append(session, [user("hello")])
        store.update(session, {"aliases": ["agent:first"]})
        store.metadata(session)
        other = stores.again(store)
        admin.execute(AGAIN.format(store.database.settings.schema))
        changing = threading.Thread(target=store.update, args=(session, {"aliases": ["agent:2"]}))
        changing.start()
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        until(lambda: admin.execute(waits).fetchall(), "the change is about to fail")
        other.append(session, [Meta(set={"name": "named"})])
        changing.join(30)
        assert admin.execute(f"SELECT last_value > 1 FROM {store.database.settings.schema}.tries")
        for one in (store, other, stores.again(store)):
            found = one.metadata(session)
            assert (found.title, found.aliases) == ("named", ("agent:2",))
            assert one.list()[0].metadata == found


def test_a_log_that_lacks_its_end_goes_on_behind_it(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(Settings(session=SessionSettings(lock_seconds=0.3)))
        session = store.create().id
        store.append(session, [user("one")])
        store.append(session, [user("two")])
        store.close()
        fresh = stores.again(store)
        with own.connect() as admin:
            schema = store.database.settings.schema
            admin.execute(f"DELETE FROM {schema}.rec WHERE seq = 2")
            admin.execute(f"UPDATE {schema}.listing SET seq = 0")
        assert fresh.update(session, {"aliases": ["agent:x"]}).through.seq == 3
        assert fresh.verify(session)


def test_a_full_disk_that_ends_the_connection_leaves_the_outcome_open() -> None:
    address = Address("postgresql://127.0.0.1/name")
    found = map_error(psycopg.errors.DiskFull("no room for the journal"), address, lost=True)
    assert isinstance(found, ConnectionLostError)


def test_a_silent_server_is_waited_for_once_however_many_connections_there_are(own: Server) -> None:
    with Stores(own) as stores:
        store = stores.new(statement_seconds=0.5, wait_seconds=0.5, pool_size=8)
        session = store.create().id
        store.append(session, [user("one")])
        together = threading.Barrier(8)
        links = [
            threading.Thread(target=lambda: store.database.run_once(lambda _: together.wait(30))) for _ in range(8)
        ]
        for one in links:
            one.start()
        for one in links:
            one.join()
        own.pause()
        try:
            begun = threading.Event()

            def fail() -> None:
                with pytest.raises(StoreFailedError):
                    store.append(session, [user("two", id="2")])
                begun.set()

            failing = threading.Thread(target=fail)
            failing.start()
            assert begun.wait(7.5), "each of eight would take a second"
            failing.join()
        finally:
            own.go_on()


# The record is stored with a warning, as if no standby had it; the commit behind it then fails.
UNCONFIRMED = """
CREATE FUNCTION {0}.warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF convert_from(NEW.body, 'UTF8') LIKE '%doubt%' THEN RAISE WARNING 'nobody has it'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER warn AFTER INSERT ON {0}.rec FOR EACH ROW EXECUTE FUNCTION {0}.warn();
CREATE FUNCTION {0}.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.head = OLD.head AND NEW.marked = OLD.marked AND NEW.epoch = OLD.epoch THEN
        RAISE EXCEPTION 'not now' USING ERRCODE = '{1}';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fail BEFORE UPDATE ON {0}.session FOR EACH ROW EXECUTE FUNCTION {0}.fail()
"""


@pytest.mark.parametrize("code", ["25006", "57014", "53100"])
@pytest.mark.parametrize("many", [1, 2])
def test_what_is_stored_and_cannot_be_confirmed_is_not_called_refused(own: Server, code: str, many: int) -> None:
    with Stores(own) as stores, own.connect() as admin:
        store = stores.new()
        session = store.create().id
        store.append(session, [user("one")])
        store.append(session, [user("two")])
        admin.execute(UNCONFIRMED.format(store.database.settings.schema, code))
        with pytest.raises(ConnectionLostError):
            store.append(session, [user(f"doubt {n}", id=f"{n}") for n in range(many)])
        assert len(texts(store, session)) == 2 + many


def test_a_change_whose_answer_was_lost_is_told_as_it_is(own: Server) -> None:
    with Stores(own) as stores, own.connect() as admin:
        store = stores.new()
        session = store.create().id
        store.append(session, [user("one")])
        store.update(session, {"aliases": ["agent:first"]})
        warning = UNCONFIRMED.partition("CREATE FUNCTION {0}.fail")[0].replace("%doubt%", "%second%")
        admin.execute(warning.format(store.database.settings.schema))
        changed = store.update(session, {"aliases": ["agent:second"]})
        assert changed == store.metadata(session)
        assert changed.aliases == ("agent:second",)
