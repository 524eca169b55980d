"""Markdown rendered for a terminal.

The rendered text is made safe here even if the source was safe: a reference such as `&#x202e;` or
an address in angle brackets becomes characters only when it is parsed. A link is shown as text with
its target, HTML is shown as text, and lines have no trailing spaces.
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

_MARKUP = re.compile(r"[\n*_`#\[\]|<>~\\&!]|^\s*([-+=]|\d+[.)])|^\s{4}")


class RenderedMarkdown:
    """A Markdown text for a rich console, without blank lines before and after it."""

    def __init__(self, text: str, *, indent: int = 0) -> None:
        self._text = text
        self._indent = indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        markdown = copy(_template())
        markdown.markup, markdown.parsed = self._text, _parser().parse(self._text)
        width = max(options.max_width - self._indent, 1)
        margin = Segment(" " * self._indent)
        is_coloured = console.color_system is not None
        blank_pending = has_output = False
        for line in _lines(console.render(markdown, options.update_width(width))):
            _trim(line, is_coloured)
            if not line:
                blank_pending = has_output
                continue
            if blank_pending:
                yield Segment.line()
            blank_pending, has_output = False, True
            yield margin
            yield from line
            yield Segment.line()


def is_plain(text: str) -> bool:
    """Return whether a text is certain to render unchanged: one line without markup characters."""
    return _MARKUP.search(text) is None


def _lines(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Yield the rendered lines, without terminal control characters."""
    line: list[Segment] = []
    for text, style, _ in segments:
        first, *following = output.safe(text).split("\n")
        if first:
            line.append(Segment(first, style))
        for next_text in following:
            yield line
            line = [Segment(next_text, style)] if next_text else []
    if line:
        yield line


def _trim(line: list[Segment], is_coloured: bool) -> None:
    """Remove trailing spaces from a line, unless they have a background colour."""
    while line:
        text, style, _ = line[-1]
        if is_coloured and style is not None and style.bgcolor is not None:
            return
        stripped = text.rstrip(" ")
        if stripped:
            line[-1] = Segment(stripped, style)
            return
        line.pop()


@cache
def _template() -> Markdown:
    """Return the object that is copied for every text; creating one also creates a slow parser."""
    return Markdown("", hyperlinks=False)


@cache
def _parser() -> MarkdownIt:
    """Return a parser that treats HTML as text; rich's default parser drops it."""
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
