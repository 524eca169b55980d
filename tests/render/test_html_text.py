"""Texts as HTML: what becomes of links, tags, control characters and long things."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from everlog.render import html_text, humanize

NOW = datetime(2026, 11, 16, 5, 33, 20, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "//evil", "a.html"]
)
def test_a_link_leads_to_the_web_or_a_mailbox_or_is_none(target: str) -> None:
    assert "<a " not in html_text.render_markdown(f"[x]({target}) <{target}>")
    kept = html_text.render_markdown("[x](https://example.org/a) <mailto:a@example.org>")
    assert kept.count('rel="noopener noreferrer nofollow"') == 2


def test_nothing_in_a_text_becomes_a_tag_or_a_style() -> None:
    text = "<script>x</script> ![p](https://e.org/p.png)\n\n| a |\n|--:|\n| <b> |\n\n# <i>h</i>"
    made = html_text.render_markdown(text)
    for piece in ("<script", "<img", "<b>", "<i>", "style="):
        assert piece not in made
    assert '<td class="right">' in made and '<h3 class="h1">' in made
    assert "<b>" not in html_text.highlight_code("<b>", "html") and "<b>" not in html_text.highlight_code("<b>", "?")


def test_what_only_a_terminal_understands_is_left_out() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07ok \x00\x85\ud800 a\r\nb\tc"
    assert html_text.make_readable(text) == "red ok ␀\ufffd\ufffd a\nb\tc"


def test_very_long_texts_are_neither_parsed_nor_coloured() -> None:
    assert html_text.render_markdown("*" * (html_text.MAX_MARKDOWN + 1)).startswith("<pre")
    assert "<span" not in html_text.highlight_code("1 " * html_text.MAX_HIGHLIGHT, "python")


def test_a_moment_is_relative_for_a_day_and_then_a_day_and_minute() -> None:
    assert humanize.ago_or_time("2026-11-16T05:30:00.000Z", NOW) == "3 min ago"
    assert humanize.ago_or_time("2026-11-14T05:30:00.000Z", NOW) == "14 Nov 05:30"
    assert humanize.ago_or_time("2025-02-01T05:30:00.000Z", NOW) == "1 Feb 2025 05:30"
    assert humanize.ago_or_time("nonsense", NOW) == ""


@pytest.mark.parametrize("sign", ["\u202e", "\u2066", "&#x202e;", "<http://a/%1b]52;c;eA%07>"])
def test_what_turns_the_direction_or_speaks_to_a_terminal_is_a_sign(sign: str) -> None:
    for made in (html_text.render_markdown(f"file {sign} txt.exe"), html_text.render_plain(f"file {sign} txt.exe")):
        assert not set(made) & {"\u202e", "\u2066", "\x1b", "\x07"}
