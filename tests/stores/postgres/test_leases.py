"""Turns: one at a time by the server's clock, and none that comes too late."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from everlog.errors import ConflictError, SessionBusyError
from everlog.model import user
from everlog.ports import RawLine
from everlog.stores.postgres.leases import PostgresLease
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.workers import until

SOON = 60.0  # seconds in which something must happen


def can_take(store: PostgresStore, session: str) -> bool:
    try:
        store.lease(session).release()
    except SessionBusyError:
        return False
    return True


def take_over(stores: Stores, store: PostgresStore, session: str) -> PostgresLease:
    """The turn of a session whose holder is as if paused: its renewals do not count."""
    with stores.server.connect() as connection:
        deadline = time.monotonic() + SOON
        while time.monotonic() < deadline:
            table = f"{store.database.settings.schema}.session"
            connection.execute(f"UPDATE {table} SET lease_until = 'epoch'")
            try:
                return store.lease(session)
            except SessionBusyError:
                continue  # it was renewed in between
    raise AssertionError("the turn was not given up")


def test_who_finds_a_turn_taken_is_told_by_whom(stores: Stores) -> None:
    one = stores.new()
    session = one.create().id
    other = stores.again(one)
    with one.lease(session), pytest.raises(SessionBusyError, match=rf"running in \S+\.{os.getpid()}\.") as raised:
        other.lease(session)
    assert "expires after 15 seconds" in raised.value.hint
    with one.lease(session), pytest.raises(SessionBusyError, match="of this session") as own:
        one.lease(session)
    assert "stop it" in own.value.hint
    other.lease(session).release()


def test_a_lease_is_renewed_for_as_long_as_it_is_held(stores: Stores) -> None:
    one = stores.new(lease_seconds=2.0)
    session = one.create().id
    other = stores.again(one)
    with one.lease(session) as lease:
        end = lease.expires_at + 1.0  # it would have ended long ago
        while lease.expires_at < end:
            assert not can_take(other, session)
            one.append(session, [user("still mine")], lease=lease)
        assert lease.held
    assert can_take(other, session)


def test_a_lease_that_nobody_holds_any_more_ends_by_itself(stores: Stores) -> None:
    one = stores.new(lease_seconds=0.2)
    session = one.create().id
    lease = one.lease(session)
    del lease  # forgotten, not given back
    until(lambda: can_take(one, session))


def test_a_stale_lease_is_refused_and_writes_nothing(stores: Stores) -> None:
    one = stores.new(lease_seconds=2.0)
    session = one.create().id
    lease = one.lease(session)
    one.append(session, [user("mine")], lease=lease)
    other = stores.again(one, lease_seconds=15.0)
    with stores.server.connect() as connection:
        with take_over(stores, other, session) as taken:
            assert taken.epoch == lease.epoch + 1
            with pytest.raises(ConflictError, match="is not held"):
                one.append(session, [user("too late", id="late")], lease=lease)
            until(lambda: not lease.held)  # the next renewal tells it
            other.append(session, [user("theirs")], lease=taken)
            one.append(session, [user("appending needs no lease")])
        lease.release()
        lease.release()
        rows = connection.execute(
            f"SELECT seq, epoch FROM {one.database.settings.schema}.rec WHERE seq > 0 ORDER BY seq"
        ).fetchall()
    assert rows == [(1, lease.epoch), (2, taken.epoch), (3, taken.epoch)]
    assert one.verify(session) == ()


def test_a_lease_from_before_a_session_was_deleted_and_copied_in_again_is_stale(stores: Stores) -> None:
    paused = stores.new()
    session = paused.create().id
    paused.append(session, [user("mine")])
    late = paused.lease(session)
    other = stores.again(paused)
    lines, metadata = list(other.lines(session)), other.metadata(session)
    with stores.server.connect() as connection:
        table = f"{other.database.settings.schema}.session"
        connection.execute(f"UPDATE {table} SET lease_until = 'epoch'")
    other.delete(session)
    other.adopt(metadata, lambda: (one for one in lines if isinstance(one, RawLine)))
    with other.lease(session) as lease:
        assert lease.epoch > late.epoch
        with pytest.raises(ConflictError, match="is not held"):
            paused.append(session, [user("too late")], lease=late)
        other.append(session, [user("theirs")], lease=lease)
    assert other.verify(session) == ()


def test_a_release_that_comes_late_does_not_take_the_turn_from_another(stores: Stores) -> None:
    one = stores.new(lease_seconds=0.2)
    session = one.create().id
    lease = one.lease(session)
    other = stores.again(one, lease_seconds=15.0)
    with take_over(stores, other, session):
        lease.release()
        assert not can_take(one, session)


def test_a_forked_child_neither_renews_nor_gives_back_what_its_parent_holds(stores: Stores) -> None:
    store = stores.new(lease_seconds=10.0)
    session = store.create().id
    store.append(session, [user("parent")])
    lease = store.lease(session)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            held = lease.held
            lease.release()
            stored = store.append(session, [user("child")])
            code = 0 if not held and not can_take(store, session) and stored[0].seq == 2 else 2
            store.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    store.append(session, [user("parent again")], lease=lease)
    lease.release()
    assert [one.text for one in store.read(session)] == ["parent", "child", "parent again"]  # type: ignore[union-attr]


def test_runners_that_are_stopped_and_go_on_never_write_under_an_old_lease(stores: Stores, tmp_path: Path) -> None:
    """A small storm: three runners fight for one turn, and each is paused past its lease."""
    store = stores.new()
    session = store.create().id
    schema = store.database.settings.schema
    command = [sys.executable, "-m", "tests.stores.postgres.runner", stores.server.url, schema]
    told = [tmp_path / f"r{n}" for n in range(3)]  # files: a pipe that nobody reads fills up
    with ExitStack() as files:
        runners = [
            subprocess.Popen([*command, session, one.name, "4", "0.3"], stdout=files.enter_context(one.open("wb")))
            for one in told
        ]
    stops = 0
    while any(one.poll() is None for one in runners):
        alive = [one for one in runners if one.poll() is None]
        chosen = random.choice(alive)
        chosen.send_signal(signal.SIGSTOP)
        time.sleep(random.uniform(0, 0.5))
        chosen.send_signal(signal.SIGCONT)
        stops += 1
        time.sleep(0.05)
    acknowledged = [line.split() for one in told for line in one.read_text().splitlines()]
    assert all(one.returncode == 0 for one in runners)
    with stores.server.connect() as connection:
        rows = connection.execute(f"SELECT seq, epoch FROM {schema}.rec WHERE seq > 0 ORDER BY seq").fetchall()
    stored = {one.id: one.seq for one in store.read(session)}  # type: ignore[union-attr]
    epochs = dict(rows)
    assert stops > 5 and len(acknowledged) > 20 and len(set(epochs.values())) > 3
    assert [seq for seq, _ in rows] == list(range(1, len(rows) + 1))
    assert sorted(epochs.values()) == [epoch for _, epoch in rows]
    for name, seq, epoch in acknowledged:
        assert (stored[name], epochs[int(seq)]) == (int(seq), int(epoch))
    assert len(stored) == len(rows)
    assert store.verify(session) == ()
