"""The list and the preview as prompt_toolkit draws them: only the lines that are on the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout.controls import UIContent, UIControl
from prompt_toolkit.utils import get_cwidth

from everlog.cli import output
from everlog.cli.message_lines import Line
from everlog.cli.picker.session_filter import Finding, Row
from everlog.ports import Hit

TITLES = ("TITLE", "AGENT", "SENDER", "MSGS", "ACTIVE", "SIZE")
RIGHT = ("MSGS", "SIZE")
SPARE = ("SENDER", "AGENT", "SIZE", "MSGS")  # what a narrow screen goes without
LEAST = 24  # columns of a title before others are left out for it
MOST = 14  # columns of agent and sender
MARK = "› "

# The styles of transcripts, as prompt_toolkit names them.
STYLES = {
    "": "",
    "bold": "bold",
    "dim": "class:dim",
    "dim italic": "class:dim italic",
    "bold green": "class:user",
    "bold cyan": "class:assistant",
    "magenta": "class:tool",
    "yellow": "class:open",
    "red": "class:failed",
    "blue": "class:summary",
}


class Table(UIControl):
    """The rows around the highlighted one."""

    def __init__(self, finding: Finding, empty: Callable[[], str]) -> None:
        self._finding = finding
        self._empty = empty
        self._top = 0
        self.height = 1  # rows that fit, for PgUp and PgDn

    def create_content(self, width: int, height: int) -> UIContent:
        """The lines that fit, the titles of the columns first."""
        rows, place = self._finding.rows, self._finding.place
        self.height = max(height - 1, 1)
        self._scroll(rows, place)
        shown = rows[self._top : self._top + self.height]
        widths = self._widths(rows, width - len(MARK))
        now = time.time()
        lines: list[StyleAndTextTuples] = [
            [
                (
                    "class:titles",
                    fill("  " + _cells(dict(zip(TITLES, TITLES, strict=True)), widths), width),
                )
            ]
        ]
        for number, row in enumerate(shown, self._top):
            chosen = number == place
            style = "class:chosen" if chosen else ""
            text = (MARK if chosen else "  ") + _cells(_values(row, now), widths)
            lines.append([(style, fill(text, width))])
            if row.hit:
                lines.append(_passage(row.hit, width))
        if not rows:
            lines.append([("class:dim", cut(f"  {self._empty()}", width))])
        return UIContent(
            get_line=lambda place: lines[place], line_count=len(lines), show_cursor=False
        )

    def _scroll(self, rows: Sequence[Row], place: int) -> None:
        """Keep the highlighted row, with its passage, on the screen."""
        self._top = min(self._top, place)
        tall = sum(1 + bool(row.hit) for row in rows[self._top : place + 1])
        while tall > self.height and self._top < place:
            tall -= 1 + bool(rows[self._top].hit)
            self._top += 1

    def _widths(self, rows: Sequence[Row], width: int) -> dict[str, int]:
        """Of what is read so far, so that columns do not move as one scrolls."""
        names = {
            title: max([len(title), *(_width(getattr(row.listed.metadata, field)) for row in rows)])
            for title, field in (("AGENT", "agent"), ("SENDER", "sender"))
        }
        widths = {
            "TITLE": width,
            "AGENT": min(names["AGENT"], MOST),
            "SENDER": min(names["SENDER"], MOST),
            "MSGS": 6,
            "ACTIVE": 10,
            "SIZE": 6,
        }
        output.fit(widths, width, "TITLE", SPARE, least=LEAST)
        return widths


class Pane(UIControl):
    """The preview: facts at the top, the newest messages at the bottom."""

    def __init__(self, lines: Callable[[], tuple[Sequence[Line], Sequence[Line]]]) -> None:
        self._lines = lines

    def create_content(self, width: int, height: int) -> UIContent:
        """What fits; of the messages, the last."""
        head, said = self._lines()
        shown: list[StyleAndTextTuples] = [
            [(STYLES[style], cut(text, width))] for style, text in head[:height]
        ]
        room = height - len(shown)
        wrapped: list[StyleAndTextTuples] = []
        for style, text in reversed(said):
            if len(wrapped) >= room:
                break
            pieces = wrap(text.expandtabs(4), max(width, 2))
            wrapped += [[(STYLES.get(style, ""), piece)] for piece in reversed(pieces)]
        lines = [*shown, *reversed(wrapped[:room])] if room > 0 else shown
        return UIContent(
            get_line=lambda place: lines[place], line_count=len(lines), show_cursor=False
        )


def _values(row: Row, now: float) -> dict[str, str]:
    metadata = row.listed.metadata
    return {
        "TITLE": metadata.title,
        "AGENT": metadata.agent,
        "SENDER": metadata.sender,
        "MSGS": str(metadata.message_count),
        "ACTIVE": output.ago(metadata.last_message_at, now),
        "SIZE": output.size(row.listed.bytes),
    }


def _cells(values: dict[str, str], widths: dict[str, int]) -> str:
    cells = []
    for title, width in widths.items():
        cell = cut(output.one_line(values[title]), width)
        gap = " " * (width - get_cwidth(cell))
        cells.append(gap + cell if title in RIGHT else cell + gap)
    return "  ".join(cells)


def _passage(hit: Hit, width: int) -> StyleAndTextTuples:
    """A passage with what was found made to stand out."""
    shown: StyleAndTextTuples = []
    for text, is_found in (("    ", False), *hit.pieces):
        piece = cut(output.one_line(text), width)
        shown.append(("class:found" if is_found else "class:dim", piece))
        width -= get_cwidth(piece)
        if width <= 0:
            break
    return shown


def _width(text: str) -> int:
    return get_cwidth(output.one_line(text))


def cut(text: str, width: int) -> str:
    """Text of at most so many columns, as the terminal counts them."""
    if get_cwidth(text) <= width:
        return text
    end = used = 0
    while (used := used + get_cwidth(text[end])) < width:
        end += 1
    return f"{text[:end]}…" if width > 0 else ""


def fill(text: str, width: int) -> str:
    """Text of exactly so many columns."""
    shown = cut(text, width)
    return shown + " " * (width - get_cwidth(shown))


def wrap(text: str, width: int) -> list[str]:
    """A line as lines of at most so many columns, broken between words, each as far indented."""
    indent = " " * min(len(text) - len(text.lstrip(" ")), (width - 2) // 2)
    lines, line, used = [], "", 0
    for char in text:
        wide = get_cwidth(char)
        if used + wide > width:
            head, _, word = line.rpartition(" ")
            if char == " " or get_cwidth(head) <= len(indent):  # a word ends here, or is too long
                head, word = line, ""
            lines.append(head)
            line = indent + word
            used = get_cwidth(line)
            if char == " ":
                continue
        line, used = line + char, used + wide
    return [*lines, line]
