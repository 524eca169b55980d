"""Messages as styled lines of text, with folded tool calls and thinking.

A tool call is one line with the status of its result; only `full` shows the result itself. Every
line is safe for a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everlog.cli import output
from everlog.ids import epoch_ms
from everlog.log.tool_pairs import pair_results
from everlog.model import AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall

CALL_WIDTH = 100  # of a tool call's arguments
ARGUMENT_WIDTH = 60  # of a tool call's key argument
RESULT_LINES = 6  # of a tool result, and of thinking
FOLDED_WIDTH = 60  # of folded thinking and errors
LINE_WIDTH = 72  # assumed length of a line when a text is cut
MARKDOWN = "markdown"  # the style of a whole text that a terminal may show formatted
MIN_ELAPSED = 100  # milliseconds; shorter durations are not shown

# The argument that describes a call best, for most tools.
KEY_ARGUMENTS = ("command", "file_path", "path", "pattern", "query", "url", "prompt", "description")

Line = tuple[str, str]  # style, text


class FoldedMessages:
    """Messages with each tool result shown next to its call instead of as a message."""

    def __init__(self, messages: Sequence[Message]) -> None:
        pairs = pair_results(messages)
        self._results: dict[tuple[int, str], list[Message]] = {}
        for result, caller in sorted(pairs.caller.items()):
            result_message = messages[result]
            key = (messages[caller].seq, result_message.tool_call_id or "")
            self._results.setdefault(key, []).append(result_message)
        self._paired_seqs = {messages[result].seq for result in pairs.caller}

    def lines(
        self, message: Message, *, hidden_reason: str = "", full: bool = False, max_lines: int | None = None
    ) -> Iterator[Line]:
        """Yield a message's header and blocks; nothing for a result that is shown with its call.

        `hidden_reason`: why the message is not live. `max_lines`: limit for one text.
        """
        if message.seq in self._paired_seqs:
            return
        is_result = message.role == "toolResult"
        speaker: str = "tool result" if is_result else message.role
        if is_result and message.tool_name:
            speaker += f" of {output.one_line(message.tool_name)}"
        if message.is_error:
            speaker += " (failed)"
        head = f"#{message.seq} {speaker} · {output.format_time(message.timestamp)}"
        head += f" [{hidden_reason}]" if hidden_reason else ""
        style = {"user": "bold green", "assistant": "bold cyan"}.get(message.role, "yellow")
        yield "", ""
        yield "dim" if hidden_reason else style, head
        is_formatted = message.role == "assistant" and not hidden_reason and not max_lines
        results = {call.id: self._results_of(message, call) for call in message.tool_calls}
        for block in message.content:
            if isinstance(block, Text) and not block.text.strip():
                continue  # some programs store line breaks before their thinking
            if isinstance(block, ToolCall):
                lines = _call_lines(message, block, next(results[block.id], None), full)
            elif isinstance(block, Text) and is_formatted:
                lines = iter([(MARKDOWN, output.safe(block.text))])
            elif isinstance(block, Thinking) and not full:
                lines = iter([_thinking_line(block)])
            else:
                limit = RESULT_LINES if is_result and not full else max_lines
                lines = block_lines(block, limit, full)
            for line_style, line in lines:
                yield ("dim" if hidden_reason or is_result else line_style), f"  {line}"

    def _results_of(self, message: Message, call: ToolCall) -> Iterator[Message]:
        return iter(self._results.get((message.seq, call.id), ()))


def _call_lines(message: Message, call: ToolCall, result: Message | None, full: bool) -> Iterator[Line]:
    """Yield a call with its status in one line; with `full`, all its arguments and its result."""
    summarize = _to_json if full else summarize_arguments
    summary = f"{output.one_line(call.name)} {output.one_line(summarize(call.arguments))}".rstrip()
    if result is None:
        yield "yellow", f"… {summary}"
        return
    elapsed = _elapsed(message, result)
    summary += f" · {elapsed}" if elapsed else ""
    summary += f" (#{result.seq})" if result.seq else ""
    if result.is_error:
        error = "" if full else _first_line(result.text, FOLDED_WIDTH)
        yield "red", f"✗ {summary}: {error}" if error else f"✗ {summary}"
    else:
        yield "magenta", f"✓ {summary}"
    if full:
        for block in result.content:
            yield from (("dim", f"  {line}") for _, line in block_lines(block, None, True))


def _thinking_line(block: Thinking) -> Line:
    line = _first_line(block.thinking, FOLDED_WIDTH)
    length = f" ({len(block.thinking):,} characters)" if line.endswith("…") else ""
    return "dim italic", f"~ {line}{length}"


def summarize_arguments(arguments: Mapping[str, Any]) -> str:
    """Return a call's key argument, or the beginning of all its arguments."""
    for key in KEY_ARGUMENTS:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return _first_line(value, ARGUMENT_WIDTH)
    return output.shorten(output.one_line(_to_json(arguments)), ARGUMENT_WIDTH) if arguments else ""


def block_lines(block: AnyBlock, limit: int | None, full: bool) -> Iterator[Line]:
    """Yield the lines of a block; of a text at most `limit`, and how much was cut."""
    if isinstance(block, Text):
        yield from (("", line) for line in _limit_lines(block.text, limit))
    elif isinstance(block, Thinking):
        cut = None if full else RESULT_LINES
        yield from (("dim italic", f"~ {line}") for line in _limit_lines(block.thinking, cut))
    elif isinstance(block, ToolCall):
        arguments = output.one_line(_to_json(block.arguments))
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


def _elapsed(message: Message, result: Message) -> str:
    """Return the time between call and result; empty if unknown or below MIN_ELAPSED."""
    start, end = epoch_ms(message.timestamp), epoch_ms(result.timestamp)
    if start is None or end is None or end - start < MIN_ELAPSED:
        return ""
    return output.duration(end - start)


def _first_line(text: str, width: int) -> str:
    """Return the first non-blank line of a text, with an ellipsis if there is more."""
    head = text[: 20 * width].strip()
    line = output.shorten(output.one_line(head.partition("\n")[0].rstrip()), width)
    is_all = len(text) <= 20 * width and len(line) >= len(head)
    return line if is_all or line.endswith("…") else f"{line} …"


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


def _to_json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
