"""Search over a store: what is found, what is not any more, and what it costs to catch up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everlog
from everlog.app import open_store
from everlog.index.search.search_index import SearchIndex
from everlog.model import Compaction, Entry, Rewind, Tombstone
from everlog.ports import Query, SessionHit
from everlog.session import Store
from everlog.settings import SearchSettings, SessionSettings, Settings
from everlog.stores.file.file_store import FileStore
from tests.stores.postgres.open_stores import Stores, shared_server

SECRET = "ghp_" + "a1B2" * 9


@pytest.fixture(params=["file", "memory", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        with Stores(shared_server()) as stores:
            yield Store(stores.new())
        return
    where = tmp_path if request.param == "file" else "memory:"
    with open_store(where, create=True) as made:
        yield made


def found(store: Store, text: str, **how: object) -> list[str]:
    return [one.title for one in store.search(text, **how).results]  # type: ignore[arg-type]


def talk(store: Store, title: str, *texts: str, **facts: Any) -> everlog.Session:
    session = store.create(title=title, **facts)
    for number, text in enumerate(texts):
        session.append(everlog.assistant(text) if number % 2 else everlog.user(text))
    return session


def test_words_are_found_in_any_form_with_a_snippet_and_a_place_to_go_to(store: Store) -> None:
    session = talk(store, "One", "the login tests are failing again", "I will look at them")
    talk(store, "Two", "something else")
    (one,) = store.search("fail test").results
    assert isinstance(one, SessionHit)
    assert (one.session, one.title) == (session.id, "One")
    (hit,) = one.hits
    assert (hit.seq, hit.role) == (1, "user")
    assert hit.snippet == "the login «tests» are «failing» again"
    assert hit.timestamp


def test_what_was_said_is_found_at_once(store: Store) -> None:
    session = talk(store, "One", "apples")
    assert found(store, "pears") == []
    session.append(everlog.user("and pears"))
    assert found(store, "pears") == ["One"]
    session.rename("About quinces")
    assert found(store, "quinces") == ["About quinces"]
    session.rename("About plums")
    assert found(store, "quinces") == []


def test_what_was_deleted_is_not_found_and_what_is_restored_is(store: Store) -> None:
    session = talk(store, "One", "apples", "pears", "plums")
    assert found(store, "pears") == ["One"]
    session.tombstone(2)
    assert found(store, "pears") == []
    session.restore(2)
    assert found(store, "pears") == ["One"]
    session.rewind(1)
    assert found(store, "pears OR plums") == []
    assert found(store, "apples") == ["One"]
    session.delete()
    assert found(store, "apples") == []


def test_a_restored_message_that_was_rewound_stays_unfound(store: Store) -> None:
    session = talk(store, "One", "apples", "pears")
    session.append(Tombstone(deletes=(2,)))
    session.append(Rewind(to_seq=1))
    assert found(store, "pears") == []
    session.append(Tombstone(restores=(1, 2)))
    assert found(store, "pears") == [] and found(store, "apples") == ["One"]


def test_a_message_deleted_before_it_was_taken_in_is_never_found(store: Store) -> None:
    session = talk(store, "One", "apples", "pears")
    session.tombstone(1)
    assert found(store, "apples") == []
    assert found(store, "pears") == ["One"]


def test_what_a_summary_covers_is_still_found_and_the_summary_too(store: Store) -> None:
    session = talk(store, "One", "apples", "pears", "plums")
    session.append(Compaction(first_kept_seq=3, summary="They spoke of orchards."))
    assert found(store, "apples") == ["One"]
    (one,) = store.search("orchards").results
    assert [(hit.role, hit.seq) for hit in one.hits] == [("summary", 4)]


def test_what_tools_answered_is_found_only_if_that_is_set_and_no_secret(tmp_path: Path) -> None:
    for place, settings in (("a", None), ("b", Settings(search=SearchSettings(tool_output=True)))):
        with open_store(tmp_path / place, create=True, settings=settings) as store:
            session = store.create(title="One")
            session.append(everlog.assistant([everlog.ToolCall("c", "bash", {})]))
            session.append(everlog.tool_result("c", f"listing: kumquat {SECRET}"))
            assert found(store, "kumquat") == (["One"] if settings else [])
            assert found(store, SECRET) == []
            assert found(store, SECRET[:12] + "*") == []


def test_filters_narrow_it(store: Store) -> None:
    talk(store, "One", "apples", "apples too", agent="a", sender="x", source="cron")
    talk(store, "Two", "apples", agent="b", sender="y")
    assert found(store, "apples", agent="a") == ["One"]
    assert found(store, "apples", sender="y") == ["Two"]
    assert found(store, "apples", source="cron") == ["One"]
    assert found(store, "apples", title="tw") == ["Two"]
    assert found(store, "apples", role="assistant") == ["One"]
    assert found(store, "apples", since="2999-01-01") == []
    assert found(store, "apples", until="2000-01-01") == []
    assert set(found(store, "apples", since="2000-01-01", until="2999-01-01")) == {"One", "Two"}


def test_scripts_without_spaces_and_names_in_code_are_found(store: Store) -> None:
    talk(store, "Tokyo", "東京都に住んでいます")
    talk(store, "Code", "call getUserName(id) in src/app/user_service.py")
    assert found(store, "京都") == ["Tokyo"]
    assert found(store, "user name") == ["Code"]
    assert found(store, "user_service.py") == ["Code"]
    assert found(store, "serNam") == ["Code"]
    (one,) = store.search("東京").results
    assert "«東京»" in one.hits[0].snippet


@pytest.mark.parametrize(
    "text",
    ['"', "(", ")", "AND", "NOT", "a NOT", "*", "a*b", "NEAR(a b)", "user:x", "-", "'", "\0", "😀",
     "a AND (b OR", "{x}", "^a", "x" * 5000, "\ud800", ""],
)  # fmt: skip
def test_nonsense_is_searched_as_words(store: Store, text: str) -> None:
    talk(store, "One", "apples")
    store.search(text)
    assert found(store, "apples") == ["One"]


def test_the_best_come_first_and_a_limit_holds(store: Store) -> None:
    talk(store, "Other", "we spoke of apples, once, in a long message about many other things")
    talk(store, "Apples", "something", "else")
    session = talk(store, "Sum", "nothing")
    session.append(Compaction(first_kept_seq=1, summary="All about apples."))
    assert found(store, "apples")[-1] == "Other"
    assert len(found(store, "apples", limit=1)) == 1
    assert store.search("apples", limit=1).total == 3


def test_catching_up_twice_writes_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        for number in range(20):
            talk(store, f"{number}", "apples", "pears")
        told: list[tuple[int, int]] = []
        assert store.port.catch_up(lambda done, total: told.append((done, total))) == 20
        assert told[-1][0] == 20
        before = (tmp_path / "index.db").stat().st_mtime_ns
        assert store.port.catch_up() == 0
        assert (tmp_path / "index.db").stat().st_mtime_ns == before
    with open_store(tmp_path, create=True) as store:
        assert store.port.catch_up() == 0
        assert len(found(store, "pears", limit=50)) == 20


def test_an_index_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        talk(store, "One", "apples")
        assert found(store, "apples") == ["One"]
    for file in tmp_path.glob("index.db*"):
        file.unlink()
    with open_store(tmp_path, create=True) as store:
        assert found(store, "apples") == ["One"]


def test_a_message_finds_what_it_is_about(store: Store) -> None:
    talk(store, "Dog", "my dog Rex is ill since yesterday", "I am sorry to hear that")
    talk(store, "Car", "the car needs new tyres", "which ones?")
    own = talk(store, "Now", "how is my dog?")
    store.port.catch_up()
    query = Query(text="How is my dog doing today?", excluded_sessions=frozenset({own.id}), limit=5)
    (one,) = store.port.recall(query, 1_800_000_000_000).results
    assert one.title == "Dog"
    assert any("my «dog» Rex" in hit.snippet for hit in one.hits)


def test_a_session_that_says_it_once_is_found_beside_those_that_say_it_always(store: Store) -> None:
    talk(store, "Needle", f"{'a long answer about other things ' * 20} question")
    for title in ("One", "Two"):
        store.create(title=title).append_many(everlog.user(f"question {n}") for n in range(2_100))
    every = store.search("question")
    assert ([one.title for one in every.results][-1], every.total) == ("Needle", 3)
    assert sorted(one.title for one in every.results) == ["Needle", "One", "Two"]
    assert [len(one.hits) for one in every.results] == [3, 3, 1]
    assert found(store, "question", role="user", title="needle") == ["Needle"]


def test_a_part_of_a_name_is_found_beside_those_that_have_it_always(store: Store) -> None:
    talk(store, "Needle", "call getUserName(id)")
    store.create(title="One").append_many(everlog.user(f"getUserName{n}") for n in range(2_100))
    assert sorted(found(store, "serNam")) == ["Needle", "One"]


def test_more_passages_than_are_scored_at_once_are_all_looked_at(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True, settings=Settings(session=SessionSettings(durability="os"))) as store:
        for title in "abc":
            texts = (f"apples {'and pears ' * (n != 6_800)}" for n in range(6_900))
            store.create(title=title).append_many(map(everlog.user, texts))
        best = store.search("apples")
        assert [one.title for one in best.results] == ["c", "b", "a"]
        # The shortest is the best, then the newest.
        assert {tuple(hit.seq for hit in one.hits) for one in best.results} == {(6_801, 6_900, 6_899)}
        assert store.search("apples", role="user", agent="main").total == 3


def test_a_search_goes_on_where_it_ended(store: Store) -> None:
    for number in range(7):
        talk(store, f"{number}", f"apples {'and pears ' * number}")
    every = found(store, "apples", limit=7)
    assert every == list("0123456")
    pages = [store.search("apples", limit=3, offset=offset) for offset in (0, 3, 6, 9)]
    assert [[one.title for one in page.results] for page in pages] == [
        every[:3], every[3:6], every[6:], []
    ]  # fmt: skip
    assert {page.total for page in pages} == {7}


def test_what_was_found_is_told_from_the_marks_that_a_text_has_itself(store: Store) -> None:
    talk(store, "One", "il dit «bonjour» au »zebra« rayé")
    talk(store, "Two", "das «readUserFile» da")
    (one,) = store.search("zebra").results
    assert one.hits[0].fragments == [
        ("il dit «bonjour» au »", False), ("zebra", True), ("« rayé", False)
    ]  # fmt: skip
    assert one.hits[0].snippet == "il dit «bonjour» au »«zebra»« rayé"
    (one,) = store.search("serFil").results
    assert one.hits[0].fragments == [("das «readU", False), ("serFil", True), ("e» da", False)]


def test_a_title_that_is_given_while_a_session_is_taken_in_is_found() -> None:
    with Stores(shared_server()) as stores:
        port = stores.new()
        store, other = Store(port), Store(stores.again(port))
        session = talk(store, "One", "apples")

        def read(name: str, after: int) -> Iterator[Entry]:
            if other.session(name).metadata.title == "One":
                other.session(name).rename("About quinces")  # just before it is read
            return port.read(name, after=after)

        known = port.passages, lambda _: None, read, port.reports.append
        assert SearchIndex(*known, include_tools=False).catch_up() == 1
        assert found(store, "quinces") == ["About quinces"]
        assert found(store, "One") == []
        assert session.metadata.title == "About quinces"


def test_only_what_has_gone_on_is_looked_at_to_be_taken_in(tmp_path: Path) -> None:
    with open_store(tmp_path, create=True) as store:
        port = store.port
        assert isinstance(port, FileStore)

        def ahead() -> list[str]:
            with port._catalogue.index.database.read_cursor() as cursor:
                return [str(row[0]) for row in cursor.execute("SELECT session FROM ahead")]

        first, second = talk(store, "One", "apples"), talk(store, "Two", "pears")
        store.list()
        assert sorted(ahead()) == sorted([first.id, second.id])
        assert found(store, "apples") == ["One"] and ahead() == []
        second.append(everlog.user("and apples"))
        assert sorted(found(store, "apples")) == ["One", "Two"] and ahead() == []
        first.append(everlog.user("more"))
        first.delete()
        second.rename("Three")
        store.list()
        assert ahead() == [second.id]
        assert found(store, "Three") == ["Three"] and ahead() == []


def test_a_tombstone_may_restore_what_is_still_to_come(store: Store) -> None:
    session = talk(store, "One", "zebra")
    session.append_many([Tombstone(restores=(3,)), everlog.user("another zebra")])
    talk(store, "Two", "zebra")
    (one, two) = sorted(store.search("zebra").results, key=lambda result: result.title)
    assert [hit.seq for hit in one.hits] == [1, 3] and len(two.hits) == 1
    session.append_many([Tombstone(deletes=(3,)), Tombstone(restores=(3, 8))])
    assert store.search("another").total == 1
    session.append_many([everlog.user("a"), everlog.user("b"), everlog.user("later zebra")])
    assert store.search("later").total == 1


def test_what_is_to_be_left_out_is_found_by_no_fallback(store: Store) -> None:
    talk(store, "Fruit", "apple banana6")
    for query in ("banana6 NOT apple", "banana6 -apple", "anana6 -apple"):
        assert found(store, query) == [], query
    assert found(store, "anana6") == ["Fruit"]


def test_what_an_index_writes_for_itself_cannot_be_asked_for(store: Store) -> None:
    for text in ("日本語 text", "getUserName here", "great job 👍 team", "the end", "plain"):
        talk(store, text, text)
    for query in ("x*", "x0*", "x0x", "the0", "the0*", "x065e5*", "é*", "the é"):
        assert found(store, query) in ([], ["the end"]), query
    for query in ("x*", "x0*", "x0x", "the0", "x065e5*"):
        assert found(store, query) == [], query
    talk(store, "other", "xylophones and the0 and x0x")
    for query in ("x*", "xyl*", "xylophone", "x0*", "x0x", "the0", "the0*"):
        assert found(store, query) == ["other"], query
    for query, title in (("日本", "日本語 text"), ("本", "日本語 text"), ('"the end"', "the end")):
        assert found(store, query) == [title], query
