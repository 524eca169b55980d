"""Every index finds what a tree says: a naive reading of the tree is the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everlog.index.search.fts5 import FullText
from everlog.index.search.query import Group, Node, parse_query
from everlog.index.search.search_index import FullTextIndex
from everlog.index.search.words import character_pairs
from everlog.model import user
from everlog.ports import Query
from everlog.stores.file.file_store import FileStore
from everlog.stores.postgres.postgres_store import PostgresStore
from tests.examples import examples
from tests.stores.postgres.open_stores import Stores, shared_server

AnyStore = TypeVar("AnyStore", FileStore, PostgresStore)

# No word has an ending, so that each is its own stem, and no one is inside an identifier.
TEXTS = (
    "fox dog cat",
    "dog fox, and the fox cat",
    "The brown FOX",
    "brown cat: fox-dog",
    "foxglove dogma",
    "fox 周末绘画",
    "我在周末 dog",
    "画",
    "café brown dog",
    "the and of",
    "-",
)
PIECES = st.sampled_from(
    ["fox", "dog", "cat", "brown", "the", "and", "Cafe", "fox*", "do*", "c*", '"fox dog"', '"the fox"', '"brown ca"*',
     "fox-dog", "周末", "末绘", "画", "dog周末", "AND", "OR", "OR", "NOT", "NOT", "-fox", "-周末", "(", ")", "-(", "zebra"]
)  # fmt: skip


def matches(node: Node, text: str) -> bool:
    """Whether a text is what a tree says, read word by word."""
    if isinstance(node, Group):
        parts = [matches(inner, text) for inner in node.nodes]
        return {"AND": all(parts), "OR": any(parts), "NOT": parts[0] and not parts[1]}[node.operator]
    if node.field:
        words = character_pairs("\n".join(re.findall(r"[\u4e00-\u9fff]+", text))).split()
        phrase = node.text.split()
    else:
        words, phrase = words_of(text), words_of(node.text)
    return any(
        words[start : start + len(phrase) - 1] == phrase[:-1]
        and (word.startswith(phrase[-1]) if node.is_prefix else word == phrase[-1])
        for start in range(len(words) - len(phrase) + 1)
        for word in [words[start + len(phrase) - 1]]
    )


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower().replace("é", "e"))


@pytest.fixture(scope="module", params=["file", "postgres"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullTextIndex]:
    if request.param == "postgres":
        with Stores(shared_server()) as stores:
            yield fill(stores.new()).passages
    else:
        with closing(FileStore(tmp_path_factory.mktemp("files"))) as store:
            yield FullText(fill(store)._catalogue.index.database)


def fill(store: AnyStore) -> AnyStore:
    store.append(store.create().id, [user(text) for text in TEXTS])
    store.catch_up()
    return store


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=8).map(" ".join))
def test_an_index_finds_what_a_tree_says(index: FullTextIndex, text: str) -> None:
    parsed = parse_query(text)
    for match in (parsed.match, parsed.match_any):
        if match is None:
            continue
        wanted = [number for number, text in enumerate(TEXTS, 1) if matches(match, text)]
        query = Query(text="")
        assert sorted(hit.seq for hit in index.find_best(match, query)) == wanted
        assert sorted(hit.seq for hit in index.find_per_session(match, query, 100)) == wanted
        assert index.count_matches(match) == len(wanted) == len(index.matching_rows(match))
        rows = sorted(index.matching_rows(match))
        assert sorted(index.filter_rows(rows[::2], match)) == rows[::2]
