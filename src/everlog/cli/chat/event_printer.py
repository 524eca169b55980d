"""Events of a session turned into chat output.

The model's text is shown as Markdown, block by block; the end of an incomplete block is shown above
the prompt. If the chat joins in the middle of a message, only that end is shown, and the whole
message once it is stored. Tool calls and thinking are folded to one line each. All text comes from
models, tools and files, and is made safe here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from everlog.cli import output
from everlog.cli.chat.markdown_stream import BlockSplitter, Chunk
from everlog.model import Thinking, Usage
from everlog.render.transcript_items import describe_arguments, format_arguments
from everlog.wire import events
from everlog.wire.events import RunEvent

HISTORY_SIZE = 100  # folded items and runs that are remembered
TAIL_LINES = 8  # of the incomplete block
THINKING_WIDTH = 60
JOINED_NOTICE = "a turn is running (Ctrl+C stops it); its answer is shown when it is complete"
REPEATED_NOTICE = "· part of the answer was missed; in full:"
OTHER_SESSION_HINT = "/new starts a new session, /resume continues another"


class Line(NamedTuple):
    """One or more lines in one style."""

    text: str
    style: str = "dim"


class Markdown(NamedTuple):
    """Safe Markdown text of the model."""

    text: str


class Plain(NamedTuple):
    """Safe text that is printed as it is, without an added newline."""

    text: str


OutputItem = Line | Markdown | Plain


class FoldedItem(NamedTuple):
    """A tool call or thinking that was shown as one line."""

    run: str
    line: str
    text: str


class EventPrinter:
    """Turns the events of one session into output, and keeps the state of its running turn."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self.run = ""  # the running turn, or none
        self.waiting: dict[str, str] = {}  # queued runs, with their messages if known
        self.folded: deque[FoldedItem] = deque(maxlen=HISTORY_SIZE)
        self._columns = columns
        self._blocks = BlockSplitter()
        self._thinking: list[str] = []
        self._calls: dict[str, events.ToolStart] = {}
        self._has_shown_text = False  # some text of the current message was shown
        self._joined_midway = False  # the beginning of the current message may have been missed
        self._has_shown_part = False  # part of a message was shown before the connection was lost
        self._last_answer_seq = 0  # the seq of the last answer that was shown
        self._started: float | None = 0.0  # None: before we joined
        # Runs whose prompt was shown, and ended runs: submit() may return a run's id only after
        # its events were received.
        self._prompted_runs: deque[str] = deque(maxlen=HISTORY_SIZE)
        self._ended_runs: deque[str] = deque(maxlen=HISTORY_SIZE)

    def join_run(self, run: str) -> None:
        """Set the running turn, whose earlier events were missed."""
        self.run, self._started = run, None
        self._joined_midway = True

    def on_accepted(self, run: str, text: str) -> Iterator[OutputItem]:
        """Show an accepted message whose turn is about to start, which may take a while."""
        if run not in self._ended_runs:
            self._set_run(run)
        yield from self._show_prompt(run, text)

    def on_queued(self, run: str, text: str) -> None:
        """Remember a queued message; it is shown when its turn starts."""
        if run not in self._ended_runs:
            self.waiting[run] = text

    def on_event(self, event: RunEvent) -> Iterator[OutputItem]:
        """Yield the output of an event."""
        run = event.run_id or ""
        match event:
            case events.StreamDelta():
                yield from self._flush_thinking()
                self._set_run(run)
                chunks = list(self._blocks.feed(event.text))  # also if nothing of it is shown
                if not self._joined_midway:
                    self._has_shown_text = True
                    yield from map(_to_output, chunks)
                return
            case events.ThinkingDelta():
                self._set_run(run)
                self._thinking.append(event.text)
                return
        yield from self._flush_thinking()
        match event:
            case events.RunStart():
                self._set_run(run)
                self._joined_midway = self._has_shown_part = False
                self.waiting.pop(run, None)
            case events.Queued():
                self.waiting.setdefault(run, "")
                yield Line(f"queued: {len(self.waiting)}")
            case events.ToolStart():
                yield from self._flush_text()
                self._set_run(run)
                self._calls[event.tool_call_id] = event
            case events.ToolResult():
                yield self._on_tool_result(event)
            case events.MessageStored():
                yield from self._on_stored(event)
            case events.MessageComplete():
                yield from self._flush_text()
                # A queued message may be answered by another process: this is its only event.
                if text := self.waiting.get(run):
                    yield from self._show_prompt(run, text)
                if event.content and self._last_answer_seq != event.seq:
                    yield Markdown(output.safe(event.content))
                self._last_answer_seq = event.seq
                yield Line(_format_completion(event))
                self._end_run(run)
            case events.Error():
                yield from self._flush_text()
                yield self._on_error(event)
                self._end_run(run)
            case _:
                if notice := _notice_text(event):  # it is not part of a turn
                    yield Line(output.one_line(notice))

    def tail(self, columns: int) -> list[Line]:
        """Return lines for what is unfinished: the last text, thinking and running tool calls."""
        lines: list[Line] = []
        text = output.safe(self._blocks.tail(columns * TAIL_LINES)).expandtabs(4)
        for line in text.split("\n") if text else ():
            lines += [Line(part, "") for part in _wrap(line, columns)]
        lines = lines[-TAIL_LINES:]
        if self._thinking:
            words = output.one_line("".join(self._thinking[-200:]))[-columns:]
            lines.append(Line(output.shorten(f"✻ thinking … {words}", columns - 1)))
        for call in self._calls.values():
            lines.append(Line(self._format_call(call, " …")))
        if self.run:
            elapsed = "running"
            if self._started is not None:
                milliseconds = int((time.monotonic() - self._started) * 1000)
                elapsed = _format_duration(milliseconds, whole=True)
            line = f"… {elapsed} · Ctrl+C stops it"
            lines.append(Line(output.shorten(line, columns - 1)))
        return lines

    def on_disconnect(self) -> Iterator[OutputItem]:
        """Flush the running turn, whose end will not be reported."""
        yield from self._flush_thinking()
        yield from self._flush_text()
        self.run = ""
        self._calls.clear()
        # Its message may still be stored, and is then shown in full.
        self._has_shown_part |= self._has_shown_text
        self._has_shown_text = self._joined_midway = False

    # --- the parts of a turn

    def _set_run(self, run: str) -> None:
        if self.run != run:
            self.run = run
            self._started = time.monotonic()
            self._joined_midway = False

    def _show_prompt(self, run: str, text: str) -> Iterator[OutputItem]:
        if not run or run not in self._prompted_runs:
            self._prompted_runs.append(run)
            yield Line(format_prompt(text), "bold")

    def _end_run(self, run: str) -> None:
        self.waiting.pop(run, None)
        self._ended_runs.append(run)
        if self.run == run:
            self.run = ""
            self._calls.clear()

    def _flush_text(self) -> Iterator[OutputItem]:
        if not self._joined_midway:
            yield from map(_to_output, self._blocks.finish())
        self._blocks = BlockSplitter()

    def _flush_thinking(self) -> Iterator[OutputItem]:
        if self._thinking:
            text = "".join(self._thinking)
            self._thinking = []
            if not self._joined_midway:
                yield from self._fold_thinking(text)

    def _fold_thinking(self, thinking: str) -> Iterator[OutputItem]:
        text = output.safe(thinking).strip()
        if text:
            words = output.shorten(" ".join(text.split()), THINKING_WIDTH)
            line = output.shorten(f"✻ thought: {words}", self._columns() - 1)
            self.folded.append(FoldedItem(self.run, line, text))
            yield Line(line, "dim italic")

    def _on_stored(self, event: events.MessageStored) -> Iterator[OutputItem]:
        message = event.message
        if message.role == "user":
            # The event of a message that another process stored has no run id.
            run = event.run_id or message.run_id or ""
            self.waiting.pop(run, None)  # its turn has started
            self._has_shown_part = False
            yield from self._show_prompt(run, message.text)
        elif message.role == "assistant":
            yield from self._flush_text()
            if self._joined_midway:
                blocks = (block for block in message.content if isinstance(block, Thinking))
                yield from self._fold_thinking("\n".join(block.thinking for block in blocks))
            if message.text and not self._has_shown_text and self._last_answer_seq != event.seq:
                if self._has_shown_part:
                    yield Line(REPEATED_NOTICE)
                yield Markdown(output.safe(message.text))
            if message.text:
                self._last_answer_seq = event.seq
            self._has_shown_text = self._has_shown_part = False
        # An event read from the log has no run: a later message may have been missed in part.
        if event.run_id == self.run:
            self._joined_midway = False

    def _on_tool_result(self, event: events.ToolResult) -> Line:
        call = self._calls.pop(event.tool_call_id, None)
        mark = "✗" if event.is_error else "✓"
        end = f" {mark} {_format_duration(event.duration_ms)}"
        line = self._format_call(call or event, end)
        args = format_arguments(call.args) if call else ""
        text = f"{output.safe(args)}\n{output.safe(event.result)}".strip()
        self.folded.append(FoldedItem(self.run, line, text))
        return Line(line, "red" if event.is_error else "cyan")

    def _format_call(self, call: events.ToolStart | events.ToolResult, end: str) -> str:
        name = output.one_line(call.tool_name)
        arguments = output.one_line(describe_arguments(call.args)) if isinstance(call, events.ToolStart) else ""
        room = self._columns() - 1 - output.display_width(end)
        return output.shorten(f"⚙ {name} {arguments}".rstrip(), max(room, 8)) + end

    def _on_error(self, event: events.Error) -> Line:
        if event.code == "RunCancelledError":
            is_queued = event.run_id in self.waiting
            return Line("cancelled" if is_queued else "stopped; the text so far is kept", "yellow")
        hint = f" ({event.hint})" if event.hint else ""
        return Line(f"✗ {output.one_line(event.message + hint)}", "red")


def format_prompt(text: str) -> str:
    """Format a user's message as it looks behind the prompt."""
    first, *more = output.safe(text).split("\n")
    return "\n".join([f"› {first}", *(f"  {line}" for line in more)])


def format_usage(usage: Usage) -> list[str]:
    """Return the tokens and the cost of a turn, as far as known."""
    details = []
    cached = usage.cache_read_tokens
    input_tokens = usage.input_tokens + cached + usage.cache_write_tokens
    if input_tokens or usage.output_tokens:
        cache_note = f" ({cached:,} cached)" if cached else ""
        details.append(f"{input_tokens:,} tokens in{cache_note}, {usage.output_tokens:,} out")
    if usage.cost:
        details.append(f"${usage.cost:.4f}")
    return details


def _to_output(chunk: Chunk) -> OutputItem:
    text = output.safe(chunk.text)
    return Plain(text) if chunk.is_plain else Markdown(text)


def _format_completion(event: events.MessageComplete) -> str:
    details = [_format_duration(event.duration_ms), *format_usage(event.usage)]
    if event.tool_calls:
        details.append(output.plural(event.tool_calls, "tool call"))
    if event.stop != "end":
        details.append("stopped at the step limit")
    return f"✓ {' · '.join(details)}"


def _notice_text(event: RunEvent) -> str:
    match event:
        case events.Status():
            return f"· {event.message}"
        case events.SessionRenamed():
            return f"· the title is now: {event.name}"
        case events.SessionChanged(change="deleted"):
            return f"✗ the session was deleted ({OTHER_SESSION_HINT})"
        case events.SessionChanged(change="rewound"):
            target = f"#{event.seqs[0]}" if any(event.seqs) else "the start"
            return f"· the session was rewound to {target}; the log keeps the later messages"
        case events.SessionChanged():
            return f"· messages were {event.change}"
        case events.CompactStart():
            return f"· compacting {event.messages:,} messages, {event.tokens:,} tokens"
        case events.CompactEnd(summariser=""):
            return "· compacted"  # by another program
        case events.CompactEnd():
            return f"· compacted: {event.tokens_freed:,} tokens freed, by the {event.summariser}"
        case events.CompactFailed():
            return f"· not compacted: {event.error}"
        case events.TokenWarning():
            used = f"{event.tokens:,} of {event.window:,} tokens"
            return f"· the context is {event.percent} % full: {used} (/compact frees space)"
        case events.MemoryExtracted():
            return f"· {event.facts} new facts were extracted"
        case events.MemoryDreamed():
            return f"· the memory was consolidated: {event.changes} files changed"
        case events.HookFailed():
            return f"· hook {event.hook} failed: {event.problem}"
    return ""


def _format_duration(milliseconds: int, *, whole: bool = False) -> str:
    seconds = milliseconds / 1000
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds)} s" if whole else f"{seconds:.1f} s"


def _wrap(line: str, columns: int) -> Iterator[str]:
    """Split a line into parts that fit into the width."""
    width = max(columns - 1, 8)
    while output.display_width(line) > width:
        cut = width if line.isascii() else max(len(output.shorten(line, width)) - 1, 1)
        yield line[:cut]
        line = line[cut:]
    yield line
