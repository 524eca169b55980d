"""What processes on one database share: news, jobs, and the sessions that nobody works on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from everlog.context.tokens import estimate_text
from everlog.errors import ConflictError, SessionBusyError
from everlog.model import Event, user
from everlog.ports import ExpiringLease
from everlog.session import Store
from everlog.settings import Settings
from everlog.stores.postgres.postgres_store import PostgresStore
from everlog.stores.postgres.shared_state import CHANNELS, MIN_PAUSE, Listener, shard_of
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.workers import until

SOON = 60.0  # seconds in which something must happen
DAY = 86_400_000  # milliseconds
RUN = "01M7HA9T1PNDJZVY1PB3VHMHB1"


class Ear:
    """What a store heard of another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sessions: set[str] = set()
        self.looks = 0  # how often it was told to look at all

    def __call__(self, news: frozenset[str]) -> None:
        with self._lock:
            self.sessions |= news
            self.looks += not news


@contextmanager
def listening(store: PostgresStore, *sessions: str) -> Iterator[Ear]:
    ear = Ear()
    made = store.sharing.listen(ear)
    made.watch(sessions)
    try:
        if sessions:
            until(lambda: ear.looks)
        yield ear
    finally:
        made.stop()


def test_a_session_that_goes_on_is_heard_of_elsewhere(stores: Stores) -> None:
    here = stores.new()
    there = stores.again(here)
    session = here.create().id
    with listening(there), listening(here, session) as ear:
        there.append(session, [user("hello")])
        until(lambda: ear.sessions == {session})


def test_nobody_hears_of_what_it_did_itself(stores: Stores) -> None:
    here = stores.new()
    there = stores.again(here)
    one, two = here.create().id, here.create().id
    with listening(there), listening(here, one, two) as ear:
        here.append(one, [user("hello")])
        there.append(two, [user("hello")])
        until(lambda: two in ear.sessions)
        assert ear.sessions == {two}


def test_only_channels_of_sessions_that_are_attended_are_listened_to(stores: Stores) -> None:
    here = stores.new()
    there = stores.again(here)
    one = here.create().id
    made = (here.create().id for _ in range(10 * CHANNELS))
    other = next(session for session in made if shard_of(session) != shard_of(one))
    with listening(there), listening(here, one) as ear:
        there.append(other, [user("hello")])
        there.append(one, [user("hello")])
        until(lambda: one in ear.sessions)
        assert ear.sessions == {one}


def test_who_listens_connects_again_and_looks_at_all_when_the_connection_is_lost(stores: Stores) -> None:
    here = stores.new()
    there = stores.again(here)
    session = here.create().id
    with listening(there), listening(here, session) as ear:
        with stores.server.connect() as connection:
            ended = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s",
                (f'LISTEN "{here.database.settings.schema}\\_%',),
            ).fetchall()
        assert ended == [(True,)]
        until(lambda: ear.looks == 2)
        there.append(session, [user("hello")])
        until(lambda: ear.sessions == {session})


class Impatient(threading.Event):
    """Remembers for how long it was to be waited for, and does not wait for so long."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return super().wait(0.01)


def test_who_has_listened_well_connects_again_as_soon_as_after_the_first_loss(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    ear, stop = Ear(), Impatient()
    listener = Listener(store.sharing, ear, stop)
    listener.watch([session])
    for losses in range(1, 5):
        until(lambda losses=losses: ear.looks == losses)  # type: ignore[misc]
        with stores.server.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s",
                (f'LISTEN "{store.database.settings.schema}\\_%',),
            )
    until(lambda: ear.looks == 5)
    stop.set()
    listener.thread.join()
    assert max(stop.pauses) == 2 * MIN_PAUSE


def test_many_appends_are_told_together(stores: Stores) -> None:
    here = stores.new()
    there = stores.again(here)
    session = here.create().id
    told: list[frozenset[str]] = []
    with listening(there):
        made = here.sharing.listen(told.append)
        made.watch([session])
        until(lambda: told)
        begun = time.monotonic()
        for number in range(200):
            there.append(session, [user(f"{number}")])
        took = time.monotonic() - begun
        until(lambda: len(told) > 1)
        made.stop()
    assert len(told) <= 3 + took / 0.05


def test_a_session_is_adrift_when_it_is_unfinished_and_nobody_has_its_turn(stores: Stores) -> None:
    store = stores.new()
    done, left, held = (store.create().id for _ in range(3))
    lease = store.lease(held)
    for one in (left, held):
        store.append(one, [user("hello", run_id=RUN)])
    store.append(done, [user("hello", run_id=RUN), Event(kind="turn_end", data={"runId": RUN})])
    found = store.sharing.unowned(10)
    assert left in found and held not in found  # one that ended may be there until its row is
    lease.release()
    assert held in store.sharing.unowned(10)
    store._rows.refresh_marked()
    assert set(store.sharing.unowned(10)) == {left, held}
    assert len(store.sharing.unowned(1)) == 1


def test_of_many_who_take_a_job_for_a_time_one_has_it(stores: Stores) -> None:
    first = stores.new()
    store = [first, *(stores.again(first) for _ in range(3))]
    with ThreadPoolExecutor(8) as threads:
        for due in (1000, 2000, 3000):
            asked = [threads.submit(store[at % 4].sharing.take_due, "job", due) for at in range(16)]
            assert sorted(one.result() is not None for one in asked) == [False] * 15 + [True]
    assert first.sharing.take_due("job", 2000) is None, "nor later, for a time that is over"
    assert first.sharing.take_due("another", 2000) == b""


def test_changes_of_a_job_by_many_are_all_kept(stores: Stores) -> None:
    first = stores.new()
    store = [first, *(stores.again(first) for _ in range(3))]
    with ThreadPoolExecutor(8) as threads:
        for number in range(40):
            change = store[number % 4].sharing.change_job
            threads.submit(change, "job\0", lambda before: before + b"x").result()
    assert list(first.sharing.jobs().values()) == [b"x" * 40]
    assert first.sharing.take_due("job\0", 1) == b"x" * 40


def test_who_holds_a_lease_is_told_when_it_is_lost(stores: Stores) -> None:
    store = stores.new(lease_seconds=0.3)
    other = stores.again(store)
    session = store.create().id
    lease = store.lease(session)
    assert isinstance(lease, ExpiringLease)
    told = threading.Event()
    lease.on_lost(told.set)
    with stores.server.connect() as connection:
        table = f"{store.database.settings.schema}.session"
        connection.execute(f"UPDATE {table} SET epoch = epoch + 1")  # another has taken it
    assert told.wait(SOON) and lease.lost
    again = threading.Event()
    lease.on_lost(again.set)
    assert again.is_set(), "who asks late is told at once"
    until(lambda: _is_free(other, session))


def _is_free(store: PostgresStore, session: str) -> bool:
    try:
        store.lease(session).release()
    except SessionBusyError:
        return False
    return True


def test_an_append_that_is_refused_tells_that_the_lease_is_lost(stores: Stores) -> None:
    store = stores.new()  # whose leases are not renewed for five seconds
    session = store.create().id
    lease = store.lease(session)
    told = threading.Event()
    lease.on_lost(told.set)
    with stores.server.connect() as connection:
        table = f"{store.database.settings.schema}.session"
        connection.execute(f"UPDATE {table} SET epoch = epoch + 1")
    with pytest.raises(ConflictError, match="is not held"):
        store.append(session, [user("late")], lease=lease)
    assert told.is_set() and list(store.read(session)) == []


@pytest.mark.crash
def test_a_turn_that_was_replaced_cannot_end_and_without_its_lease_would_end_twice(stores: Stores) -> None:
    port = stores.new()
    store = Store(port, Settings(), estimate_text)
    session = store.create()
    lease = session.lease()
    session.append(user("hello", run_id=RUN), lease=lease)
    with stores.server.connect() as connection:  # paused for too long
        connection.execute(f"UPDATE {port.database.settings.schema}.session SET epoch = epoch + 1")
    session.append(Event(kind="turn_interrupted", data={"runId": RUN}))  # by who took it over
    before = session.records()
    with pytest.raises(ConflictError, match="is not held"):
        session.end_turn(duration_ms=1, run_id=RUN, stop="end", lease=lease)
    assert session.records() == before
    session.end_turn(duration_ms=1, run_id=RUN, stop="end")  # the naive twin
    ends = [one.kind for one in session.records() if isinstance(one, Event)]
    assert ends == ["turn_interrupted", "turn_end"]


def test_a_lease_that_is_given_back_is_not_renewed_by_a_renewal_under_way(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    lease = store.lease(session)
    lease.release()
    assert list(store._leases.renew([lease])) == [lease]
    store.lease(session).release()


# --- clocks


def test_a_daemon_whose_clock_is_ahead_takes_no_time_that_is_not_near(stores: Stores) -> None:
    store = stores.new()
    now = round(time.time() * 1000)
    with pytest.raises(ConflictError, match=r"clock .* 365\.0 days ahead"):
        store.sharing.take_due("job", now + 365 * DAY)
    assert store.sharing.take_due("job", now + 30_000) == b"", "clocks differ a little"
    assert store.sharing.take_due("job", now) is None


def test_a_time_far_ahead_that_was_taken_once_stops_no_job(stores: Stores) -> None:
    store = stores.new()
    now = round(time.time() * 1000)
    assert store.sharing.take_due("job", now) == b""
    with stores.server.connect() as connection:
        table = f"{store.database.settings.schema}.job"
        connection.execute(f"UPDATE {table} SET due = %s", (now + 365 * DAY,))
    taken = [store.sharing.take_due("job", now + 1000) for _ in range(2)]
    assert taken == [b"", None]


# --- a door that is shut for a while


def test_who_is_not_let_in_for_a_while_hears_again_afterwards(stores: Stores) -> None:
    here = stores.new()
    session = here.create().id
    schema, role = here.database.settings.schema, f"{here.database.settings.schema}_role"
    with stores.server.connect() as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"GRANT ALL ON SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
        url = stores.server.url.replace("//everlog@", f"//{role}@")
        there = PostgresStore(url, Settings(postgres=here.database.settings))
        stores.opened.append(there)
        there.sharing.max_pause = 0.1
        with listening(here, session) as ear, listening(there, session) as other:
            connection.execute(f"ALTER ROLE {role} NOLOGIN")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,))
            until(lambda: any("from other processes are delayed" in one for one in there.reports))
            there.sharing.announce(session)
            until(lambda: any("to other processes are delayed" in one for one in there.reports))
            connection.execute(f"ALTER ROLE {role} LOGIN")
            until(lambda: other.looks > 1)
            here.append(session, [user("hello")])
            until(lambda: other.sessions == {session})
            assert sum("from other processes are delayed" in one for one in there.reports) == 1

            def is_told() -> bool:
                there.append(session, [user("hello")])
                return session in ear.sessions

            until(is_told)
        there.close()
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")
