"""The engine's full text finds what the index of files finds: the same examples, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everlog.index.search.query import Node, parse_query
from everlog.model import assistant, user
from everlog.ports import Query
from everlog.stores.postgres import passage_search
from everlog.stores.postgres.passage_search import PassageSearch
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.examples import examples
from tests.index import test_query as queries
from tests.stores.postgres.open_stores import Stores, shared_server
from tests.stores.postgres.server import Server


def _given(test: Any) -> list[tuple[str, list[int]]]:
    (mark,) = test.pytestmark
    return list(mark.args[1])


EXAMPLES = [
    *_given(queries.test_a_query_finds_what_it_says),
    *_given(queries.test_what_makes_no_sense_is_searched_as_words),
]


@pytest.fixture(scope="module")
def store() -> Iterator[PostgresStore]:
    with Stores(shared_server()) as stores:
        made = stores.new()
        session = made.create().id
        made.append(session, [user(text) for text in queries.TEXTS])
        made.catch_up()
        yield made


@pytest.fixture(scope="module")
def texts(store: PostgresStore) -> PassageSearch:
    return store.passages


def matching(texts: PassageSearch, match: Node | None) -> list[int]:
    hits = texts.find_best(match, Query(text="")) if match is not None else []
    return sorted(hit.seq for hit in hits)


@pytest.mark.parametrize(("query", "found"), EXAMPLES)
def test_a_query_finds_what_it_finds_in_files(texts: PassageSearch, query: str, found: list[int]) -> None:
    assert matching(texts, parse_query(query).match) == found


def test_when_nothing_matches_any_of_the_words_may(texts: PassageSearch) -> None:
    assert matching(texts, parse_query("the fox and the conversation -dog").match_any) == [7]
    assert matching(texts, parse_query("xyz conversat*").match_any) == [7]


def test_a_piece_of_an_identifier_is_found_inside(texts: PassageSearch) -> None:
    for piece, found in (("serNam", [3]), ("user_na", [4]), ("rNaX", [])):
        match = parse_query(piece).match_inside
        assert match is not None
        hits = texts.find_per_session(match, Query(text=""), 10)
        assert [hit.seq for hit in hits] == found


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text())
def test_every_text_can_be_asked_for_and_taken_in(texts: PassageSearch, text: str) -> None:
    parsed = parse_query(text)
    for match in (parsed.match, parsed.match_any):
        if match is None:
            continue
        matching(texts, match)
        texts.count_matches(match)
        texts.matching_rows(match)
    if parsed.match_inside is not None:
        texts.find_per_session(parsed.match_inside, Query(text=""), 5)
    passage_search.encode_document(text, text)


def test_long_strange_and_repetitive_messages_are_taken_in(stores: Stores) -> None:
    store = stores.new()
    session = store.create().id
    store.append(
        session,
        [
            user("needle " + "x" * 2_000_000),
            assistant(" ".join(f"w{n}" for n in range(300_000)) + " haystack"),
            user("same " * 300_000 + "end"),
            user("".join(map(chr, range(0x4E00, 0x9F00))) * 20),
            user("nul \0 here, and \ud800 half a character"),
        ],
    )
    assert store.catch_up() == 1
    for word, seq in (("needle", 1), ("w5", 2), ("same", 3), ("\u4e10\u4e11", 4), ("character", 5)):
        (found,) = store.search(Query(text=word)).results
        assert found.hits[0].seq == seq
        assert len(found.hits[0].snippet) < 400


def test_catching_up_twice_takes_nothing_in_and_two_processes_take_it_in_once(stores: Stores) -> None:
    store = stores.new()
    for number in range(5):
        session = store.create({"name": f"title {number}"}).id
        store.append(session, [user("apples"), assistant("pears")])
    other = stores.again(store)
    assert store.catch_up() == 5
    assert store.catch_up() == other.catch_up() == 0
    assert store.passages.count_passages() == 15
    store.delete(session)
    assert store.passages.count_passages() == 12
    assert other.search(Query(text="apples")).total == 4


def test_a_title_is_found_before_anything_was_said(stores: Stores) -> None:
    store = stores.new()
    session = store.create({"name": "About quinces"}).id
    (found,) = store.search(Query(text="quince")).results
    assert (found.session, found.hits[0].seq) == (session, 0)


@pytest.mark.parametrize("locale", ["LC_CTYPE 'C'", "LOCALE_PROVIDER builtin BUILTIN_LOCALE 'C'"])
def test_words_are_the_same_in_any_locale(server: Server, locale: str) -> None:
    with server.connect() as admin:
        admin.execute(f"CREATE DATABASE other ENCODING 'UTF8' LC_COLLATE 'C' {locale} TEMPLATE template0")
        try:
            store = PostgresStore(server.url.removesuffix("postgres") + "other")
            session = store.create().id
            store.append(session, [user(text) for text in queries.TEXTS])
            store.catch_up()
            for query, found in EXAMPLES:
                assert matching(store.passages, parse_query(query).match) == found, query
            assert matching(store.passages, parse_query("x*").match) == []
            store.close()
        finally:
            admin.execute("DROP DATABASE other WITH (FORCE)")
