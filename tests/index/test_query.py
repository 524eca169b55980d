"""Queries: whatever is typed means something, and finds that and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlog.index.search.fts5 import to_fts5
from everlog.index.search.query import MAX_TERMS, parse_query
from tests.index.search_tables import Table

TEXTS = (
    "The quick brown fox jumps over the lazy dog",  # 1
    "A dog and a fox met in the brown forest",  # 2
    "fn getUserName() returns the name of the user",  # 3
    "self.get_user_name = configure(settings)",  # 4
    "我喜欢在周末绘画",  # 5
    "周末我不喜欢工作",  # 6
    "A long conversation about configuration and happiness",  # 7
    "กินข้าวหรือยัง",  # 8
    "東京タワーへ行きました",  # 9
    "What does the manual say: AND, OR, NOT, NEAR(a b)",  # 10
    "오늘은 한국어를 배웁니다",  # 11
)
TABLE = Table(*TEXTS)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("fox", [1, 2]),
        ("FOX dogs", [1, 2]),
        ("fox lazy", [1]),
        ("the fox", [1, 2]),
        ("fox AND lazy", [1]),
        ("lazy OR forest", [1, 2]),
        ("lazy OR forest dog", [1, 2]),
        ("fox NOT lazy", [2]),
        ("fox -lazy", [2]),
        ("fox -(lazy OR forest)", []),
        ("dog -(lazy forest)", [1, 2]),
        ("(lazy OR forest) brown", [1, 2]),
        ('"brown fox"', [1]),
        ('"fox brown"', []),
        ("“brown fox”", [1]),
        ('dog -"brown fox"', [2]),
        ('"quick bro"*', [1]),
        ("conf*", [4, 7]),
        ("configu*", [4, 7]),
        ("conversat*", [7]),
        ("happin*", [7]),
        ("jum*", [1]),
        ("getUserName", [3, 4]),
        ("get_user_name", [3, 4]),
        ("username", []),
        ("user name", [3, 4]),
        ("喜欢", [5, 6]),
        ("不喜欢", [6]),
        ("喜欢 绘画", [5]),
        ("喜欢 -绘画", [6]),
        ("画", [5]),
        ("我喜欢在周末绘画", [5]),
        ('"周末绘画"', [5]),
        ("绘画*", [5]),
        ("ข้าว", [8]),
        ("ข้าง", []),
        ("タワー", [9]),
        ("ﾀﾜｰ", [9]),
        ("한국어", [11]),
    ],
)
def test_a_query_finds_what_it_says(query: str, found: list[int]) -> None:
    assert TABLE.matching(parse_query(query).match) == found


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('"brown fox', [1, 2]),
        ("fox AND", [1, 2]),
        ("OR fox", [1, 2]),
        ("fox NOT", [1, 2]),
        ("AND", [2, 7, 10]),
        ("NOT", [10]),
        ("-lazy", [1]),
        ("NOT lazy", []),
        ("((fox", [1, 2]),
        ("fox))) dog", [1, 2]),
        ("() fox", [1, 2]),
        ("fox OR -dog", [1, 2]),
        ("user:fox", []),
        ("NEAR(a b)", [10]),
        ("fox\x00dog", [1, 2]),
        ("fox\ud800dog", [1, 2]),
        ("fox 😀", [1, 2]),
        ("fox ^ + dog", [1, 2]),
        ("{user} : fox", []),
    ],
)
def test_what_makes_no_sense_is_searched_as_words(query: str, found: list[int]) -> None:
    assert TABLE.matching(parse_query(query).match) == found


def test_when_nothing_matches_any_of_the_words_may() -> None:
    parsed = parse_query("the fox and the conversation -dog")
    assert TABLE.matching(parsed.match) == []
    assert TABLE.matching(parsed.match_any) == [7]
    assert TABLE.matching(parse_query("xyz conversat*").match_any) == [7]


def test_a_piece_of_an_identifier_is_found_inside() -> None:
    assert TABLE.matching(parse_query("serNam").match_inside) == [3]
    assert TABLE.matching(parse_query("user_na").match_inside) == [4]
    assert parse_query("ab").match_inside is None


def test_runs_without_spaces_are_to_be_marked_as_typed() -> None:
    assert parse_query("fox ﾀﾜｰ iPhone手机 -画").highlights == ("ﾀﾜｰ", "手机")


@pytest.mark.parametrize("query", ["", " ", "()", '""', "* - +", "😀", "\x00", "\ud800", '"', "。、"])
def test_without_words_there_is_nothing_to_search_for(query: str) -> None:
    parsed = parse_query(query)
    assert (parsed.match, parsed.match_any, parsed.match_inside) == (None, None, None)


@pytest.mark.parametrize(
    "query",
    [
        "word " * 20_000,
        "(" * 100_000,
        "x" * 100_000,
        "-(" * 50_000 + "fox",
        "画" * 100_000,
        '"a" ' * 25_000,
        "a OR " * 20_000,
        "a NOT " * 20_000,
    ],
)
def test_an_endless_query_is_cut_and_still_valid(query: str) -> None:
    parsed = parse_query(query)
    for match in (parsed.match, parsed.match_any):
        TABLE.matching(match)
    assert parsed.match is None or to_fts5(parsed.match).count(" AND ") <= MAX_TERMS


PIECES = st.sampled_from(
    [
        "AND",
        "OR",
        "NOT",
        "NEAR",
        "(",
        ")",
        '"',
        "*",
        "-",
        ":",
        "^",
        "+",
        "{",
        "}",
        "user",
        "grams",
        ",",
        "\\",
        "'",
        "fox",
        "the",
        "getUserName",
        "x2y",
        "喜欢",
        "画",
        "한국",
        "ข้าว",
        "😀",
        "\x00",
        "\ud800",
        "é",
        "_",
        " ",
    ]
)


@given(st.text() | st.lists(PIECES, max_size=30).map(" ".join) | st.lists(PIECES, max_size=30).map("".join))
@example('"')
@example("a - - b")
@example("-NOT (")
@example("he:_")
def test_every_text_is_a_query(text: str) -> None:
    parsed = parse_query(text)
    assert parse_query(text) == parsed
    for match in (parsed.match, parsed.match_any, parsed.match_inside):
        TABLE.matching(match)
    assert (parsed.match is None) == (parsed.match_any is None)


@given(st.lists(st.sampled_from(" ".join(TEXTS[:2]).split()), min_size=1, max_size=5))
def test_a_piece_of_a_text_finds_it(words: list[str]) -> None:
    phrase = " ".join(words)
    own = [number for number, text in enumerate(TEXTS, 1) if f" {phrase} ".lower() in f" {text} ".lower()]
    assert set(own) <= set(TABLE.matching(parse_query(f'"{phrase}"').match))
    assert set(own) <= set(TABLE.matching(parse_query(phrase).match))
