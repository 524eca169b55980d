"""The interactive chat: sends messages, runs slash commands, and shows events.

The prompt and the event consumer run concurrently. An error of one message or command is printed as
a line; the chat continues.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path

from everlog.aio import AsyncSession
from everlog.cli import output
from everlog.cli.chat import slash_parser
from everlog.cli.chat.backend import Backend, Disconnected, Reconnected, StreamItem, open_local_backend
from everlog.cli.chat.chat_screen import ChatScreen, LineTerminal, Terminal, is_dumb
from everlog.cli.chat.daemon_backend import find_daemon
from everlog.cli.chat.event_printer import JOINED_NOTICE, OTHER_SESSION_HINT, EventPrinter
from everlog.cli.chat.foreign_session import offer_lines
from everlog.cli.chat.input_history import JsonFileHistory
from everlog.cli.chat.session_choice import describe_session, model_of
from everlog.cli.message_lines import Line
from everlog.cli.sessions_context import window_of
from everlog.errors import ContextOverflowError, EverlogError, NotFoundError, UnconfirmedError
from everlog.ports import SessionAccess
from everlog.session import Session
from everlog.wire.events import (
    CompactEnd,
    Error,
    MessageComplete,
    MessageStored,
    RunEvent,
    SessionChanged,
    SessionRenamed,
)

EXIT_HINT = "to leave, press Ctrl+D or type /exit"
MAX_BATCH = 500  # events that are handled before the screen is redrawn


class Chat:
    """An interactive chat on one terminal."""

    def __init__(self, home: Path, location: str | None, backend: Backend, session: AsyncSession) -> None:
        self.home = home
        self.location = location
        self.backend = backend
        self.session = session
        self.access = SessionAccess()
        self.pair = ("", "")  # agent and sender, known even after the session was deleted
        self.printer = EventPrinter(output.terminal_width)
        self.is_over = False
        self.screen_lock = asyncio.Lock()  # held by the picker, and while items are printed
        self._event_lock = asyncio.Lock()  # held while events are handled or the session changes
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_disconnected = False
        self._status: tuple[str, str] = ("", "")  # session, context usage
        history = JsonFileHistory(home / "run" / "chat_history")
        completer = slash_parser.SlashCompleter(
            lambda: self.backend.store.sync, lambda: slash_parser.offered_commands(self.access)
        )
        self.terminal: Terminal = LineTerminal(self) if is_dumb() else ChatScreen(self, history, completer)

    # --- lifecycle

    async def run(self) -> None:
        """Run the chat until the user leaves."""
        with self.terminal.raw_mode():  # from the start: a key may be pressed at any time
            await self.enter(self.session)
            listener = asyncio.create_task(self._consume_events())
            try:
                await self._read_input(listener)
            finally:
                listener.cancel()
        await self.show([("dim", text) async for text in self._exit_notices()])

    async def _exit_notices(self) -> AsyncIterator[str]:
        """Yield what happens to the running turns."""
        if self.backend.survives_exit and self.printer.run:
            yield "the running turn continues in the daemon"
        for session_id in self.backend.sessions_stopped_on_exit():
            location = ""
            if session_id != self.session.id:
                metadata = await (await self.backend.store.session(session_id)).metadata()
                location = f"in “{output.shorten(output.one_line(metadata.display_title), 60)}” "
            yield f"the running turn {location}is stopped"

    async def _read_input(self, listener: asyncio.Task[None]) -> None:
        text = ""
        while not self.is_over:
            input_task = asyncio.create_task(self.terminal.read_line(text))
            await asyncio.wait({input_task, listener}, return_when=asyncio.FIRST_COMPLETED)
            if listener.done():
                input_task.cancel()
                await asyncio.wait({input_task})
                listener.result()
            try:
                text = await self._handle_input(await input_task)
            except EOFError:
                return

    async def enter(self, session: AsyncSession) -> None:
        """Switch to a session and describe it."""
        async with self._event_lock:  # its events wait until it is described
            run = await self.backend.follow(session.id)
            metadata = await session.metadata()
            self.session, self.printer = session, EventPrinter(output.terminal_width)
            self.access = await session.access()
            if run:
                self.printer.join_run(run)
            self.pair = (metadata.agent, metadata.sender)
            await self._refresh_status()
            lines = await self.backend.store.call(
                lambda: list(describe_session(session.sync, self.backend.description))
            )
            if session.id not in self.backend.continued:
                lines += offer_lines(self.access, metadata, model_of(self.backend.store.sync, metadata))
            if run:
                lines.append(("dim", JOINED_NOTICE))
            await self.show(lines)

    def leave(self) -> None:
        """End the chat."""
        self.is_over = True

    async def show(self, lines: Iterable[Line]) -> None:
        """Print lines, in the order of the calls."""
        async with self.screen_lock:
            await self.terminal.show(lines)

    # --- input

    async def _handle_input(self, text: str) -> str:
        """Handle a line; return the text to put into the input afterwards."""
        if not text.strip():
            return ""
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        is_command = text.startswith("/") and not text.startswith("//")
        try:
            if self._is_disconnected:
                await self._reconnect()
            if is_command:
                return await self._run_interruptible(slash_parser.run_command(self, text)) or ""
            return await self._submit(text[1:] if text.startswith("//") else text)
        except UnconfirmedError:
            metadata = await self.session.metadata()
            await self.show(offer_lines(self.access, metadata, model_of(self.backend.store.sync, metadata)))
            return "" if is_command else text
        except (EverlogError, OSError) as error:
            problem = str(error)
            if isinstance(error, NotFoundError) and not is_command:  # the session was deleted
                problem = f"{error.message} ({OTHER_SESSION_HINT})"
            await self.show([("red", f"✗ {output.one_line(problem)}")])
            return "" if is_command else text

    async def _submit(self, text: str) -> str:
        """Send a message. It is shown when stored; a queued one when its turn starts."""
        accepted = await self.backend.submit(self.session.id, text)
        if accepted.position:
            self.printer.on_queued(accepted.run_id, text)
        else:
            await self.show(list(self.printer.on_accepted(accepted.run_id, text)))
        return ""

    async def _reconnect(self) -> None:
        """Run turns in this process from now on, unless the daemon is back."""
        try:
            await find_daemon(self.home)
            return
        except NotFoundError:
            pass
        old_backend, self.backend = self.backend, open_local_backend(self.home, self.location)
        self.backend.events = old_backend.events  # the consumer keeps reading this queue
        self.backend.continued = old_backend.continued
        await old_backend.close()
        self._is_disconnected = False
        self.session = await self.backend.store.session(self.session.id)
        await self.backend.follow(self.session.id)
        await self.show([("yellow", "· no daemon is running: continuing in this process")])

    async def _run_interruptible(self, work: Awaitable[str]) -> str:
        """Run a command that Ctrl+C cancels; by a signal, as no prompt is there to read keys."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            with self.terminal.cooked_mode():
                await asyncio.wait({task})
        finally:
            if isinstance(self.terminal, LineTerminal):
                loop.add_signal_handler(signal.SIGINT, self.on_interrupt, True)
            else:
                loop.remove_signal_handler(signal.SIGINT)
        if task.cancelled():
            await self.show([("yellow", "cancelled")])
            return ""
        return task.result()

    # --- events

    async def _consume_events(self) -> None:
        while True:
            items = [await self.backend.events.get()]
            while len(items) < MAX_BATCH and not self.backend.events.empty():
                items.append(self.backend.events.get_nowait())
            async with self._event_lock:
                lines = [line for item in items for line in self._on_item(item)]
                if any(map(_changes_status, items)):
                    await self._refresh_status()
                if lines:
                    await self.show(lines)
            self.terminal.refresh()

    def _on_item(self, item: StreamItem) -> Iterable[Line]:
        if isinstance(item, RunEvent):
            return self.printer.on_event(item) if item.session_id == self.session.id else ()
        if isinstance(item, Disconnected):
            self._is_disconnected = True
            remainder = list(self.printer.on_disconnect())
            line = "lost the daemon; if it is not back, your next message is answered here"
            return [*remainder, ("red", f"✗ {line}")]
        self._is_disconnected = False
        if item.run:
            self.printer.join_run(item.run)
        return [("dim", "· the daemon is back")]

    async def _refresh_status(self) -> None:
        """Read the content of the status line."""
        try:
            self._status = await self.backend.store.call(_status_of, self.session.sync)
        except EverlogError as error:
            self._status = (output.one_line(error.message), "")

    # --- called by the terminal

    def status_line(self, columns: int) -> str:
        """Return session, agent, model, context usage and the number of queued messages."""
        label, usage = self._status
        queued = f"queued: {len(self.printer.waiting)}" if self.printer.waiting else ""
        connection = "daemon away" if self._is_disconnected else ""
        right = " · ".join(filter(None, (usage, queued, connection)))
        width = columns - output.display_width(right) - 3
        return f"{output.shorten(label, width)} · {right}" if width > 10 else right[:columns]

    def on_interrupt(self, is_empty: bool) -> bool:
        """Stop the turn (Ctrl+C), else show how to leave; return whether to keep the typed text."""
        if self.printer.run:
            self._start_task(self._cancel(self.printer.run))
            return True
        if is_empty:
            self._start_task(self.show([("dim", EXIT_HINT)]))
        return False

    def on_unfold(self) -> None:
        """Show the folded items of the last turn in full (Ctrl+O)."""
        self._start_task(self.show(slash_parser.unfold_lines(self, 0)))

    async def _cancel(self, run: str) -> None:
        try:
            await self.backend.cancel(self.session.id, run)
        except EverlogError as error:
            await self.show([("red", f"✗ {output.one_line(str(error))}")])

    def _start_task(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _changes_status(item: StreamItem) -> bool:
    """Return whether the status line may change; of a turn's events, only its end counts."""
    match item:
        case SessionChanged():
            return item.change != "deleted"  # the status before the deletion stays
        case MessageStored():
            return not item.run_id  # stored by another process
    return isinstance(item, MessageComplete | Error | SessionRenamed | CompactEnd | Reconnected)


def _status_of(session: Session) -> tuple[str, str]:
    """Return the content of the status line: session and context usage."""
    metadata = session.metadata
    model = model_of(session.store, metadata)
    window = window_of(session.store.settings, metadata.agent, model)
    try:
        context = session.context(window=window)
        usage = f"{context.tokens:,} of {context.window:,} tokens"
    except ContextOverflowError:
        usage = f"more than {window:,} tokens"
    parts = (metadata.display_title, metadata.agent, model)
    return " · ".join(map(output.one_line, parts)), usage
