"""prompt_toolkit controls for the list and the preview; they build only the visible lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout.controls import UIContent, UIControl
from prompt_toolkit.utils import get_cwidth

from everlog.cli import output
from everlog.cli.message_lines import Line, prompt_style
from everlog.cli.picker.session_filter import Row, SessionFilter
from everlog.ports import Hit

TITLES = ("TITLE", "AGENT", "SENDER", "MSGS", "ACTIVE", "SIZE")
RIGHT = ("MSGS", "SIZE")
DROPPABLE = ("SENDER", "AGENT", "SIZE", "MSGS")  # on a narrow screen, in this order
TITLE_MIN = 24  # columns of a title; others are dropped for it
NAME_MAX = 14  # columns of agent and sender
MARK = "› "


class SessionTable(UIControl):
    """The list of sessions, scrolled to the highlighted row."""

    def __init__(self, sessions: SessionFilter, empty_text: Callable[[], str]) -> None:
        self._sessions = sessions
        self._empty_text = empty_text
        self._top = 0
        self.height = 1  # rows that fit, for PgUp and PgDn

    def create_content(self, width: int, height: int) -> UIContent:
        """Build the visible lines, with the column titles first."""
        rows, position = self._sessions.rows, self._sessions.position
        self.height = max(height - 1, 1)
        self._scroll(rows, position)
        visible = rows[self._top : self._top + self.height]
        widths = self._widths(rows, width - len(MARK))
        now = time.time()
        titles = "  " + _cells(dict(zip(TITLES, TITLES, strict=True)), widths)
        lines: list[StyleAndTextTuples] = [[("class:titles", fill(titles, width))]]
        for number, row in enumerate(visible, self._top):
            is_highlighted = number == position
            style = "class:highlighted" if is_highlighted else ""
            text = (MARK if is_highlighted else "  ") + _cells(output.session_cells(row.session, now), widths)
            lines.append([(style, fill(text, width))])
            if row.hit:
                lines.append(_passage_line(row.hit, width))
        if not rows:
            lines.append([("class:dim", cut(f"  {self._empty_text()}", width))])
        return UIContent(get_line=lambda index: lines[index], line_count=len(lines), show_cursor=False)

    def _scroll(self, rows: Sequence[Row], position: int) -> None:
        """Keep the highlighted row, with its passage, on the screen."""
        self._top = min(self._top, position)
        height = sum(1 + bool(row.hit) for row in rows[self._top : position + 1])
        while height > self.height and self._top < position:
            height -= 1 + bool(rows[self._top].hit)
            self._top += 1

    def _widths(self, rows: Sequence[Row], width: int) -> dict[str, int]:
        """Return column widths for all loaded rows, so that columns do not move on scrolling."""
        agent = max([len("AGENT"), *(_width(row.session.metadata.agent) for row in rows)])
        sender = max([len("SENDER"), *(_width(row.session.metadata.sender) for row in rows)])
        widths = {
            "TITLE": width,
            "AGENT": min(agent, NAME_MAX),
            "SENDER": min(sender, NAME_MAX),
            "MSGS": 6,
            "ACTIVE": 10,
            "SIZE": 6,
        }
        output.fit_columns(widths, width, "TITLE", DROPPABLE, elastic_min=TITLE_MIN)
        return widths


class PreviewPane(UIControl):
    """The preview: a header at the top, the newest messages at the bottom."""

    def __init__(self, lines: Callable[[], tuple[Sequence[Line], Sequence[Line]]]) -> None:
        self._lines = lines

    def create_content(self, width: int, height: int) -> UIContent:
        """Build the lines that fit: the header and the last messages."""
        head, messages = self._lines()
        header: list[StyleAndTextTuples] = [[(prompt_style(style), cut(text, width))] for style, text in head[:height]]
        room = height - len(header)
        wrapped: list[StyleAndTextTuples] = []
        for style, text in reversed(messages):
            if len(wrapped) >= room:
                break
            parts = wrap(text.expandtabs(4), max(width, 2))
            wrapped += [[(prompt_style(style), part)] for part in reversed(parts)]
        lines = [*header, *reversed(wrapped[:room])] if room > 0 else header
        return UIContent(get_line=lambda index: lines[index], line_count=len(lines), show_cursor=False)


def _cells(values: dict[str, str], widths: dict[str, int]) -> str:
    cells = []
    for title, width in widths.items():
        cell = cut(output.one_line(values[title]), width)
        gap = " " * (width - get_cwidth(cell))
        cells.append(gap + cell if title in RIGHT else cell + gap)
    return "  ".join(cells)


def _passage_line(hit: Hit, width: int) -> StyleAndTextTuples:
    """Return a passage with its matches highlighted."""
    fragments: StyleAndTextTuples = []
    for text, is_match in (("    ", False), *hit.fragments):
        chunk = cut(output.one_line(text), width)
        fragments.append(("class:match" if is_match else "class:dim", chunk))
        width -= get_cwidth(chunk)
        if width <= 0:
            break
    return fragments


def _width(text: str) -> int:
    return get_cwidth(output.one_line(text))


def cut(text: str, width: int) -> str:
    """Cut text to at most `width` columns, as prompt_toolkit counts them."""
    if get_cwidth(text) <= width:
        return text
    end = used = 0
    while (used := used + get_cwidth(text[end])) < width:
        end += 1
    return f"{text[:end]}…" if width > 0 else ""


def fill(text: str, width: int) -> str:
    """Cut or pad text to exactly `width` columns."""
    fitted = cut(text, width)
    return fitted + " " * (width - get_cwidth(fitted))


def wrap(text: str, width: int) -> list[str]:
    """Wrap a line between words to at most `width` columns, keeping its indentation."""
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
