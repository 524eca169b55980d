"""MEMORY.md: pointers, what people wrote around them, and the cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.memory import index_file
from everlog.memory.index_file import (
    append_pointers,
    format_pointer,
    is_within_limits,
    parse_pointers,
    remove_lines,
    replace_line,
    truncate,
)

HAND = "# Memory\n\nRead this first.\n\n- [A](a.md) — about a\n- [B](b.md)\n\nThe end.\n"


def test_a_pointer_is_one_line() -> None:
    assert format_pointer("Tabs", "tabs.md", "likes tabs") == "- [Tabs](tabs.md) — likes tabs"
    assert format_pointer("Tabs", "tabs.md", "") == "- [Tabs](tabs.md)"
    assert "\n" not in format_pointer("a\nb", "x.md", "c\nd")


def test_pointers_are_found_among_other_lines() -> None:
    text = HAND + "- [web](https://x.test/y.md)\n- no pointer\n* [C](sub/c.md) - by hand\n"
    assert [one.file for one in parse_pointers(text)] == ["a.md", "b.md", "sub/c.md"]


@given(st.text(min_size=1), st.text())
def test_every_pointer_that_is_written_is_found_again(name: str, about: str) -> None:
    found = parse_pointers(format_pointer(name, "x.md", about) + "\n")
    assert [one.file for one in found] == ["x.md"]


def test_new_pointers_go_below_the_last_one_and_nothing_else_moves() -> None:
    assert append_pointers(HAND, ["- [C](c.md)"]) == HAND.replace("- [B](b.md)\n", "- [B](b.md)\n- [C](c.md)\n")
    assert append_pointers("", ["- [C](c.md)"]) == "- [C](c.md)\n"
    assert append_pointers("mine", ["- [C](c.md)"]) == "mine\n\n- [C](c.md)\n"
    assert append_pointers("- [B](b.md)", ["- [C](c.md)"]) == "- [B](b.md)\n- [C](c.md)\n"


def test_lines_are_taken_out_by_number_and_replaced_only_as_we_wrote_them() -> None:
    assert remove_lines(HAND, {5}) == HAND.replace("- [B](b.md)\n", "")
    assert replace_line(HAND, "- [B](b.md)", "- [B](b.md) — new") == HAND.replace("- [B](b.md)", "- [B](b.md) — new")
    assert replace_line(HAND, "- [A](a.md) — as we wrote it", "x") == HAND


# --- the cut --------------------------------------------------------------------------------


def test_up_to_200_lines_and_25000_bytes_nothing_is_cut() -> None:
    text = "- line\n" * 200
    assert truncate(text) == text
    assert truncate("x" * 25_000) == "x" * 25_000


def test_lines_beyond_200_are_cut_and_counted() -> None:
    shown = truncate("- line\n" * 300)
    assert shown == "- line\n" * 199 + ("- line\n\n<!-- MEMORY.md truncated: 300 total lines, showing 200 -->")


def test_bytes_beyond_25000_are_cut_on_the_boundary_of_a_line() -> None:
    text = ("字" * 100 + "\n") * 150  # 301 bytes each
    shown = truncate(text)
    kept, _, notice = shown.rpartition("\n\n")
    assert notice == f"<!-- MEMORY.md truncated: 150 total lines, showing {25_001 // 301} -->"
    assert kept == "\n".join(["字" * 100] * (25_001 // 301))


@pytest.mark.parametrize("extra", [-1, 0, 1, 2])
def test_wide_characters_at_the_limit_are_never_cut_in_half(extra: int) -> None:
    text = "a" * (25_000 - 3 + extra) + "字"
    shown = truncate(text)
    if extra <= 0:
        assert shown == text
    else:
        assert shown.startswith("a" * (25_000 - 3 + extra) + "\n\n<!-- ")


@given(st.lists(st.text(max_size=400), max_size=260), st.booleans())
def test_whatever_is_shown_is_whole_lines_from_the_beginning_within_the_limits(rows: list[str], ended: bool) -> None:
    rows = [row.replace("\n", " ").replace("\r", " ") for row in rows]
    text = "\n".join(rows) + ("\n" if ended else "")
    shown = truncate(text)
    if shown == text:
        assert len(text.encode(errors="replace")) <= 25_000
        return
    kept, _, notice = shown.rpartition("\n\n")
    assert notice.startswith("<!-- MEMORY.md truncated: ")
    assert text.startswith(kept) and kept.count("\n") < 200
    assert len(kept.encode(errors="replace")) <= 25_000


def test_an_index_fits_below_200_lines() -> None:
    assert is_within_limits("- line\n" * 199) and not is_within_limits("- line\n" * 200)
    assert not is_within_limits("x" * (index_file.MAX_BYTES + 1))
