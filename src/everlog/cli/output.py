"""Output: JSON, aligned tables, sizes and times, and text made safe for a terminal.

rich is used on a terminal only; piped output is plain and has no escape sequences. Stored text is
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

    from everlog.ports import SessionRow, SkippedFile

ELASTIC_PIPED = 48  # width of the elastic column in piped output
BAR_DELAY = 0.2  # seconds before a progress bar is drawn
ELASTIC_MIN = 16  # its minimum width, reached before columns are dropped
COLUMN_MIN = 8  # no column is made narrower than this

# C0 becomes control pictures; C1 and bidi overrides become replacement characters.
_UNSAFE: dict[int, int] = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_UNSAFE |= dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
_UNSAFE = {code: picture or 0xFFFD for code, picture in _UNSAFE.items()} | {0x7F: 0x2421}
_UNSAFE |= dict.fromkeys((0x2028, 0x2029), ord("\n"))  # line ends that terminals ignore
_ONE_LINE = _UNSAFE | dict.fromkeys((ord("\n"), 0x2028, 0x2029), 0x2424) | {ord("\t"): ord(" ")}
_IN_JSON = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # only inside strings


# --- text -----------------------------------------------------------------------------------


def safe(text: str) -> str:
    """Return text without terminal control characters; newlines and tabs stay."""
    return text.replace("\r\n", "\n").translate(_UNSAFE)


def one_line(text: str) -> str:
    """Return safe text as one line."""
    return text.translate(_ONE_LINE)


shorten, display_width = humanize.shorten, humanize.display_width
size, plural, duration = humanize.size, humanize.plural, humanize.duration


def ago(iso: str, now: float) -> str:
    """Format how long ago a time was; as a date when it is long ago."""
    return humanize.ago(iso, now) or shorten(one_line(iso), 20) or "never"


def format_time(iso: str) -> str:
    """Format a stored time without fractions of a second."""
    return humanize.exact_time(iso) or shorten(one_line(iso), 40)


def session_cells(row: SessionRow, now: float) -> dict[str, str]:
    """Return a session of a listing as the cells of a table, by their titles."""
    return {
        "ID": row.id,
        "TITLE": row.metadata.display_title,
        "AGENT": row.metadata.agent,
        "SENDER": row.metadata.sender,
        "MSGS": str(row.metadata.message_count),
        "ACTIVE": ago(row.metadata.last_message_at, now),
        "SIZE": size(row.bytes),
    }


def print_skipped(files: Sequence[SkippedFile], limit: int | None = None) -> None:
    """Name files that are not sessions, with the reason, on stderr; at most `limit` of them."""
    for file in files[:limit]:
        info(f"not a session: {one_line(file.path)}: {one_line(file.reason)}")
    if limit is not None and len(files) > limit:
        info(f"not sessions: {len(files) - limit:,} more files (everlog doctor names all)")


# --- streams --------------------------------------------------------------------------------


def escape_unencodable_text() -> None:
    """Escape characters that the encoding of stdout or stderr lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal."""
    return stream is not None and stream.isatty()


def terminal_width() -> int:
    """Return the width of the terminal in columns."""
    import shutil  # few commands need it

    return max(shutil.get_terminal_size().columns, 10)


def console(*, stderr: bool = False) -> Console:
    """Return a rich console for a terminal; NO_COLOR removes all escape sequences."""
    from rich.console import Console

    return Console(
        stderr=stderr,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_json(value: Any) -> None:
    """Print one JSON value and a newline; indented on a terminal."""
    import msgspec

    data = msgspec.json.encode(value)
    if is_terminal(sys.stdout):
        data = msgspec.json.format(data, indent=2)
    text = data.decode("utf-8", "replace")
    print(_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def print_answer(answer: Any, text: str, as_json: bool) -> None:
    """Print the result of a command: as JSON, or as one line of text."""
    if as_json:
        print_json(answer)
    else:
        print(one_line(text))


def info(message: str) -> None:
    """Print a line for the user on stderr, after the command's output so far."""
    if sys.stdout is not None:
        sys.stdout.flush()
    print(one_line(message), file=sys.stderr)


def warn(message: str) -> None:
    """Print a warning on stderr, with the prefix of error messages."""
    info(f"everlog: {message}")


def print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    elastic: str = "",
    droppable: Sequence[str] = (),
    last_resort: str = "",
) -> None:
    """Print aligned columns.

    `right`: right-aligned columns. `elastic`: the column that may be shortened. `droppable`:
    columns that are dropped on a narrow terminal, in this order. `last_resort`: the column that is
    dropped when shortening is not enough either.
    """
    screen = console() if is_terminal(sys.stdout) else None
    table = [dict(zip(titles, map(one_line, row), strict=True)) for row in (titles, *rows)]
    widths = {title: max(display_width(row[title]) for row in table) for title in titles}
    if elastic and screen is None:
        widths[elastic] = min(widths[elastic], ELASTIC_PIPED)
    elif elastic and screen is not None:
        fit_columns(widths, screen.width, elastic, droppable, last_resort=last_resort)
    lines = []
    for row in table:
        cells = []
        for title, width in widths.items():
            cell = shorten(row[title], width)
            gap = " " * (width - display_width(cell))
            cells.append(gap + cell if title in right else cell + gap)
        lines.append("  ".join(cells).rstrip())
    if screen is None:
        print("\n".join(lines))
        return
    # A rich table looks the same but costs five times as much, which is noticeable in a listing.
    from rich.text import Text

    text = Text("\n".join(lines))
    text.stylize("bold", 0, len(lines[0]))
    start = len(lines[0]) + 1
    for line in lines[1:]:
        text.stylize("cyan", start, start + widths[titles[0]])
        start += len(line) + 1
    screen.print(text, soft_wrap=True)


def fit_columns(
    widths: dict[str, int],
    width: int,
    elastic: str,
    droppable: Sequence[str],
    *,
    last_resort: str = "",
    elastic_min: int = ELASTIC_MIN,
) -> None:
    """Make columns fit into a width: drop columns, narrow the elastic one, then the others."""
    full_width, widths[elastic] = widths[elastic], min(widths[elastic], elastic_min)
    for title in droppable:
        if _free_width(widths, width) < 0:
            del widths[title]
    if last_resort and _free_width({**widths, elastic: min(full_width, COLUMN_MIN)}, width) < 0:
        del widths[last_resort]
    widths[elastic] = min(full_width, max(widths[elastic] + _free_width(widths, width), COLUMN_MIN))
    # A prefix of an id identifies a session, so the ids of a listing may be cut as well.
    while (excess := -_free_width(widths, width)) > 0:
        widest = max(widths, key=lambda title: widths[title])
        if widths[widest] <= COLUMN_MIN:
            break
        widths[widest] = max(widths[widest] - excess, COLUMN_MIN)


def _free_width(widths: dict[str, int], width: int) -> int:
    """Return the columns that a table leaves free; negative if it is too wide."""
    return width - sum(widths.values()) - 2 * (len(widths) - 1)


@contextmanager
def progress(
    label: str, *, manual_refresh: bool = False, delay: float = BAR_DELAY
) -> Iterator[Callable[[int, int], None]]:
    """Yield a callback (done, total) that draws a progress bar if stderr is a terminal.

    For the first `delay` seconds nothing is drawn or imported. A full bar is removed, since only
    one can be shown at a time. With `manual_refresh` it is redrawn by the calls alone: no thread
    takes time from the work that is measured.
    """
    if not is_terminal(sys.stderr):
        yield lambda done, total: None
        return
    start = time.monotonic()
    with ExitStack() as stack:
        bars: list[Callable[[int, int], None]] = []

        def on_progress(done: int, total: int) -> None:
            if not bars:
                if done >= total or time.monotonic() - start < delay:
                    return
                if os.environ.get("NO_COLOR"):
                    bars.append(_percent_line(label, stack))
                else:
                    bars.append(_rich_bar(label, stack, manual_refresh))
            bars[0](done, total)
            if done >= total:
                stack.close()
                bars.clear()

        yield on_progress


def _rich_bar(label: str, stack: ExitStack, manual_refresh: bool) -> Callable[[int, int], None]:
    from rich.progress import Progress

    progress_bar = Progress(console=console(stderr=True), transient=True, auto_refresh=not manual_refresh)
    bar = stack.enter_context(progress_bar)
    task = bar.add_task(label, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total, refresh=manual_refresh)


def _percent_line(label: str, stack: ExitStack) -> Callable[[int, int], None]:
    """Draw progress as a line that is overwritten, without escape sequences."""
    last_line = ""

    def draw(done: int, total: int) -> None:
        nonlocal last_line
        line = f"{label} {done * 100 // total} %"
        if line != last_line:
            print(f"\r{line}", end="", file=sys.stderr, flush=True)
        last_line = line

    def clear_line() -> None:
        print(f"\r{' ' * len(last_line)}\r", end="", file=sys.stderr, flush=True)

    stack.callback(clear_line)
    return draw
