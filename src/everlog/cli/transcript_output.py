"""Printed output of a session: a transcript, its messages as JSON, or its exact lines.

The transcript of a compacted session begins with the summary: unless `everything` is set, only what
follows it is read, from the end of the log. Unreadable records are shown as warnings in their
place. Stored text is made safe before it reaches a terminal.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from everlog.cli import output
from everlog.cli.message_lines import MARKDOWN, Line, heading_lines, item_lines, summary_line
from everlog.log.fold import View, fold, to_builtins
from everlog.log.markers import Markers, read_since_summary
from everlog.model import Damaged, Entry, Message
from everlog.render.transcript_items import SummaryItem, build_items, describe_damage, describe_newer
from everlog.session import Session

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

RULE_WIDTH = 72
BATCH_LINES = 200  # printed with one call
MAX_FORMATTED = 1_000  # only the newest texts are formatted: a thousand take a second
MAX_MARKDOWN_CHARS = 100_000  # a longer text is shown unformatted


def print_transcript(session: Session, *, everything: bool, full: bool) -> None:
    """Print the transcript; `everything`: include compacted, deleted and rewound messages."""
    metadata = session.metadata
    entries = list(session.entries()) if everything else entries_since_summary(session)
    active = metadata.last_message_at
    details = [
        f"created {output.format_time(metadata.created_at)}",
        f"last active {output.format_time(active)} ({output.ago(active, time.time())})",
        output.plural(metadata.message_count, "message"),
        output.size(session.size),
    ]
    heading = [*heading_lines(metadata, details)]
    if metadata.resume_command:
        heading.append(("dim", f"continue with: {output.one_line(metadata.resume_command)}"))
    print_lines(chain(heading, _transcript_lines(entries, metadata.message_count, everything, full)))


def entries_since_summary(session: Session) -> list[Entry]:
    """Return the entries that the standing summary kept, and later ones; all if there is none.

    Reads from the end of the log, and nothing before these entries.
    """
    entries = list(read_since_summary(session.store.port.tail(session.id), Markers()))
    entries.reverse()
    return entries


def print_messages_json(session: Session, *, everything: bool) -> None:
    """Print metadata and messages as JSON; damage is reported on stderr."""
    from everlog.wire.responses import record_objects

    entries = list(session.entries())
    view = fold(entries)
    messages = view.messages
    metadata = session.metadata
    answer: dict[str, object] = {"metadata": {**to_builtins(metadata), "resumeCommand": metadata.resume_command}}
    if everything:
        messages = tuple(entry for entry in entries if isinstance(entry, Message))
        markers = Markers.of(entries)
        for name, fate in (("deleted", "hidden"), ("rewound", "rewound")):
            answer[name] = [message.seq for message in messages if markers.fate(message.seq) == fate]
    answer["messages"] = record_objects(messages)
    output.print_json(answer)
    _warn_of_damage(view)


def print_raw_lines(session: Session) -> None:
    """Print the lines as they are on disk; on a terminal, made safe."""
    sys.stdout.flush()
    is_terminal = output.is_terminal(sys.stdout)
    damage: list[str] = []
    for entry in session.entries(after=-1):
        if isinstance(entry, Damaged):
            damage.append(describe_damage(entry))
        elif is_terminal:
            print(output.safe(entry.line.decode("utf-8", "replace")))
        else:
            sys.stdout.buffer.write(entry.line + b"\n")
    sys.stdout.buffer.flush()
    for warning in damage:
        output.warn(warning)


def _warn_of_damage(view: View) -> None:
    for warning in (*map(describe_damage, view.damage), *map(describe_newer, view.newer)):
        output.warn(warning)


# --- the transcript -------------------------------------------------------------------------


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines; with their styles if stdout is a terminal."""
    if not output.is_terminal(sys.stdout):
        for style, line in lines:
            print(_indent(line) if style == MARKDOWN else line)
        return
    from rich.console import Group

    from everlog.cli.terminal_markdown import RenderedMarkdown, is_plain

    console = output.console()
    all_lines = list(lines)
    unformatted = sum(style == MARKDOWN for style, _ in all_lines) - MAX_FORMATTED
    for batch in _batches(all_lines, BATCH_LINES):
        renderables: list[RenderableType] = []
        for style, line in batch:
            if style != MARKDOWN:
                renderables.append(_VerbatimText(line, style))
                continue
            unformatted -= 1
            # Most short texts are plain, and cost a hundredth of formatted ones.
            is_short = len(line) < console.width and is_plain(line.strip())
            if is_short or unformatted >= 0 or len(line) > MAX_MARKDOWN_CHARS:
                renderables.append(_VerbatimText(_indent(line)))
            else:
                renderables.append(RenderedMarkdown(line.strip(), indent=2))
        console.print(Group(*renderables), crop=False, end="")


class _VerbatimText:
    """Lines that are wrapped by the terminal itself, so that they can be copied."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text, self._style = text, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield Segment(self._text, console.get_style(self._style or "none"))
        yield Segment.line()


def _batches(lines: Sequence[Line], size: int) -> Iterator[Sequence[Line]]:
    """Split lines into batches, because each print call is slow."""
    return (lines[start : start + size] for start in range(0, len(lines), size))


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")  # the first line is already indented


def _transcript_lines(entries: list[Entry], count: int, everything: bool, full: bool) -> Iterator[Line]:
    seqs = [entry.seq for entry in entries if isinstance(entry, Message)]
    for item in build_items(entries, everything=everything):
        if isinstance(item, SummaryItem):
            covered = max(count - len(seqs) + bisect_left(seqs, item.record.first_kept_seq), 0)
            yield from _summary_lines(item, output.plural(covered, "message"), everything)
        else:
            yield from item_lines(item, full=full)


def _summary_lines(item: SummaryItem, covered: str, everything: bool) -> Iterator[Line]:
    record = item.record
    label = f"── {covered} before #{record.first_kept_seq}, compacted at {record.seq}"
    if not item.is_current:
        label += ", no longer in use"
    elif not everything:
        label += " (--all shows them)"
    yield "", ""
    yield "blue", f"{label} ".ljust(RULE_WIDTH, "─")
    yield summary_line(record)
    yield "blue", "─" * RULE_WIDTH
