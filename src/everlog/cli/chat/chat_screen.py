"""The chat's terminal: reads input lines, and prints output above the prompt.

There are two kinds. `ChatScreen` uses prompt_toolkit: editing, history, completion, lines above the
input that change while a turn runs, and a status line below it. `LineTerminal` is for a terminal
that cannot move its cursor (TERM=dumb): it reads and prints plain lines.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition, has_completions, has_selection
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.styles import DEFAULT_ATTRS, Attrs, Style, StyleTransformation

from everlog.cli import output
from everlog.cli.chat.event_printer import PLAIN
from everlog.cli.chat.markdown_stream import MAX_BLOCK_CHARS
from everlog.cli.message_lines import MARKDOWN, Line, prompt_style

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

    from everlog.cli.chat.repl import Chat

PROMPT = "› "


class _NoColor(StyleTransformation):
    """A style without colours; the selection stays visible."""

    def transform_attrs(self, attrs: Attrs) -> Attrs:
        return DEFAULT_ATTRS._replace(reverse=attrs.reverse)

    def invalidation_hash(self) -> str:
        return "bare"


def render(lines: Iterable[Line]) -> str:
    """Render lines as text with escape sequences."""
    from rich.text import Text

    from everlog.cli.terminal_markdown import RenderedMarkdown

    console = output.console()
    chunks = []
    for style, text in lines:
        if style == PLAIN:
            chunks.append(text)
            continue
        with console.capture() as captured:
            if style == MARKDOWN:
                console.print(RenderedMarkdown(text))
                console.print()
            else:
                console.print(Text(text, style), soft_wrap=len(text) > MAX_BLOCK_CHARS)
        chunks.append(captured.get())
    return "".join(chunks)


class ChatScreen:
    """A terminal with cursor control, drawn by prompt_toolkit."""

    def __init__(self, chat: Chat, history: History, completer: Completer) -> None:
        self._chat = chat
        bare = bool(os.environ.get("NO_COLOR"))
        self._session: PromptSession[str] = PromptSession(
            self._prompt_text,
            multiline=True,
            wrap_lines=True,
            history=history,
            completer=completer,
            complete_while_typing=Condition(self._may_complete),
            reserve_space_for_menu=6,
            bottom_toolbar=self._toolbar,
            prompt_continuation="  ",
            key_bindings=self._keys(),
            style=Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack"}),
            include_default_pygments_style=False,
            style_transformation=_NoColor() if bare else None,
            color_depth=ColorDepth.DEPTH_1_BIT if bare else None,
            enable_suspend=True,
            erase_when_done=True,
            refresh_interval=0.5,
        )
        self._session.app.ttimeoutlen = 0.05  # seconds until Esc counts as a key, not as Alt+…

    async def read_line(self, text: str = "") -> str:
        """Read a line, with `text` as its initial content; EOFError at the end."""
        return await self._session.prompt_async(default=text)

    async def ask(self, question: str) -> str:
        """Ask for a short answer, which does not go into the history; empty if there is none."""
        question_session: PromptSession[str] = PromptSession(
            style_transformation=self._session.style_transformation, color_depth=self._session.color_depth
        )
        try:
            return (await question_session.prompt_async(f"{question} ")).strip()
        except (EOFError, KeyboardInterrupt):
            return ""

    async def show(self, lines: Iterable[Line]) -> None:
        """Print lines above the input, permanently."""
        text = render(lines)
        if not text:
            return
        text = text if text.endswith("\n") else f"{text}\n"
        app = get_app()
        # prompt_toolkit's run_in_terminal() leaves raw mode for a moment; a Ctrl+D pressed then
        # would be lost.
        if app.is_running and app.output.responds_to_cpr:
            await app.renderer.wait_for_cpr_responses()  # they report the prompt's position
        if app.is_running:
            app.renderer.erase()
        sys.stdout.write(text)
        sys.stdout.flush()
        if app.is_running:
            app.renderer.request_absolute_cursor_position()
            app.invalidate()

    def refresh(self) -> None:
        """Redraw the lines above and below the input."""
        self._session.app.invalidate()

    def raw_mode(self) -> AbstractContextManager[None]:
        """Deliver every key to a prompt, even if the prompt comes later."""
        return self._session.input.raw_mode()

    def cooked_mode(self) -> AbstractContextManager[None]:
        """Make Ctrl+C a signal inside the context."""
        return self._session.input.cooked_mode()

    def _prompt_text(self) -> StyleAndTextTuples:
        fragments: StyleAndTextTuples = []
        for style, text in self._chat.printer.tail(output.terminal_width()):
            fragments.append((prompt_style(style), f"{text}\n"))
        fragments.append(("bold", PROMPT))
        return fragments

    def _may_complete(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    def _toolbar(self) -> str:
        return self._chat.status_line(output.terminal_width() - 1)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter", filter=~has_selection)
        def accept(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        def break_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("tab", filter=~has_completions)
        def complete(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.text.startswith("/"):
                buffer.start_completion(insert_common_part=True)
            else:
                buffer.insert_text("    ")

        @keys.add("c-c")
        @keys.add("<sigint>")
        def interrupt(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if not self._chat.on_interrupt(not buffer.text):
                buffer.reset()

        @keys.add("c-o")
        def unfold(event: KeyPressEvent) -> None:
            self._chat.on_unfold()

        return keys


class LineTerminal:
    """A terminal without cursor control."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._remainder = b""
        self._prompt = ""  # printed at the end of the last line
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._read)
        loop.add_signal_handler(signal.SIGINT, chat.on_interrupt, True)

    async def read_line(self, text: str = "") -> str:
        """Read a line; `text` cannot be edited here and is only printed, to be typed again."""
        if text:
            print(output.one_line(text))
        return await self._prompt_line("> ")

    async def ask(self, question: str) -> str:
        """Ask for a short answer."""
        try:
            return (await self._prompt_line(f"{question} ")).strip()
        except EOFError:
            return ""

    async def _prompt_line(self, prompt: str) -> str:
        self._prompt = prompt
        print(prompt, end="", flush=True)
        line = await self._lines.get()
        self._prompt = ""
        if line is None:
            raise EOFError
        return line

    async def show(self, lines: Iterable[Line]) -> None:
        """Print lines between those of the input."""
        text = render(lines)
        if text:
            before = "\n" if self._prompt else ""
            after = "" if text.endswith("\n") else "\n"
            print(f"{before}{text}{after}{self._prompt}", end="", flush=True)

    def refresh(self) -> None:
        """Do nothing: this terminal shows no changing lines."""

    def raw_mode(self) -> AbstractContextManager[None]:
        """Do nothing: this terminal reads lines, not keys."""
        return nullcontext()

    def cooked_mode(self) -> AbstractContextManager[None]:
        """Do nothing: Ctrl+C is always a signal here."""
        return nullcontext()

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self._remainder = (self._remainder + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line.decode("utf-8", "replace"))
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._lines.put_nowait(None)


Terminal = ChatScreen | LineTerminal


def is_dumb() -> bool:
    """Return whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
