"""Markdown in pieces: cut where a block is complete, however the words come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everlog.cli.chat.markdown_stream import MAX_BLOCK_CHARS, BlockSplitter, Chunk

LINES = st.sampled_from(
    ["", "words", "# head", "- item", "1. item", "  more", "```", "````python", "~~~", "> said", "a|b"]
)
TEXTS = st.lists(LINES, max_size=20).map("\n".join)


def cut(*words: str) -> list[Chunk]:
    """What is given out for words that come one after the other."""
    blocks = BlockSplitter()
    made = [piece for word in words for piece in blocks.feed(word)]
    return [*made, *blocks.finish()]


def texts(*words: str) -> list[str]:
    return [piece.text for piece in cut(*words)]


def test_paragraphs_end_at_blank_lines_and_headings_at_once() -> None:
    assert texts("# A\none\ntwo\n\nthree") == ["# A", "one\ntwo", "three"]
    blocks = BlockSplitter()
    assert [one.text for one in blocks.feed("# A\n")] == ["# A"], "before anything follows"


def test_a_fence_is_whole_and_blank_lines_in_it_end_nothing() -> None:
    code = "````python\nx = 1\n\n```\n# no heading\n````"
    assert texts(f"before\n{code}\nafter") == ["before", code, "after"]


def test_a_list_goes_on_over_blank_lines_as_long_as_items_come() -> None:
    assert texts("- a\n\n  more of a\n- b\n\nafter") == ["- a\n\n  more of a\n- b\n", "after"]
    assert texts("1. a\n   ```\n   x\n   ```\n2. b\n") == ["1. a\n   ```\n   x\n   ```\n2. b"]


@given(TEXTS, st.data())
def test_it_does_not_matter_in_which_pieces_a_text_comes(text: str, data: st.DataObject) -> None:
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    words = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    assert cut(*words) == cut(text)


@given(TEXTS)
def test_nothing_but_blank_lines_is_lost(text: str) -> None:
    said = [line for line in text.split("\n") if line.strip()]
    given_out = "\n".join(texts(text)).split("\n")
    assert [line for line in given_out if line.strip()] == said


@given(TEXTS, st.integers(1, 200))
def test_the_tail_is_the_end_of_what_is_held_back(text: str, characters: int) -> None:
    blocks = BlockSplitter()
    done = "\n".join(piece.text for piece in blocks.feed(text))
    tail = blocks.tail(characters)
    assert text.endswith(tail)
    assert len(tail) + len(done) <= len(text) + 1


def test_what_has_no_end_is_given_out_as_it_is_and_not_held() -> None:
    word = "x" * 1_000
    blocks = BlockSplitter()
    given_out = 0
    for _ in range(1_000):
        for piece in blocks.feed(word):
            assert piece.is_plain
            given_out += len(piece.text)
        assert len(blocks.tail(10**9)) <= MAX_BLOCK_CHARS + len(word)
    assert given_out > 900_000
    last = [*blocks.feed("\nnext paragraph"), *blocks.finish()]
    assert last[0].text.endswith("x\n") or last[0].text == "\n"
    assert last[-1] == Chunk("next paragraph")


def test_a_fence_that_is_too_long_goes_on_as_it_is() -> None:
    code = "```\n" + "line of code\n" * 5_000 + "```\nafter\n"
    made = cut(code)
    assert "".join(piece.text for piece in made if piece.is_plain).startswith("```\nline of code")
    assert made[-1] == Chunk("after")
