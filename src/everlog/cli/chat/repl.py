"""The conversation: what is typed is said, or done if it is a slash command; events are shown.

Two things go on at once: the prompt, and the events of the session. Whatever goes wrong with one
message or one command is a line on the screen; the conversation goes on.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path

from everlog.aio import AsyncSession
from everlog.cli import output
from everlog.cli.chat import slash_parser
from everlog.cli.chat.backend import Away, Back, Partner, Told, open_local
from everlog.cli.chat.chat_screen import Paper, Screen, Terminal, columns, is_dumb
from everlog.cli.chat.daemon_backend import running
from everlog.cli.chat.event_printer import ELSEWHERE, JOINED, Line, Plain, Shown, Teller
from everlog.cli.chat.input_history import KeptHistory
from everlog.cli.chat.session_choice import introduce, model_of
from everlog.cli.chat.slash_completion import SlashCompleter
from everlog.cli.model_windows import window_of
from everlog.errors import ContextOverflowError, EverlogError, NotFoundError
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

GOODBYE = "Ctrl+D or /exit leaves"
CROWD = 500  # events that are taken in before something is drawn


class Chat:
    """One person at one terminal."""

    def __init__(self, root: Path, partner: Partner, session: AsyncSession) -> None:
        self.root = root
        self.partner = partner
        self.session = session
        self.pair = ("", "")  # agent and sender, known even when the session has gone
        self.teller = Teller(columns)
        self.is_over = False
        self.printing = asyncio.Lock()  # held by whoever has the whole screen
        self._hearing = asyncio.Lock()  # held while events are taken in, or the session changes
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_away = False
        self._bar: tuple[str, str] = ("", "")  # who, how full
        self.terminal: Terminal = Paper(self) if is_dumb() else self._screen()

    def _screen(self) -> Screen:
        history = KeptHistory(self.root / "run" / "chat_history")
        return Screen(self, history, SlashCompleter(lambda: self.partner.store.sync))

    # --- life

    async def run(self) -> None:
        """Talk until somebody leaves."""
        with self.terminal.held():  # from the first line on: a key may be pressed at any time
            await self.enter(self.session)
            listening = asyncio.create_task(self._listen())
            try:
                await self._talk(listening)
            finally:
                listening.cancel()
        await self.show([Line(text) async for text in self._left()])

    async def _left(self) -> AsyncIterator[str]:
        """What becomes of what is under way."""
        if self.partner.stays and self.teller.run:
            yield "the turn under way goes on in the daemon"
        for one in self.partner.ending():
            where = ""
            if one != self.session.id:
                metadata = await (await self.partner.store.session(one)).metadata()
                where = f"in “{output.shorten(output.one_line(metadata.title), 60)}” "
            yield f"the turn under way {where}is stopped"

    async def _talk(self, listening: asyncio.Task[None]) -> None:
        text = ""
        while not self.is_over:
            typing = asyncio.create_task(self.terminal.line(text))
            await asyncio.wait({typing, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                typing.cancel()
                await asyncio.wait({typing})
                listening.result()
            try:
                text = await self._act(await typing)
            except EOFError:
                return

    async def enter(self, session: AsyncSession) -> None:
        """Go on with a session, and say which it is."""
        async with self._hearing:  # what it tells from now on waits until it is introduced
            run = await self.partner.follow(session.id)
            metadata = await session.metadata()
            self.session, self.teller = session, Teller(columns)
            if run:
                self.teller.join(run)
            self.pair = (metadata.agent, metadata.sender)
            await self._look()
            lines = await self.partner.store.call(
                lambda: list(introduce(session.sync, self.partner.place))
            )
            if run:
                lines.append(Line(JOINED))
            await self.show(lines)

    def leave(self) -> None:
        """End the conversation."""
        self.is_over = True

    async def show(self, shown: Iterable[Shown]) -> None:
        """Put something on the screen, in the order of the calls."""
        async with self.printing:
            await self.terminal.show(shown)

    # --- what is typed

    async def _act(self, text: str) -> str:
        """Do what was typed; what is to be in the input afterwards."""
        if not text.strip():
            return ""
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        is_command = text.startswith("/") and not text.startswith("//")
        try:
            if self._is_away:
                await self._find_partner()
            if is_command:
                return await self._unless_interrupted(slash_parser.run(self, text)) or ""
            return await self._say(text[1:] if text.startswith("//") else text)
        except (EverlogError, OSError) as error:
            problem = str(error)
            if isinstance(error, NotFoundError) and not is_command:  # there is no session any more
                problem = f"{error.message} ({ELSEWHERE})"
            await self.show([Line(f"✗ {output.one_line(problem)}", "red")])
            return "" if is_command else text

    async def _say(self, text: str) -> str:
        """Say something; it is stored when it is shown. What waits is shown when its turn comes."""
        taken = await self.partner.submit(self.session.id, text)
        if taken.position:
            self.teller.queued(taken.run_id, text)
        else:
            await self.show(list(self.teller.taken(taken.run_id, text)))
        return ""

    async def _find_partner(self) -> None:
        """The daemon had gone: if it is not back, turns run in this process from now on."""
        try:
            await running(self.root)
            return
        except NotFoundError:
            pass
        gone, self.partner = self.partner, open_local(self.root, None)
        self.partner.events = gone.events  # whoever listens goes on listening
        await gone.close()
        self._is_away = False
        self.session = await self.partner.store.session(self.session.id)
        await self.partner.follow(self.session.id)
        await self.show([Line("· no daemon runs any more: going on in this process", "yellow")])

    async def _unless_interrupted(self, work: Awaitable[str]) -> str:
        """Wait for a command; Ctrl+C gives it up. No prompt is there to see the key."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            with self.terminal.released():
                await asyncio.wait({task})
        finally:
            if isinstance(self.terminal, Paper):
                loop.add_signal_handler(signal.SIGINT, self.interrupt, True)
            else:
                loop.remove_signal_handler(signal.SIGINT)
        if task.cancelled():
            await self.show([Line("given up", "yellow")])
            return ""
        return task.result()

    # --- what happens

    async def _listen(self) -> None:
        while True:
            told = [await self.partner.events.get()]
            while len(told) < CROWD and not self.partner.events.empty():
                told.append(self.partner.events.get_nowait())
            async with self._hearing:
                shown = [piece for one in told for piece in self._hear(one)]
                if any(map(_is_on_bar, told)):
                    await self._look()
                if shown:
                    await self.show(_joined(shown))
            self.terminal.refresh()

    def _hear(self, told: Told) -> Iterable[Shown]:
        if isinstance(told, RunEvent):
            return self.teller.hear(told) if told.session_id == self.session.id else ()
        if isinstance(told, Away):
            self._is_away = True
            interrupted = list(self.teller.interrupted())
            line = "the daemon has gone; the next message is answered here, if it is not back"
            return [*interrupted, Line(f"✗ {line}", "red")]
        self._is_away = False
        if told.run:
            self.teller.join(told.run)
        return [Line("· the daemon is back")]

    async def _look(self) -> None:
        """Find out what the bar tells."""
        try:
            self._bar = await self.partner.store.call(_facts, self.session.sync)
        except EverlogError as error:
            self._bar = (output.one_line(error.message), "")

    # --- for the screen

    def above(self, columns: int) -> list[Line]:
        """What is under way."""
        return self.teller.tail(columns)

    def below(self, columns: int) -> str:
        """Session, agent, model, how full the window is, how many messages wait."""
        who, full = self._bar
        waiting = f"queued: {len(self.teller.waiting)}" if self.teller.waiting else ""
        right = " · ".join(filter(None, (full, waiting, "daemon away" if self._is_away else "")))
        room = columns - output.columns(right) - 3
        return f"{output.shorten(who, room)} · {right}" if room > 10 else right[:columns]

    def interrupt(self, is_empty: bool) -> bool:
        """Ctrl+C: stop the turn; else give up what was typed; else say how to leave."""
        if self.teller.run:
            self._start(self._cancel(self.teller.run))
            return True
        if is_empty:
            self._start(self.show([Line(GOODBYE)]))
        return False

    def unfold(self) -> None:
        """Ctrl+O: show in full what was folded in the last turn."""
        self._start(self.show(slash_parser.unfolded(self, 0)))

    async def _cancel(self, run: str) -> None:
        try:
            await self.partner.cancel(self.session.id, run)
        except EverlogError as error:
            await self.show([Line(f"✗ {output.one_line(str(error))}", "red")])

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_on_bar(told: Told) -> bool:
    """Whether the bar may have to tell something else: once for a turn, at its end, however."""
    match told:
        case SessionChanged():
            return told.change != "deleted"  # the last facts stay; there are no others
        case MessageStored():
            return not told.run_id  # somebody else's
    return isinstance(told, MessageComplete | Error | SessionRenamed | CompactEnd | Back)


def _facts(session: Session) -> tuple[str, str]:
    """What the bar tells of a session."""
    metadata = session.metadata
    model = model_of(session.store, metadata)
    window = window_of(session.store.settings, metadata.agent, model)
    try:
        context = session.context(window=window)
        full = f"{context.tokens:,} of {context.window:,} tokens"
    except ContextOverflowError:
        full = f"more than {window:,} tokens"
    who = (metadata.title, metadata.agent, model)
    return " · ".join(map(output.one_line, who)), full


def _joined(shown: list[Shown]) -> list[Shown]:
    """The same with words that go on put together."""
    made: list[Shown] = []
    for one in shown:
        if isinstance(one, Plain) and made and isinstance(made[-1], Plain):
            made[-1] = Plain(made[-1].text + one.text)
        else:
            made.append(one)
    return made
