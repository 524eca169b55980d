"""Appends on a real server: dense, exactly once, whatever happens to the connection."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from everlog.errors import ConflictError, FormatError, StoreFailedError
from everlog.model import Event, Meta, Tombstone, assistant, user
from everlog.ports import Store
from everlog.settings import PostgresSettings, SessionSettings, Settings
from everlog.stores.file.file_store import FileStore
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.proxy import Proxy
from tests.stores.postgres.server import USER, Server

TIME = 1_790_000_000_000


def texts(store: Store, session: str) -> list[str]:
    return [one.text for one in store.read(session) if hasattr(one, "text")]


def seqs(store: Store, session: str) -> list[int | None]:
    return [one.seq for one in store.read(session)]


def test_processes_that_append_to_one_session_share_one_dense_numbering(stores: Stores) -> None:
    first = stores.new()
    session = first.create().id
    many = [first, *(stores.again(first, pool_size=4) for _ in range(3))]
    problems: list[BaseException] = []

    def write(store: PostgresStore, name: str) -> None:
        try:
            for number in range(20):
                store.append(session, [user(f"{name} {number}")])
        except BaseException as error:
            problems.append(error)

    threads = [
        threading.Thread(target=write, args=(store, f"{place}.{thread}"))
        for place, store in enumerate(many)
        for thread in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert seqs(first, session) == list(range(1, 321))
    found = texts(first, session)
    for name in {text.split()[0] for text in found}:
        assert [one for one in found if one.split()[0] == name] == [f"{name} {n}" for n in range(20)]
    assert first.verify(session) == ()


def test_connections_that_are_killed_during_appends_cost_nothing_and_double_nothing(stores: Stores) -> None:
    store = stores.new(pool_size=4)
    session = store.create().id
    acknowledged: list[str] = []
    done = threading.Event()

    def write(name: str) -> None:
        for number in count():
            if number >= 60 and killed > 5:
                return
            record = user(f"{name} {number}", id=f"{name}-{number}")
            while True:
                try:
                    store.append(session, [record])
                    break
                except StoreFailedError:
                    continue  # as a caller would, with the same id
            acknowledged.append(record.id)

    killed = 0
    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    with stores.server.connect() as other:

        def kill() -> None:
            nonlocal killed
            while not done.is_set():
                rows = other.execute(
                    """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE application_name = 'everlog' AND query LIKE %s""",
                    (f'%"{store.database.settings.schema}".rec%',),
                ).fetchall()
                killed += len(rows)
                done.wait(0.02)

        killing = threading.Thread(target=kill)
        killing.start()
        for thread in threads:
            thread.join()
        done.set()
        killing.join()
    found = texts(store, session)
    assert sorted(found) == sorted(one.replace("-", " ") for one in acknowledged)
    assert seqs(store, session) == list(range(1, len(acknowledged) + 1))


@pytest.mark.parametrize("given", ["", "mine"])
def test_an_append_whose_answer_is_lost_is_found_and_not_stored_again(stores: Stores, given: str) -> None:
    server = stores.server
    with Proxy(server.port) as proxy:
        settings = Settings(postgres=PostgresSettings(schema="lost", pool_size=2))
        store = PostgresStore(f"postgresql://{USER}@127.0.0.1:{proxy.port}/postgres", settings)
        try:
            session = store.create().id
            store.append(session, [user("one")])
            proxy.swallow(b"two words")
            stored = store.append(session, [user("two words", id=given), Event(kind="x")])
            assert proxy.swallowed.is_set()
            assert [one.seq for one in stored] == [2, 3]
            assert texts(store, session) == ["one", "two words"]
            assert store.append(session, [user("three")])[0].seq == 4
            assert store.verify(session) == ()
        finally:
            store.close()
            with server.connect() as connection:
                connection.execute("DROP SCHEMA lost CASCADE")


def test_a_session_whose_answer_is_lost_is_made_once(stores: Stores) -> None:
    server = stores.server
    with Proxy(server.port) as proxy:
        settings = Settings(postgres=PostgresSettings(schema="made", pool_size=2))
        store = PostgresStore(f"postgresql://{USER}@127.0.0.1:{proxy.port}/postgres", settings)
        try:
            store.list()
            for _ in range(2):
                proxy.swallow(b"COMMIT")
                store.create({"key": "sk_v1_a"})
                assert proxy.swallowed.is_set()
            assert store.list().total == 2
            proxy.swallow(b"COMMIT")
            store.update(store.resolve("sk_v1_a"), {"aliases": ["agent:x"]})
            assert proxy.swallowed.is_set()
            assert store.resolve("agent:x") == store.resolve("sk_v1_a")
            assert store.metadata(store.resolve("agent:x")).through.seq == 1
        finally:
            store.close()
            with server.connect() as connection:
                connection.execute("DROP SCHEMA made CASCADE")


def test_a_warning_beside_a_commit_is_no_acknowledgement() -> None:
    """A standby must have it, none is there, and somebody ends the waiting."""
    with Server() as server, Stores(server) as stores, server.connect() as other:
        store = stores.new()
        session = store.create().id
        problems: list[StoreFailedError] = []

        def write() -> None:
            for number in count():  # the server takes a moment to notice what it is told
                try:
                    store.append(session, [user(f"{number}", id=f"{number}")])
                except StoreFailedError as error:
                    problems.append(error)
                    return

        thread = threading.Thread(target=write)
        other.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        other.execute("SELECT pg_reload_conf()")
        try:
            thread.start()
            while thread.is_alive():
                other.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                thread.join(0.02)
        finally:
            other.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
            other.execute("SELECT pg_reload_conf()")
        assert "warning" in problems[0].message
        last = len(texts(store, session)) - 1
        (stored,) = store.append(session, [user(f"{last}", id=f"{last}")])
        assert stored.seq == last + 1
        assert texts(store, session) == [str(number) for number in range(last + 1)]


def test_an_id_twice_in_one_call_is_two_records_and_a_retry_of_it_none(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    batch = [user("a", id="x"), user("a", id="x"), user("b", id="y")]
    assert [one.seq for one in store.append(session, batch)] == [1, 2, 3]
    store.append(session, batch)
    assert len(seqs(store, session)) == 3


def test_the_bytes_and_the_parts_are_those_of_files(stores: Stores, tmp_path: Path) -> None:
    settings = Settings(session=SessionSettings(part_bytes=1500))
    files, ours = FileStore(tmp_path, settings), stores.new(settings)
    lines, parts = [], []
    for store in (files, ours):
        session = store.create({"name": "T", "model": "m"}, at=TIME).id
        records = [
            (assistant if n % 2 else user)(f"{n} {'x' * (n * 37 % 400)}", id=f"{n}", timestamp=f"{n}")
            for n in range(40)
        ]
        store.append(session, records[:25])
        for one in records[25:]:
            store.append(session, [one])
        store.append(session, [Tombstone(deletes=(3,), timestamp="t"), user("y" * 4000, id="z", timestamp="t")])
        store.append(session, [Meta(set={"name": "U"}, timestamp="t")])
        lines.append([one.line for one in store.read(session, after=-1)])  # type: ignore[union-attr]
        parts.append(store.parts(session))
    assert lines[0] == lines[1]
    assert parts[0] == parts[1]
    assert len(parts[0]) > 5
    files.close()


def test_a_guard_and_an_expect_hold_against_other_processes(stores: Stores) -> None:
    one = stores.new()
    session = one.create().id
    one.append(session, [user("a"), user("b")])
    other = stores.again(one)
    other.append(session, [Tombstone(deletes=(1,))])
    with pytest.raises(ConflictError, match="was changed by record 3, after 2"):
        one.append(session, [user("c")], no_marker_after=2)
    other.append(session, [user("d")])
    with pytest.raises(ConflictError, match="is at seq 4, not 3"):
        one.append(session, [user("c")], expected_seq=3)
    assert one.append(session, [user("c")], expected_seq=4, no_marker_after=3)[0].seq == 5


def test_a_newer_everlog_makes_a_session_read_only(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user("a")])
    with stores.server.connect() as connection:
        connection.execute(f"UPDATE {store.database.settings.schema}.session SET newest = 2")
    with pytest.raises(FormatError, match="newer everlog"):
        store.append(session, [user("b")])
    assert texts(store, session) == ["a"]
