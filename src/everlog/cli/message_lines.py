"""Items of a transcript as styled lines of text, with folded tool calls and thinking.

A tool call is one line with the status of its result; only `full` shows the result itself. A chat
has no headings and no indent, so its lines begin with a sign of their own. Every line is safe for a
terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everlog.cli import output
from everlog.model import (
    AnyBlock,
    Compaction,
    Damaged,
    File,
    Image,
    Message,
    Metadata,
    OtherBlock,
    Text,
    Thinking,
    ToolCall,
)
from everlog.render.humanize import first_line
from everlog.render.transcript_items import (
    MessageItem,
    NoteItem,
    ToolExchange,
    TranscriptItem,
    block_text,
    describe_arguments,
    describe_damage,
    encode_arguments,
    format_arguments,
)

CALL_WIDTH = 100  # of a tool call's arguments
RESULT_LINES = 6  # of a tool result, and of thinking
FOLDED_WIDTH = 60  # of folded thinking and errors
LINE_WIDTH = 72  # assumed length of a line when a text is cut
MARKDOWN = "markdown"  # the style of a whole text that a terminal may show formatted
MIN_ELAPSED = 100  # milliseconds; shorter durations are not shown in a transcript
ROLE_STYLES = {"user": "bold green", "assistant": "bold cyan", "toolResult": "yellow"}
_STATES = {"done": ("✓", "magenta"), "failed": ("✗", "red"), "open": ("…", "yellow")}  # of a tool call

Line = tuple[str, str]  # style, text
Foldable = Thinking | ToolExchange


def prompt_style(style: str) -> str:
    """Return a style of lines in the words of prompt_toolkit."""
    words = (word if word in ("bold", "italic") else f"ansi{word}" for word in style.split())
    return " ".join(words).replace("ansidim", "ansibrightblack")


def format_participants(metadata: Metadata) -> str:
    """Return agent and sender as text."""
    return f"{output.one_line(metadata.agent)} with {output.one_line(metadata.sender)}"


def heading_lines(metadata: Metadata, details: Iterable[str]) -> Iterator[Line]:
    """Yield the heading of a report on a session: its names, then its model and details."""
    yield "bold", f"{output.one_line(metadata.display_title)} · {metadata.id} · {format_participants(metadata)}"
    yield "dim", " · ".join([*([output.one_line(metadata.model)] if metadata.model else []), *details])


def item_lines(item: TranscriptItem, *, full: bool = False, max_lines: int | None = None) -> Iterator[Line]:
    """Yield the lines of a message, a note or damage; `max_lines`: limit for one text."""
    if isinstance(item, MessageItem):
        yield from _message_lines(item, full, max_lines)
    elif isinstance(item, Damaged):
        yield from (("", ""), ("red", f"! {output.one_line(describe_damage(item))}"))
    elif isinstance(item, NoteItem) and item.kind != "compacted":  # the summary itself is shown
        yield from (("", ""), note_line(item))


def note_line(note: NoteItem) -> Line:
    """Return an event between messages as one line."""
    mark = "✗" if note.kind == "failed" else "!"
    return "yellow" if note.kind == "cancelled" else "red", f"{mark} {output.one_line(note.text)}"


def summary_line(record: Compaction) -> Line:
    """Return the text of a summary."""
    return MARKDOWN, f"  {output.safe(record.summary)}"


def describe_speaker(message: Message, tool_name: str | None = None) -> str:
    """Return who said a message; of a tool result, which tool and whether it failed."""
    speaker: str = message.role if message.role != "user" or message.is_typed else "inserted by the program"
    if message.role == "toolResult":
        name = message.tool_name or tool_name
        speaker = f"tool result of {output.one_line(name)}" if name else "tool result"
    return f"{speaker} (failed)" if message.is_error else speaker


def _message_lines(item: MessageItem, full: bool, max_lines: int | None) -> Iterator[Line]:
    message = item.message
    is_result = message.role == "toolResult"
    mark = "" if item.fate == "live" else " [deleted]" if item.fate == "hidden" else " [rewound]"
    head = f"#{message.seq} {describe_speaker(message)} · {output.format_time(message.timestamp)}{mark}"
    yield "", ""
    yield "dim" if mark else ROLE_STYLES[message.role], head
    is_formatted = message.role == "assistant" and not mark and not max_lines
    for block in _visible_blocks(item):
        if isinstance(block, ToolExchange):
            lines = _exchange_lines(block, full)
        elif isinstance(block, Text) and is_formatted:
            lines = iter([(MARKDOWN, output.safe(block.text))])
        elif isinstance(block, Thinking) and not full:
            lines = iter([folded_line(block)])
        else:
            lines = block_lines(block, RESULT_LINES if is_result and not full else max_lines, full)
        for style, line in lines:
            yield ("dim" if mark or is_result else style), f"  {line}"


def _visible_blocks(item: MessageItem) -> Iterator[AnyBlock | ToolExchange]:
    """Yield all blocks but blank ones: line breaks before thinking, and thinking that is kept secret."""
    for block in item.blocks:
        if not isinstance(block, Text | Thinking) or block_text(block).strip():
            yield block


def _exchange_lines(exchange: ToolExchange, full: bool) -> Iterator[Line]:
    """Yield a call with its status in one line; with `full`, all its arguments and its result."""
    yield _exchange_line(exchange, full=full)
    if full:
        yield from _result_lines(exchange)


def _result_lines(exchange: ToolExchange) -> Iterator[Line]:
    for block in exchange.result.content if exchange.result else ():
        yield from (("dim", f"  {line}") for _, line in block_lines(block, None, True))


def folded_line(block: Foldable, *, columns: int = 0) -> Line:
    """Return a tool call or thinking as one line; `columns`: as a line of a chat of that width."""
    if isinstance(block, ToolExchange):
        return _exchange_line(block, columns=columns)
    words = output.one_line(first_line(block.thinking, FOLDED_WIDTH))
    length = f" ({len(block.thinking):,} characters)" if words.endswith("…") else ""
    if columns:
        return "dim italic", output.shorten(f"✻ thought: {words}{length}", columns - 1)
    return "dim italic", f"~ {words}{length}"


def chat_lines(item: MessageItem, columns: int, max_lines: int) -> Iterator[Line]:
    """Yield a message as a chat shows it, but at most `max_lines` of one text."""
    for block in _visible_blocks(item):
        if isinstance(block, Foldable):
            yield folded_line(block, columns=columns)
        elif item.message.is_typed:
            yield "bold", format_prompt("\n".join(line for _, line in block_lines(block, max_lines, False)))
        else:
            yield from block_lines(block, max_lines, False)


def format_prompt(text: str) -> str:
    """Format a user's message as it looks behind the prompt."""
    return "› " + output.safe(text).replace("\n", "\n  ")


def unfolded_lines(block: Foldable, columns: int) -> Iterator[Line]:
    """Yield a line of a chat, and below it all that it stands for."""
    yield folded_line(block, columns=columns)
    if isinstance(block, Thinking):
        yield from (("", f"  {line}") for line in output.safe(block.thinking).split("\n"))
        return
    if block.call.arguments:
        yield from (("", f"  {line}") for line in output.safe(format_arguments(block.call.arguments)).split("\n"))
    yield from _result_lines(block)


def _exchange_line(exchange: ToolExchange, *, full: bool = False, columns: int = 0) -> Line:
    call, result = exchange.call, exchange.result
    mark, style = _STATES[exchange.state]
    describe = encode_arguments if full else describe_arguments
    summary = f"{output.one_line(call.name)} {output.one_line(describe(call.arguments))}".rstrip()
    problem = output.one_line(first_line(result.text, FOLDED_WIDTH)) if result and result.is_error and not full else ""
    problem = f": {problem}" if problem else ""
    elapsed = exchange.elapsed_ms
    if columns:
        time = "" if elapsed is None else f" {format_elapsed(elapsed)}"
        room = columns - 1
        head = f"⚙ {summary}"
        end = output.shorten(f" {mark}{time}{problem}", max(room - output.display_width(head), room // 2, 12))
        return style, output.shorten(head, max(room - output.display_width(end), 8)) + end
    time = "" if elapsed is None or elapsed < MIN_ELAPSED else f" · {format_elapsed(elapsed)}"
    seq = f" (#{result.seq})" if result and result.seq else ""
    return style, f"{mark} {summary}{time}{seq}{problem}"


def format_elapsed(milliseconds: int) -> str:
    """Format how long a call or a turn took; below a second in tenths of it."""
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 1000 else output.duration(milliseconds)


def block_lines(block: AnyBlock, limit: int | None, full: bool) -> Iterator[Line]:
    """Yield the lines of a block; of a text at most `limit`, and how much was cut."""
    if isinstance(block, Text):
        yield from (("", line) for line in _limit_lines(block.text, limit))
    elif isinstance(block, Thinking):
        cut = None if full else RESULT_LINES
        yield from (("dim italic", f"~ {line}") for line in _limit_lines(block.thinking, cut))
    elif isinstance(block, ToolCall):
        arguments = output.one_line(encode_arguments(block.arguments))
        text = arguments if full else output.shorten(arguments, CALL_WIDTH)
        yield "magenta", f"→ {output.one_line(block.name)} {text}"
    elif isinstance(block, Image | File):
        name = block.name if isinstance(block, File) else "image"
        kind = output.one_line(f"{name} {block.mime_type}".strip())
        size = output.size(len(block.data) * 3 // 4)
        yield "magenta", f"[{kind}, {output.one_line(block.url) if block.url else size}]"
    else:
        assert isinstance(block, OtherBlock)
        yield "magenta", f"[a block of kind {output.one_line(block.type)!r}]"


def _limit_lines(text: str, limit: int | None) -> Iterator[str]:
    """Yield the lines of a text; with a limit, the first ones and how much follows."""
    if limit is None:
        yield from output.safe(text).split("\n")
        return
    text = text.replace("\r\n", "\n")  # as in the shown lines, so that the count below is right
    head = text[: limit * LINE_WIDTH]
    lines = output.safe(head).split("\n")[:limit]
    yield from lines
    remaining = len(text) - sum(len(line) + 1 for line in lines) + 1
    if remaining > 0:
        yield f"… {output.plural(remaining, 'more character')}"
