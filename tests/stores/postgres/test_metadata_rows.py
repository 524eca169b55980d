"""What is derived: behind the log it may be, but nobody who asks sees that."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from everlog.errors import FormatError, InvalidIdError, NotFoundError
from everlog.model import Damaged, Event, Meta, Tombstone, assistant, user
from everlog.ports import Filter, Query
from everlog.settings import SessionSettings, Settings
from everlog.stores.postgres.id_columns import sid_of
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.workers import until


def ask(stores: Stores, store: PostgresStore, statement: str, *values: object) -> list[Any]:
    schema = store.database.settings.schema
    with stores.server.connect() as connection:
        done = connection.execute(statement.replace("everlog.", f"{schema}."), values or None)
        return done.fetchall() if done.description else []


def test_a_row_follows_its_session_without_anybody_asking(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user("x", timestamp="2031-01-01T00:00:00Z")])
    assert ask(stores, store, "SELECT seq FROM everlog.listing") == [(0,)]
    until(lambda: ask(stores, store, "SELECT seq FROM everlog.listing") == [(1,)])
    store.append(session, [Event(kind="turn_end")])
    store.close()
    assert ask(stores, store, "SELECT seq FROM everlog.listing") == [(2,)]
    assert ask(stores, store, "SELECT * FROM everlog.mark") == []
    assert ask(stores, store, "SELECT marked FROM everlog.session") == [(False,)]


def test_a_process_that_was_killed_leaves_a_mark_by_which_its_records_are_listed(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    child = os.fork()
    if child == 0:
        store.append(session, [user("said and killed", timestamp="2031-01-01T00:00:00Z")])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert ask(stores, store, "SELECT seq FROM everlog.listing") == [(0,)]
    (row,) = store.list(Filter(since="2030-01-01"))
    assert row.metadata.message_count == 1
    assert ask(stores, store, "SELECT seq FROM everlog.listing") == [(1,)]


def test_a_mark_that_another_took_away_is_put_again_by_the_next_append(stores: Stores) -> None:
    one = stores.new()
    session = one.create().id
    one.append(session, [user("a")])
    other = stores.again(one)
    ask(stores, one, "UPDATE everlog.mark SET at = 'epoch'")
    other.list()
    assert ask(stores, one, "SELECT * FROM everlog.mark") == []
    assert one.append(session, [user("b")])[0].seq == 2
    assert len(ask(stores, one, "SELECT * FROM everlog.mark")) == 1
    assert other.list()[0].metadata.message_count == 2


def test_a_record_that_claims_a_name_claims_it_whoever_appends_it(stores: Stores) -> None:
    store = stores.new()
    one, two = store.create().id, store.create({"aliases": ["agent:a"]}).id
    claim = Meta(set={"aliases": ["agent:a"], "generations": {"agent:a": 7}})
    store.append(one, [user("x"), claim])
    assert stores.again(store).resolve("agent:a") == one
    store.append(one, [Meta(set={"sender": "tg:1"})])
    chats = store.chats("main\0tg:1")
    assert chats is not None and chats.current == one
    assert store.resolve(two[:25], prefix=True) in (one, two)


def test_names_may_be_long_and_strange(stores: Stores) -> None:
    store = stores.new()
    for agent in (
        "a" * 100_000,
        "\x00",
        "ü\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        "'; --",
    ):
        session = store.create({"agent": agent, "sender": agent, "name": f"{agent[:50]}\x00"}).id
        assert store.metadata(session).agent == agent
        assert [row.id for row in store.list(Filter(agent=agent))] == [session]
        chats = store.chats(f"{agent}\0{agent}")
        assert chats is not None and chats.highest == 1
    key = "k" * 500
    assert store.create({"key": key}, unless_held=True).id == store.resolve(key)


def test_the_number_of_sessions_is_kept_and_not_counted(stores: Stores) -> None:
    store = stores.new()
    made = [store.create({"agent": f"{n}"}).id for n in range(5)]
    store.fork(made[0])
    store.delete(made[1])
    assert store.list().total == 5
    assert store.list(Filter(agent="0")).total == 2
    with pytest.raises(FormatError):
        store.list(cursor="5-nothing")


def test_ids_that_no_ulid_can_have_are_not_found(stores: Stores) -> None:
    store = stores.new()
    with pytest.raises(NotFoundError):
        store.metadata("Z" * 26)
    with pytest.raises(NotFoundError):
        store.resolve("ZZZZZZ")
    with pytest.raises(InvalidIdError):
        list(store.read("x"))


def test_verify_finds_what_is_wrong_and_reading_goes_on_around_it(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user(str(n)) for n in range(1, 7)])
    sid = sid_of(session)
    ask(stores, store, "UPDATE everlog.rec SET body = body || 'x' WHERE sid = %s AND seq = 2", sid)
    ask(stores, store, "DELETE FROM everlog.rec WHERE sid = %s AND seq = 4", sid)
    ask(stores, store, "UPDATE everlog.rec SET epoch = 9 WHERE sid = %s AND seq = 5", sid)
    entries = list(store.read(session))
    assert [one.seq for one in entries] == [1, 2, 3, 5, 6]
    damaged = entries[1]
    assert isinstance(damaged, Damaged)
    assert damaged.file == "session.jsonl" and damaged.end - damaged.start > 50
    problems = [one.problem for one in store.verify(session)]
    assert len(problems) == 4
    assert "records 4 to 4 are missing" in problems
    assert any("epoch" in one for one in problems)
    assert any("bytes, not" in one for one in problems)
    assert store.append(session, [user("7")])[0].seq == 7
    done = store.repair(session)
    assert any("recounted" in one for one in done)
    assert len(store.verify(session)) == 3
    assert store.metadata(session).message_count == 5
    assert store.append(session, [user("8")])[0].seq == 8


def test_everything_derived_can_be_made_again(stores: Stores) -> None:
    store = stores.new(Settings(session=SessionSettings(part_bytes=1000)))
    session = store.create({"key": "sk_v1_a", "name": "T", "model": "m"}).id
    store.append(session, [user("x" * 300), assistant("y" * 300), Tombstone(deletes=(1,))])
    store.update(session, {"aliases": ["agent:x"]})
    before = (store.metadata(session), store.parts(session))
    for table in ("part", "claim", "spent"):
        ask(stores, store, f"DELETE FROM everlog.{table}")
    ask(stores, store, "UPDATE everlog.session SET bytes = 7, part_bytes = 7, marker = 0")
    again = stores.again(store)
    again.repair(session)
    assert (again.metadata(session), again.parts(session)) == before
    assert again.resolve("agent:x") == again.resolve("sk_v1_a") == session
    assert again.verify(session) == ()


def test_a_deletion_that_was_broken_off_is_gone_at_once_and_removed_later(stores: Stores) -> None:
    store = stores.new()
    session, other = store.create().id, store.create().id
    for one in (session, other):
        store.append(one, [user("apples")])
    store.search(Query(text="apples"))
    ask(stores, store, "UPDATE everlog.session SET deleted_at = now() WHERE sid = %s", sid_of(session))
    for verb in (store.metadata, store.parts, store.lease, store.verify, store.resolve, store.fork):
        with pytest.raises(NotFoundError):
            verb(session)
    with pytest.raises(NotFoundError):
        store.append(session, [user("more")])
    store.catch_up()
    assert ask(stores, store, "SELECT count(*) FROM everlog.rec") == [(2,)]
    assert ask(stores, store, "SELECT count(*) FROM everlog.session") == [(1,)]


def test_a_fork_of_the_beginning_and_of_a_fork_are_whole(stores: Stores) -> None:
    store = stores.new(Settings(session=SessionSettings(part_bytes=1000)))
    session = store.create({"name": "T"}).id
    store.append(session, [user(f"{n} {'x' * 200}") for n in range(8)])
    for at in (0, 1, 5, 8):
        fork = store.fork(session, at)
        assert [one.seq for one in store.read(fork.id)] == list(range(1, at + 2))
        assert store.verify(fork.id) == ()
        assert store.metadata(store.fork(fork.id).id).forked_from == {"id": fork.id, "seq": at + 1}


def test_reading_costs_what_is_read_and_ends_where_it_began(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    for start in range(0, 3000, 500):
        store.append(session, [user(f"{start + n}") for n in range(1, 501)])
    read, tail = store.read(session), store.tail(session)
    store.append(session, [user("later")])
    assert [one.seq for one in read] == list(range(1, 3001))
    assert [one.seq for one in tail] == list(range(3000, 0, -1))
    assert [one.seq for one in store.read(session, after=2998)] == [2999, 3000, 3001]
    assert [one.seq for one in store.read(session, after=5, limit=700)] == list(range(6, 706))


# --- what waits to be taken in


def test_what_is_taken_in_already_does_not_wait_to_be_when_its_mark_goes(stores: Stores) -> None:
    store = stores.new()
    for number in range(3):
        store.append(store.create().id, [user(f"word {number}")])
    assert store.catch_up() == 3
    store.close()  # marks go
    assert ask(stores, store, "SELECT * FROM everlog.mark") == []
    assert ask(stores, store, "SELECT * FROM everlog.pending") == []


def test_what_came_after_it_was_taken_in_waits_and_is_found(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user("first")])
    store.catch_up()
    store.append(session, [user("second")])
    store.close()
    assert ask(stores, store, "SELECT seq FROM everlog.pending") == [(2,)]
    assert store.search(Query(text="second")).total == 1
    assert ask(stores, store, "SELECT * FROM everlog.pending") == []


def test_what_an_older_version_left_waiting_goes_with_the_next_taking_in(stores: Stores) -> None:
    store = stores.new()
    done, open_ = store.create().id, store.create().id
    for one in (done, open_):
        store.append(one, [user("word")])
    store.catch_up()
    store.close()
    ask(stores, store, "INSERT INTO everlog.pending (sid, seq) VALUES (%s, 1)", sid_of(done))
    # As if another process had just appended to it, and taken its mark away.
    ask(stores, store, "INSERT INTO everlog.pending (sid, seq) VALUES (%s, 2)", sid_of(open_))
    store._rows.delete_indexed_pending()
    assert ask(stores, store, "SELECT sid, seq FROM everlog.pending") == [(sid_of(open_), 2)]


def test_a_mark_that_goes_while_its_session_is_taken_in_loses_nothing(stores: Stores) -> None:
    """One appends and takes marks away, another takes in; in the end all is found, none waits."""
    one = stores.new()
    session = one.create().id
    other = stores.again(one)
    done = threading.Event()
    wrong: list[BaseException] = []

    def take_in() -> None:
        try:
            while not done.is_set():
                other.catch_up()
        except BaseException as error:
            wrong.append(error)

    taking = threading.Thread(target=take_in)
    taking.start()
    try:
        for number in range(40):
            one.append(session, [user(f"word{number}")])
            one._rows.refresh(session, unmark=True)
    finally:
        done.set()
        taking.join()
    assert not wrong
    one.close()
    fresh = stores.again(one)
    fresh.catch_up()
    assert ask(stores, one, "SELECT seq FROM everlog.taken") == [(40,)]
    assert ask(stores, one, "SELECT count(*) FROM everlog.passage") == [(40,)]
    fresh.catch_up()
    assert ask(stores, one, "SELECT * FROM everlog.pending") == []


def test_a_cursor_with_an_id_that_none_can_have_is_no_cursor(stores: Stores) -> None:
    store = stores.new()
    store.create()
    for cursor in ("1-" + "8" + "Z" * 25, "1-" + "Z" * 26):
        with pytest.raises(FormatError, match="not a cursor"):
            store.list(cursor=cursor)
