"""Quotation of conversation text as data: one line, of bounded length, without any structure.

A summary is read by a model and parsed by the next compaction, so a heading, a list marker or a tag
inside a quotation must not count as one. The words are not changed otherwise. The cost depends on
the requested width and not on the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from everlog.context.fence import Origin, fence, strip_invisible

OPEN, CLOSE = "“", "”"
STRAIGHT = str.maketrans({OPEN: '"', CLOSE: '"'})  # for text between quotation marks
LIST_ITEM = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[([ xX~])\]\s+)?(\S.*)$")  # the tick, the text
_HEADING = re.compile(r"#{2,}(?:\s+|$)")
_LEAD = re.compile(r"^(?:\s*(?:#{1,6}(?=\s|$)|>|[-*+•](?=\s)|\[[ xX]\](?=\s)|\d{1,3}[.)](?=\s)))+\s*")
_SENTENCE_END = re.compile(r"(?<=[^.\s][.!?])(?<!e\.g\.|i\.e\.|etc\.)\s+|(?<=[。！？])")


def content_lines(text: str) -> list[str]:
    """Return the nonempty lines of a text, without indent and list or heading marks."""
    lines = (_LEAD.sub("", line).strip() for line in strip_invisible(text).splitlines())
    return [line for line in lines if line]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of each line; they may begin with a small letter."""
    for line in text.splitlines():
        yield from (part for part in _SENTENCE_END.split(line.strip()) if part.strip())


def escape_markup(line: str) -> str:
    """Return the line fenced and without headings."""
    return fence(_HEADING.sub("", line), Origin.QUOTATION).strip()


def take_ends(text: str, head: int, tail: int) -> str:
    """Return a text, or so many characters of its two ends if it is longer."""
    return text if len(text) <= head + tail else f"{text[:head]}\n…\n{text[-tail:]}"


def one_line(text: str, width: int) -> str:
    """Return a text on one line, cut at its end."""
    return truncate(_flatten(text[: 4 * width + 400]), width)


def quote(text: str, width: int) -> str:
    """Return somebody's words in quotation marks, cut in the middle: people ask around what they paste."""
    flat = _flatten(take_ends(text, 4 * width + 400, 4 * width + 400))
    if len(flat) > width:
        tail = flat[-(width // 3) :]
        flat = f"{truncate(flat, width - len(tail) - 1)} {tail[tail.find(' ', 0, 24) + 1 :]}"
    return f"{OPEN}{flat.translate(STRAIGHT)}{CLOSE}" if flat else ""


def verbatim(line: str, width: int) -> str:
    """Return a line as it is, inner spaces included, so that it can be searched for."""
    line = " ".join(strip_invisible(line[: 4 * width + 400]).strip().splitlines())
    return escape_markup(line).removeprefix("# ")[:width]


def truncate(text: str, width: int) -> str:
    """Cut at `width` characters, at a space if one is near; a quotation that was cut is closed again."""
    if len(text) <= width:
        return text
    head = text[: max(width - 1, 0)]
    space = head.rfind(" ", max(width - 24, 0))
    short = (head[:space] if space > 0 else head).rstrip() + "…"
    return short + CLOSE if short.count(OPEN) > short.count(CLOSE) else short


def _flatten(text: str) -> str:
    return escape_markup(" ".join(" ".join(content_lines(text)).split()))
