"""Text of a conversation as data: one line, of bounded length, unable to look like structure.

A summary is read by a model and parsed by the next compaction. What it quotes was written by
users, models and tools, so a heading, a list marker or a tag of ours inside a quote must not
count as one. Nothing else of the words is changed. The cost depends on the width asked for and
not on the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

OPEN, CLOSE = "“", "”"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
# Controls and marks of writing direction show as nothing, or as something else than is there.
_INVISIBLE: dict[int, str | None] = {
    **dict.fromkeys((*range(9), *range(0x0E, 0x1C), *range(0x7F, 0x85), *range(0x86, 0xA0))),
    **dict.fromkeys((0x200B, 0x200E, 0x200F, 0xFEFF)),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2060, 0x206A))),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}
_TAG = re.compile(
    r"<(?=\s*/?\s*[\w-]{0,40}(?:summary|files|conversation|reminder|context)\b)", re.IGNORECASE
)
_HEADING = re.compile(r"#{2,}(?:\s+|$)")
_LEAD = re.compile(
    r"^(?:\s*(?:#{1,6}(?=\s|$)|>|[-*+•](?=\s)|\[[ xX]\](?=\s)|\d{1,3}[.)](?=\s)))+\s*"
)


def clean(text: str) -> str:
    """The text without escapes, invisible characters and broken code points."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.translate(_INVISIBLE)


def lines(text: str) -> Iterator[str]:
    """The lines of a text that say something, without indent and list or heading marks."""
    for line in clean(text).splitlines():
        line = _LEAD.sub("", line).strip()
        if line:
            yield line


def inert(line: str) -> str:
    """One line in which no tag of ours opens or closes and no heading begins."""
    return _TAG.sub("‹", _HEADING.sub("", line)).strip()


def plain(text: str, width: int) -> str:
    """A text on one line, cut at its end."""
    return cut(inert(" ".join(" ".join(lines(text[: 4 * width + 400])).split())), width)


def ends(text: str, width: int) -> str:
    """A text on one line, cut in its middle: people ask before or after what they paste."""
    if len(text) > 8 * width + 800:
        text = f"{text[: 4 * width + 400]}\n…\n{text[-4 * width - 400 :]}"
    flat = inert(" ".join(" ".join(lines(text)).split()))
    if len(flat) <= width:
        return flat
    tail = flat[-(width // 3) :]
    near = tail.find(" ", 0, 24)
    return f"{cut(flat, width - len(tail) - 1)} {tail[near + 1 :]}"


def quote(text: str, width: int) -> str:
    """The words of somebody else, marked as such."""
    inside = ends(text, width).replace(OPEN, '"').replace(CLOSE, '"')
    return f"{OPEN}{inside}{CLOSE}" if inside else ""


def verbatim(line: str, width: int) -> str:
    """A line as it stands, spaces inside included: it will be searched for."""
    shown = inert(" ".join(clean(line[: 4 * width + 400]).strip().splitlines()))
    if shown.startswith("# "):
        shown = shown[2:]
    return shown if len(shown) <= width else shown[:width]


def cut(text: str, width: int) -> str:
    """At most `width` characters, at a space if one is near; `…` says that there was more."""
    if len(text) <= width:
        return text
    kept = text[: max(width - 1, 0)]
    near = kept.rfind(" ", max(width - 24, 0))
    return (kept[:near] if near > 0 else kept).rstrip() + "…"


def shorten(item: str, width: int) -> str:
    """An item cut at its end; a quote that was cut is closed again."""
    short = cut(item, width)
    return short + CLOSE if short.count(OPEN) > short.count(CLOSE) else short
