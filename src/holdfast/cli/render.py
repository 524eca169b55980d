"""Output: JSON, aligned tables, sizes and times, and text made safe for a terminal.

rich draws on a terminal only; what is piped is plain and has no escape sequence. Stored text is
data: none of its control characters reaches a terminal.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

ELASTIC_PIPED = 48  # columns of an elastic cell when nobody knows how wide the reader is
ELASTIC_LEAST = 16  # what a narrow terminal leaves of it

# C0 as control pictures, C1 and what reorders a line (bidi overrides) as replacement characters.
_UNSAFE: dict[int, int] = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_UNSAFE |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_UNSAFE = {code: picture or 0xFFFD for code, picture in _UNSAFE.items()} | {0x7F: 0x2421}
_ONE_LINE = _UNSAFE | {ord("\n"): 0x2424, ord("\t"): ord(" ")}
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


def size(count: int) -> str:
    """Bytes in a readable unit."""
    if count < 1000:
        return f"{count} B"
    value, units = count / 1000, ["kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.1f} {units[0]}" if value < 9.95 else f"{value:.0f} {units[0]}"


def ago(iso: str, now: float) -> str:
    """How long ago a time was; the date when it is long ago."""
    from holdfast.stamps import epoch_ms

    then = epoch_ms(iso)
    if then is None:
        return shorten(one_line(iso), 20) or "never"
    seconds = now - then / 1000
    if seconds < 60:
        return "now" if seconds > -60 else when(iso)
    for limit, step, unit in ((3600, 60, "min"), (86400, 3600, "h"), (60 * 86400, 86400, "d")):
        if seconds < limit:
            return f"{int(seconds // step)} {unit} ago"
    return iso[:10]


def when(iso: str) -> str:
    """A time of the files, without its fractions."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z", iso)
    return f"{match[1]} {match[2]}Z" if match else shorten(one_line(iso), 40)


def plural(count: int, noun: str) -> str:
    """`1 part`, `2 parts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
    note(f"holdfast: {message}")


def put_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    elastic: str = "",
    spare: Sequence[str] = (),
) -> None:
    """Aligned columns.

    `right`: titles of numbers. `elastic`: the column that may be shortened. `spare`: columns that
    a narrow terminal goes without, the first of them first.
    """
    screen = console() if on_terminal(sys.stdout) else None
    table = [dict(zip(titles, map(one_line, row), strict=True)) for row in (titles, *rows)]
    widths = {title: max(columns(row[title]) for row in table) for title in titles}
    if elastic and screen is None:
        widths[elastic] = min(widths[elastic], ELASTIC_PIPED)
    elif elastic and screen is not None:
        _fit(widths, screen.width, elastic, spare)
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


def _fit(widths: dict[str, int], width: int, elastic: str, spare: Sequence[str]) -> None:
    """Make columns fit into a width: leave out spare ones, then narrow the elastic one."""
    wanted, widths[elastic] = widths[elastic], min(widths[elastic], ELASTIC_LEAST)
    for title in spare:
        if sum(widths.values()) + 2 * (len(widths) - 1) > width:
            del widths[title]
    room = width - sum(widths.values()) - 2 * (len(widths) - 1)
    widths[elastic] = min(wanted, max(widths[elastic] + room, 8))


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr when people watch it; call what it gives with (done, total).

    Nothing is drawn, or imported for it, before the first call; a full bar goes away, since
    there can be only one at a time.
    """
    if not on_terminal(sys.stderr):
        yield lambda done, total: None
        return
    with ExitStack() as stack:
        bars: list[Callable[[int, int], None]] = []

        def tell(done: int, total: int) -> None:
            if not bars:
                bars.append(_bar(doing, stack))
            bars[0](done, total)
            if done >= total:
                stack.close()
                bars.clear()

        yield tell


def _bar(doing: str, stack: ExitStack) -> Callable[[int, int], None]:
    from rich.progress import Progress

    bar = stack.enter_context(Progress(console=console(stderr=True), transient=True))
    task = bar.add_task(doing, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
