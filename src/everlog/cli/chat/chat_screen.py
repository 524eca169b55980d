"""The terminal: lines that are typed come from it, and what is shown goes above the prompt.

Two kinds. `Screen` draws with prompt_toolkit: editing, history, completion, a part above the
input that changes while something is under way, and a bar below it. `Paper` is for a terminal that
cannot move its cursor (TERM=dumb): lines in, lines out.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.filters import Condition, has_completions, has_selection
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.styles import DEFAULT_ATTRS, Attrs, Style, StyleTransformation

from everlog.cli import output
from everlog.cli.chat.event_printer import Line, Markdown, Plain, Shown
from everlog.cli.chat.markdown_stream import LONGEST

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History

PROMPT = "› "
STYLES = {"": "", "dim": "fg:ansibrightblack", "bold": "bold", "cyan": "fg:ansicyan"}


class Watched(Protocol):
    """What a screen shows beside what was said, and what its keys do."""

    def above(self, columns: int) -> list[Line]:
        """Lines above the input, for now."""

    def below(self, columns: int) -> str:
        """The line below it."""

    def interrupt(self, is_empty: bool) -> bool:
        """Ctrl+C was pressed; whether what was typed is to stay."""

    def unfold(self) -> None:
        """Ctrl+O was pressed."""


class Terminal(Protocol):
    """Where the conversation takes place."""

    async def line(self, text: str = "") -> str:
        """What is typed next, `text` being there already; EOFError at the end."""

    async def ask(self, question: str) -> str:
        """A short answer; empty if there is none."""

    async def show(self, shown: Iterable[Shown]) -> None:
        """Put something on the screen for good."""

    def refresh(self) -> None:
        """What is above or below the input has changed."""

    def held(self) -> AbstractContextManager[None]:
        """Every key is for a prompt, if need be for the next one."""

    def released(self) -> AbstractContextManager[None]:
        """Ctrl+C is a signal meanwhile."""


class _Bare(StyleTransformation):
    """No colours; what is selected stays marked."""

    def transform_attrs(self, attrs: Attrs) -> Attrs:
        return DEFAULT_ATTRS._replace(reverse=attrs.reverse)

    def invalidation_hash(self) -> str:
        return "bare"


def drawn(shown: Iterable[Shown]) -> str:
    """What is shown as characters for the terminal, with its escape sequences."""
    from rich.text import Text

    from everlog.cli.terminal_markdown import Formatted

    console = output.console()
    made = []
    for one in shown:
        if isinstance(one, Plain):
            made.append(one.text)
            continue
        with console.capture() as captured:
            if isinstance(one, Markdown):
                console.print(Formatted(one.text))
                console.print()
            else:
                console.print(Text(one.text, one.style), soft_wrap=len(one.text) > LONGEST)
        made.append(captured.get())
    return "".join(made)


def columns() -> int:
    """How wide the terminal is."""
    return max(shutil.get_terminal_size().columns, 10)


class Screen:
    """A terminal that can be drawn on."""

    def __init__(self, watched: Watched, history: History, completer: Completer) -> None:
        self._watched = watched
        bare = bool(os.environ.get("NO_COLOR"))
        self._session: PromptSession[str] = PromptSession(
            self._message,
            multiline=True,
            wrap_lines=True,
            history=history,
            completer=completer,
            complete_while_typing=Condition(self._may_complete),
            reserve_space_for_menu=6,
            bottom_toolbar=self._bar,
            prompt_continuation="  ",
            key_bindings=self._keys(),
            style=Style.from_dict({"bottom-toolbar": "noreverse fg:ansibrightblack"}),
            include_default_pygments_style=False,
            style_transformation=_Bare() if bare else None,
            color_depth=ColorDepth.DEPTH_1_BIT if bare else None,
            enable_suspend=True,
            erase_when_done=True,
            refresh_interval=0.5,
        )
        self._session.app.ttimeoutlen = 0.05  # a lone Esc; Alt+Enter comes at once

    async def line(self, text: str = "") -> str:
        """What is typed next."""
        return await self._session.prompt_async(default=text)

    async def ask(self, question: str) -> str:
        """A short answer, which is not kept."""
        asking: PromptSession[str] = PromptSession(
            style_transformation=self._session.style_transformation,
            color_depth=self._session.color_depth,
        )
        try:
            return (await asking.prompt_async(f"{question} ")).strip()
        except (EOFError, KeyboardInterrupt):
            return ""

    async def show(self, shown: Iterable[Shown]) -> None:
        """Put something above the input."""
        text = drawn(shown)
        if not text:
            return
        text = text if text.endswith("\n") else f"{text}\n"
        app = get_app()
        # prompt_toolkit's own way to print hands the terminal back for a moment. Keys that are
        # pressed then are not seen as keys: a Ctrl+D would be lost.
        if app.is_running and app.output.responds_to_cpr:
            await app.renderer.wait_for_cpr_responses()  # they tell where the prompt is
        if app.is_running:
            app.renderer.erase()
        sys.stdout.write(text)
        sys.stdout.flush()
        if app.is_running:
            app.renderer.request_absolute_cursor_position()
            app.invalidate()

    def refresh(self) -> None:
        """Draw anew what changes."""
        self._session.app.invalidate()

    def held(self) -> AbstractContextManager[None]:
        """Take every key as it is."""
        return self._session.input.raw_mode()

    def released(self) -> AbstractContextManager[None]:
        """As the terminal was."""
        return self._session.input.cooked_mode()

    def _message(self) -> StyleAndTextTuples:
        made: StyleAndTextTuples = []
        for line in self._watched.above(columns()):
            made.append((STYLES.get(line.style, ""), f"{line.text}\n"))
        made.append(("bold", PROMPT))
        return made

    def _may_complete(self) -> bool:
        return self._session.default_buffer.text.startswith("/")

    def _bar(self) -> str:
        return self._watched.below(columns() - 1)

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
            if not self._watched.interrupt(not buffer.text):
                buffer.reset()

        @keys.add("c-o")
        def unfold(event: KeyPressEvent) -> None:
            self._watched.unfold()

        return keys


class Paper:
    """A terminal that only takes lines."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._rest = b""
        self._prompt = ""  # that stands at the end of the last line
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._read)
        loop.add_signal_handler(signal.SIGINT, watched.interrupt, True)

    async def line(self, text: str = "") -> str:
        """What is typed next; what could be edited elsewhere is shown, to be typed again."""
        if text:
            print(output.one_line(text))
        return await self._next("> ")

    async def ask(self, question: str) -> str:
        """A short answer."""
        try:
            return (await self._next(f"{question} ")).strip()
        except EOFError:
            return ""

    async def _next(self, prompt: str) -> str:
        self._prompt = prompt
        print(prompt, end="", flush=True)
        line = await self._lines.get()
        self._prompt = ""
        if line is None:
            raise EOFError
        return line

    async def show(self, shown: Iterable[Shown]) -> None:
        """Write it down, on lines of its own."""
        text = drawn(shown)
        if text:
            before = "\n" if self._prompt else ""
            after = "" if text.endswith("\n") else "\n"
            print(f"{before}{text}{after}{self._prompt}", end="", flush=True)

    def refresh(self) -> None:
        """What changes is not shown."""

    def held(self) -> AbstractContextManager[None]:
        """Nothing to do: keys are lines."""
        return nullcontext()

    def released(self) -> AbstractContextManager[None]:
        """Nothing to do: Ctrl+C always is one."""
        return nullcontext()

    def _read(self) -> None:
        data = os.read(sys.stdin.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line.decode("utf-8", "replace"))
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._lines.put_nowait(None)


def is_dumb() -> bool:
    """Whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "").lower() in ("", "dumb", "unknown")
