"""Markdown on a terminal.

What Markdown turns into is made safe here, whatever its text was before: a reference such as
`&#x202e;` and an address in angle brackets become characters only when they are parsed. A link
shows where it leads and is no link, HTML is text, and no line ends in spaces that nobody sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import copy
from functools import cache
from typing import TYPE_CHECKING

from rich.markdown import Markdown
from rich.segment import Segment

from everlog.cli import output

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console, ConsoleOptions, RenderResult

_SIGN = re.compile(r"[\n*_`#\[\]|<>~\\&!]|^\s*([-+=]|\d+[.)])|^\s{4}")


class Formatted:
    """A text for a console, without blank lines before and after it."""

    def __init__(self, text: str, *, indent: int = 0) -> None:
        self._text = text
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        made = copy(_empty())
        made.markup, made.parsed = self._text, _parser().parse(self._text)
        room = max(options.max_width - self._indent, 1)
        margin = Segment(" " * self._indent)
        is_coloured = console.color_system is not None
        blank = begun = False
        for line in _lines(console.render(made, options.update_width(room))):
            _trim(line, is_coloured)
            if not line:
                blank = begun
                continue
            if blank:
                yield Segment.line()
            blank, begun = False, True
            yield margin
            yield from line
            yield Segment.line()


def is_plain(text: str) -> bool:
    """Whether a text surely reads the same as Markdown and as it is: one line without a sign."""
    return _SIGN.search(text) is None


def _lines(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """What is drawn, line by line, with nothing in it that a terminal would obey."""
    line: list[Segment] = []
    for text, style, _ in segments:
        first, *others = output.safe(text).split("\n")
        if first:
            line.append(Segment(first, style))
        for other in others:
            yield line
            line = [Segment(other, style)] if other else []
    if line:
        yield line


def _trim(line: list[Segment], is_coloured: bool) -> None:
    """Take the spaces from the end of a line, unless they have a colour."""
    while line:
        text, style, _ = line[-1]
        if is_coloured and style is not None and style.bgcolor is not None:
            return
        kept = text.rstrip(" ")
        if kept:
            line[-1] = Segment(kept, style)
            return
        line.pop()


@cache
def _empty() -> Markdown:
    """What every text is drawn with; making one makes a parser too, which takes its time."""
    return Markdown("", hyperlinks=False)


@cache
def _parser() -> MarkdownIt:
    """One that takes HTML for text; rich's own takes it for HTML, and leaves it out."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
