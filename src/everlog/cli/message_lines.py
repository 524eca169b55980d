"""What was said, as styled lines for people: messages, folded tool calls, thinking, summaries.

A tool call is one line with its answer's status; only `full` unfolds the answer. Every line that
comes from here is safe for a terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from everlog.cli import output
from everlog.ids import epoch_ms
from everlog.log.tool_pairs import pair
from everlog.model import AnyBlock, File, Image, Message, OtherBlock, Text, Thinking, ToolCall

CALL_WIDTH = 100  # of a tool call's arguments
BRIEF_WIDTH = 60  # of the one that tells what it is about
RESULT_LINES = 6  # of a tool's result, and of thinking
FOLDED_WIDTH = 60  # of thinking, and of what went wrong
LINE_WIDTH = 72  # what a line is taken for when a text is cut
MARKDOWN = "markdown"  # the style of a whole text that a terminal may be shown formatted
LEAST_TOLD = 100  # milliseconds; what took less was done at once

# The one argument that tells what a call is about, for most tools.
TELLING = ("command", "file_path", "path", "pattern", "query", "url", "prompt", "description")

Line = tuple[str, str]  # style, text


class Folded:
    """Messages with each call's answer at hand, so that the answer need not stand by itself."""

    def __init__(self, messages: Sequence[Message]) -> None:
        pairs = pair(messages)
        self._answers: dict[tuple[int, str], list[Message]] = {}
        for result, caller in sorted(pairs.caller.items()):
            answer = messages[result]
            where = (messages[caller].seq, answer.tool_call_id or "")
            self._answers.setdefault(where, []).append(answer)
        self._taken = {messages[result].seq for result in pairs.caller}

    def lines(
        self, message: Message, *, gone: str = "", full: bool = False, most: int | None = None
    ) -> Iterator[Line]:
        """A message: a head and its blocks; nothing for an answer that stands with its call.

        `gone`: why it is no longer part of the conversation. `most`: lines of one text.
        """
        if message.seq in self._taken:
            return
        is_result = message.role == "toolResult"
        who: str = "tool result" if is_result else message.role
        if is_result and message.tool_name:
            who += f" of {output.one_line(message.tool_name)}"
        if message.is_error:
            who += " (failed)"
        head = f"#{message.seq} {who} · {output.when(message.timestamp)}"
        style = {"user": "bold green", "assistant": "bold cyan"}.get(message.role, "yellow")
        yield "", ""
        yield "dim" if gone else style, f"{head} [{gone}]" if gone else head
        answers = {call.id: self._of(message, call) for call in message.tool_calls}
        for block in message.content:
            if isinstance(block, Text) and not block.text.strip():
                continue  # some programs say line breaks before they think
            if isinstance(block, ToolCall):
                found = answers[block.id]
                lines = _call(message, block, next(found, None), full)
            elif isinstance(block, Text) and message.role == "assistant" and not gone and not most:
                lines = iter([(MARKDOWN, output.safe(block.text))])
            elif isinstance(block, Thinking) and not full:
                lines = iter([_thought(block)])
            else:
                limit = RESULT_LINES if is_result and not full else most
                lines = block_lines(block, limit, full)
            for kind, line in lines:
                yield ("dim" if gone or is_result else kind), f"  {line}"

    def _of(self, message: Message, call: ToolCall) -> Iterator[Message]:
        return iter(self._answers.get((message.seq, call.id), ()))


def _call(message: Message, call: ToolCall, answer: Message | None, full: bool) -> Iterator[Line]:
    """A call and how it ended, in one line; with `full`, everything it was given and gave."""
    arguments = output.one_line(_json(call.arguments)) if full else brief(call.arguments)
    told = f"{output.one_line(call.name)} {arguments}".rstrip()
    if answer is None:
        yield "yellow", f"… {told}"
        return
    took = _took(message, answer)
    told += f" · {took}" if took else ""
    told += f" (#{answer.seq})" if answer.seq else ""
    if answer.is_error:
        said = "" if full else _first(answer.text, FOLDED_WIDTH)
        yield "red", f"✗ {told}: {said}" if said else f"✗ {told}"
    else:
        yield "magenta", f"✓ {told}"
    if full:
        for block in answer.content:
            yield from (("dim", f"  {line}") for _, line in block_lines(block, None, True))


def _thought(block: Thinking) -> Line:
    line = _first(block.thinking, FOLDED_WIDTH)
    length = f" ({len(block.thinking):,} characters)" if line.endswith("…") else ""
    return "dim italic", f"~ {line}{length}"


def brief(arguments: Mapping[str, Any]) -> str:
    """What a call is about: its telling argument, or the beginning of all."""
    for key in TELLING:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return _first(value, BRIEF_WIDTH)
    return output.shorten(output.one_line(_json(arguments)), BRIEF_WIDTH) if arguments else ""


def block_lines(block: AnyBlock, limit: int | None, full: bool) -> Iterator[Line]:
    """One block; of text at most `limit` lines, and how much more there is."""
    if isinstance(block, Text):
        yield from (("", line) for line in _shortened(block.text, limit))
    elif isinstance(block, Thinking):
        cut = None if full else RESULT_LINES
        yield from (("dim italic", f"~ {line}") for line in _shortened(block.thinking, cut))
    elif isinstance(block, ToolCall):
        arguments = output.one_line(_json(block.arguments))
        shown = arguments if full else output.shorten(arguments, CALL_WIDTH)
        yield "magenta", f"→ {output.one_line(block.name)} {shown}"
    elif isinstance(block, Image | File):
        name = block.name if isinstance(block, File) else "image"
        kind = output.one_line(f"{name} {block.mime_type}".strip())
        where = output.one_line(block.url) if block.url else output.size(len(block.data) * 3 // 4)
        yield "magenta", f"[{kind}, {where}]"
    else:
        assert isinstance(block, OtherBlock)
        yield "magenta", f"[a block of kind {output.one_line(block.type)!r}]"


def _took(message: Message, answer: Message) -> str:
    """How long after the call its answer was recorded; empty if that is not known or at once."""
    begun, ended = epoch_ms(message.timestamp), epoch_ms(answer.timestamp)
    if begun is None or ended is None or ended - begun < LEAST_TOLD:
        return ""
    return output.duration(ended - begun)


def _first(text: str, width: int) -> str:
    """The first line of a text that says something, with an ellipsis if there is more."""
    head = text[: 20 * width].strip()
    line = output.shorten(output.one_line(head.partition("\n")[0].rstrip()), width)
    is_all = len(text) <= 20 * width and len(line) >= len(head)
    return line if is_all or line.endswith("…") else f"{line} …"


def _shortened(text: str, limit: int | None) -> Iterator[str]:
    """The lines of a text, or its first ones and how many follow."""
    if limit is None:
        yield from output.safe(text).split("\n")
        return
    text = text.replace("\r\n", "\n")  # as what is shown of it has it
    head = text[: limit * LINE_WIDTH]
    lines = output.safe(head).split("\n")[:limit]
    yield from lines
    left = len(text) - sum(len(line) + 1 for line in lines) + 1
    if left > 0:
        yield f"… {output.plural(left, 'more character')}"


def _json(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
