"""One session that is odd, damaged or deleted just now takes nothing from the others."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from everlog.model import TURN_END, Event, Meta, Usage, assistant, user
from everlog.ports import Filter, Query
from everlog.settings import PostgresSettings, Settings
from everlog.stores.postgres import passage_search
from everlog.stores.postgres.id_columns import sid_of
from everlog.stores.postgres.metadata_rows import MAX_REFRESHED
from everlog.stores.postgres.postgres_store import PostgresStore
from everlog.stores.postgres.schema import split_statements
from everlog.stores.postgres.statements import FOLDER, in_schema
from tests.stores.postgres.open_stores import Stores
from tests.stores.postgres.test_metadata_rows import ask
from tests.stores.postgres.workers import PATIENCE, until

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def long(seed: int, size: int = 9_000) -> str:
    """A name that cannot be made shorter."""
    return "".join(random.Random(seed).choices(LETTERS, k=size))


def without_keeper(store: PostgresStore) -> PostgresStore:
    """A process whose rows stay behind, as those of one that was killed do."""
    store._background.refresh_row = None
    return store


def waiting(stores: Stores) -> int:
    """How many statements wait for a lock."""
    with stores.server.connect() as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def going_on(*verbs: Callable[[], Any]) -> Iterator[list[threading.Thread]]:
    """Threads that end inside, or fail."""
    threads = [threading.Thread(target=verb) for verb in verbs]
    yield threads
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


# --- deleted just now


def test_a_session_that_is_deleted_while_it_is_taken_in_is_not_found(stores: Stores) -> None:
    store = stores.new()
    other = stores.again(store)
    session, left = store.create().id, store.create().id
    store.append(session, [user("xylophone")])
    store.append(left, [user("harmless")])
    schema, sid = store.database.settings.schema, sid_of(session)
    with (
        stores.server.connect() as connection,
        going_on(other.catch_up) as (thread,),
        connection.transaction(force_rollback=True),
    ):
        connection.execute(f"INSERT INTO {schema}.taken (sid, seq) VALUES (%s, 0)", (sid,))
        thread.start()
        until(lambda: waiting(stores) == 1)  # it has read the session, and writes it now
        store.delete(session)
    assert store.search(Query(text="xylophone")).total == 0
    assert store.search(Query(text="harmless")).total == 1
    for table in ("passage", "taken", "pending"):
        rows = ask(stores, store, f"SELECT sid FROM everlog.{table} WHERE sid = %s", sid)
        assert rows == [], table
    assert store.passages.count_passages() == 1


def test_a_mark_that_goes_with_its_session_leaves_nothing_to_be_taken_in(stores: Stores) -> None:
    store = without_keeper(stores.new())
    other = stores.again(store)
    session = store.create().id
    store.append(session, [user("x")])
    other.list()  # the row is up to date, the mark stands
    schema = store.database.settings.schema
    with (
        stores.server.connect() as connection,
        going_on(lambda: store.delete(session), lambda: other._rows.refresh(session, unmark=True)) as (
            deleting,
            unmarking,
        ),
        connection.transaction(),
    ):
        connection.execute(f"SELECT 1 FROM {schema}.stripe FOR UPDATE")
        deleting.start()
        until(lambda: waiting(stores) == 1)
        unmarking.start()
        until(lambda: waiting(stores) == 2)
    assert ask(stores, store, "SELECT sid FROM everlog.pending") == []


# --- odd


def test_a_record_with_numbers_beyond_all_bounds_harms_nobody(stores: Stores) -> None:
    store = without_keeper(stores.new())
    session = store.create().id
    end = Event(kind=TURN_END, data={"cost": 10**400, "durationMs": 1e308, "toolCalls": 2**70})
    assert store.append(session, [user("x"), end, end])[-1].seq == 3
    store.append(session, [Meta(set={"chat": 10**400, "current": 2**70})])
    other = stores.again(store)
    assert other.metadata(session) == store.metadata(session)
    assert other.metadata(session).metrics.total_turns == 2
    assert [row.id for row in other.list()] == [session]
    assert other.search(Query(text="x")).total == 1
    assert sum(one.turns for one in other.usage().spent) == 2


def test_names_of_any_length_are_listed_counted_and_filtered(stores: Stores) -> None:
    store = stores.new()
    names = [long(1), long(1)[:-1] + "!", "字" * 240 + "é" * 10 + long(2)]
    for name in names:
        session = store.create({"agent": name, "sender": name, "source": name}).id
        spent = Usage(input_tokens=1, output_tokens=2)
        store.append(session, [assistant("hi", model=name, usage=spent)])
        for which in (Filter(agent=name), Filter(sender=name), Filter(source=name)):
            (row,) = store.list(which)
            assert (row.id, row.metadata.agent, row.metadata.message_count) == (session, name, 1)
    assert len({one.model for one in store.usage().spent}) == len(names)
    assert list(store.reports) == []


def test_two_models_that_a_column_cannot_tell_apart_are_counted_together(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    spent = Usage(input_tokens=1)
    store.append(session, [assistant("a", model="m\0", usage=spent)])
    store.append(session, [assistant("b", model="m\ufffd", usage=spent)])
    (row,) = store.usage().spent
    assert row.input_tokens == 2


def test_a_long_message_in_any_script_is_taken_in(stores: Stores) -> None:
    store = stores.new()
    chosen = random.Random(1)
    chars = [chr(chosen.randrange(0x4E00, 0x9FA0)) for _ in range(280_000)]
    chinese = "，".join("".join(chars[at : at + 14]) for at in range(0, len(chars), 14))
    greek = " ".join("".join(chosen.choices("αβγδεζηθικλμνξοπρστυφχψω", k=9)) for _ in range(40_000))
    mixed = "".join(f"{''.join(chosen.choices(LETTERS, k=3))}é" for _ in range(70_000))
    code = " ".join(f"get{long(n, 8)}Name_{long(-n, 8)}" for n in range(10_000))
    for text in (chinese, greek, mixed, code, "zebra"):
        store.append(store.create().id, [user(text)])
    assert store.catch_up() == 5
    assert list(store.reports) == []
    assert store.search(Query(text="zebra")).total == 1
    assert store.search(Query(text="".join(chars[:2]))).total == 1
    assert store.search(Query(text=greek[:9])).total == 1


def test_words_and_grams_share_the_room_of_an_entry() -> None:
    text = "字母" * 10
    assert passage_search.encode_document(text, "字母 母字") == f"{text} é é05b5706bcd é06bcd05b57"
    many = passage_search.encode_document("", " ".join(chr(0x4E00 + n) + chr(0x4E00 + n) for n in range(40_000)))
    assert 17 * len(many.split()) == pytest.approx(350_000, rel=0.01)


def test_a_schema_may_be_called_like_a_word_of_sql(stores: Stores) -> None:
    with stores.server.connect() as connection:
        connection.execute('DROP SCHEMA IF EXISTS "user" CASCADE')
    store = stores.open(Settings(postgres=PostgresSettings(schema="user")))
    session = store.create({"agent": "a"}).id
    store.append(session, [assistant("apples", model="m", usage=Usage(1, 2))])
    which = Filter(agent="a")
    assert store.list(which).total == store.search(Query(text="apples", criteria=which)).total == 1
    assert store.usage(which).spenders[0].session == session


# --- damaged


def test_a_row_in_which_somebody_wrote_nonsense_is_made_from_the_log(stores: Stores) -> None:
    store = stores.new()
    session, other, empty = (store.create({"name": name}).id for name in ("one", "two", "three"))
    store.append(session, [user("apples"), assistant("pears", model="m", usage=Usage(1, 2))])
    store.append(other, [user("plums")])
    store.close()
    for nonsense in (b"{}", b"\xff", b'{"id":"\xff"}'):
        ask(
            stores,
            store,
            "UPDATE everlog.listing SET metadata = %s WHERE sid = ANY(%s)",
            nonsense,
            [sid_of(session), sid_of(empty)],
        )
        again = stores.again(store)
        assert again.metadata(session).title == "one"
        assert again.usage().spent and again.disk_usage().sessions == 3
        assert again.search(Query(text="plums")).total == 1
        assert {row.id for row in again.list()} == {session, other, empty}
        assert any(session in one for one in again.reports)
        told = len(again.reports)
        assert {row.metadata.title for row in again.list()} >= {"one", "two"}
        assert len(again.reports) == told, "it was mended"
        assert again.append(session, [user("more")])[0].seq > 2
        again.close()


def test_such_a_row_is_also_mended_by_who_knows_the_session(stores: Stores) -> None:
    store = stores.new()
    session = store.create({"name": "one"}).id
    store.append(session, [user("x")])
    row = store.list()[0]
    ask(stores, store, "UPDATE everlog.listing SET metadata = ''")
    assert store.list()[0] == row
    assert stores.again(store)._rows.metadata(session) == row.metadata


def test_a_log_whose_last_record_is_missing_is_listed_and_searched(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(session, [user("a"), user("b"), user("c")])
    store.close()
    ask(stores, store, "DELETE FROM everlog.rec WHERE seq = 3")
    again = stores.again(store)
    assert again.catch_up() == 1
    assert again.search(Query(text="b")).total == 1
    again.repair(session)
    assert again.search(Query(text="b")).total == 1
    assert again.update(session, {"name": "still here"}).title == "still here"


def test_one_session_that_cannot_be_listed_does_not_hide_the_others(stores: Stores) -> None:
    store = without_keeper(stores.new())
    bad, good = store.create().id, store.create().id
    ask(stores, store, "ALTER TABLE everlog.spent ALTER COLUMN model TYPE varchar(20)")
    for session in (good, bad, good):
        spent = Usage(input_tokens=1)
        name = "m" * 30 if session == bad else "m"
        store.append(session, [assistant("x", model=name, usage=spent)])
    reader = stores.again(store)
    listed = {row.id: row.metadata.message_count for row in reader.list()}
    assert listed == {bad: 0, good: 2}
    (report,) = reader.reports
    assert bad in report and "too long" in report
    assert reader.usage().spent[0].input_tokens == 2
    ask(stores, store, "ALTER TABLE everlog.spent ALTER COLUMN model TYPE text")
    assert {row.metadata.message_count for row in reader.list()} == {1, 2}


def test_one_session_that_cannot_be_taken_in_does_not_hide_the_others(stores: Stores) -> None:
    store = stores.new()
    bad, good = store.create().id, store.create().id
    ask(stores, store, "ALTER TABLE everlog.passage ALTER COLUMN kind TYPE varchar(5)")
    store.append(bad, [assistant("apples")])
    store.append(good, [user("apples")])
    (found,) = store.search(Query(text="apples")).results
    assert found.session == good
    (report,) = store.reports
    assert bad in report and "too long" in report
    ask(stores, store, "ALTER TABLE everlog.passage ALTER COLUMN kind TYPE text")
    assert store.search(Query(text="apples")).total == 2


# --- many


def test_a_listing_brings_only_some_rows_up_to_date(stores: Stores) -> None:
    store = without_keeper(stores.new())
    made = [store.create().id for _ in range(MAX_REFRESHED + 20)]
    for session in made:
        store.append(session, [user("x")])
    reader = stores.again(store)
    for left in (20, 0):
        page = reader.list(limit=1000)
        behind = [row.id for row in page if not row.metadata.message_count]
        assert len(page) == len(made) and len(behind) == left
        assert set(behind) == set(made[:left]), "the last that went on come first"


def test_a_search_and_what_was_spent_see_all_of_them(stores: Stores) -> None:
    store = without_keeper(stores.new())
    for _ in range(MAX_REFRESHED + 5):
        store.append(store.create().id, [assistant("x", model="m", usage=Usage(1, 1))])
    assert sum(one.input_tokens for one in stores.again(store).usage().spent) == MAX_REFRESHED + 5
    assert stores.again(store).catch_up() == MAX_REFRESHED + 5


def test_of_what_was_spent_only_what_changed_is_written(stores: Stores) -> None:
    store = without_keeper(stores.new())
    session = store.create().id

    def spend(day: int) -> dict[str, Any]:
        stamp = f"2031-01-0{day}T00:00:00Z"
        said = assistant("x", model="m", usage=Usage(input_tokens=1), timestamp=stamp)
        store.append(session, [user("?", timestamp=stamp), said])
        store.list()
        rows = ask(stores, store, "SELECT day, xmin::text, input_tokens FROM everlog.spent")
        return {row[0]: row[1:] for row in rows}

    spend(1)
    before = spend(2)
    after = spend(2)
    assert before.keys() == after.keys() == {"2031-01-01", "2031-01-02"}
    assert after["2031-01-01"] == before["2031-01-01"]
    assert after["2031-01-02"][1] == 2


@pytest.mark.parametrize("limit", [1, 3, 4, 10])
def test_a_filtered_listing_tells_the_total_of_all_pages(stores: Stores, limit: int) -> None:
    store = stores.new()
    for number in range(6):
        store.create({"source": "cron" if number % 3 else "api"})
    seen: list[str] = []
    cursor = None
    while True:
        page = store.list(Filter(source="cron"), limit=limit, cursor=cursor)
        assert page.total == 4
        seen += [row.id for row in page]
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 4


def test_filters_have_an_index_each(stores: Stores) -> None:
    store = stores.new()
    store.create()
    schema = store.database.settings.schema
    with stores.server.connect() as connection:
        connection.execute("SET enable_seqscan = off; SET enable_sort = off")
        for column in ("agent", "sender", "source"):
            other = "agent = 'a' AND" if column == "sender" else ""
            plan = connection.execute(
                f"""EXPLAIN SELECT sid FROM {schema}.listing WHERE {other} {column} = 'x'
                ORDER BY active DESC, sid DESC LIMIT 50"""
            ).fetchall()
            assert any(f"listing_{column}" in row[0] for row in plan), plan


def test_older_tables_with_names_that_no_index_holds_are_migrated(stores: Stores) -> None:
    store = stores.new()
    schema = store.database.settings.schema
    files = sorted((FOLDER / "migrations").glob("000[12]*.sql"))
    with stores.server.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.version (version integer PRIMARY KEY)")
        connection.execute(f"INSERT INTO {schema}.version VALUES (1), (2)")
        for file in files:
            for one in split_statements(in_schema(file.read_text(encoding="utf-8"), schema)):
                connection.execute(one)
        connection.execute(
            f"""INSERT INTO {schema}.listing VALUES
            (gen_random_uuid(), 0, 0, 0, 1, false, 'a', 'b', %s, '', '{{}}')""",
            (long(1),),
        )
    with pytest.raises(Exception, match="everlog store migrate"):
        store.list()
    assert store.migrate()[0] == 2
    with pytest.raises(psycopg.errors.UndefinedObject), stores.server.connect() as connection:
        connection.execute(f"DROP INDEX {schema}.listing_pair")


@pytest.mark.parametrize("many", [1, 200])
def test_one_of_many_passages_that_no_index_takes_costs_its_own_session_alone(stores: Stores, many: int) -> None:
    store = stores.new()
    bad, good = store.create().id, store.create().id
    store.append(bad, [user("bad"), *(user(f"more {number}") for number in range(many - 1))])
    store.append(good, [user("good elephants")])
    schema = store.database.settings.schema
    with stores.server.connect() as admin:
        admin.execute(
            f"""CREATE FUNCTION {schema}.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.text = 'bad' THEN RAISE EXCEPTION 'too long' USING ERRCODE = '54000'; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER no BEFORE INSERT ON {schema}.passage
                FOR EACH ROW EXECUTE FUNCTION {schema}.no()"""
        )
    assert [one.session for one in store.search(Query(text="elephants")).results] == [good]
    assert any(bad in told and "too long" in told for told in store.reports)
