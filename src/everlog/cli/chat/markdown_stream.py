"""Markdown that comes in pieces, cut where what is complete can be rendered on its own.

A paragraph ends at a blank line, a heading at its own end, a fence where it is closed, and a list
where a line comes that is neither an item nor indented. Cost follows the text: no line is looked
at twice, and what has no end in sight is given out as it is, in large pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 20_000  # characters that are held back; rendering Markdown costs more than it is worth

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_ITEM = re.compile(r"[ \t]*([-*+]|[0-9]{1,9}[.)])(\s|$)")


class Piece(NamedTuple):
    """Something that is complete."""

    text: str
    is_plain: bool = False  # too long to be looked at as Markdown


class Blocks:
    """The text of one message, block by block."""

    def __init__(self) -> None:
        self._lines: list[str] = []  # of the block that has not ended
        self._held = 0  # characters in them
        self._rest: list[str] = []  # of the line that has not ended
        self._rest_held = 0
        self._fence = ""  # that is open
        self._is_list = False
        self._after_blank = False  # a list that may have ended
        self._is_cut = False  # the beginning of the block was given out
        self._is_line_cut = False  # that of the line

    def feed(self, text: str) -> Iterator[Piece]:
        """Take in some text; what has become complete by it."""
        first, *others = text.split("\n")
        self._take(first)
        for other in others:
            line = self._line()
            self._take(other)
            yield from self._end_line(line)
        if self._rest_held > LONGEST:
            if self._lines:
                yield self._give_out()
            self._is_line_cut = True
            yield Piece(self._line(), is_plain=True)

    def finish(self) -> Iterator[Piece]:
        """The message has ended; what is left of it."""
        line = self._line()
        if line or self._is_line_cut:
            yield from self._end_line(line)
        yield from self._end_block()

    def tail(self, characters: int) -> str:
        """The last of what is not complete."""
        kept: list[str] = []
        for piece in reversed(self._rest):
            kept.append(piece)
            characters -= len(piece)
            if characters <= 0:
                break
        lines = ["".join(reversed(kept))]
        for line in reversed(self._lines):
            if characters <= 0:
                break
            lines.append(line)
            characters -= len(line) + 1
        return "\n".join(reversed(lines))

    def _take(self, text: str) -> None:
        self._rest.append(text)
        self._rest_held += len(text)

    def _line(self) -> str:
        """The line that was held back, which is no longer."""
        line = "".join(self._rest)
        self._rest, self._rest_held = [], 0
        return line

    def _end_line(self, line: str) -> Iterator[Piece]:
        if self._is_line_cut:
            self._is_line_cut = False
            yield Piece(f"{line}\n", is_plain=True)
            return
        fence = _FENCE.match(line)
        if self._fence:
            self._keep(line)
            if fence and fence[1].startswith(self._fence) and not line.strip(" \t`~"):
                self._fence = ""
                if not self._is_list:
                    yield from self._end_block()
        elif not line.strip():
            if self._is_list:
                self._keep(line)
                self._after_blank = True
            else:
                yield from self._end_block()
        else:
            yield from self._go_on(line, fence[1] if fence else "")
        if self._held > LONGEST:
            yield self._give_out()

    def _go_on(self, line: str, fence: str) -> Iterator[Piece]:
        """A line that says something, outside of a fence."""
        is_item = _ITEM.match(line)
        if self._after_blank and not is_item and not line.startswith(("  ", "\t")):
            yield from self._end_block()
        self._after_blank = False
        is_heading = not fence and not self._is_list and _HEADING.match(line)
        if is_heading or (fence and not self._is_list):
            yield from self._end_block()
        self._fence = fence
        self._is_list = self._is_list or (not self._lines and not fence and bool(is_item))
        self._keep(line)
        if is_heading:
            yield from self._end_block()

    def _keep(self, line: str) -> None:
        self._lines.append(line)
        self._held += len(line) + 1

    def _end_block(self) -> Iterator[Piece]:
        text, is_cut = "\n".join(self._lines), self._is_cut
        self._lines, self._held = [], 0
        self._fence = ""
        self._is_list = self._after_blank = self._is_cut = False
        if text.strip():
            yield Piece(f"{text}\n", is_plain=True) if is_cut else Piece(text)

    def _give_out(self) -> Piece:
        """Lines of a block that is too long, as they are; what follows of it comes likewise."""
        text = "\n".join([*self._lines, ""])
        self._lines, self._held = [], 0
        self._is_cut = True
        return Piece(text, is_plain=True)
