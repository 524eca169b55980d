"""A session for reading: a transcript, its messages as objects, or its exact lines.

The transcript of a compacted session begins with the summary: only what is behind it is read, from
the end of the log, unless everything is asked for. What cannot be read stands as a warning in its
place. Nothing stored reaches a terminal unchecked.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from everlog.cli import output
from everlog.cli.message_lines import MARKDOWN, Folded, Line
from everlog.log.backward_read import stands
from everlog.log.fold import View, fold, to_builtins
from everlog.log.line_codec import has_crc
from everlog.model import (
    SCHEMA_VERSION,
    Compaction,
    Damaged,
    Entry,
    Message,
    Metadata,
    Rewind,
    Unknown,
)
from everlog.session import Session

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

RULE_WIDTH = 72
PRINTED = 200  # lines at a time
FORMATTED = 1_000  # texts, the newest: a thousand take a second, and nobody waits for all of them
MARKDOWN_MOST = 100_000  # characters; a longer text is shown as it is


def put(session: Session, *, everything: bool, full: bool) -> None:
    """Print the transcript; `everything`: also what was compacted, deleted or rewound."""
    metadata = session.metadata
    entries = list(session.entries()) if everything else since_summary(session)
    header = _header(metadata, session.size)
    print_lines(chain(header, _lines(entries, metadata.message_count, everything, full)))


def since_summary(session: Session) -> list[Entry]:
    """The entries that the standing summary kept, and those after it; all if there is none.

    Read from the end: nothing before them is.
    """
    entries: list[Entry] = []
    floor: int | None = None  # the smallest place that a rewind went back to
    summary: Compaction | None = None
    for entry in session.store.port.tail(session.id):
        if summary is not None and entry.seq is not None and entry.seq < summary.first_kept_seq:
            break
        entries.append(entry)
        if isinstance(entry, Rewind):
            floor = entry.to_seq if floor is None else min(floor, entry.to_seq)
        elif isinstance(entry, Compaction) and summary is None and stands(entry, floor):
            summary = entry
    entries.reverse()
    return entries


def put_objects(session: Session, *, everything: bool) -> None:
    """Print metadata and messages as JSON; what is damaged is told on stderr."""
    entries = list(session.entries())
    view = fold(entries)
    messages = view.messages
    answer: dict[str, object] = {"metadata": to_builtins(session.metadata)}
    if everything:
        messages = tuple(entry for entry in entries if isinstance(entry, Message))
        gone = {one.seq for one in messages} - {one.seq for one in view.messages}
        answer["deleted"] = sorted(gone & view.hidden)
        answer["rewound"] = sorted(gone - view.hidden)
    answer["messages"] = [msgspec.Raw(without_crc(one.line)) for one in messages]
    output.put_json(answer)
    _warn(view)


def put_lines(session: Session) -> None:
    """Print the lines as they are on disk; a terminal gets them made safe."""
    sys.stdout.flush()
    to_people = output.on_terminal(sys.stdout)
    damage: list[Damaged] = []
    for entry in session.entries(after=-1):
        if isinstance(entry, Damaged):
            damage.append(entry)
        elif to_people:
            print(output.safe(entry.line.decode("utf-8", "replace")))
        else:
            sys.stdout.buffer.write(entry.line + b"\n")
    sys.stdout.buffer.flush()
    for one in damage:
        output.warn(_damaged(one))


def without_crc(line: bytes) -> bytes:
    return line[:-18] + b"}" if has_crc(line) else line


def _warn(view: View) -> None:
    for damaged in view.damage:
        output.warn(_damaged(damaged))
    for newer in view.newer:
        output.warn(_newer(newer))


def _damaged(one: Damaged) -> str:
    seq = "" if one.seq is None else f" (seq {one.seq})"
    return f"damaged: {one.file} bytes {one.start} to {one.end}{seq}: {one.problem}"


def _newer(one: Unknown) -> str:
    return (
        f"record {one.seq} has schema version {one.schema_version}, "
        "which this everlog cannot read: the session is read-only"
    )


# --- the transcript -------------------------------------------------------------------------


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines, in their style where people read them."""
    if not output.on_terminal(sys.stdout):
        for style, line in lines:
            print(_indented(line) if style == MARKDOWN else line)
        return
    from rich.console import Group

    from everlog.cli.terminal_markdown import Formatted, is_plain

    console = output.console()
    all_of_them = list(lines)
    unformatted = sum(style == MARKDOWN for style, _ in all_of_them) - FORMATTED
    for some in _some(all_of_them, PRINTED):
        drawn: list[RenderableType] = []
        for style, line in some:
            if style != MARKDOWN:
                drawn.append(_AsItIs(line, style))
                continue
            unformatted -= 1
            # Most short answers are plain, and drawn at a hundredth of the cost.
            is_short = len(line) < console.width and is_plain(line.strip())
            if is_short or unformatted >= 0 or len(line) > MARKDOWN_MOST:
                drawn.append(_AsItIs(_indented(line)))
            else:
                drawn.append(Formatted(line.strip(), indent=2))
        console.print(Group(*drawn), crop=False, end="")


class _AsItIs:
    """Lines that the terminal itself wraps, where somebody may copy them."""

    def __init__(self, text: str, style: str = "") -> None:
        self._text, self._style = text, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield Segment(self._text, console.get_style(self._style or "none"))
        yield Segment.line()


def _some(lines: Sequence[Line], most: int) -> Iterator[Sequence[Line]]:
    """Lines by the hundred: printing costs by the call."""
    return (lines[at : at + most] for at in range(0, len(lines), most))


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")  # the first line has its own


def _header(metadata: Metadata, size: int) -> Iterator[Line]:
    title = output.one_line(metadata.title)
    who = f"{output.one_line(metadata.agent)} with {output.one_line(metadata.sender)}"
    yield "bold", f"{title} · {metadata.id} · {who}"
    facts = [
        f"created {output.when(metadata.created_at)}",
        f"last active {output.when(metadata.last_message_at)}"
        f" ({output.ago(metadata.last_message_at, time.time())})",
        output.plural(metadata.message_count, "message"),
        output.size(size),
    ]
    if metadata.model:
        facts.insert(0, output.one_line(metadata.model))
    yield "dim", " · ".join(facts)


def _lines(entries: list[Entry], count: int, everything: bool, full: bool) -> Iterator[Line]:
    view = fold(entries)
    live = {message.seq for message in view.messages}
    recorded = [entry for entry in entries if isinstance(entry, Message)]
    shown = recorded if everything else view.messages
    folded = Folded(shown)
    wanted = {message.seq for message in shown}
    rules = _rules(entries, view, everything)
    for entry in entries:
        while rules and entry.seq is not None and entry.seq >= rules[0].first_kept_seq:
            yield from _rule(rules.pop(0), view, recorded, count, everything)
        if isinstance(entry, Message) and entry.seq in wanted:
            gone = "" if entry.seq in live else _gone(entry, view)
            yield from folded.lines(entry, gone=gone, full=full)
        elif isinstance(entry, Damaged):
            yield from (("", ""), ("red", f"! {output.one_line(_damaged(entry))}"))
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            yield from (("", ""), ("red", f"! {_newer(entry)}"))
    for rule in rules:  # nothing was kept, and nothing said since
        yield from _rule(rule, view, recorded, count, everything)


def _gone(message: Message, view: View) -> str:
    return "deleted" if message.seq in view.hidden else "rewound"


def _rules(entries: Iterable[Entry], view: View, everything: bool) -> list[Compaction]:
    """The compactions to draw, each to stand before the first message that it kept."""
    if not everything:
        return [view.compaction] if view.compaction is not None else []
    all_of_them = (entry for entry in entries if isinstance(entry, Compaction))
    return sorted(all_of_them, key=lambda one: (one.first_kept_seq, one.seq))


def _rule(
    entry: Compaction, view: View, recorded: Sequence[Message], count: int, everything: bool
) -> Iterator[Line]:
    behind = len(recorded) - bisect_left(recorded, entry.first_kept_seq, key=lambda one: one.seq)
    before = output.plural(max(count - behind, 0), "message")
    label = f"── {before} before #{entry.first_kept_seq}, compacted at {entry.seq}"
    if entry is not view.compaction:
        label += ", no longer in use"
    elif not everything:
        label += " (--all shows them)"
    yield "", ""
    yield "blue", f"{label} ".ljust(RULE_WIDTH, "─")
    yield MARKDOWN, f"  {output.safe(entry.summary)}"
    yield "blue", "─" * RULE_WIDTH
