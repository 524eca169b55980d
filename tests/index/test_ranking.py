"""Ranking: what a message asks for, and the order of what was found."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.index.search.fts5 import to_fts5
from everlog.index.search.query import Phrase, join_nodes
from everlog.index.search.ranking import (
    RECALL_WEIGHTS,
    WEIGHTS,
    PassageHit,
    Question,
    choose_terms,
    parse_question,
    rank_recall,
    rank_sessions,
)
from tests.index.search_tables import Table


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOW = ms("2026-07-16T12:00")
NOTHING = Question((), ())


def asked_for(message: str) -> list[str]:
    return [to_fts5(term) for term in parse_question(message, NOW).terms]


def hit(row: int, session: str, score: float, *, seq: int = 1, time: int = 0) -> PassageHit:
    return PassageHit(row, session, seq, time, score)


# --- weights


def test_weights_are_in_the_order_that_was_promised() -> None:
    order = [WEIGHTS[name] for name in ("summary", "title", "user", "assistant", "tool")]
    assert order == sorted(order, reverse=True) and len(set(order)) == len(order)
    assert list(RECALL_WEIGHTS) == list(WEIGHTS)


# --- a message as a question


def test_a_message_asks_with_its_telling_words() -> None:
    assert asked_for("When did Caroline go to the pottery class?") == ['"Caroline"', '"go"', '"pottery"', '"class"']


def test_all_of_a_message_counts_and_what_is_said_often_first() -> None:
    message = " ".join(f"word{number}x" for number in range(100)) + " zebra zebra"
    terms = asked_for(message)
    assert terms[0] == '"zebra"'
    assert len(terms) == 32


def test_a_message_without_telling_words_asks_nothing() -> None:
    assert parse_question("What is it that you do?", NOW) == NOTHING
    assert parse_question("", NOW) == NOTHING


def test_scripts_without_spaces_ask_with_each_pair() -> None:
    assert asked_for("我喜欢画") == ['grams : "我喜"', 'grams : "喜欢"', 'grams : "欢画"']


@pytest.mark.parametrize(
    ("message", "spans"),
    [
        ("on May 3, 2023", [("2023-05-03", "2023-05-04")]),
        ("on 3 May, 2023", [("2023-05-03", "2023-05-04")]),
        ("the 1st of June 2023", [("2023-06-01", "2023-06-02")]),
        ("on 2023-05-03", [("2023-05-03", "2023-05-04")]),
        ("in August 2023", [("2023-08-01", "2023-09-01")]),
        ("in December 2023", [("2023-12-01", "2024-01-01")]),
        ("in 2023", [("2023-01-01", "2024-01-01")]),
        ("in August 7, 2023", [("2023-08-07", "2023-08-08")]),
        ("in July", [("2026-07-01", "2026-08-01"), ("2025-07-01", "2025-08-01")]),
        ("in December", [("2025-12-01", "2026-01-01")]),
        ("yesterday", [("2026-07-15", "2026-07-16")]),
        ("two days ago", [("2026-07-14", "2026-07-15")]),
        ("last week", [("2026-07-06", "2026-07-13")]),
        ("five weeks ago", [("2026-06-08", "2026-06-15")]),
        ("since 2023-05-03", [("2023-05-03", "2023-05-04")]),
        ("tomorrow, next week or in two days", []),
        ("on 31 June 2023", []),
        ("may I march on?", []),
        ("999 months ago", [("1944-06-11", "1944-07-11")]),
        ("version 2023", []),
    ],
)
def test_times_are_understood(message: str, spans: list[tuple[str, str]]) -> None:
    found = parse_question(f"What happened {message}", NOW).spans
    assert found == tuple((ms(start), ms(end)) for start, end in spans)


def test_a_date_is_no_word_to_look_for() -> None:
    assert parse_question("the flood on 7 July, 2023", NOW).terms == (Phrase("flood"),)


@given(st.text(), st.integers())
def test_any_message_is_a_question_that_the_index_understands(message: str, now: int) -> None:
    table = Table("a text")
    question = parse_question(message, now)
    assert question == parse_question(message, now)
    for term in question.terms:
        table.matching(term)
    table.matching(join_nodes("OR", question.terms))


# --- which words


def test_the_rarest_words_are_chosen_as_far_as_the_budget_goes() -> None:
    counts = {"common": 900, "rare": 2, "none": 0, "middle": 50}
    assert choose_terms(counts, 1000) == ("rare", "middle", "common")
    assert choose_terms(counts, 100) == ("rare", "middle")
    assert choose_terms(counts, 1) == ("rare",)
    assert choose_terms({"none": 0}) == ()


# --- in which order


def test_sessions_are_ordered_by_their_best_two_passages() -> None:
    hits = [
        hit(1, "one", -5.0),
        hit(2, "two", -4.0),
        hit(3, "two", -3.0, seq=2),
        *(hit(10 + number, "many", -1.0, seq=number) for number in range(20)),
    ]
    found = rank_sessions(hits, per_session=2)
    assert [one.session for one in found] == ["two", "one", "many"]
    assert [one.row for one in found[0].hits] == [2, 3]
    assert found[0].score == 1.0
    assert len(found[2].hits) == 2
    assert [one.session for one in rank_sessions(hits)][:1] == ["two"]
    assert len(rank_sessions([hit(row, f"{row}", -1.0) for row in range(3_000)])) == 3_000


def test_of_equal_sessions_the_newest_is_first() -> None:
    hits = [hit(1, "old", -2.0, time=1), hit(2, "new", -2.0, time=3), hit(3, "mid", -2.0, time=2)]
    assert [one.session for one in rank_sessions(hits)] == ["new", "mid", "old"]
    places = {"word": [1, 2, 3]}
    assert [one.session for one in rank_recall(NOTHING, hits, places, 100)] == ["new", "mid", "old"]


def test_of_equal_passages_the_newest_is_first() -> None:
    hits = [hit(1, "one", -2.0, time=1), hit(2, "one", -2.0, time=3, seq=2)]
    assert [one.row for one in rank_sessions(hits)[0].hits] == [2, 1]


def test_a_question_may_be_covered_by_an_exchange() -> None:
    hits = [
        hit(1, "spread", -2.0, seq=1),
        hit(2, "spread", -2.0, seq=2),
        hit(3, "apart", -2.0, seq=1, time=9),
        hit(4, "apart", -2.0, seq=50, time=9),
    ]
    places = {"a": [1, 3], "b": [2, 4]}
    assert [one.session for one in rank_recall(NOTHING, hits, places, 100)] == ["spread", "apart"]


def test_what_was_said_at_the_time_asked_for_goes_first_and_soon_after_next() -> None:
    then = ms("2023-05-03T12:00")
    day = timedelta(days=1) // timedelta(milliseconds=1)
    hits = [
        hit(1, "long after", -3.0, time=then + 90 * day),
        hit(2, "before", -2.9, time=then - 2 * day),
        hit(3, "soon after", -2.0, time=then + 3 * day),
        hit(4, "then", -2.0, time=then),
    ]
    question = parse_question("What did we decide on 3 May 2023?", NOW)
    order = [one.session for one in rank_recall(question, hits, {"x": [1, 2, 3, 4]}, 100)]
    assert order == ["then", "soon after", "long after", "before"]


def test_nothing_found_is_no_session() -> None:
    assert rank_sessions([]) == []
    assert rank_recall(NOTHING, [], {}, 0) == []


HITS = st.lists(
    st.builds(
        PassageHit,
        row=st.integers(0, 1000),
        session=st.sampled_from("abcdefg"),
        seq=st.integers(0, 30),
        time=st.integers(0, 10),
        score=st.sampled_from([-3.0, -2.0, -1.0, -1e-6, 0.0]) | st.floats(-50, 0),
    ),
    unique_by=(lambda one: one.row, lambda one: (one.session, one.seq)),
)
PLACES = st.dictionaries(st.sampled_from("xyz"), st.lists(st.integers(0, 1000)))


@given(HITS, PLACES, st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_order_of_what_came_in(
    hits: list[PassageHit], places: dict[str, list[int]], chance: random.Random
) -> None:
    shuffled = list(hits)
    chance.shuffle(shuffled)
    assert rank_sessions(shuffled) == rank_sessions(hits)
    found = rank_recall(NOTHING, hits, places, 2000)
    assert rank_recall(NOTHING, shuffled, places, 2000) == found
    assert {one.session for one in found} == {one.session for one in hits}
    assert all(0 <= one.score <= 1 for one in found)
