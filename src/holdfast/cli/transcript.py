"""A session for reading: a transcript, its messages as objects, or its exact lines.

What cannot be read stands as a warning in its place. Nothing stored reaches a terminal unchecked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from holdfast.cli import render
from holdfast.log.fold import View, fold, to_builtins
from holdfast.log.lines import has_crc
from holdfast.model import (
    SCHEMA_VERSION,
    AnyBlock,
    Compaction,
    Damaged,
    Entry,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
    Unknown,
)
from holdfast.session import Session

CALL_WIDTH = 100  # of a tool call's arguments
RESULT_LINES = 6  # of a tool's result, and of thinking
RULE_WIDTH = 72

Line = tuple[str, str]  # style, text


def put(session: Session, *, everything: bool, full: bool) -> None:
    """Print the transcript; with `everything`, deleted and rewound messages too."""
    entries = list(session.entries())
    header = _header(session.metadata, session.size)
    print_lines(chain(header, _lines(entries, fold(entries), everything, full)))


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
    render.put_json(answer)
    _warn(view)


def put_lines(session: Session) -> None:
    """Print the lines as they are on disk; a terminal gets them made safe."""
    sys.stdout.flush()
    to_people = render.on_terminal(sys.stdout)
    damage: list[Damaged] = []
    for entry in session.entries(after=-1):
        if isinstance(entry, Damaged):
            damage.append(entry)
        elif to_people:
            print(render.safe(entry.line.decode("utf-8", "replace")))
        else:
            sys.stdout.buffer.write(entry.line + b"\n")
    sys.stdout.buffer.flush()
    for one in damage:
        render.warn(_damaged(one))


def without_crc(line: bytes) -> bytes:
    return line[:-18] + b"}" if has_crc(line) else line


def _warn(view: View) -> None:
    for damaged in view.damage:
        render.warn(_damaged(damaged))
    for newer in view.newer:
        render.warn(_newer(newer))


def _damaged(one: Damaged) -> str:
    seq = "" if one.seq is None else f" (seq {one.seq})"
    return f"damaged: {one.file} bytes {one.start} to {one.end}{seq}: {one.problem}"


def _newer(one: Unknown) -> str:
    return (
        f"record {one.seq} has schema version {one.schema_version}, "
        "which this holdfast cannot read: the session is read-only"
    )


# --- the transcript -------------------------------------------------------------------------


def print_lines(lines: Iterable[Line]) -> None:
    """Print lines, in their style where people read them."""
    if not render.on_terminal(sys.stdout):
        for _, line in lines:
            print(line)
        return
    from rich.text import Text as Styled

    console = render.console()
    paragraph = Styled()
    for style, line in lines:
        if not line:  # printing costs by the call
            console.print(paragraph, soft_wrap=True, end="")
            paragraph = Styled()
        paragraph.append(f"{line}\n", style)
    console.print(paragraph, soft_wrap=True, end="")


def _header(metadata: Metadata, size: int) -> Iterator[Line]:
    title = render.one_line(metadata.title)
    who = f"{render.one_line(metadata.agent)} with {render.one_line(metadata.sender)}"
    yield "bold", f"{title} · {metadata.id} · {who}"
    facts = [
        f"created {render.when(metadata.created_at)}",
        f"last active {render.when(metadata.last_message_at)}"
        f" ({render.ago(metadata.last_message_at, time.time())})",
        render.plural(metadata.message_count, "message"),
        render.size(size),
    ]
    if metadata.model:
        facts.insert(0, render.one_line(metadata.model))
    yield "dim", " · ".join(facts)


def _lines(entries: list[Entry], view: View, everything: bool, full: bool) -> Iterator[Line]:
    live = {message.seq for message in view.messages}
    tools: dict[str, str] = {}  # call id → the tool's name
    for entry in entries:
        if isinstance(entry, Message):
            tools.update((call.id, call.name) for call in entry.tool_calls)
            if entry.seq in live:
                yield from _message(entry, "", tools, full)
            elif everything:
                gone = "deleted" if entry.seq in view.hidden else "rewound"
                yield from _message(entry, gone, tools, full)
        elif isinstance(entry, Compaction):
            yield from _compaction(entry, standing=entry is view.compaction)
        elif isinstance(entry, Damaged):
            yield from (("", ""), ("red", f"! {render.one_line(_damaged(entry))}"))
        elif isinstance(entry, Unknown) and entry.schema_version > SCHEMA_VERSION:
            yield from (("", ""), ("red", f"! {_newer(entry)}"))


def _message(entry: Message, gone: str, tools: dict[str, str], full: bool) -> Iterator[Line]:
    is_result = entry.role == "toolResult"
    who = {"toolResult": "tool result"}.get(entry.role, entry.role)
    if is_result and (name := entry.tool_name or tools.get(entry.tool_call_id or "")):
        who += f" of {render.one_line(name)}"
    if entry.is_error:
        who += " (failed)"
    head = f"#{entry.seq} {who} · {render.when(entry.timestamp)}"
    style = {"user": "bold green", "assistant": "bold cyan"}.get(entry.role, "yellow")
    yield "", ""
    yield "dim" if gone else style, f"{head} [{gone}]" if gone else head
    for block in entry.content:
        limit = RESULT_LINES if is_result and not full else None
        for kind, line in block_lines(block, limit, full):
            yield ("dim" if gone or is_result else kind), ("    " if is_result else "  ") + line


def block_lines(block: AnyBlock, limit: int | None, full: bool) -> Iterator[Line]:
    if isinstance(block, Text):
        yield from (("", line) for line in _shortened(block.text, limit))
    elif isinstance(block, Thinking):
        cut = None if full else RESULT_LINES
        yield from (("dim italic", f"~ {line}") for line in _shortened(block.thinking, cut))
    elif isinstance(block, ToolCall):
        arguments = render.one_line(msgspec.json.encode(block.arguments).decode())
        shown = arguments if full else render.shorten(arguments, CALL_WIDTH)
        yield "magenta", f"→ {render.one_line(block.name)} {shown}"
    elif isinstance(block, Image | File):
        name = block.name if isinstance(block, File) else "image"
        kind = render.one_line(f"{name} {block.mime_type}".strip())
        where = render.one_line(block.url) if block.url else render.size(len(block.data) * 3 // 4)
        yield "magenta", f"[{kind}, {where}]"
    else:
        assert isinstance(block, OtherBlock)
        yield "magenta", f"[a block of kind {render.one_line(block.type)!r}]"


def _shortened(text: str, limit: int | None) -> Iterator[str]:
    """The lines of a text, or its first ones and how many follow."""
    if limit is None:
        yield from render.safe(text).split("\n")
        return
    head = text[: limit * RULE_WIDTH]
    lines = render.safe(head).split("\n")[:limit]
    yield from lines
    left = len(text) - sum(len(line) + 1 for line in lines) + 1
    if left > 0:
        yield f"… {left:,} more characters"


def _compaction(entry: Compaction, *, standing: bool) -> Iterator[Line]:
    state = "" if standing else ", no longer in use"
    label = f"── compacted at {entry.seq}: what came before {entry.first_kept_seq}{state} "
    yield "", ""
    yield "blue", label.ljust(RULE_WIDTH, "─")
    yield from (("blue", f"  {line}") for line in render.safe(entry.summary).split("\n"))
    yield "blue", "─" * RULE_WIDTH
