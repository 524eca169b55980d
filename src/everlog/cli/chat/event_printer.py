"""What happens in a session, as what a person is shown of it.

Words of the model are shown as Markdown, block by block; until a block is complete its end is
seen above the prompt. Of a message that was begun before anybody listened only that is seen, and
all of it is shown when it is stored. Tool calls and thinking take one line each and can be
unfolded. All text is made safe here: it comes from models, tools and files.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from everlog.cli import output
from everlog.cli.chat.markdown_stream import Blocks, Piece
from everlog.model import Thinking, Usage
from everlog.wire import events
from everlog.wire.events import RunEvent

KEPT = 100  # folded lines that can be unfolded
TAIL_LINES = 8
THOUGHT_WIDTH = 60
JOINED = "a turn is under way, Ctrl+C stops it; what it is saying is shown when it is complete"
AGAIN = "· the whole answer, for a part of it was missed:"
ELSEWHERE = "/new starts the next one, /resume goes on with another"


class Line(NamedTuple):
    """A line, or some, in one style."""

    text: str
    style: str = "dim"


class Markdown(NamedTuple):
    """Words of the model, safe."""

    text: str


class Plain(NamedTuple):
    """Words as they are, safe, without a line end of their own."""

    text: str


Shown = Line | Markdown | Plain


class Folded(NamedTuple):
    """Something of which only a line was shown."""

    run: str
    line: str
    text: str


class Teller:
    """Turns the events of one session into what is shown; knows what is under way."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self.run = ""  # the turn under way, or none
        self.waiting: dict[str, str] = {}  # runs whose messages wait, with these if known
        self.folded: deque[Folded] = deque(maxlen=KEPT)
        self._columns = columns
        self._blocks = Blocks()
        self._thought: list[str] = []
        self._calls: dict[str, events.ToolStart] = {}
        self._has_spoken = False  # words of the message that is being made were shown
        self._is_midway = False  # of that message the beginning may not have been heard
        self._is_cut = False  # of a message that was not stored yet, some words were shown
        self._said = 0  # the seq of the last answer that was shown
        self._since: float | None = 0.0  # None: since before we listened
        # Runs whose prompt was shown, and runs that have ended: whoever says something may learn
        # its run only after all that.
        self._shown: deque[str] = deque(maxlen=KEPT)
        self._ended: deque[str] = deque(maxlen=KEPT)

    def join(self, run: str) -> None:
        """A turn is under way, and whatever it told before now was not heard."""
        self.run, self._since = run, None
        self._is_midway = True

    def taken(self, run: str, text: str) -> Iterator[Shown]:
        """A message was taken and its turn is about to begin, which may take a while."""
        if run not in self._ended:
            self._enter(run)
        yield from self._prompt(run, text)

    def queued(self, run: str, text: str) -> None:
        """A message was taken and waits; it is shown when its turn comes."""
        if run not in self._ended:
            self.waiting[run] = text

    def hear(self, event: RunEvent) -> Iterator[Shown]:
        """What an event shows."""
        match event:
            case events.StreamDelta():
                yield from self._end_thought()
                self._begin(event)
                pieces = list(self._blocks.feed(event.text))  # fed also if nothing of it is shown
                if not self._is_midway:
                    self._has_spoken = True
                    yield from map(_shown, pieces)
                return
            case events.ThinkingDelta():
                self._begin(event)
                self._thought.append(event.text)
                return
        yield from self._end_thought()
        match event:
            case events.RunStart():
                self._begin(event)
                self._is_midway = self._is_cut = False
                self.waiting.pop(event.run_id or "", None)
            case events.Queued():
                self.waiting.setdefault(event.run_id or "", "")
                yield Line(f"queued: {len(self.waiting)}")
            case events.ToolStart():
                yield from self._end_words()
                self._begin(event)
                self._calls[event.tool_call_id] = event
            case events.ToolResult():
                yield self._result(event)
            case events.MessageStored():
                yield from self._stored(event)
            case events.MessageComplete():
                yield from self._end_words()
                # One that waited may have been answered by another program: all we hear is this.
                if text := self.waiting.get(event.run_id or ""):
                    yield from self._prompt(event.run_id or "", text)
                if event.content and self._said != event.seq:
                    yield Markdown(output.safe(event.content))
                self._said = event.seq
                yield Line(_ending(event))
                self._end(event)
            case events.Error():
                yield from self._end_words()
                yield self._failed(event)
                self._end(event)
            case _:
                yield from self._told(event)

    def tail(self, columns: int) -> list[Line]:
        """What is shown of that which has not ended: the last words, the calls under way."""
        lines: list[Line] = []
        text = output.safe(self._blocks.tail(columns * TAIL_LINES)).expandtabs(4)
        for line in text.split("\n") if text else ():
            lines += [Line(one, "") for one in _wrapped(line, columns)]
        lines = lines[-TAIL_LINES:]
        if self._thought:
            words = output.one_line("".join(self._thought[-200:]))[-columns:]
            lines.append(Line(output.shorten(f"✻ thinking … {words}", columns - 1)))
        for call in self._calls.values():
            lines.append(Line(self._call(call, " …")))
        if self.run:
            lasting = "under way"
            if self._since is not None:
                lasting = _seconds(int((time.monotonic() - self._since) * 1000), whole=True)
            line = f"… {lasting} · Ctrl+C stops it"
            lines.append(Line(output.shorten(line, columns - 1)))
        return lines

    def interrupted(self) -> Iterator[Shown]:
        """Whatever was under way is no more, and nobody tells its end."""
        yield from self._end_thought()
        yield from self._end_words()
        self.run = ""
        self._calls.clear()
        # Its message may be stored all the same, and is then told as a whole.
        self._is_cut |= self._has_spoken
        self._has_spoken = self._is_midway = False

    # --- the parts of a turn

    def _begin(self, event: RunEvent) -> None:
        self._enter(event.run_id or "")

    def _enter(self, run: str) -> None:
        if self.run != run:
            self.run = run
            self._since = time.monotonic()
            self._is_midway = False

    def _prompt(self, run: str, text: str) -> Iterator[Shown]:
        if not run or run not in self._shown:
            self._shown.append(run)
            yield Line(said(text), "bold")

    def _end(self, event: RunEvent) -> None:
        self.waiting.pop(event.run_id or "", None)
        self._ended.append(event.run_id or "")
        if self.run == event.run_id:
            self.run = ""
            self._calls.clear()

    def _end_words(self) -> Iterator[Shown]:
        if not self._is_midway:
            yield from map(_shown, self._blocks.finish())
        self._blocks = Blocks()

    def _end_thought(self) -> Iterator[Shown]:
        if self._thought:
            text = "".join(self._thought)
            self._thought = []
            if not self._is_midway:
                yield from self._fold_thought(text)

    def _fold_thought(self, thought: str) -> Iterator[Shown]:
        text = output.safe(thought).strip()
        if text:
            words = output.shorten(" ".join(text.split()), THOUGHT_WIDTH)
            line = output.shorten(f"✻ thought: {words}", self._columns() - 1)
            self.folded.append(Folded(self.run, line, text))
            yield Line(line, "dim italic")

    def _stored(self, event: events.MessageStored) -> Iterator[Shown]:
        message = event.message
        if message.role == "user":
            # What is read from the log, since another process stored it, is not told with its run.
            run = event.run_id or message.run_id or ""
            self.waiting.pop(run, None)  # whoever answers it has begun
            self._is_cut = False
            yield from self._prompt(run, message.text)
        elif message.role == "assistant":
            yield from self._end_words()
            if self._is_midway:
                thoughts = (one.thinking for one in message.content if isinstance(one, Thinking))
                yield from self._fold_thought("\n".join(thoughts))
            if message.text and not self._has_spoken and self._said != event.seq:
                if self._is_cut:
                    yield Line(AGAIN)
                yield Markdown(output.safe(message.text))
            if message.text:
                self._said = event.seq
            self._has_spoken = self._is_cut = False
        # What comes from the log has no run: a later message of the turn may be half told.
        if event.run_id == self.run:
            self._is_midway = False

    def _result(self, event: events.ToolResult) -> Line:
        call = self._calls.pop(event.tool_call_id, None)
        mark = "✗" if event.is_error else "✓"
        end = f" {mark} {_seconds(event.duration_ms)}"
        line = self._call(call or event, end)
        args = msgspec.json.format(msgspec.json.encode(call.args)).decode() if call else ""
        text = f"{output.safe(args)}\n{output.safe(event.result)}".strip()
        self.folded.append(Folded(self.run, line, text))
        return Line(line, "red" if event.is_error else "cyan")

    def _call(self, call: events.ToolStart | events.ToolResult, end: str) -> str:
        name = output.one_line(call.tool_name)
        given = brief(call.args) if isinstance(call, events.ToolStart) else ""
        room = self._columns() - 1 - output.columns(end)
        return output.shorten(f"⚙ {name} {given}".rstrip(), max(room, 8)) + end

    def _failed(self, event: events.Error) -> Line:
        if event.code == "RunCancelledError":
            withdrawn = event.run_id in self.waiting
            return Line("taken back" if withdrawn else "stopped; what was said is kept", "yellow")
        hint = f" ({event.hint})" if event.hint else ""
        return Line(f"✗ {output.one_line(event.message + hint)}", "red")

    def _told(self, event: RunEvent) -> Iterator[Shown]:
        """What is told beside a turn, in one line."""
        text = _news(event)
        if text:
            yield Line(output.one_line(text))


def said(text: str) -> str:
    """What a person said, as it stands behind the prompt."""
    first, *others = output.safe(text).split("\n")
    return "\n".join([f"› {first}", *(f"  {line}" for line in others)])


def brief(args: dict[str, Any]) -> str:
    """The arguments of a call in a few words."""
    if len(args) == 1:
        (value,) = args.values()
        if isinstance(value, str | int | float):
            return output.one_line(str(value))
    return output.one_line(msgspec.json.encode(args).decode()) if args else ""


def spent(usage: Usage) -> list[str]:
    """What a turn took, where it is known."""
    facts = []
    cached = usage.cache_read_tokens
    taken = usage.input_tokens + cached + usage.cache_write_tokens
    if taken or usage.output_tokens:
        again = f" ({cached:,} cached)" if cached else ""
        facts.append(f"{taken:,} tokens in{again}, {usage.output_tokens:,} out")
    if usage.cost:
        facts.append(f"${usage.cost:.4f}")
    return facts


def _shown(piece: Piece) -> Shown:
    text = output.safe(piece.text)
    return Plain(text) if piece.is_plain else Markdown(text)


def _ending(event: events.MessageComplete) -> str:
    facts = [_seconds(event.duration_ms), *spent(event.usage)]
    if event.tool_calls:
        facts.append(output.plural(event.tool_calls, "tool call"))
    if event.stop != "end":
        facts.append("stopped after the most steps that a turn may have")
    return f"✓ {' · '.join(facts)}"


def _news(event: RunEvent) -> str:
    match event:
        case events.Status():
            return f"· {event.message}"
        case events.SessionRenamed():
            return f"· the title is now: {event.name}"
        case events.SessionChanged(change="deleted"):
            return f"✗ the session was deleted ({ELSEWHERE})"
        case events.SessionChanged(change="rewound"):
            where = f"#{event.seqs[0]}" if any(event.seqs) else "the start"
            return f"· the session went back to {where}; the log keeps what came after"
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
            return f"· the context is {event.percent} % full: {used} (/compact makes room)"
        case events.MemoryExtracted():
            return f"· {event.facts} new facts were noted"
        case events.MemoryDreamed():
            return f"· the memory was put in order: {event.changes} files changed"
        case events.HookFailed():
            return f"· hook {event.hook} failed: {event.problem}"
    return ""


def _seconds(milliseconds: int, *, whole: bool = False) -> str:
    seconds = milliseconds / 1000
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds)} s" if whole else f"{seconds:.1f} s"


def _wrapped(line: str, columns: int) -> Iterator[str]:
    """A line in pieces that fit."""
    width = max(columns - 1, 8)
    while output.columns(line) > width:
        cut = width if line.isascii() else max(len(output.shorten(line, width)) - 1, 1)
        yield line[:cut]
        line = line[cut:]
    yield line
