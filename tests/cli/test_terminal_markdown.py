"""Markdown on a terminal: what it turns into is as harmless as what it was."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from everlog.cli.terminal_markdown import RenderedMarkdown, is_plain


def drawn(text: str, *, indent: int = 0, width: int = 40, color: bool = False) -> str:
    """What a terminal is sent for a text."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    console.print(RenderedMarkdown(text, indent=indent))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "<http://a/%1b]52;c;aGk=%1b%5c>",  # an address is decoded where it is shown
        "<http://a/%C2%9B31m>",
        "<http://a/%E2%80%AEtxt.exe>",
        "a &#x202e; b &#x2066; c",
        "over&#13;written",
        "| a |\n| - |\n| <http://a/%1b[2J> |",
        "# <http://a/%1b[31m>",
        "- <http://a/%1b[31m>",
        "> &#x202e;",
        "![&#x202e;](http://a/%1b)",
    ],
)
def test_what_becomes_a_character_by_being_parsed_is_harmless_too(text: str) -> None:
    assert not set(drawn(text)) & set("\x1b\x07\r\x9b\u202e\u2066")


def test_lines_have_a_margin_and_end_where_their_words_end() -> None:
    shown = drawn("# Head\n\nwords that go on for more than a line\n\n- one", indent=2, width=24)
    rows = shown.split("\n")
    assert rows[0] and rows[-2] == "   • one" and rows[-1] == "", "no blank lines around it"
    assert "  words that go on for" in rows
    assert all(row == row.rstrip() for row in rows)
    assert "" in rows[:-1], "paragraphs stand apart"


def test_the_ground_of_code_reaches_to_the_edge_where_there_are_colours() -> None:
    rows = [row for row in drawn("```python\nx = 1\n```", color=True).split("\n") if "x" in row]
    assert len(rows) == 1 and " \x1b[0m" in rows[0]
    assert drawn("```python\nx = 1\n```").strip() == "x = 1"


@pytest.mark.parametrize("text", ["plain words, one line.", "a - b + c = d", "ünïcödé 日本"])
def test_a_text_without_a_sign_is_plain(text: str) -> None:
    assert is_plain(text)
    assert drawn(text) == f"{text}\n"


@pytest.mark.parametrize("text", ["- item", "1. item", "a\nb", "**b**", "    code", "a &amp; b"])
def test_a_text_with_a_sign_is_not_taken_for_plain(text: str) -> None:
    assert not is_plain(text)
