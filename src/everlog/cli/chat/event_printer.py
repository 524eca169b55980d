"""Events of a session turned into the lines of a chat.

The model's text is shown as Markdown, block by block; the end of an incomplete block is shown above
the prompt. If the chat joins in the middle of a message, only that end is shown, and the whole
message once it is stored. Tool calls, thinking and the end of a turn become items of a transcript,
and are shown as these are. All text comes from models, tools and files, and is made safe.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from rich.cells import chop_cells

from everlog.cli import output
from everlog.cli.chat.markdown_stream import BlockSplitter, Chunk
from everlog.cli.message_lines import MARKDOWN, Foldable, Line, folded_line, format_elapsed, format_prompt, note_line
from everlog.model import Thinking, ToolCall, Usage, tool_result
from everlog.render.transcript_items import NoteItem, ToolExchange
from everlog.wire import events
from everlog.wire.events import RunEvent

HISTORY_SIZE = 100  # folded items and runs that are remembered
TAIL_LINES = 8  # of the incomplete block
PLAIN = "plain"  # the style of a text that is printed as it is, without an added newline
JOINED_NOTICE = "a turn is running (Ctrl+C stops it); its answer is shown when it is complete"
REPEATED_NOTICE = "· part of the answer was missed; in full:"
OTHER_SESSION_HINT = "/new starts a new session, /resume continues another"


class EventPrinter:
    """Turns the events of one session into output, and keeps the state of its running turn."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self.run = ""  # the running turn, or none
        self.waiting: dict[str, str] = {}  # queued runs, with their messages if known
        self.folded: deque[tuple[str, Foldable]] = deque(maxlen=HISTORY_SIZE)  # each with its run
        self._columns = columns
        self._blocks = BlockSplitter()
        self._thinking: list[str] = []
        self._calls: dict[str, ToolCall] = {}  # the running ones, by id
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

    def on_accepted(self, run: str, text: str) -> Iterator[Line]:
        """Show an accepted message whose turn is about to start, which may take a while."""
        if run not in self._ended_runs:
            self._set_run(run)
        yield from self._show_prompt(run, text)

    def on_queued(self, run: str, text: str) -> None:
        """Remember a queued message; it is shown when its turn starts."""
        if run not in self._ended_runs:
            self.waiting[run] = text

    def on_event(self, event: RunEvent) -> Iterator[Line]:
        """Yield the output of an event."""
        run = event.run_id or ""
        match event:
            case events.StreamDelta():
                yield from self._flush_thinking()
                self._set_run(run)
                chunks = list(self._blocks.feed(event.text))  # also if nothing of it is shown
                if not self._joined_midway:
                    self._has_shown_text = True
                    yield from map(_chunk_line, chunks)
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
                yield "dim", f"queued: {len(self.waiting)}"
            case events.ToolStart():
                yield from self._flush_text()
                self._set_run(run)
                self._calls[event.tool_call_id] = ToolCall(event.tool_call_id, event.tool_name, event.args)
            case events.ToolResult():
                started = self._calls.pop(event.tool_call_id, None)
                call = started or ToolCall(event.tool_call_id, event.tool_name, {})
                result = tool_result(call.id, event.result, is_error=event.is_error)
                yield self._fold(ToolExchange(call, result, event.duration_ms))
            case events.MessageStored():
                yield from self._on_stored(event)
            case events.MessageComplete():
                yield from self._flush_text()
                # A queued message may be answered by another process: this is its only event.
                if text := self.waiting.get(run):
                    yield from self._show_prompt(run, text)
                if event.content and self._last_answer_seq != event.seq:
                    yield MARKDOWN, output.safe(event.content)
                self._last_answer_seq = event.seq
                yield "dim", _format_completion(event)
                self._end_run(run)
            case events.Error():
                yield from self._flush_text()
                yield note_line(self._error_note(event))
                self._end_run(run)
            case _:
                if notice := _notice_text(event):  # it is not part of a turn
                    yield "dim", output.one_line(notice)

    def tail(self, columns: int) -> list[Line]:
        """Return lines for what is unfinished: the last text, thinking and running tool calls."""
        lines: list[Line] = []
        text = output.safe(self._blocks.tail(columns * TAIL_LINES)).expandtabs(4)
        for line in text.split("\n") if text else ():
            lines += [("", part) for part in chop_cells(line, max(columns - 1, 8)) or [""]]
        lines = lines[-TAIL_LINES:]
        if self._thinking:
            words = output.one_line("".join(self._thinking[-200:]))[-columns:]
            lines.append(("dim", output.shorten(f"✻ thinking … {words}", columns - 1)))
        lines += [folded_line(ToolExchange(call), columns=columns) for call in self._calls.values()]
        if self.run:
            elapsed = "running"
            if self._started is not None:
                elapsed = format_elapsed(int((time.monotonic() - self._started) * 1000))
            lines.append(("dim", output.shorten(f"… {elapsed} · Ctrl+C stops it", columns - 1)))
        return lines

    def on_disconnect(self) -> Iterator[Line]:
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

    def _show_prompt(self, run: str, text: str) -> Iterator[Line]:
        if not run or run not in self._prompted_runs:
            self._prompted_runs.append(run)
            yield "bold", format_prompt(text)

    def _end_run(self, run: str) -> None:
        self.waiting.pop(run, None)
        self._ended_runs.append(run)
        if self.run == run:
            self.run = ""
            self._calls.clear()

    def _flush_text(self) -> Iterator[Line]:
        if not self._joined_midway:
            yield from map(_chunk_line, self._blocks.finish())
        self._blocks = BlockSplitter()

    def _flush_thinking(self) -> Iterator[Line]:
        if self._thinking:
            text = "".join(self._thinking)
            self._thinking = []
            if text.strip() and not self._joined_midway:
                yield self._fold(Thinking(text.strip()))

    def _fold(self, block: Foldable) -> Line:
        """Return a block as one line, and remember it."""
        self.folded.append((self.run, block))
        return folded_line(block, columns=self._columns())

    def _on_stored(self, event: events.MessageStored) -> Iterator[Line]:
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
                yield from (self._fold(block) for block in blocks if block.thinking.strip())
            if message.text and not self._has_shown_text and self._last_answer_seq != event.seq:
                if self._has_shown_part:
                    yield "dim", REPEATED_NOTICE
                yield MARKDOWN, output.safe(message.text)
            if message.text:
                self._last_answer_seq = event.seq
            self._has_shown_text = self._has_shown_part = False
        # An event read from the log has no run: a later message may have been missed in part.
        if event.run_id == self.run:
            self._joined_midway = False

    def _error_note(self, event: events.Error) -> NoteItem:
        if event.code == "RunCancelledError":
            is_queued = event.run_id in self.waiting
            return NoteItem(0, "cancelled", "cancelled" if is_queued else "stopped; the text so far is kept")
        hint = f" ({event.hint})" if event.hint else ""
        return NoteItem(0, "failed", event.message + hint)


def _format_usage(usage: Usage) -> list[str]:
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


def _chunk_line(chunk: Chunk) -> Line:
    return PLAIN if chunk.is_plain else MARKDOWN, output.safe(chunk.text)


def _format_completion(event: events.MessageComplete) -> str:
    details = [format_elapsed(event.duration_ms), *_format_usage(event.usage)]
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
