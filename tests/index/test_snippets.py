"""Snippets: cut around what was found, the same for every store."""

from __future__ import annotations

import pytest

from everlog.index.search.fts5 import make_snippets
from everlog.index.search.passages import PassageText
from everlog.index.search.query import parse_query
from everlog.index.search.snippets import make_hit

MANY = [chr(ord("a") + number) * 2 for number in range(26)]


def snippet(text: str, query: str) -> str:
    parsed = parse_query(query)
    assert parsed.match is not None
    marked = make_snippets(["something else", text], parsed.match).get(1, "")
    return make_hit(1, PassageText("user", 0, marked, text), parsed.highlights).snippet


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("the cat sat", "the «cat» sat"),
        ("(cat)", "(«cat»)"),
        ("Cats, and a CAT", "«Cats», and a «CAT»"),
        (" ".join([*MANY, "cat", *MANY]), f"…{' '.join(MANY[15:])} «cat» {' '.join(MANY[:12])}…"),
        (f"{'x' * 500} cat {'y' * 500} d", f"…{'x' * 150} «cat» {'y' * 150}…"),
        (f"{'x' * 500} cat {'y' * 149} cat", f"…{'x' * 150} «cat» {'y' * 149} …"),
        ("nothing here", "nothing here"),
        ("nothing here " * 10, ("nothing here " * 10)[:80] + "…"),
    ],
)
def test_a_snippet_is_cut_around_what_was_found(text: str, piece: str) -> None:
    assert snippet(text, "cat") == piece


def test_a_snippet_shows_as_many_of_the_words_as_it_can() -> None:
    text = " ".join(["cat", *MANY, "dog", "cat"])
    assert snippet(text, "cat dog") == f"…{' '.join(MANY[4:])} «dog» «cat»"


def test_only_what_was_asked_for_is_marked() -> None:
    assert snippet("a brown dog, a brown fox", '"brown fox"') == "a brown dog, a «brown fox»"
    assert snippet("a brown fox", "fox -red") == "a brown «fox»"
    assert snippet("configure it", "conf*") == "«configure» it"


def test_a_run_without_spaces_is_marked_as_typed() -> None:
    assert snippet("我喜欢在周末绘画", "喜欢") == "我«喜欢»在周末绘画"


def test_a_match_far_into_a_long_text_has_its_snippet() -> None:
    before, after = "filler " * 20_000, "more " * 20_000
    piece = snippet(f"{before}the cat sat {after}", "cat")
    assert piece.startswith("…") and piece.endswith("…") and "the «cat» sat more" in piece


def test_terms_that_are_far_apart_in_a_long_text_are_shown_around_the_first() -> None:
    assert "«cat»" in snippet(f"cat {'filler ' * 20_000} dog", "cat dog")


def test_a_word_repeated_three_hundred_thousand_times_has_a_snippet_at_once() -> None:
    """Compared with each other, so many matches would take hours."""
    assert snippet("cat " * 300_000, "cat") == " ".join(["«cat»"] * 24) + "…"
