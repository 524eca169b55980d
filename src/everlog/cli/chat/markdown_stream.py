"""Streamed Markdown, split into blocks that can be rendered on their own.

A paragraph ends at a blank line, a heading at its own end, a fence where it is closed, and a list
before a line that is neither an item nor indented. The cost is linear: no line is read twice, and a
very long block is passed on unformatted, in large chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_BLOCK_CHARS = 20_000  # a longer block is not worth the cost of rendering it as Markdown

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}\s")
_ITEM = re.compile(r"[ \t]*([-*+]|[0-9]{1,9}[.)])(\s|$)")


class Chunk(NamedTuple):
    """A complete block, or part of a very long one."""

    text: str
    is_plain: bool = False  # too long to be rendered as Markdown


class BlockSplitter:
    """Splits the streamed text of one message into blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []  # of the incomplete block
        self._size = 0  # characters in them
        self._partial_line: list[str] = []  # fragments of the incomplete line
        self._partial_size = 0
        self._fence = ""  # the open fence
        self._is_list = False
        self._after_blank = False  # the list may have ended
        self._is_cut = False  # the beginning of the block was already passed on
        self._is_line_cut = False  # the beginning of the line was already passed on

    def feed(self, text: str) -> Iterator[Chunk]:
        """Add text, and yield the blocks that it completes."""
        first, *more = text.split("\n")
        self._extend_line(first)
        for next_text in more:
            line = self._pop_line()
            self._extend_line(next_text)
            yield from self._end_line(line)
        if self._partial_size > MAX_BLOCK_CHARS:
            if self._lines:
                yield self._flush_long_block()
            self._is_line_cut = True
            yield Chunk(self._pop_line(), is_plain=True)

    def finish(self) -> Iterator[Chunk]:
        """End the message, and yield the remainder."""
        line = self._pop_line()
        if line or self._is_line_cut:
            yield from self._end_line(line)
        yield from self._end_block()

    def tail(self, characters: int) -> str:
        """Return the end of the incomplete block, about this many characters."""
        chunks: list[str] = []
        for chunk in reversed(self._partial_line):
            chunks.append(chunk)
            characters -= len(chunk)
            if characters <= 0:
                break
        lines = ["".join(reversed(chunks))]
        for line in reversed(self._lines):
            if characters <= 0:
                break
            lines.append(line)
            characters -= len(line) + 1
        return "\n".join(reversed(lines))

    def _extend_line(self, text: str) -> None:
        self._partial_line.append(text)
        self._partial_size += len(text)

    def _pop_line(self) -> str:
        """Remove and return the incomplete line."""
        line = "".join(self._partial_line)
        self._partial_line, self._partial_size = [], 0
        return line

    def _end_line(self, line: str) -> Iterator[Chunk]:
        if self._is_line_cut:
            self._is_line_cut = False
            yield Chunk(f"{line}\n", is_plain=True)
            return
        fence = _FENCE.match(line)
        if self._fence:
            self._append_line(line)
            if fence and fence[1].startswith(self._fence) and not line.strip(" \t`~"):
                self._fence = ""
                if not self._is_list:
                    yield from self._end_block()
        elif not line.strip():
            if self._is_list:
                self._append_line(line)
                self._after_blank = True
            else:
                yield from self._end_block()
        else:
            yield from self._add_text_line(line, fence[1] if fence else "")
        if self._size > MAX_BLOCK_CHARS:
            yield self._flush_long_block()

    def _add_text_line(self, line: str, fence: str) -> Iterator[Chunk]:
        """Add a line that is not blank and not inside a fence."""
        is_item = _ITEM.match(line)
        if self._after_blank and not is_item and not line.startswith(("  ", "\t")):
            yield from self._end_block()
        self._after_blank = False
        is_heading = not fence and not self._is_list and _HEADING.match(line)
        if is_heading or (fence and not self._is_list):
            yield from self._end_block()
        self._fence = fence
        self._is_list = self._is_list or (not self._lines and not fence and bool(is_item))
        self._append_line(line)
        if is_heading:
            yield from self._end_block()

    def _append_line(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1

    def _end_block(self) -> Iterator[Chunk]:
        text, is_cut = "\n".join(self._lines), self._is_cut
        self._lines, self._size = [], 0
        self._fence = ""
        self._is_list = self._after_blank = self._is_cut = False
        if text.strip():
            yield Chunk(f"{text}\n", is_plain=True) if is_cut else Chunk(text)

    def _flush_long_block(self) -> Chunk:
        """Return the lines of a too long block unformatted; its remainder will be, too."""
        text = "\n".join([*self._lines, ""])
        self._lines, self._size = [], 0
        self._is_cut = True
        return Chunk(text, is_plain=True)
