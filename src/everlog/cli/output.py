"""Output: JSON, aligned tables, sizes and times, and text made safe for a terminal.

rich draws on a terminal only; what is piped is plain and has no escape sequence. Stored text is
data: none of its control characters reaches a terminal.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from everlog.render import humanize

if TYPE_CHECKING:
    from rich.console import Console

ELASTIC_PIPED = 48  # columns of an elastic cell when nobody knows how wide the reader is
PATIENCE = 0.2  # seconds before a bar is drawn
ELASTIC_LEAST = 16  # what a narrow terminal leaves of it
NARROWEST = 8  # what one leaves of any column that is wider

# C0 as control pictures, C1 and what reorders a line (bidi overrides) as replacement characters.
_UNSAFE: dict[int, int] = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_UNSAFE |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_UNSAFE = {code: picture or 0xFFFD for code, picture in _UNSAFE.items()} | {0x7F: 0x2421}
_UNSAFE |= dict.fromkeys((0x2028, 0x2029), ord("\n"))  # line ends, which terminals do not know
_ONE_LINE = _UNSAFE | dict.fromkeys((ord("\n"), 0x2028, 0x2029), 0x2424) | {ord("\t"): ord(" ")}
_IN_JSON = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # these stand in strings only


# --- text -----------------------------------------------------------------------------------


def safe(text: str) -> str:
    """Text without anything that a terminal would obey; lines and tabs stay."""
    return text.replace("\r\n", "\n").translate(_UNSAFE)


def one_line(text: str) -> str:
    """Safe text in one line."""
    return text.translate(_ONE_LINE)


def shorten(text: str, width: int) -> str:
    """Text of at most so many columns."""
    if columns(text) <= width:
        return text
    kept = text[: width - 1]
    while columns(kept) > width - 1:
        kept = kept[:-1]
    return f"{kept}…"


def columns(text: str) -> int:
    """How many columns a line takes in a terminal."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


size, plural, duration = humanize.size, humanize.plural, humanize.lasted


def ago(iso: str, now: float) -> str:
    """How long ago a time was; the date when it is long ago."""
    return humanize.ago(iso, now) or shorten(one_line(iso), 20) or "never"


def when(iso: str) -> str:
    """A time of the files, without its fractions."""
    return humanize.when(iso) or shorten(one_line(iso), 40)


# --- streams --------------------------------------------------------------------------------


def tolerate_any_text() -> None:
    """Never fail on a character that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def on_terminal(stream: TextIO | None) -> bool:
    """Whether people read the stream."""
    return stream is not None and stream.isatty()


def console(*, stderr: bool = False) -> Console:
    """rich's console for a terminal; NO_COLOR takes every escape sequence away."""
    from rich.console import Console

    return Console(
        stderr=stderr,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def put_json(value: Any) -> None:
    """One JSON value and a newline; indented for people."""
    import msgspec

    data = msgspec.json.encode(value)
    if on_terminal(sys.stdout):
        data = msgspec.json.format(data, indent=2)
    text = data.decode("utf-8", "replace")
    print(_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def note(message: str) -> None:
    """A line for people, beside the answer: on stderr."""
    print(one_line(message), file=sys.stderr)


def warn(message: str) -> None:
    """A line about something wrong, on stderr, as errors are told."""
    note(f"everlog: {message}")


def put_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    elastic: str = "",
    spare: Sequence[str] = (),
    last: str = "",
) -> None:
    """Aligned columns.

    `right`: titles of numbers. `elastic`: the column that may be shortened. `spare`: columns that
    a narrow terminal goes without, the first of them first; `last`: one that it goes without when
    shortening is not enough either.
    """
    screen = console() if on_terminal(sys.stdout) else None
    table = [dict(zip(titles, map(one_line, row), strict=True)) for row in (titles, *rows)]
    widths = {title: max(columns(row[title]) for row in table) for title in titles}
    if elastic and screen is None:
        widths[elastic] = min(widths[elastic], ELASTIC_PIPED)
    elif elastic and screen is not None:
        fit(widths, screen.width, elastic, spare, last=last)
    lines = []
    for row in table:
        cells = []
        for title, width in widths.items():
            cell = shorten(row[title], width)
            gap = " " * (width - columns(cell))
            cells.append(gap + cell if title in right else cell + gap)
        lines.append("  ".join(cells).rstrip())
    if screen is None:
        print("\n".join(lines))
        return
    # rich's own table draws the same at five times the cost, which a listing would feel.
    from rich.text import Text

    text = Text("\n".join(lines))
    text.stylize("bold", 0, len(lines[0]))
    start = len(lines[0]) + 1
    for line in lines[1:]:
        text.stylize("cyan", start, start + widths[titles[0]])
        start += len(line) + 1
    screen.print(text, soft_wrap=True)


def fit(
    widths: dict[str, int],
    width: int,
    elastic: str,
    spare: Sequence[str],
    *,
    last: str = "",
    least: int = ELASTIC_LEAST,
) -> None:
    """Make columns fit into a width: leave out spare ones, narrow the elastic one, then others."""
    wanted, widths[elastic] = widths[elastic], min(widths[elastic], least)
    for title in spare:
        if _room(widths, width) < 0:
            del widths[title]
    if last and _room({**widths, elastic: min(wanted, NARROWEST)}, width) < 0:
        del widths[last]
    widths[elastic] = min(wanted, max(widths[elastic] + _room(widths, width), NARROWEST))
    # The beginning of an id names a session, so the ids of a listing may be cut as well.
    while (lacking := -_room(widths, width)) > 0:
        widest = max(widths, key=lambda title: widths[title])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] = max(widths[widest] - lacking, NARROWEST)


def _room(widths: dict[str, int], width: int) -> int:
    """Columns that a table leaves of a width."""
    return width - sum(widths.values()) - 2 * (len(widths) - 1)


@contextmanager
def progress(
    doing: str, *, still: bool = False, after: float = PATIENCE
) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr when people watch it; call what it gives with (done, total).

    Nothing is drawn, or imported for it, in the first moments; a full bar goes away, since there
    can be only one at a time. A `still` one is drawn by those calls alone: no thread takes time
    from what is being measured.
    """
    if not on_terminal(sys.stderr):
        yield lambda done, total: None
        return
    begun = time.monotonic()
    with ExitStack() as stack:
        bars: list[Callable[[int, int], None]] = []

        def tell(done: int, total: int) -> None:
            if not bars:
                if done >= total or time.monotonic() - begun < after:
                    return
                plain = bool(os.environ.get("NO_COLOR"))
                bars.append(_percent(doing, stack) if plain else _bar(doing, stack, still))
            bars[0](done, total)
            if done >= total:
                stack.close()
                bars.clear()

        yield tell


def _bar(doing: str, stack: ExitStack, still: bool) -> Callable[[int, int], None]:
    from rich.progress import Progress

    made = Progress(console=console(stderr=True), transient=True, auto_refresh=not still)
    bar = stack.enter_context(made)
    task = bar.add_task(doing, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total, refresh=still)


def _percent(doing: str, stack: ExitStack) -> Callable[[int, int], None]:
    """A line that is written over, for a terminal that is to get no escape sequence."""
    shown = ""

    def draw(done: int, total: int) -> None:
        nonlocal shown
        line = f"{doing} {done * 100 // total} %"
        if line != shown:
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
        shown = line

    def wipe() -> None:
        print(f"\r{' ' * len(shown)}\r", end="", file=sys.stderr, flush=True)

    stack.callback(wipe)
    return draw
